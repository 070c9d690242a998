# For the scripts of sluice_project_test: an empty WORK_DIR, and run() with expectations.
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})

# run(OUTPUT_VARIABLE COMMAND...): fails the test when the command fails.
function(run output)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit ${code} from: ${command}\n${text}")
  endif()
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

# run_and_fail(OUTPUT_VARIABLE COMMAND...): fails the test when the command succeeds.
function(run_and_fail output)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "succeeded and should not have: ${command}\n${text}")
  endif()
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

# expect(TEXT PATTERN): fails the test when TEXT has no match of PATTERN.
function(expect text pattern)
  if(NOT text MATCHES "${pattern}")
    message(FATAL_ERROR "expected '${pattern}' in:\n${text}")
  endif()
endfunction()
