#!/usr/bin/env bash
# Runs clang-tidy 19 over the project's sources in a build folder's compile_commands.json; generated code is left out.
# The folder must have been built: sources include generated headers.
#   scripts/tidy.sh BUILD_FOLDER [PATH_PREFIX ...]     PATH_PREFIX: planner/, runtime/base/ ... (default: all)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:?usage: scripts/tidy.sh BUILD_FOLDER [PATH_PREFIX ...]}
shift
[[ -r $build/compile_commands.json ]] || {
    echo "tidy: $build/compile_commands.json is missing: build that folder first (make build)" >&2
    exit 2
}
python3 - "$build" "$PWD" "$@" <<'PYTHON' | xargs -0 --no-run-if-empty -n 1 -P 2 clang-tidy-19 -p "$build" --quiet --warnings-as-errors='*'
import json
import os
import sys

build, root, prefixes = sys.argv[1], sys.argv[2], tuple(sys.argv[3:])
build_root = os.path.realpath(build) + os.sep
files = set()
for entry in json.load(open(os.path.join(build, "compile_commands.json"))):
    path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    name = os.path.relpath(path, root)
    if not path.startswith(os.path.join(root, "build") + os.sep) and not name.startswith(".."):
        if not path.startswith(build_root) and (not prefixes or name.startswith(prefixes)):
            files.add(path)
sys.stdout.write("".join(f"{path}\0" for path in sorted(files)))
PYTHON
