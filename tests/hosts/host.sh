#!/bin/sh
# An emulated host: what its process 1 does. `cargo xtask hosts` starts it in namespaces of its own (network, UTS, mount,
# PID, IPC), as `host.sh FOLDER NUMBER KEEP...`. FOLDER has the keys and the table of hosts; folders KEEP stay
# visible in the host although it has a /tmp, a /run and a /dev/shm of its own. With DEVICE and ADDRESS the host has the machine's network, of
# which that RDMA device and that address are its own. On its standard output it says which process it
# is to the machine, and it goes on once a line on its standard input says that its network device is there.
set -eu
folder=$1 number=$2
shift 2
# Still the /proc of the machine.
read -r pid rest < /proc/self/stat

hostname "h$number"
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
if [ -n "${DEVICE-}" ]; then
    device=$(readlink -f "/sys/class/infiniband/$DEVICE")
    mount -t tmpfs tmpfs /sys/class/infiniband
    ln -s "$device" "/sys/class/infiniband/$DEVICE"
else
    mkdir /mnt/cgroup
    mount --rbind /sys/fs/cgroup /mnt/cgroup
    # /sys lists the network devices of the namespace in which it was mounted.
    mount -t sysfs sysfs /sys
    mount --rbind /mnt/cgroup /sys/fs/cgroup
fi
n=0
for keep; do
    n=$((n + 1))
    mkdir "/mnt/$n"
    mount --rbind "$keep" "/mnt/$n"
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
n=0
for keep; do
    n=$((n + 1))
    mkdir -p "$keep"
    mount --rbind "/mnt/$n" "$keep"
done
umount --recursive --lazy /mnt
mkdir /run/sshd
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/ssh" /etc/ssh
# What the user set for ssh is not for these hosts.
[ ! -d "${HOME:-/root}/.ssh" ] || mount -t tmpfs tmpfs "${HOME:-/root}/.ssh"

echo "$pid"
read -r go
if [ -z "${DEVICE-}" ]; then
    ip link set lo up
    ip address add "10.77.0.$number/24" dev eth0
    ip link set eth0 up
    # A machine may have no IPv6.
    ip address add "fd77::$number/64" dev eth0 nodad 2> /dev/null || true
fi
exec /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config ${ADDRESS:+-o "ListenAddress=$ADDRESS"} < /dev/null > "$folder/h$number.log" 2>&1
