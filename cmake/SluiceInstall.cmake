# Installs and exports whatever libraries sluice_add_library() has made, the program, the headers of all layers and the
# CMake package. Included last.
include(CMakePackageConfigHelpers)
get_property(_libraries GLOBAL PROPERTY SLUICE_LIBRARIES)

# What an embedder names to get the whole runtime, whatever it is cut into.
add_library(sluice_runtime INTERFACE)
add_library(Sluice::runtime ALIAS sluice_runtime)
set_target_properties(sluice_runtime PROPERTIES EXPORT_NAME runtime)
foreach(part base services planner transport exchange)
  if(TARGET sluice_${part})
    target_link_libraries(sluice_runtime INTERFACE sluice_${part})
  endif()
endforeach()

set(SLUICE_PACKAGE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/Sluice")
install(TARGETS ${_libraries} sluice_runtime EXPORT SluiceTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT SluiceTargets NAMESPACE Sluice:: DESTINATION ${SLUICE_PACKAGE_DIR})
foreach(layer runtime planner transport trainer worker)
  install(DIRECTORY ${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice FILES_MATCHING PATTERN "*.h")
endforeach()
if(TARGET sluice)
  get_filename_component(_ucx_lib_dir "${UCX_ucp_LIBRARY}" DIRECTORY)
  set_target_properties(sluice PROPERTIES INSTALL_RPATH "${_ucx_lib_dir}")
  install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

get_filename_component(SLUICE_UCX_BUILT_AGAINST "${UCX_INCLUDE_DIR}" DIRECTORY)
configure_package_config_file(cmake/SluiceConfig.cmake.in ${PROJECT_BINARY_DIR}/SluiceConfig.cmake
                              INSTALL_DESTINATION ${SLUICE_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/SluiceConfig.cmake ${PROJECT_BINARY_DIR}/SluiceConfigVersion.cmake
              cmake/FindUCX.cmake cmake/FindxxHash.cmake DESTINATION ${SLUICE_PACKAGE_DIR})
