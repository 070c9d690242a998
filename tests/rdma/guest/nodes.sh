#!/bin/bash
# Two nodes as network namespaces n0 and n1, joined by one link with an rxe device on each end; and a bridge over which the ranks
# reach their launcher, so that the link between the nodes can be taken down without the launcher noticing.
#   nodes.sh up            makes them
#   nodes.sh link N STATE  takes the link of node N down or up
set -euo pipefail

up() {
    ip link add control type bridge
    ip addr add 10.99.0.254/24 dev control
    ip link set control up
    ip link add d0 mtu 4500 type veth peer name d1 mtu 4500
    for node in 0 1; do
        local address=$((node + 1))
        ip netns add "n$node"
        ip link add "c$node" type veth peer name control netns "n$node"
        ip link set "c$node" master control up
        ip link set "d$node" netns "n$node"
        ip -n "n$node" link set lo up
        ip -n "n$node" addr add "10.99.0.$address/24" dev control
        ip -n "n$node" link set control up
        ip -n "n$node" addr add "10.98.0.$address/24" dev "d$node"
        ip -n "n$node" link set "d$node" up
        ip netns exec "n$node" rdma link add "rxe$node" type rxe netdev "d$node"
    done
    # A port is usable when its addresses are: duplicate address detection takes a moment.
    for _ in $(seq 50); do
        [[ $(grep -l ACTIVE /sys/class/infiniband/rxe[01]/ports/1/state 2>/dev/null | wc -l) == 2 ]] && return
        sleep 0.1
    done
    echo "nodes: the ports of rxe0 and rxe1 do not become active" >&2
    exit 1
}

case ${1:-} in
    up) up ;;
    link) ip -n "n$2" link set "d$2" "$3" ;;
    *) echo "nodes: use up, or link N up|down" >&2; exit 2 ;;
esac
