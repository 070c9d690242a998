# FindUCX refuses an older UCX with its path and version, names what it looked for where there is none, and prefers UCX_ROOT,
# also in a build folder that was configured with another one.
include(${CMAKE_CURRENT_LIST_DIR}/script_support.cmake)
file(WRITE ${WORK_DIR}/CMakeLists.txt "
cmake_minimum_required(VERSION 3.25)
project(UcxGate LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH ${SOURCE_DIR}/cmake)
set(SLUICE_UCX_DEFAULT_ROOT ${WORK_DIR}/ucx-1.22)
find_package(UCX 1.22 REQUIRED)
message(STATUS \"uses \${UCX_INCLUDE_DIR} \${UCX_VERSION}\")
")
function(make_ucx root minor)
  file(WRITE ${root}/include/ucp/api/ucp.h "")
  file(WRITE ${root}/include/ucp/api/ucp_version.h
       "#define UCP_VERSION_MAJOR_SHIFT    24\n#define UCP_API_MAJOR    1\n#define UCP_API_MINOR    ${minor}\n")
  file(WRITE ${root}/lib/libucp.so "")
  file(WRITE ${root}/lib/libucs.so "")
endfunction()
make_ucx(${WORK_DIR}/ucx-1.13 13)
make_ucx(${WORK_DIR}/ucx-1.22 22)
make_ucx(${WORK_DIR}/ucx-1.23 23)
set(configure ${CMAKE_COMMAND} -S ${WORK_DIR} -G ${GENERATOR})
set(ENV{UCX_ROOT})

run_and_fail(output ${configure} -B ${WORK_DIR}/old -DUCX_ROOT=${WORK_DIR}/ucx-1.13)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
expect("${output}" "\"1\\.13\"")
expect("${output}" "ucx-1\\.13/include")
expect("${output}" "UCX_ROOT to an install of UCX >= 1\\.22")

run_and_fail(output ${configure} -B ${WORK_DIR}/none -DUCX_ROOT=${WORK_DIR}/nowhere)
expect("${output}" "nowhere")

run(output ${configure} -B ${WORK_DIR}/default)
expect("${output}" "uses ${WORK_DIR}/ucx-1\\.22/include 1\\.22")

run(output ${CMAKE_COMMAND} -E env UCX_ROOT=${WORK_DIR}/ucx-1.23 ${configure} -B ${WORK_DIR}/environment)
expect("${output}" "uses ${WORK_DIR}/ucx-1\\.23/include 1\\.23")

run(output ${CMAKE_COMMAND} -E env UCX_ROOT=${WORK_DIR}/ucx-1.13 ${configure} -B ${WORK_DIR}/variable -DUCX_ROOT=${WORK_DIR}/ucx-1.23)
expect("${output}" "uses ${WORK_DIR}/ucx-1\\.23/include 1\\.23")

# One build folder, again and again: the default, one that is refused, another one, the default again.
run(output ${configure} -B ${WORK_DIR}/again)
expect("${output}" "uses ${WORK_DIR}/ucx-1\\.22/include 1\\.22")
run_and_fail(output ${CMAKE_COMMAND} -E env UCX_ROOT=${WORK_DIR}/ucx-1.13 ${configure} -B ${WORK_DIR}/again)
expect("${output}" "ucx-1\\.13/include")
run(output ${CMAKE_COMMAND} -E env UCX_ROOT=${WORK_DIR}/ucx-1.23 ${configure} -B ${WORK_DIR}/again)
expect("${output}" "uses ${WORK_DIR}/ucx-1\\.23/include 1\\.23")
run(output ${configure} -B ${WORK_DIR}/again)
expect("${output}" "uses ${WORK_DIR}/ucx-1\\.22/include 1\\.22")
