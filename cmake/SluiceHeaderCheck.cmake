# sluice_check_headers(TARGET ROOT HEADERS...): an object library that compiles each header (a path relative to ROOT) alone,
# included twice: one that leans on what others include before it, or lacks its guard, does not build.
function(sluice_check_headers target root)
  set(sources)
  foreach(header IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER "${header}" name)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${target}/${name}.cc")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
    list(APPEND sources "${source}")
  endforeach()
  add_library(${target} OBJECT ${sources})
  target_include_directories(${target} PRIVATE "${root}")
  target_compile_options(${target} PRIVATE -O0 -g0)
endfunction()
