/* Collectives asked for again and again: with other buffers, other values in the same lists, in place, on handles whose
 * meaning has changed; and what is wrong with a call is found though one like it was right before.
 * RUN: ranks=1,2,4,5 fabrics=shm,tcp */
#include "check.h"

enum { TIMES = 6, MOST = 16 };

static int rank, ranks;

/* What a rank gives in a turn. */
static int value(int r, int turn, int i)
{
    return 1000 * turn + 100 * r + i;
}

static int *numbers(int count)
{
    return malloc(count * sizeof(int));
}

static void give(int *data, int count, int turn)
{
    for (int i = 0; i < count; i++)
        data[i] = value(rank, turn, i);
}

/* The same arguments but for the buffers, which move from turn to turn; every other turn is in place. */
static void buffers(void)
{
    int *memory[2] = {numbers(TIMES + MOST * 8), numbers(TIMES + MOST * 8)};
    for (int turn = 0; turn < TIMES; turn++)
        for (int root = 0; root < ranks; root++)
            for (int count = 1; count <= 3; count++) {
                int *out = memory[0] + turn, *in = memory[1] + turn, wrong = 0, here = turn % 2;
                give(out, count, turn);
                OK(MPI_Bcast(out, count, MPI_INT, root, MPI_COMM_WORLD));
                for (int i = 0; i < count; i++)
                    wrong += out[i] != value(root, turn, i);
                give(out, count, turn);
                give(in, count, turn);
                OK(MPI_Allreduce(here ? MPI_IN_PLACE : out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
                for (int i = 0; i < count; i++)
                    wrong += in[i] != ranks * value(0, turn, i) + 100 * (ranks * (ranks - 1) / 2);
                give(in, count, turn);
                OK(MPI_Reduce(here && rank == root ? MPI_IN_PLACE : out, rank == root ? in : NULL, count, MPI_INT,
                              MPI_MAX, root, MPI_COMM_WORLD));
                for (int i = 0; i < count && rank == root; i++)
                    wrong += in[i] != value(ranks - 1, turn, i);
                give(in, count, turn);
                OK(MPI_Scan(here ? MPI_IN_PLACE : out, in, count, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
                for (int i = 0; i < count; i++)
                    wrong += in[i] != value(0, turn, i);
                give(in + rank * count, count, turn);
                OK(MPI_Gather(here && rank == root ? MPI_IN_PLACE : out, count, MPI_INT, in, count, MPI_INT, root,
                              MPI_COMM_WORLD));
                for (int i = 0; i < ranks * count && rank == root; i++)
                    wrong += in[i] != value(i / count, turn, i % count);
                give(in + rank * count, count, turn);
                OK(MPI_Allgather(here ? MPI_IN_PLACE : out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD));
                for (int i = 0; i < ranks * count; i++)
                    wrong += in[i] != value(i / count, turn, i % count);
                CHECK(wrong == 0);
            }
    free(memory[0]);
    free(memory[1]);
}

/* The same lists at the same addresses, with other values in them. */
static void lists(void)
{
    int *out = numbers(MOST * 8), *in = numbers(MOST * 8), counts[MOST], places[MOST], same[MOST];
    for (int turn = 0; turn < 4 * TIMES; turn++) {
        int step = turn / 2 % 3, wrong = 0, gap = turn / 4 % 2;
        for (int r = 0; r < ranks; r++) {
            counts[r] = 1 + (r + step) % 3;
            places[r] = r == 0 ? 0 : places[r - 1] + counts[r - 1] + gap;
        }
        for (int r = 0; r < ranks; r++)
            same[r] = counts[rank];
        int all = places[ranks - 1] + counts[ranks - 1];
        give(out, counts[rank], turn);
        memset(in, 0, MOST * 8 * sizeof *in);
        OK(MPI_Allgatherv(out, counts[rank], MPI_INT, in, counts, places, MPI_INT, MPI_COMM_WORLD));
        for (int r = 0; r < ranks; r++)
            for (int i = 0; i < counts[r]; i++)
                wrong += in[places[r] + i] != value(r, turn, i);
        memset(in, 0, MOST * 8 * sizeof *in);
        OK(MPI_Gatherv(out, counts[rank], MPI_INT, in, rank == 0 ? counts : NULL, rank == 0 ? places : NULL,
                       MPI_INT, 0, MPI_COMM_WORLD));
        for (int r = 0; r < ranks && rank == 0; r++)
            for (int i = 0; i < counts[r]; i++)
                wrong += in[places[r] + i] != value(r, turn, i);
        for (int i = 0; i < all; i++)
            out[i] = turn + i;
        OK(MPI_Scatterv(out, counts, places, MPI_INT, in, counts[rank], MPI_INT, 0, MPI_COMM_WORLD));
        for (int i = 0; i < counts[rank]; i++)
            wrong += in[i] != turn + places[rank] + i;
        for (int r = 0, at = 0; r < ranks; at += counts[rank], r++)
            give(out + at, counts[rank], turn + r);
        int from[MOST];
        for (int r = 0; r < ranks; r++)
            from[r] = r * counts[rank];
        OK(MPI_Alltoallv(out, same, from, MPI_INT, in, counts, places, MPI_INT, MPI_COMM_WORLD));
        for (int r = 0; r < ranks; r++)
            for (int i = 0; i < counts[r]; i++)
                wrong += in[places[r] + i] != value(r, turn + rank, i);
        CHECK(wrong == 0);
    }
    free(out);
    free(in);
}

/* A call that would be right but for one thing, after some that were. */
static void errors(void)
{
    int out[2] = {1, 2}, in[2], counts[MOST], places[MOST];
    MPI_Datatype pair;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int turn = 0; turn < TIMES; turn++) {
        OK(MPI_Allreduce(out, in, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        OK(MPI_Bcast(out, 2, MPI_INT, 0, MPI_COMM_WORLD));
    }
    CHECK(class_of(MPI_Allreduce(NULL, in, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Allreduce(out, NULL, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Allreduce(out, MPI_IN_PLACE, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Allreduce(out, out, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Allreduce(out, in, -2, MPI_INT, MPI_SUM, MPI_COMM_WORLD)) == MPI_ERR_COUNT);
    CHECK(class_of(MPI_Allreduce(out, in, 2, MPI_FLOAT, MPI_BAND, MPI_COMM_WORLD)) == MPI_ERR_OP);
    CHECK(class_of(MPI_Bcast(NULL, 2, MPI_INT, 0, MPI_COMM_WORLD)) == MPI_ERR_BUFFER);
    CHECK(class_of(MPI_Bcast(out, 2, MPI_INT, ranks, MPI_COMM_WORLD)) == MPI_ERR_ROOT);
    for (int r = 0; r < ranks; r++)
        counts[r] = 1, places[r] = r;
    int all[MOST];
    for (int turn = 0; turn < TIMES; turn++)
        OK(MPI_Allgatherv(out, 1, MPI_INT, all, counts, places, MPI_INT, MPI_COMM_WORLD));
    CHECK(class_of(MPI_Allgatherv(out, 1, MPI_INT, all, NULL, places, MPI_INT, MPI_COMM_WORLD)) == MPI_ERR_COUNT);
    counts[ranks - 1] = -1;
    CHECK(class_of(MPI_Allgatherv(out, 1, MPI_INT, all, counts, places, MPI_INT, MPI_COMM_WORLD)) == MPI_ERR_COUNT);
    /* A handle that means another type than it did. */
    for (int size = 1; size <= 2; size++) {
        MPI_Type_contiguous(size, MPI_INT, &pair);
        MPI_Type_commit(&pair);
        for (int turn = 0; turn < TIMES; turn++) {
            out[0] = out[1] = rank == 0 ? 10 * size + turn : -1;
            OK(MPI_Bcast(out, 1, pair, 0, MPI_COMM_WORLD));
            CHECK(out[0] == 10 * size + turn && (out[1] == out[0] || (size == 1 && out[1] == -1)));
        }
        MPI_Type_free(&pair);
    }
}

/* Persistent ones, started again and again with other data, by each rank in an order of its own. */
static void persistent(void)
{
    int *out = numbers(3), *sum = numbers(3), *data = numbers(3), *all = numbers(MOST), *most = numbers(3);
    MPI_Request requests[4];
    OK(MPI_Allreduce_init(out, sum, 3, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]));
    OK(MPI_Bcast_init(data, 3, MPI_INT, ranks - 1, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]));
    OK(MPI_Allgather_init(out, 3, MPI_INT, all, 3, MPI_INT, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[2]));
    OK(MPI_Scan_init(MPI_IN_PLACE, most, 3, MPI_INT, MPI_MAX, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[3]));
    for (int turn = 0; turn < TIMES; turn++) {
        int wrong = 0;
        give(out, 3, turn);
        give(data, 3, turn);
        give(most, 3, turn);
        for (int i = 0; i < 4; i++)
            OK(MPI_Start(&requests[(i + rank + turn) % 4]));
        OK(MPI_Waitall(4, requests, MPI_STATUSES_IGNORE));
        for (int i = 0; i < 3; i++) {
            wrong += sum[i] != ranks * value(0, turn, i) + 100 * (ranks * (ranks - 1) / 2);
            wrong += data[i] != value(ranks - 1, turn, i);
            wrong += most[i] != value(rank, turn, i);
        }
        for (int i = 0; i < 3 * ranks; i++)
            wrong += all[i] != value(i / 3, turn, i % 3);
        CHECK(wrong == 0);
    }
    for (int i = 0; i < 4; i++)
        OK(MPI_Request_free(&requests[i]));
    free(out);
    free(sum);
    free(data);
    free(all);
    free(most);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    ranks = size_of(MPI_COMM_WORLD);
    buffers();
    persistent();
    lists();
    errors();
    return finish();
}
