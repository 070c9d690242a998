#!/usr/bin/env bash
# Runs each fuzzer of a build folder for some time, from the kept inputs. What is new is collected in BUILD/corpus, what
# crashes, leaks or hangs in BUILD/findings; the exit code is 1 when there is any.
#   scripts/fuzz.sh BUILD_FOLDER SECONDS
#   scripts/fuzz.sh BUILD_FOLDER keep       adds to tests/fuzz/corpus what covers more than the inputs that are there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:?usage: scripts/fuzz.sh BUILD_FOLDER SECONDS|keep}
seconds=${2:?usage: scripts/fuzz.sh BUILD_FOLDER SECONDS|keep}
[[ $seconds =~ ^[1-9][0-9]*$ || $seconds == keep ]] || { echo "fuzz: '$seconds': give whole seconds, or keep" >&2; exit 2; }
mkdir -p "$build/findings"
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
failed=0
for kept in tests/fuzz/corpus/*/; do
    target=$(basename "$kept")
    fuzzer=$build/tests/fuzz/fuzz_$target
    found=$build/corpus/$target
    mkdir -p "$found"
    if [[ $seconds == keep ]]; then
        "$fuzzer" -merge=1 "$kept" "$found"
    else
        "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
            -artifact_prefix="$build/findings/$target-" "$found" "$kept" || failed=1
    fi
done
if ((failed)); then
    echo "fuzz: there are findings in $build/findings; give one to its fuzzer as an argument to see it again" >&2
fi
exit "$failed"
