#!/usr/bin/env bash
# Installs the Debian packages that are missing. Does nothing, and needs neither root nor network, when all are there.
#   scripts/install_deps.sh           what building and running the tests needs
#   scripts/install_deps.sh --tools   also what `make check` and `make format` need
set -euo pipefail

# Debian 12 and Ubuntu 24.04 use the same names.
packages=(
    g++ cmake ninja-build mold ccache make python3 python3-pip ca-certificates
    libopenmpi-dev openmpi-bin libfmt-dev libspdlog-dev libboost-dev libcli11-dev nlohmann-json3-dev
    libxxhash-dev protobuf-compiler libprotobuf-dev libgtest-dev libgmock-dev libbenchmark-dev iproute2
)
if [[ ${1:-} == --tools ]]; then
    packages+=(clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev)
elif [[ $# -gt 0 ]]; then
    echo "install_deps: unknown option '$1', use --tools or nothing" >&2
    exit 2
fi

os=unknown
[[ -r /etc/os-release ]] && os=$(. /etc/os-release && echo "${ID:-}-${VERSION_ID:-}")
case $os in
    debian-12 | ubuntu-24.04) ;;
    *)
        echo "install_deps: $os is neither Debian 12 nor Ubuntu 24.04: install the equivalents of: ${packages[*]}" >&2
        command -v dpkg-query >/dev/null || exit 0
        ;;
esac

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ $(id -u) -ne 0 ]]; then
    echo "install_deps: missing packages, run as root: apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "install_deps: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >&2
apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
