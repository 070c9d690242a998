#!/usr/bin/env bash
# Makes the guest in a folder: root file system with compilers, kernel, initial RAM disk.   make.sh FOLDER UCX_INSTALL
# Packages come from the Debian mirror of this machine, or from SLUICE_RDMA_MIRROR; their signatures are checked.
set -euo pipefail

folder=$1
ucx=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The kernel's release is younger than that of the root: soft-RoCE in network namespaces needs Linux 7.2.
release=bookworm
kernel_release=forky

mirror=${SLUICE_RDMA_MIRROR:-$(awk '/^URIs:.*\/debian\/?$/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)}
mirror=${mirror:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -r $keyring ]] || { echo "guest: $keyring is missing: install debian-archive-keyring" >&2; exit 1; }

packages=(
    # What scripts/install_deps.sh installs.
    g++ cmake ninja-build mold ccache make python3 ca-certificates libopenmpi-dev openmpi-bin libfmt-dev libspdlog-dev
    libboost-dev libcli11-dev nlohmann-json3-dev libxxhash-dev protobuf-compiler libprotobuf-dev libgtest-dev libgmock-dev
    libbenchmark-dev iproute2
    # Verbs, and what the guest starts with.
    libibverbs1 ibverbs-providers ibverbs-utils librdmacm1 kmod procps util-linux busybox-static cpio xz-utils
)

root_file_system() {
    local joined
    joined=$(IFS=,; echo "${packages[*]}")
    mmdebstrap --quiet --variant=minbase --architectures=amd64 --include="$joined" \
        --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
        --aptopt='Acquire::Check-Valid-Until "false"' --dpkgopt='force-unsafe-io' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$release" "$folder/root" "deb [signed-by=$keyring] $mirror $release main"
    mkdir -p "$folder/root/opt/ucx" "$folder/root/sluice" "$folder/root/build"
    cp -a "$ucx/." "$folder/root/opt/ucx/"
}

# The newest kernel of the release, unpacked into the root; the machine's own package database is not touched.
kernel() {
    local apt=$folder/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    touch "$apt/status"
    echo "deb [signed-by=$keyring] $mirror $kernel_release main" >"$apt/sources.list"
    cat >"$apt/apt.conf" <<CONFIG
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
CONFIG
    export APT_CONFIG=$apt/apt.conf
    apt-get update -q
    local image
    image=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-[0-9]/ {print $2; exit}')
    version=${image#linux-image-}
    [[ -n $version ]] || { echo "guest: $mirror has no linux-image-amd64 in $kernel_release" >&2; exit 1; }
    (cd "$apt" && apt-get download -q "linux-binary-$version" "linux-modules-$version")
    for package in "$apt"/linux-*.deb; do dpkg -x "$package" "$folder/root"; done
    unset APT_CONFIG
    rm -rf "$apt"
    cp "$(find "$folder/root/boot" "$folder/root/usr/lib/modules/$version" -maxdepth 1 -name 'vmlinuz*' | head -n 1)" "$folder/kernel"
    echo "$version" >"$folder/kernel-version"
    chroot "$folder/root" depmod "$version"
}

# Just enough to mount the root; modules are stored unpacked, in the order in which they are loaded.
initial_ram_disk() {
    local disk=$folder/root/initrd
    mkdir -p "$disk"/{bin,proc,sys,dev,root,lower,layer,modules}
    cp "$folder/root/bin/busybox" "$disk/bin/busybox"
    install -m 755 "$here/initrd_init" "$disk/init"
    chroot "$folder/root" bash -s "$version" <<'INSIDE'
set -euo pipefail
version=$1
for module in virtio_pci 9pnet_virtio 9p overlay virtio_rng; do
    # What is built into the kernel has no file.
    modprobe -S "$version" --show-depends "$module" 2>/dev/null || true
done | awk '$1 == "insmod" {print $2}' | awk '!seen[$0]++' | while read -r file; do
    name=$(basename "$file" .xz)
    case $file in
        *.xz) xz -dc "$file" >"/initrd/modules/$name" ;;
        *) cp "$file" "/initrd/modules/$name" ;;
    esac
    echo "$name" >>/initrd/modules/order
done
touch /initrd/modules/order
cd /initrd && find . | cpio -o -H newc --quiet >/initrd.cpio
INSIDE
    mv "$folder/root/initrd.cpio" "$folder/initrd"
    rm -rf "$disk"
}

mkdir -p "$folder"
root_file_system
kernel
initial_ram_disk
