/* Every collective, blocking, nonblocking and persistent, in place, at every root, for counts from 0 up.
 * RUN: ranks=1,2,3,4,5,8,16 fabrics=shm,tcp limit=120 */
#include "check.h"
#include "large.h"

static int rank, ranks;
static MPI_Comm world;

enum way { BLOCKING, NONBLOCKING, PERSISTENT, WAYS };

/* One collective three ways. */
#define EACH(way, blocking, nonblocking, persistent)   \
    do {                                               \
        MPI_Request request_ = MPI_REQUEST_NULL;       \
        MPI_Request *req = &request_;                  \
        if ((way) == BLOCKING) {                       \
            OK(blocking);                              \
        } else if ((way) == NONBLOCKING) {             \
            OK(nonblocking);                           \
            OK(MPI_Wait(req, MPI_STATUS_IGNORE));      \
        } else {                                       \
            OK(persistent);                            \
            OK(MPI_Start(req));                        \
            OK(MPI_Wait(req, MPI_STATUS_IGNORE));      \
            OK(MPI_Request_free(req));                 \
        }                                              \
    } while (0)

/* The value of element i on a rank. */
static long value(int who, int i)
{
    return 1000L * who + i + 1;
}

/* The sum over the ranks below `below` of element i. */
static long sum(int below, int i)
{
    return 1000L * below * (below - 1) / 2 + (long)below * (i + 1);
}

static long *numbers(int count)
{
    long *a = malloc(sizeof(long) * (size_t)(count + 1));
    for (int i = 0; i <= count; i++)
        a[i] = -7;
    return a;
}

static long *mine(int count)
{
    long *a = numbers(count);
    for (int i = 0; i < count; i++)
        a[i] = value(rank, i);
    return a;
}

static void rooted(enum way way, int n, int root)
{
    MPI_Info no = MPI_INFO_NULL;
    long *a = mine(n), *b = numbers(n), *all = numbers(n * ranks);
    int here = rank == root;

    if (here)
        memcpy(b, a, sizeof(long) * (size_t)n);
    EACH(way, MPI_Bcast(b, n, MPI_LONG, root, world), MPI_Ibcast(b, n, MPI_LONG, root, world, req),
         MPI_Bcast_init(b, n, MPI_LONG, root, world, no, req));
    for (int i = 0; i < n; i++)
        CHECK(b[i] == value(root, i));

    EACH(way, MPI_Reduce(a, b, n, MPI_LONG, MPI_SUM, root, world), MPI_Ireduce(a, b, n, MPI_LONG, MPI_SUM, root, world, req),
         MPI_Reduce_init(a, b, n, MPI_LONG, MPI_SUM, root, world, no, req));
    for (int i = 0; here && i < n; i++)
        CHECK(b[i] == sum(ranks, i));
    long *c = mine(n);
    const void *from = here ? MPI_IN_PLACE : c;
    EACH(way, MPI_Reduce(from, c, n, MPI_LONG, MPI_MAX, root, world), MPI_Ireduce(from, c, n, MPI_LONG, MPI_MAX, root, world, req),
         MPI_Reduce_init(from, c, n, MPI_LONG, MPI_MAX, root, world, no, req));
    for (int i = 0; here && i < n; i++)
        CHECK(c[i] == value(ranks - 1, i));

    EACH(way, MPI_Gather(a, n, MPI_LONG, all, n, MPI_LONG, root, world),
         MPI_Igather(a, n, MPI_LONG, all, n, MPI_LONG, root, world, req),
         MPI_Gather_init(a, n, MPI_LONG, all, n, MPI_LONG, root, world, no, req));
    for (int i = 0; here && i < n * ranks; i++)
        CHECK(all[i] == value(i / n, i % n));
    for (int i = 0; i < n * ranks; i++)
        all[i] = here ? value(i / n, i % n) : -1;
    for (int i = 0; i < n; i++)
        b[i] = -1;
    EACH(way, MPI_Scatter(all, n, MPI_LONG, b, n, MPI_LONG, root, world),
         MPI_Iscatter(all, n, MPI_LONG, b, n, MPI_LONG, root, world, req),
         MPI_Scatter_init(all, n, MPI_LONG, b, n, MPI_LONG, root, world, no, req));
    for (int i = 0; i < n; i++)
        CHECK(b[i] == value(rank, i));
    CHECK(b[n] == -7 && c[n] == -7 && all[n * ranks] == -7);
    free(a);
    free(b);
    free(c);
    free(all);
}

/* Rank r gives r % 3 * n elements, with gaps between them at the root. */
static void ragged(enum way way, int n, int root)
{
    MPI_Info no = MPI_INFO_NULL;
    count_t *counts = malloc(sizeof(count_t) * (size_t)ranks);
    place_t *places = malloc(sizeof(place_t) * (size_t)ranks);
    int total = 0;
    for (int r = 0; r < ranks; r++) {
        counts[r] = r % 3 * n;
        places[r] = total;
        total += (int)counts[r] + 1;
    }
    int m = (int)counts[rank];
    long *a = mine(m), *all = numbers(total);
    EACH(way, MPI_Gatherv(a, m, MPI_LONG, all, counts, places, MPI_LONG, root, world),
         MPI_Igatherv(a, m, MPI_LONG, all, counts, places, MPI_LONG, root, world, req),
         MPI_Gatherv_init(a, m, MPI_LONG, all, counts, places, MPI_LONG, root, world, no, req));
    for (int r = 0; rank == root && r < ranks; r++) {
        for (int i = 0; i < counts[r]; i++)
            CHECK(all[places[r] + i] == value(r, i));
        CHECK(all[places[r] + counts[r]] == -7);
    }
    long *back = numbers(m);
    EACH(way, MPI_Scatterv(all, counts, places, MPI_LONG, back, m, MPI_LONG, root, world),
         MPI_Iscatterv(all, counts, places, MPI_LONG, back, m, MPI_LONG, root, world, req),
         MPI_Scatterv_init(all, counts, places, MPI_LONG, back, m, MPI_LONG, root, world, no, req));
    for (int i = 0; i < m; i++)
        CHECK(back[i] == value(rank, i));
    for (int i = 0; i <= total; i++)
        all[i] = -7;
    EACH(way, MPI_Allgatherv(a, m, MPI_LONG, all, counts, places, MPI_LONG, world),
         MPI_Iallgatherv(a, m, MPI_LONG, all, counts, places, MPI_LONG, world, req),
         MPI_Allgatherv_init(a, m, MPI_LONG, all, counts, places, MPI_LONG, world, no, req));
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < counts[r]; i++)
            CHECK(all[places[r] + i] == value(r, i));
    free(counts);
    free(places);
    free(a);
    free(back);
    free(all);
}

static void reductions(enum way way, int n)
{
    MPI_Info no = MPI_INFO_NULL;
    long *a = mine(n), *b = numbers(n);
    EACH(way, MPI_Allreduce(a, b, n, MPI_LONG, MPI_SUM, world), MPI_Iallreduce(a, b, n, MPI_LONG, MPI_SUM, world, req),
         MPI_Allreduce_init(a, b, n, MPI_LONG, MPI_SUM, world, no, req));
    for (int i = 0; i < n; i++)
        CHECK(b[i] == sum(ranks, i));
    memcpy(b, a, sizeof(long) * (size_t)n);
    EACH(way, MPI_Allreduce(MPI_IN_PLACE, b, n, MPI_LONG, MPI_SUM, world),
         MPI_Iallreduce(MPI_IN_PLACE, b, n, MPI_LONG, MPI_SUM, world, req),
         MPI_Allreduce_init(MPI_IN_PLACE, b, n, MPI_LONG, MPI_SUM, world, no, req));
    for (int i = 0; i < n; i++)
        CHECK(b[i] == sum(ranks, i));
    EACH(way, MPI_Scan(a, b, n, MPI_LONG, MPI_SUM, world), MPI_Iscan(a, b, n, MPI_LONG, MPI_SUM, world, req),
         MPI_Scan_init(a, b, n, MPI_LONG, MPI_SUM, world, no, req));
    for (int i = 0; i < n; i++)
        CHECK(b[i] == sum(rank + 1, i));
    EACH(way, MPI_Exscan(a, b, n, MPI_LONG, MPI_SUM, world), MPI_Iexscan(a, b, n, MPI_LONG, MPI_SUM, world, req),
         MPI_Exscan_init(a, b, n, MPI_LONG, MPI_SUM, world, no, req));
    for (int i = 0; rank > 0 && i < n; i++)
        CHECK(b[i] == sum(rank, i));

    count_t *counts = malloc(sizeof(count_t) * (size_t)ranks);
    int total = 0, before = 0;
    for (int r = 0; r < ranks; r++) {
        counts[r] = n + r % 2;
        before += r < rank ? (int)counts[r] : 0;
        total += (int)counts[r];
    }
    long *wide = mine(total), *part = numbers(n + 1);
    EACH(way, MPI_Reduce_scatter(wide, part, counts, MPI_LONG, MPI_SUM, world),
         MPI_Ireduce_scatter(wide, part, counts, MPI_LONG, MPI_SUM, world, req),
         MPI_Reduce_scatter_init(wide, part, counts, MPI_LONG, MPI_SUM, world, no, req));
    for (int i = 0; i < counts[rank]; i++)
        CHECK(part[i] == sum(ranks, before + i));
    EACH(way, MPI_Reduce_scatter_block(wide, part, n, MPI_LONG, MPI_SUM, world),
         MPI_Ireduce_scatter_block(wide, part, n, MPI_LONG, MPI_SUM, world, req),
         MPI_Reduce_scatter_block_init(wide, part, n, MPI_LONG, MPI_SUM, world, no, req));
    for (int i = 0; i < n; i++)
        CHECK(part[i] == sum(ranks, rank * n + i));
    free(a);
    free(b);
    free(wide);
    free(part);
    free(counts);
}

static void everyone(enum way way, int n)
{
    MPI_Info no = MPI_INFO_NULL;
    long *a = mine(n), *all = numbers(n * ranks), *out = numbers(n * ranks), *in = numbers(n * ranks);
    EACH(way, MPI_Allgather(a, n, MPI_LONG, all, n, MPI_LONG, world), MPI_Iallgather(a, n, MPI_LONG, all, n, MPI_LONG, world, req),
         MPI_Allgather_init(a, n, MPI_LONG, all, n, MPI_LONG, world, no, req));
    for (int i = 0; i < n * ranks; i++)
        CHECK(all[i] == value(i / n, i % n));

    for (int i = 0; i < n * ranks; i++)
        out[i] = 100000L * rank + i;
    EACH(way, MPI_Alltoall(out, n, MPI_LONG, in, n, MPI_LONG, world), MPI_Ialltoall(out, n, MPI_LONG, in, n, MPI_LONG, world, req),
         MPI_Alltoall_init(out, n, MPI_LONG, in, n, MPI_LONG, world, no, req));
    for (int i = 0; i < n * ranks; i++)
        CHECK(in[i] == 100000L * (i / n) + rank * n + i % n);
    memcpy(in, out, sizeof(long) * (size_t)(n * ranks));
    EACH(way, MPI_Alltoall(MPI_IN_PLACE, 0, MPI_LONG, in, n, MPI_LONG, world),
         MPI_Ialltoall(MPI_IN_PLACE, 0, MPI_LONG, in, n, MPI_LONG, world, req),
         MPI_Alltoall_init(MPI_IN_PLACE, 0, MPI_LONG, in, n, MPI_LONG, world, no, req));
    for (int i = 0; i < n * ranks; i++)
        CHECK(in[i] == 100000L * (i / n) + rank * n + i % n);

    /* Rank r gives (r + to) % 2 * n elements to each. */
    count_t *counts = malloc(sizeof(count_t) * (size_t)ranks);
    place_t *places = malloc(sizeof(place_t) * (size_t)ranks), *bytes = malloc(sizeof(place_t) * (size_t)ranks);
    MPI_Datatype *types = malloc(sizeof(MPI_Datatype) * (size_t)ranks);
    for (int r = 0; r < ranks; r++) {
        counts[r] = (rank + r) % 2 * n;
        places[r] = r * n;
        bytes[r] = r * n * (int)sizeof(long);
        types[r] = MPI_LONG;
    }
    EACH(way, MPI_Alltoallv(out, counts, places, MPI_LONG, in, counts, places, MPI_LONG, world),
         MPI_Ialltoallv(out, counts, places, MPI_LONG, in, counts, places, MPI_LONG, world, req),
         MPI_Alltoallv_init(out, counts, places, MPI_LONG, in, counts, places, MPI_LONG, world, no, req));
    EACH(way, MPI_Alltoallw(out, counts, bytes, types, all, counts, bytes, types, world),
         MPI_Ialltoallw(out, counts, bytes, types, all, counts, bytes, types, world, req),
         MPI_Alltoallw_init(out, counts, bytes, types, all, counts, bytes, types, world, no, req));
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < counts[r]; i++) {
            CHECK(in[places[r] + i] == 100000L * r + rank * n + i);
            CHECK(all[places[r] + i] == 100000L * r + rank * n + i);
        }
    EACH(way, MPI_Barrier(world), MPI_Ibarrier(world, req), MPI_Barrier_init(world, no, req));
    free(a);
    free(all);
    free(out);
    free(in);
    free(counts);
    free(places);
    free(bytes);
    free(types);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    rank = my_rank(world);
    ranks = size_of(world);
    static const int counts[] = {0, 1, 3, 100, 3001, 40000};
    for (enum way way = BLOCKING; way < WAYS; way++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            int n = counts[i];
            if (n == 40000 && ranks > 4)
                continue;
            for (int root = 0; root < ranks; root += n < 10 || ranks < 4 ? 1 : ranks - 1) {
                rooted(way, n, root);
                ragged(way, n, root);
            }
            reductions(way, n);
            everyone(way, n);
        }
    MPI_Comm_free(&world);
    return finish();
}
