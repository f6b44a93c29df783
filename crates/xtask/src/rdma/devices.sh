# Two software RoCE devices on the two ends of a cable, each with the link-local GID of its end: they act as the devices of two hosts.
ip link set lo up
ip link add end0 type veth peer name end1
for end in 0 1; do
    # Addresses that are not tried first for doubles can be used at once.
    echo 0 >/proc/sys/net/ipv6/conf/end$end/accept_dad
    ip link set end$end up
    rdma link add rxe$end type rxe netdev end$end || exit 1
done
