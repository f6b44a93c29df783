/* Long blocks of gathers, scatters and exchanges, which go between two ranks' memory where there are more ranks than cores: of several
 * types, in place, and after some ranks may no longer write other processes' memory.
 * RUN: ranks=6 fabrics=shm limit=60 only=banyan env=BANYAN_COLL=gather=single_copy */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include "check.h"
#include "forbid.h"

/* Ints of the longest block, of which a rank's part may be a page or all. */
enum { LONG = 100000, SHORT = 1024, MOST = 6 };

static int rank, ranks, round_number;
static int given[MOST * LONG], got[2 * MOST * LONG];
static int counts[MOST], places[MOST];

/* An int of what a rank gives to another one. */
static int item(int from, int to, int i)
{
    return (from * 31 + to * 7 + round_number) * 1000003 + i;
}

static int len(int who)
{
    return (who + round_number) % 3 == 0 ? SHORT : LONG - who;
}

static void lay_out(int (*length)(int))
{
    for (int i = 0, at = 0; i < ranks; at += counts[i++]) {
        counts[i] = length(i);
        places[i] = at;
    }
}

static int longest(int who)
{
    (void)who;
    return LONG;
}

/* Blocks of all ranks at the root, in ints that lie `stride` apart. */
static int gathered(int stride, int to)
{
    int bad = 0;
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < counts[from]; i++)
            bad += got[(places[from] + i) * stride] != item(from, to, i);
    return bad;
}

static void give(int to, int at, int n)
{
    for (int i = 0; i < n; i++)
        given[at + i] = item(rank, to, i);
}

static void gathers(int root, MPI_Datatype apart)
{
    const int strided = round_number % 2, in_place = round_number % 4 == 2;
    const MPI_Datatype there = strided ? apart : MPI_INT;
    lay_out(longest);
    memset(got, 0xee, sizeof got);
    give(root, 0, LONG);
    if (rank == root && in_place)
        memcpy(got + places[root] * (1 + strided), given, LONG * sizeof(int));
    OK(MPI_Gather(rank == root && in_place ? MPI_IN_PLACE : given, LONG, MPI_INT, got, LONG, there, root,
                  MPI_COMM_WORLD));
    CHECK(rank != root || gathered(1 + strided, root) == 0);
    lay_out(len);
    memset(got, 0xee, sizeof got);
    OK(MPI_Gatherv(given, counts[rank], MPI_INT, got, counts, places, there, root, MPI_COMM_WORLD));
    CHECK(rank != root || gathered(1 + strided, root) == 0);
}

static void scatters(int root)
{
    int bad = 0;
    lay_out(len);
    for (int to = 0; to < ranks; to++)
        give(to, places[to], counts[to]);
    memset(got, 0xee, sizeof got);
    OK(MPI_Scatterv(given, counts, places, MPI_INT, got, counts[rank], MPI_INT, root, MPI_COMM_WORLD));
    for (int i = 0; i < counts[rank]; i++)
        bad += got[i] != item(root, rank, i);
    CHECK(bad == 0);
}

static void exchanges(int in_place)
{
    int mine[MOST], mine_at[MOST];
    /* A block is as long as the two ranks' together say, one way and the other. */
    for (int i = 0, at = 0; i < ranks; at += mine[i++]) {
        mine[i] = len((i + rank) % ranks);
        mine_at[i] = at;
    }
    for (int to = 0; to < ranks; to++)
        give(to, mine_at[to], mine[to]);
    memcpy(counts, mine, sizeof counts);
    memcpy(places, mine_at, sizeof places);
    memset(got, 0xee, sizeof got);
    if (in_place)
        memcpy(got, given, sizeof given);
    OK(MPI_Alltoallv(in_place ? MPI_IN_PLACE : given, mine, mine_at, MPI_INT, got, mine, mine_at, MPI_INT,
                     MPI_COMM_WORLD));
    CHECK(gathered(1, rank) == 0);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    rank = my_rank(MPI_COMM_WORLD);
    ranks = size_of(MPI_COMM_WORLD);
    if (ranks > MOST)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Datatype apart;
    OK(MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &apart));
    OK(MPI_Type_commit(&apart));
    for (round_number = 0; round_number < 24; round_number++) {
        const int root = round_number % ranks;
        if (round_number == 12 && rank % 2 == 1)
            forbid(SYS_process_vm_writev);
        gathers(root, apart);
        scatters(root);
        exchanges(round_number % 3 == 1);
    }
    OK(MPI_Type_free(&apart));
    return finish();
}
