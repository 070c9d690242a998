#!/usr/bin/env bash
# Puts the pinned UCX into third_party/ucx (its headers and libraries are then in third_party/ucx/libucx).
# Does nothing when UCX_ROOT names an install of the user's, or when the pinned one is there already.
#   scripts/install_ucx.sh [DIR]      DIR: where to put it instead
set -euo pipefail

requirement=libucx-cu13==1.22.0
sha256=c6e0aaa82dc6e49dc3ddaac465b530e014f48b6c1c6b5ae74fbdd199d824351b
stamp="$requirement sha256:$sha256"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${1:-$root/third_party/ucx}

[[ -n ${UCX_ROOT:-} ]] && exit 0
[[ -r $target/.stamp && $(<"$target/.stamp") == "$stamp" ]] && exit 0
if [[ $(uname -m) != x86_64 ]]; then
    echo "install_ucx: the pinned wheel is for x86_64, this is $(uname -m): set UCX_ROOT to an install of UCX >= 1.22" >&2
    exit 1
fi

mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.ucx.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "install_ucx: fetching $requirement" >&2
echo "$requirement --hash=sha256:$sha256" >"$work/requirements.txt"
# Not the python3 of PATH: that may be one of the user's environments without pip.
/usr/bin/python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes \
    -r "$work/requirements.txt" -d "$work/wheel" >&2

mkdir "$work/tree"
/usr/bin/python3 - "$work"/wheel/*.whl "$work/tree" <<'PYTHON'
import os
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for entry in wheel.infolist():
        path = wheel.extract(entry, sys.argv[2])
        mode = (entry.external_attr >> 16) & 0o777
        if mode and not entry.is_dir():
            os.chmod(path, mode)
PYTHON
[[ -e $work/tree/libucx/lib/libucp.so.0 ]] || {
    echo "install_ucx: $requirement has no libucx/lib/libucp.so.0, its layout changed: set UCX_ROOT instead" >&2
    exit 1
}
echo "$stamp" >"$work/tree/.stamp"
# Two renames on one file system: whoever looks sees the former tree, none, or the whole new one.
[[ -e $target ]] && mv "$target" "$work/former"
mv "$work/tree" "$target"
echo "install_ucx: $requirement is in $target" >&2
