// Datatypes: the packed bytes `first` to `first + bytes` are moved between `packed` and where a layout says that they lie, a word at a
// time. Layouts are nodes in a table of 64-bit numbers (layout.rs writes it), which each thread walks from the root to its word.

struct Packing {
    u64 first, bytes;
    // The displacement of what `memory` is the address of.
    i64 origin;
    // 1 if the table is in memory, as it is too long for `nodes`.
    u64 is_long;
    i64 nodes[64];
};

enum Kind { RUN, LOOP, BLOCKS, PIECES, PARTS };

// The last of so many entries, `step` numbers apart, whose first number is at most `at`; the first one's is.
static __device__ const i64 *last_from(const i64 *entries, i64 count, int step, u64 at) {
    i64 low = 0, high = count;
    while (high - low > 1) {
        i64 middle = low + (high - low) / 2;
        if ((u64)entries[middle * step] <= at) low = middle;
        else high = middle;
    }
    return entries + low * step;
}

static __device__ u64 divided(u64 number, u64 by) {
    return (number | by) >> 32 ? number / by : (u64)((u32)number / (u32)by);
}

// The displacement of packed byte `at`.
static __device__ i64 place_of(const i64 *nodes, u64 at) {
    const i64 *node = nodes;
    i64 place = 0;
    for (;;) {
        switch (node[0]) {
        case LOOP: {
            // Size of the body, stride, body.
            u64 index = divided(at, (u64)node[1]);
            place += (i64)index * node[2];
            at -= index * (u64)node[1];
            node = nodes + node[3];
            break;
        }
        case BLOCKS: {
            // Length of each, then displacements.
            u64 index = divided(at, (u64)node[1]);
            return place + node[2 + index] + (i64)(at - index * (u64)node[1]);
        }
        case PIECES: {
            // How many, then of each the packed bytes before it, and the displacement.
            const i64 *piece = last_from(node + 2, node[1], 2, at);
            return place + piece[1] + (i64)(at - (u64)piece[0]);
        }
        case PARTS: {
            // How many, then of each the packed bytes before it, the displacement, the node.
            const i64 *part = last_from(node + 2, node[1], 3, at);
            place += part[1];
            at -= (u64)part[0];
            node = nodes + part[2];
            break;
        }
        default: return place + (i64)at;
        }
    }
}

template <int BYTES, bool PACK> static __device__ void move_words(u64 memory, u64 packed, u64 table, const Packing &given) {
    typedef typename Word<BYTES>::type W;
    const i64 *nodes = given.is_long ? (const i64 *)table : given.nodes;
    const u64 words = given.bytes / BYTES;
    memory -= (u64)given.origin;
    for (u64 i = this_thread(); i < words; i += all_threads()) {
        W *there = (W *)(memory + (u64)place_of(nodes, given.first + i * BYTES)), *here = (W *)packed + i;
        if (PACK) *here = *there;
        else *there = *here;
    }
}

#define MOVES(bytes)                                                                                         \
    KERNEL(pack_##bytes, Packing) { move_words<bytes, true>(a, b, c, given); }                                        \
    KERNEL(unpack_##bytes, Packing) { move_words<bytes, false>(a, b, c, given); }
MOVES(1)
MOVES(2)
MOVES(4)
MOVES(8)
MOVES(16)
