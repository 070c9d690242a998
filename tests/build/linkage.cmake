# How PROGRAM is linked: it loads our libucp by its run path, binds lazily, needs no driver to start, and so lives long
# enough to refuse an older libucp by path and version.
include(${CMAKE_CURRENT_LIST_DIR}/script_support.cmake)
get_filename_component(ucx_dir "${UCX_LIBRARY}" DIRECTORY)

run(dynamic readelf -d ${PROGRAM})
expect("${dynamic}" "RUNPATH[^\n]*${ucx_dir}")
expect("${dynamic}" "NEEDED[^\n]*libucp\\.so\\.0")
foreach(unwanted "BIND_NOW" "Flags:[^\n]* NOW" "NEEDED[^\n]*libcuda" "NEEDED[^\n]*libnccl")
  if(dynamic MATCHES "${unwanted}")
    message(FATAL_ERROR "'${unwanted}' must not be in:\n${dynamic}")
  endif()
endforeach()

# By which memory is registered with verbs devices for reading only (transport/ucx/read_only_registration.h).
run(exported readelf --dyn-syms --wide ${PROGRAM})
foreach(function ibv_reg_mr_iova2 ibv_reg_dmabuf_mr)
  expect("${exported}" "GLOBAL +DEFAULT +[0-9]+ ${function}")
endforeach()

set(ENV{LD_LIBRARY_PATH})
run(libraries ldd ${PROGRAM})
expect("${libraries}" "libucp\\.so\\.0 => ${ucx_dir}/libucp\\.so\\.0")

# Stands for Debian's UCX: same sonames, an older version, none of the functions since.
file(WRITE ${WORK_DIR}/ucp.c "
void ucp_get_version(unsigned* major, unsigned* minor, unsigned* patch) { *major = 1; *minor = 13; *patch = 1; }
const char* ucp_get_version_string(void) { return \"1.13.1\"; }
")
file(WRITE ${WORK_DIR}/ucs.c "int sluice_test_empty_ucs;\n")
foreach(library ucp ucs)
  run(ignored ${C_COMPILER} -shared -fPIC -o ${WORK_DIR}/lib${library}.so.0 -Wl,-soname,lib${library}.so.0 ${WORK_DIR}/${library}.c)
endforeach()
execute_process(COMMAND ${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${WORK_DIR} ${PROGRAM} info
                RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT code EQUAL 2)
  message(FATAL_ERROR "exit ${code}, must be 2, with an older libucp:\n${output}")
endif()
expect("${output}" "1\\.13\\.1")
expect("${output}" "${WORK_DIR}/libucp\\.so\\.0")
