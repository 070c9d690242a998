# UCX::ucp: from UCX_ROOT (CMake or environment variable, of this run of CMake) when given, else from third_party/ucx, where
# scripts/install_ucx.sh unpacks the pinned wheel, else (from an install of Sluice) where Sluice was built against it.
# Never from the system's paths: what distributions package is too old, and Open MPI pulls it in.
# Refuses an older version by path and number.
set(_ucx_hints "${UCX_ROOT}" "$ENV{UCX_ROOT}")
list(REMOVE_ITEM _ucx_hints "")
if(NOT _ucx_hints)
  set(_ucx_hints ${SLUICE_UCX_DEFAULT_ROOT})
endif()
# find_path and find_library do not look again for what an earlier run of CMake has found elsewhere.
if(DEFINED UCX_LOOKED_IN AND NOT "${UCX_LOOKED_IN}" STREQUAL "${_ucx_hints}")
  unset(UCX_INCLUDE_DIR CACHE)
  unset(UCX_ucp_LIBRARY CACHE)
  unset(UCX_ucs_LIBRARY CACHE)
endif()
set(UCX_LOOKED_IN "${_ucx_hints}" CACHE INTERNAL "Where UCX was looked for")
find_path(UCX_INCLUDE_DIR ucp/api/ucp.h HINTS ${_ucx_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(UCX_ucp_LIBRARY ucp HINTS ${_ucx_hints} PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu NO_DEFAULT_PATH)
find_library(UCX_ucs_LIBRARY ucs HINTS ${_ucx_hints} PATH_SUFFIXES lib lib64 lib/x86_64-linux-gnu NO_DEFAULT_PATH)
mark_as_advanced(UCX_INCLUDE_DIR UCX_ucp_LIBRARY UCX_ucs_LIBRARY)
unset(UCX_VERSION)
if(UCX_INCLUDE_DIR)
  file(STRINGS "${UCX_INCLUDE_DIR}/ucp/api/ucp_version.h" _ucx_version REGEX "#define UCP_API_(MAJOR|MINOR) ")
  string(REGEX MATCHALL "[0-9]+" _ucx_version "${_ucx_version}")
  string(REPLACE ";" "." UCX_VERSION "${_ucx_version}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(UCX REQUIRED_VARS UCX_ucp_LIBRARY UCX_ucs_LIBRARY UCX_INCLUDE_DIR VERSION_VAR UCX_VERSION
  REASON_FAILURE_MESSAGE
    "UCX found: '${UCX_VERSION}' in '${UCX_INCLUDE_DIR}', looked in [${_ucx_hints}]. Run scripts/install_ucx.sh, or set UCX_ROOT to an install of UCX >= 1.22")
if(UCX_FOUND AND NOT TARGET UCX::ucp)
  foreach(lib ucs ucp)
    add_library(UCX::${lib} SHARED IMPORTED)
    set_target_properties(UCX::${lib} PROPERTIES IMPORTED_LOCATION "${UCX_${lib}_LIBRARY}"
                          INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${UCX_INCLUDE_DIR}"
                          INTERFACE_INCLUDE_DIRECTORIES "${UCX_INCLUDE_DIR}")
  endforeach()
  set_property(TARGET UCX::ucp APPEND PROPERTY INTERFACE_LINK_LIBRARIES UCX::ucs)
endif()
