#!/bin/bash
# Two nodes as network namespaces n0 and n1, each with a link to one switch and an rxe device on it; and another switch over which the
# ranks reach their launcher, so that a node's link can fail without the launcher noticing.
#   nodes.sh up                 makes them
#   nodes.sh link N STATE       takes the switch's port of node N down or up, as when a cable is pulled
#   nodes.sh interface N STATE  takes the network interface of node N itself down or up
set -euo pipefail

up() {
    local switch
    for switch in control fabric; do
        ip link add "$switch" type bridge
        ip link set "$switch" up
    done
    ip addr add 10.99.0.254/24 dev control
    ip link set fabric mtu 4500
    local node
    for node in 0 1; do
        local address=$((node + 1))
        ip netns add "n$node"
        ip -n "n$node" link set lo up
        ip link add "c$node" type veth peer name control netns "n$node"
        ip link set "c$node" master control up
        ip -n "n$node" addr add "10.99.0.$address/24" dev control
        ip -n "n$node" link set control up
        ip link add "p$node" mtu 4500 type veth peer name "d$node" mtu 4500 netns "n$node"
        ip link set "p$node" master fabric up
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
    link) ip link set "p$2" "$3" ;;
    interface) ip -n "n$2" link set "d$2" "$3" ;;
    *) echo "nodes: use up, link N up|down, or interface N up|down" >&2; exit 2 ;;
esac
