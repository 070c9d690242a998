#!/usr/bin/env bash
# Runs the tests over verbs lanes in a guest with soft-RoCE: two nodes, one device each.   make test-rdma
# Ends with ctest's exit code, and not with 0 when it did not come to that.
#   SLUICE_RDMA_UCX=DIR     needed: an install of UCX >= 1.22 built with verbs, for Debian 12's libraries
#   SLUICE_RDMA_MIRROR=URL  the Debian mirror (default: this machine's)
#   SLUICE_RDMA_COMMAND=... what the guest runs instead of the tests, in /tmp of the guest, as root
# The guest is made once, and kept in build/rdma; see docs/rdma.md.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
cache=$source/build/rdma
# Limits of making the guest, of the build in it, and of qemu from power-on to power-off.
make_seconds=1800
build_seconds=2400
guest_seconds=1800

missing() {
    echo "test-rdma: $*; nothing was tested" >&2
    exit 1
}

# Everything that is missing in one line.
check() {
    local lacks=() tools=() tool
    [[ $(id -u) -eq 0 ]] || lacks+=("run it as root (it makes a root file system)")
    [[ $(uname -m) == x86_64 ]] || lacks+=("run it on an x86_64 machine (this is $(uname -m))")
    for tool in qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap dpkg:dpkg apt-get:apt unshare:util-linux; do
        command -v "${tool%%:*}" >/dev/null || tools+=("${tool##*:}")
    done
    [[ ${#tools[@]} -eq 0 ]] || lacks+=("apt-get install --no-install-recommends ${tools[*]}")
    check_ucx
    [[ ${#lacks[@]} -eq 0 ]] || missing "$(printf '%s; ' "${lacks[@]}" | sed 's/; $//')"
}

# Adds to `lacks`.
check_ucx() {
    local wanted="an install of UCX >= 1.22 that was configured --with-verbs on Debian 12"
    [[ -n ${SLUICE_RDMA_UCX:-} ]] || { lacks+=("set SLUICE_RDMA_UCX to $wanted"); return; }
    ucx=$(cd "$SLUICE_RDMA_UCX" 2>/dev/null && pwd) || { lacks+=("set SLUICE_RDMA_UCX to $wanted ($SLUICE_RDMA_UCX is no folder)"); return; }
    header=$ucx/include/ucp/api/ucp_version.h
    [[ -r $header ]] || { lacks+=("set SLUICE_RDMA_UCX to $wanted ($ucx has no include/ucp/api/ucp_version.h)"); return; }
    ucx_version=$(awk '/#define UCP_API_(MAJOR|MINOR) / {printf "%s%s", dot, $3; dot = "."}' "$header")
    [[ $(printf '%s\n' 1.22 "$ucx_version" | sort -V | head -n 1) == 1.22 ]] ||
        { lacks+=("set SLUICE_RDMA_UCX to $wanted ($ucx is UCX $ucx_version)"); return; }
    [[ -e $ucx/lib/ucx/libuct_ib.so ]] ||
        lacks+=("set SLUICE_RDMA_UCX to $wanted ($ucx has no verbs: no lib/ucx/libuct_ib.so)")
}

# The guest that make.sh makes with this UCX: found, or made.
find_guest() {
    local key
    key=$(cat "$here/guest/make.sh" "$here/guest/initrd_init" "$header" "$ucx/lib/libucp.so" "$ucx/lib/ucx/libuct_ib.so" | sha256sum | cut -c1-16)
    for guest in "$cache/guest-$key"-*; do
        [[ -e $guest/kernel-version ]] && break
        guest=
    done
    export guest
    [[ -z $guest ]] || { made="found"; return 0; }
    echo "test-rdma: making the guest (some minutes, once)" >&2
    rm -rf "$cache"/guest-* "$cache/making"
    mkdir -p "$cache"
    local start=$SECONDS
    timeout -k 5 "$make_seconds" "$here/guest/make.sh" "$cache/making" "$ucx" >"$cache/make.log" 2>&1 || {
        tail -n 20 "$cache/make.log" >&2
        missing "the guest could not be made, all of its log is in $cache/make.log"
    }
    guest=$cache/guest-$key-$(<"$cache/making/kernel-version")
    mv "$cache/making" "$guest"
    made="made in $((SECONDS - start)) s"
    echo "test-rdma: $guest $made" >&2
}

# Builds what the tests run, in the guest's root, from a copy of the sources. Objects are kept between runs.
build() {
    local root=$guest/root start=$SECONDS
    rm -rf "$root/sluice"
    mkdir -p "$root/sluice"
    tar -C "$source" --exclude=./build --exclude=./third_party --exclude=./.git --exclude=./.cache -cf - . | tar -C "$root/sluice" -xf -
    # Mounts of a namespace of its own, so that none is left whatever happens.
    timeout -k 5 "$build_seconds" unshare --mount --pid --fork --kill-child bash -c '
        set -e
        mount -t proc proc "$0/proc"
        mount --rbind /dev "$0/dev"
        exec chroot "$0" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root LANG=C.UTF-8 CCACHE_DIR=/build/ccache bash -c "
            set -e
            cmake -S /sluice -B /build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DUCX_ROOT=/opt/ucx -DSLUICE_CUDA=OFF \
                -DSLUICE_RDMA_TESTS=ON --log-level=WARNING
            ninja -C /build/release -j$(nproc) rdma_tests"' "$root" >"$cache/build.log" 2>&1 || {
        tail -n 30 "$cache/build.log" >&2
        missing "the build in the guest failed, all of its log is in $cache/build.log"
    }
    built="built in $((SECONDS - start)) s"
    echo "test-rdma: $built" >&2
}

# qemu with what every boot of the guest has; more arguments follow.
run_qemu() {
    local accelerator=$1 arguments=$2
    shift 2
    qemu-system-x86_64 -M pc -accel "$accelerator" -cpu max -smp 2 -m 3072 -kernel "$guest/kernel" -initrd "$guest/initrd" \
        -append "console=ttyS0 loglevel=1 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check rcupdate.rcu_expedited=1 random.trust_cpu=on nowatchdog $arguments" \
        -nodefaults -no-reboot -display none -serial stdio -monitor none -device virtio-rng-pci "$@" </dev/null
}

# KVM where it works, else the emulator, which the tests' limits allow for. A machine may have /dev/kvm and yet not run guests
# on it, so one is tried, once per guest.
accelerator() {
    local answer=$guest/accelerator emulator=tcg,thread=multi,tb-size=512
    if [[ ! -s $answer ]]; then
        echo "$emulator" >"$answer"
        if [[ -w /dev/kvm ]] && probe | grep -q "sluice: the guest starts"; then
            echo kvm >"$answer"
        fi
    fi
    cat "$answer"
}
probe() { timeout -k 1 10 bash -c "$(declare -f run_qemu); run_qemu kvm sluice.probe" 2>/dev/null || true; }

# Boots, runs the command, and returns its exit code.
boot() {
    local share=$cache/host command=$1 start=$SECONDS
    rm -rf "$share"
    mkdir -p "$share"
    cp "$here/guest/init.sh" "$share/init.sh"
    printf 'SLUICE_RDMA_COMMAND=%q\n' "$command" >"$share/run.env"
    local accelerator
    accelerator=$(accelerator)
    echo "test-rdma: booting $(basename "$guest") ($accelerator)" >&2
    timeout -k 5 "$guest_seconds" bash -c "$(declare -f run_qemu); run_qemu \"\$@\"" qemu "$accelerator" "" \
        -virtfs "local,path=$share,mount_tag=host,security_model=none" \
        -virtfs "local,path=$guest/root,mount_tag=root,security_model=none,readonly=on,multidevs=remap" \
        | sed -u 's/\r$//' || true
    if [[ ! -s $share/status ]]; then
        echo "test-rdma: the guest ended without a result, after $guest_seconds s at most; what it ran counts as failed" >&2
        exit 1
    fi
    echo "test-rdma: guest $made; tests $built; suite ran $((SECONDS - start)) s, boot included" >&2
    return "$(<"$share/status")"
}

check
find_guest
build
boot "${SLUICE_RDMA_COMMAND:-bash /sluice/tests/rdma/guest/suite.sh}"
