# Options and compile flags shared by all targets.
option(SLUICE_BUILD_TESTS "Build the tests" ON)
option(SLUICE_BUILD_BENCH "Build the bench programs" ON)
option(SLUICE_RDMA_TESTS "Build the tests over verbs lanes, which run in the guest of tests/rdma/run.sh" OFF)
option(SLUICE_WERROR "Treat warnings as errors" OFF)
set(SLUICE_SANITIZE "" CACHE STRING "Sanitizers for all targets: address,undefined or thread")
option(SLUICE_FUZZ "Build the fuzzers of tests/fuzz with libFuzzer (clang only)" OFF)
set(SLUICE_CUDA AUTO CACHE STRING "Compile against the CUDA toolkit: AUTO (when there is one), ON or OFF")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT SLUICE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "SLUICE_CUDA is '${SLUICE_CUDA}': use AUTO, ON or OFF")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

find_program(SLUICE_CCACHE ccache)
mark_as_advanced(SLUICE_CCACHE)
if(SLUICE_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness that ccache asks for where headers are precompiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${SLUICE_CCACHE}")
endif()

add_library(sluice_warnings INTERFACE)
target_compile_options(sluice_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wshadow>
                       $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
                       $<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<BOOL:${SLUICE_WERROR}>>:-Werror>
                       $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
                       $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${SLUICE_WERROR}>>:-Werror=all-warnings>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Guesses of g++'s optimiser, which change with its version and level. Those about Boost's small_vector are wrong.
  target_compile_options(sluice_warnings INTERFACE
                         $<$<COMPILE_LANGUAGE:C,CXX>:-Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow
                         -Wno-stringop-overread -Wno-restrict>)
endif()

# lazy: a program that meets an older libucp must live until it has compared versions (see transport/).
# new-dtags: the run path to our libucp yields to LD_LIBRARY_PATH.
add_link_options(-Wl,-z,lazy -Wl,--enable-new-dtags)
find_program(SLUICE_MOLD mold)
mark_as_advanced(SLUICE_MOLD)
if(SLUICE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

set(SLUICE_PROGRAM_SOURCES)  # added to every program
if(SLUICE_SANITIZE MATCHES "address")
  set(SLUICE_PROGRAM_SOURCES ${PROJECT_SOURCE_DIR}/scripts/sanitizers/keep_loaded.c)
endif()
if(SLUICE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${SLUICE_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
  if(SLUICE_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wno-tsan>)  # libraries' atomic_thread_fence, which g++ does not model
  endif()
endif()

if(SLUICE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SLUICE_FUZZ needs clang, the compiler is ${CMAKE_CXX_COMPILER}: use the preset fuzz")
  endif()
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=fuzzer-no-link>)
endif()

# sluice_add_library(NAME EXPORT_NAME SOURCES...): a static library with the project's include convention, installed and
# exported as Sluice::EXPORT_NAME.
function(sluice_add_library name export_name)
  add_library(${name} STATIC ${ARGN})
  add_library(Sluice::${export_name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${export_name})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/sluice>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:sluice_warnings>)
  set_property(GLOBAL APPEND PROPERTY SLUICE_LIBRARIES ${name})
endfunction()

# sluice_precompile(TARGET): what nearly every source includes and takes most of its compile time to read. A source must
# still include what it uses: the header check compiles without it.
function(sluice_precompile name)
  target_precompile_headers(${name} PRIVATE <algorithm> <boost/container/small_vector.hpp> <cstdint> <fmt/format.h> <functional>
                            <map> <memory> <nlohmann/json.hpp> <optional> <span> <string> <variant> <vector>)
endfunction()
