/*
 * Collectives by size, in microseconds: `coll [KIND,KIND or all [SIZE,SIZE]]`. The root goes round, and scans run up
 * and down the ranks in turn, so that a stream of them is not what is measured; on two ranks these kinds are measured
 * with a fixed root or order as well (`-fixed`).
 * A size is that of the block for one other rank (bcast, gather, scatter, allgather, alltoall and their v forms, in
 * which odd ranks have blocks of half the size), or of the whole vector (reductions, of doubles; of ints at 4 bytes).
 */
/* What a library learns from the first calls should not be all that is measured. */
#define MEASURED 0.1
#include "bench.h"

/* Sizes of which all ranks' blocks together are more than this are left out. */
#define LARGEST (64L << 20)

enum kind {
    BARRIER, BCAST, GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE, ALLREDUCE, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN,
    GATHERV, SCATTERV, ALLGATHERV, ALLTOALLV, KINDS
};

static const char *const NAMES[KINDS] = {"barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce",
                                         "allreduce", "reduce_scatter_block", "scan", "exscan", "gatherv", "scatterv",
                                         "allgatherv", "alltoallv"};

struct call {
    enum kind kind;
    int fixed;
    /* Calls since the buffers were spoiled: which root is next, and which ranks have been one. */
    long calls;
    size_t size;
    MPI_Datatype type;
    int count, *counts, *places, *same;
    char *out, *in;
};

/* The same ranks the other way round, for scans. */
static MPI_Comm reversed;

static int ordered(enum kind k)
{
    return k == SCAN || k == EXSCAN;
}

static int rooted(enum kind k)
{
    return k == BCAST || k == GATHER || k == SCATTER || k == REDUCE || k == GATHERV || k == SCATTERV;
}

static int reduces(enum kind k)
{
    return k == REDUCE || k == ALLREDUCE || k == REDUCE_SCATTER_BLOCK || k == SCAN || k == EXSCAN;
}

static int varies(enum kind k)
{
    return k >= GATHERV;
}

static int many_blocks(enum kind k)
{
    return k == GATHER || k == SCATTER || k == ALLGATHER || k == ALLTOALL || varies(k);
}

static void once(void *argument)
{
    struct call *c = argument;
    const MPI_Comm world = MPI_COMM_WORLD;
    const int n = c->count, root = c->fixed ? 0 : (int)(c->calls % ranks);
    const MPI_Comm line = c->fixed || c->calls % 2 == 0 ? world : reversed;
    const MPI_Datatype t = c->type;
    c->calls++;
    switch (c->kind) {
    case BARRIER: MPI_Barrier(world); break;
    case BCAST: MPI_Bcast(rank == root ? c->out : c->in, n, t, root, world); break;
    case GATHER: MPI_Gather(c->out, n, t, c->in, n, t, root, world); break;
    case SCATTER: MPI_Scatter(c->out, n, t, c->in, n, t, root, world); break;
    case ALLGATHER: MPI_Allgather(c->out, n, t, c->in, n, t, world); break;
    case ALLTOALL: MPI_Alltoall(c->out, n, t, c->in, n, t, world); break;
    case REDUCE: MPI_Reduce(c->out, c->in, n, t, MPI_SUM, root, world); break;
    case ALLREDUCE: MPI_Allreduce(c->out, c->in, n, t, MPI_SUM, world); break;
    case REDUCE_SCATTER_BLOCK: MPI_Reduce_scatter_block(c->out, c->in, n, t, MPI_SUM, world); break;
    case SCAN: MPI_Scan(c->out, c->in, n, t, MPI_SUM, line); break;
    case EXSCAN: MPI_Exscan(c->out, c->in, n, t, MPI_SUM, line); break;
    case GATHERV: MPI_Gatherv(c->out, c->counts[rank], t, c->in, c->counts, c->places, t, root, world); break;
    case SCATTERV: MPI_Scatterv(c->out, c->counts, c->places, t, c->in, c->counts[rank], t, root, world); break;
    case ALLGATHERV: MPI_Allgatherv(c->out, c->counts[rank], t, c->in, c->counts, c->places, t, world); break;
    /* What a rank sends to each has its own length, what it gets has the others'. */
    case ALLTOALLV: MPI_Alltoallv(c->out, c->same, c->places, t, c->in, c->counts, c->places, t, world); break;
    case KINDS: break;
    }
}

static void spoil(void *argument)
{
    struct call *c = argument;
    c->calls = 0;
    memset(c->in, 0xee, c->size * (many_blocks(c->kind) ? (size_t)ranks : 1));
}

/* What a rank sends to `to`, or to all alike. */
static uint32_t seed(enum kind kind, int from, int to)
{
    switch (kind) {
    case BCAST: return 3;
    case SCATTER: case SCATTERV: return 100u + (uint32_t)to;
    case GATHER: case GATHERV: case ALLGATHER: case ALLGATHERV: return 200u + (uint32_t)from;
    default: return 1000u * (uint32_t)from + (uint32_t)to;
    }
}

static void prepare(struct call *c)
{
    size_t blocks = many_blocks(c->kind) ? (size_t)ranks : 1;
    if (reduces(c->kind)) {
        if (c->type == MPI_INT)
            for (size_t i = 0; i < c->size / sizeof(int); i++)
                ((int *)c->out)[i] = (int)(i & 63) + rank;
        else
            for (size_t i = 0; i < c->size / sizeof(double); i++)
                ((double *)c->out)[i] = (double)((i & 63) + (size_t)rank);
    } else {
        for (size_t b = 0; b < blocks; b++)
            fill(c->out + b * c->size, c->size, seed(c->kind, rank, (int)b));
    }
}

/* Whether the sums of the vectors of ranks `from` to before `to`, from place `first` on, are not there. */
static int sums_differ(const struct call *c, int count, int first, int from, int to)
{
    int wrong = 0, terms = to - from, sum = (to * (to - 1) - from * (from - 1)) / 2;
    for (int i = 0; i < count; i++) {
        int expected = terms * ((i + first) & 63) + sum;
        wrong |= c->type == MPI_INT ? ((int *)c->in)[i] != expected : ((double *)c->in)[i] != (double)expected;
    }
    return wrong;
}

static int is_wrong(const struct call *c)
{
    int was_root = c->fixed ? rank == 0 : rank < c->calls, wrong = 0;
    /* Which way the last scan ran. */
    int up = c->fixed || c->calls % 2 == 1;
    switch (c->kind) {
    case BCAST:
        /* Who was the only root has received nothing. */
        return !(rank == 0 && (c->fixed || c->calls == 1)) && differs(c->in, c->size, seed(BCAST, 0, 0));
    case SCATTER: return differs(c->in, c->size, seed(c->kind, 0, rank));
    case SCATTERV: return differs(c->in, (size_t)c->counts[rank], seed(c->kind, 0, rank));
    case GATHER: case ALLGATHER: case ALLTOALL: case GATHERV: case ALLGATHERV: case ALLTOALLV:
        for (int r = 0; r < ranks && (was_root || !rooted(c->kind)); r++)
            wrong |= differs(c->in + (size_t)r * c->size, varies(c->kind) ? (size_t)c->counts[r] : c->size,
                             seed(c->kind, r, rank));
        return wrong;
    case REDUCE: return was_root && sums_differ(c, c->count, 0, 0, ranks);
    case ALLREDUCE: return sums_differ(c, c->count, 0, 0, ranks);
    case REDUCE_SCATTER_BLOCK: return sums_differ(c, c->count, rank * c->count, 0, ranks);
    case SCAN: return up ? sums_differ(c, c->count, 0, 0, rank + 1) : sums_differ(c, c->count, 0, rank, ranks);
    case EXSCAN:
        if (up)
            return rank > 0 && sums_differ(c, c->count, 0, 0, rank);
        return rank < ranks - 1 && sums_differ(c, c->count, 0, rank + 1, ranks);
    default: return 0;
    }
}

static void measure(enum kind kind, int fixed, long size)
{
    struct call c = {.kind = kind, .fixed = fixed, .size = (size_t)size, .type = MPI_BYTE, .count = (int)size};
    size_t room = (size_t)size * (many_blocks(kind) ? (size_t)ranks : 1);
    if (many_blocks(kind) && size * ranks > LARGEST)
        return;
    if (reduces(kind)) {
        c.type = size < (long)sizeof(double) ? MPI_INT : MPI_DOUBLE;
        c.count = (int)(size / (long)(size < (long)sizeof(double) ? sizeof(int) : sizeof(double)));
        if (kind == REDUCE_SCATTER_BLOCK)
            c.count /= ranks;
        if (c.count == 0)
            return;
        if (kind == REDUCE_SCATTER_BLOCK)
            c.size = (size_t)c.count * (size_t)ranks * (c.type == MPI_INT ? sizeof(int) : sizeof(double));
    }
    /* In whole words, which is what the pattern is made of. */
    int numbers[3 * ranks], half = (int)((size / 2 + 3) / 4 * 4);
    c.counts = numbers, c.places = numbers + ranks, c.same = numbers + 2 * ranks;
    for (int r = 0; r < ranks; r++) {
        c.counts[r] = r % 2 == 1 ? half : (int)size;
        c.same[r] = rank % 2 == 1 ? half : (int)size;
        c.places[r] = r * (int)size;
    }
    c.out = buffer(room);
    c.in = buffer(room);
    if (kind == BARRIER)
        begin_cell("barrier");
    else
        begin_cell("%s%s/%ld", NAMES[kind], fixed ? "-fixed" : "", size);
    prepare(&c);
    double seconds = seconds_each(once, &c, spoil);
    end_cell(seconds * 1e6, "us", is_wrong(&c));
    free(c.out);
    free(c.in);
}

/* Whether `name` is in the list `names`, which may be missing or `all`. */
static int wanted(const char *names, const char *name)
{
    if (names == NULL || strcmp(names, "all") == 0)
        return 1;
    size_t length = strlen(name);
    for (const char *at = names; (at = strstr(at, name)) != NULL; at += length)
        if ((at == names || at[-1] == ',') && (at[length] == ',' || at[length] == 0))
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    static const long all[] = {4, 8, 64, 512, 4096, 32768, 262144, 1048576, 4194304, -1};
    bench_init(&argc, &argv);
    MPI_Comm_split(MPI_COMM_WORLD, 0, ranks - rank, &reversed);
    const char *names = argc > 1 ? argv[1] : NULL;
    const long *sizes = sizes_of(argc, argv, 2, all);
    /* Sizes outside, so that who is too slow for the large ones has shown all of the small ones. */
    for (const long *size = sizes; *size >= 0; size++)
        for (enum kind kind = BARRIER; kind < KINDS; kind++) {
            if (!wanted(names, NAMES[kind]) || (kind == BARRIER && size != sizes))
                continue;
            measure(kind, 0, *size);
            if ((rooted(kind) || ordered(kind)) && ranks == 2)
                measure(kind, 1, *size);
        }
    MPI_Comm_free(&reversed);
    MPI_Finalize();
    return 0;
}
