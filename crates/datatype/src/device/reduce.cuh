// Reductions: out[i] = a[i] op b[i], where `out` may be either operand. Elements are moved by 16 bytes where the three lie alike to
// these, one by one where they are aligned for their type, else byte by byte: no alignment is a fault.

struct Reduction {
    u64 count;
    // True and false of Fortran, of 128 bits each, the lower half first.
    u64 truth[4];
};

template <int BYTES, class Op, class T> static __device__ void combine(const Op &op, u64 a, u64 b, u64 out) {
    T x = load<BYTES, T>(a), y = load<BYTES, T>(b);
    store<BYTES, T>(out, op.of(x, y));
}

// As many elements as 16 bytes hold.
template <class Op> struct Block {
    typedef typename Op::T T;
    static const int NUMBER = sizeof(T) < 16 ? 16 / sizeof(T) : 1;
    struct Elements { T at[NUMBER]; };

    static __device__ void combine(const Op &op, u64 a, u64 b, u64 out) {
        Elements x = load<16, Elements>(a), y = load<16, Elements>(b);
        for (int i = 0; i < NUMBER; i++) y.at[i] = op.of(x.at[i], y.at[i]);
        store<16, Elements>(out, y);
    }
};

template <int BYTES, class Op>
static __device__ void one_by_one(const Op &op, u64 a, u64 b, u64 out, u64 first, u64 step, u64 count) {
    for (u64 i = first; i < count; i += step) {
        u64 at = i * sizeof(typename Op::T);
        combine<BYTES, Op, typename Op::T>(op, a + at, b + at, out + at);
    }
}

// ALIGN: what the elements of a program are aligned to.
template <class Op, int ALIGN> static __device__ void reduce(u64 a, u64 b, u64 out, const Reduction &given) {
    const u64 size = sizeof(typename Op::T), number = Block<Op>::NUMBER;
    const u64 all = a | b | out, apart = (a ^ b) | (a ^ out), count = given.count;
    const u64 first = this_thread(), step = all_threads();
    Op op;
    op.take(given.truth);
    if (all % ALIGN) return one_by_one<1>(op, a, b, out, first, step, count);
    u64 before = (0 - a) % 16 / size;
    if (apart % 16 || (a + before * size) % 16) return one_by_one<ALIGN>(op, a, b, out, first, step, count);
    if (before > count) before = count;
    const u64 blocks = (count - before) / number, start = before * size;
    for (u64 i = first; i < blocks; i += step) {
        u64 at = start + i * (size * number);
        Block<Op>::combine(op, a + at, b + at, out + at);
    }
    one_by_one<ALIGN>(op, a, b, out, first, step, before);
    one_by_one<ALIGN>(op, a, b, out, before + blocks * number + first, step, count);
}

// Pairs of a value and an index, which lies AT bytes in; gaps are neither read nor written.
template <class V, class I, int AT, int EXTENT, bool MAX, int BYTES>
static __device__ void pairs_one_by_one(u64 a, u64 b, u64 out, u64 count) {
    const int value = BYTES < int(sizeof(V)) ? BYTES : int(sizeof(V)), index = BYTES < int(sizeof(I)) ? BYTES : int(sizeof(I));
    for (u64 i = this_thread(); i < count; i += all_threads()) {
        u64 at = i * EXTENT;
        V x = load<value, V>(a + at), y = load<value, V>(b + at);
        I x_index = load<index, I>(a + at + AT), y_index = load<index, I>(b + at + AT);
        bool first = wins<V, I, MAX>(x, x_index, y, y_index);
        store<value, V>(out + at, filled(first ? x : y, y));
        store<index, I>(out + at + AT, first ? x_index : y_index);
    }
}

template <class V, class I, int AT, int EXTENT, bool MAX> static __device__ void reduce_pairs(u64 a, u64 b, u64 out, const Reduction &given) {
    const int align = sizeof(V) < 8 ? sizeof(V) : 8, index = sizeof(I) < 8 ? sizeof(I) : 8, most = align > index ? align : index;
    if ((a | b | out) % most) pairs_one_by_one<V, I, AT, EXTENT, MAX, 1>(a, b, out, given.count);
    else pairs_one_by_one<V, I, AT, EXTENT, MAX, most>(a, b, out, given.count);
}

#define REDUCTION(name, Op, T, align)                                                                        \
    KERNEL(name, Reduction) { reduce<Op<T>, align>(a, b, c, given); }
#define PAIRS(name, V, I, at, extent)                                                                        \
    KERNEL(minloc_##name, Reduction) { reduce_pairs<V, I, at, extent, false>(a, b, c, given); }                       \
    KERNEL(maxloc_##name, Reduction) { reduce_pairs<V, I, at, extent, true>(a, b, c, given); }

#define ARITHMETIC(name, T, align)                                                                           \
    REDUCTION(sum_##name, Sum, T, align)                                                                     \
    REDUCTION(prod_##name, Prod, T, align)
#define ORDERED(name, T, align)                                                                              \
    REDUCTION(min_##name, Min, T, align)                                                                     \
    REDUCTION(max_##name, Max, T, align)
#define LOGICAL(name, T, align)                                                                              \
    REDUCTION(land_##name, Land, T, align)                                                                   \
    REDUCTION(lor_##name, Lor, T, align)                                                                     \
    REDUCTION(lxor_##name, Lxor, T, align)
#define FORTRAN_LOGICAL(name, T, align)                                                                      \
    REDUCTION(fortran_land_##name, FortranLand, T, align)                                                    \
    REDUCTION(fortran_lor_##name, FortranLor, T, align)                                                      \
    REDUCTION(fortran_lxor_##name, FortranLxor, T, align)
