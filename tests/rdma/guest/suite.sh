#!/bin/bash
# The tests over verbs lanes, as ctest reports them, and below that what they measured. Ends with ctest's exit code.
tests=/build/release/tests/rdma
CLICOLOR=0 ctest --test-dir "$tests" --output-on-failure --no-tests=error -j2 "$@"
code=$?
grep -ho 'measured: .*' "$tests/Testing/Temporary/LastTest.log"
exit $code
