#!/usr/bin/env bash
# Formats all C++ sources with clang-format 19; --check only says which files differ.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
case ${1:-} in
    '') ;;
    --check) mode=(--dry-run --Werror) ;;
    *) echo "format: unknown option '$1', use --check or nothing" >&2; exit 2 ;;
esac
git ls-files -z --cached --others --exclude-standard '*.h' '*.cc' '*.cu' |
    xargs -0 --no-run-if-empty -n 40 -P 2 clang-format-19 "${mode[@]}"
