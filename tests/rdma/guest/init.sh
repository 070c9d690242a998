#!/bin/bash
# PID 1 of the guest once its root is there: two nodes with one soft-RoCE device each, then the tests. Their exit code goes to
# /host/status; without that file the host takes the run for failed.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
# rxe reports the last request of a closed queue pair twice, at which UCX 1.22 uses a closed one again and crashes. Without these
# events queue pairs are kept until their device is closed.
export UCX_IB_ASYNC_EVENTS=n
. /host/run.env
mkdir -p /run /tmp /dev/pts /dev/shm
mount -t devpts pts /dev/pts
for folder in /dev/shm /tmp /run; do mount -t tmpfs tmpfs "$folder"; done
ip link set lo up
hostname rdma
ulimit -l unlimited
for module in ib_uverbs rdma_ucm rdma_rxe veth bridge; do modprobe "$module" || echo "guest: $module cannot be loaded"; done
bash /sluice/tests/rdma/guest/nodes.sh up && cd /tmp && bash -c "$SLUICE_RDMA_COMMAND" </dev/null
echo $? >/host/status
echo "guest: $(cut -d' ' -f1 /proc/uptime) s since it was started"
sync
echo o >/proc/sysrq-trigger
sleep 10
