#!/bin/sh
# figures.sh PROGRAM: by turns, ROUNDS times (3), what PROGRAM (the example `figures`) and perftest (Debian's package) measure between two
# processes, each on a processor and a device of its own: `cargo xtask rdma -- sh crates/rdma/examples/figures.sh PROGRAM`. Prints lines
# of who, what, bytes, and the figure: us one way, or MiB/s.
program=$1
folder=$(mktemp -d)
set -- $(ls /sys/class/infiniband)

ours() {
    rm -f "$folder"/*
    taskset -c 1 "$program" "$folder" 1 &
    taskset -c 0 "$program" "$folder" 0 | sed 's/^/ours /'
    wait
}
# raw WHAT BYTES COLUMN TOOL OPTION...: the figure in that column of the tool's table.
raw() {
    what=$1 bytes=$2 column=$3 tool=$4
    shift 4
    taskset -c 1 "$tool" -d "$second" -x 0 -F -s "$bytes" "$@" >/dev/null 2>&1 &
    sleep 0.7
    taskset -c 0 "$tool" -d "$first" -x 0 -F -s "$bytes" "$@" 127.0.0.1 2>/dev/null |
        awk -v what="$what" -v column="$column" -v bytes="$bytes" '$1 == bytes { print "raw", what, bytes, $column }'
    wait
}
first=$1 second=${2:-$1}
for round in $(seq "${ROUNDS:-3}"); do
    ours
    raw latency 8 5 ib_send_lat -n 1000
    for bytes in 65536 262144 1048576; do
        raw write "$bytes" 4 ib_write_bw -t 4 -n $((8388608 / bytes))
        raw read "$bytes" 4 ib_read_bw -t 4 -n $((8388608 / bytes))
    done
done
rm -rf "$folder"
