# Two devices in software, of the kind $devices, on the two ends of a cable: they act as the devices of two hosts. Those of RoCE have the
# link-local GIDs of their ends. Those of iWARP have an IPv4 address each, and their packets take the cable, though both ends are here.
ip link set lo up
# siw does not know that root may lock what it likes.
ulimit -l unlimited
ip link add end0 type veth peer name end1
for end in 0 1; do
    # Addresses that are not tried first for doubles can be used at once.
    echo 0 >/proc/sys/net/ipv6/conf/end$end/accept_dad
    ip link set end$end up
done
if [ "$devices" = roce ]; then
    for end in 0 1; do
        rdma link add rxe$end type rxe netdev end$end || exit 1
    done
else
    ip rule add pref 100 lookup local && ip rule del pref 0
    for end in all end0 end1; do
        echo 1 >/proc/sys/net/ipv4/conf/$end/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/$end/rp_filter
    done
    for end in 0 1; do
        ip addr add 10.79.1.$((end + 1))/24 dev end$end
        ip rule add pref 1$end iif lo from 10.79.1.$((end + 1)) to 10.79.1.$((2 - end)) lookup 10$end
        ip route add 10.79.1.$((2 - end)) dev end$end src 10.79.1.$((end + 1)) table 10$end
        rdma link add siw$end type siw netdev end$end || exit 1
    done
fi
