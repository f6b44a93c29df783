#!/bin/busybox sh
# The first process of the guest. It makes the host's files the guest's own (what is written there stays in memory), mounts the host's
# build folder for writing, and runs run.sh of that folder. Lines that begin with @@ are for `cargo xtask rdma`.
/bin/busybox mkdir -p /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
export PATH=/bin:/sbin:/usr/bin:/usr/sbin

# Ends the guest: QEMU does not reboot.
end() {
    sync
    reboot -f
}
fail() {
    echo "@@ cannot start: $*"
    end
}

mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev || fail "proc, sys, dev"
for module in /modules/*; do
    insmod "$module" || fail "insmod $module"
done
# The second processor is brought up late, since guests without KVM sometimes hang if it starts with the first one.
for online in /sys/devices/system/cpu/cpu[1-9]*/online; do
    [ -e "$online" ] && echo 1 >"$online"
done

over9p=trans=virtio,version=9p2000.L,msize=512000,cache=loose
mkdir -p /host /memory /root
mount -t 9p -o "ro,$over9p" host /host || fail "the host's files"
mount -t tmpfs memory /memory && mkdir /memory/upper /memory/work || fail "a tmpfs"
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root || fail "an overlay"
for folder in proc sys dev; do
    mount --bind "/$folder" "/root/$folder" || fail "$folder"
done
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs shm /root/dev/shm && mount -t devpts pts /root/dev/pts && mount -t tmpfs run /root/run || fail "shm, pts, run"
target=$(sed -n 's/.*banyan.target=\([^ ]*\).*/\1/p' /proc/cmdline)
mkdir -p "/root$target"
mount -t 9p -o "$over9p" target "/root$target" || fail "the build folder"
# There sockets have no place, which emulated hosts need.
mkdir -p "/root$target/hosts/labs" && mount -t tmpfs labs "/root$target/hosts/labs" || fail "a place for sockets"

echo "@@ ready"
chroot /root /bin/sh "$target/rdma/run.sh"
echo "@@ exit $?"
end
