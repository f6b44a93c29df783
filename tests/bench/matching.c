/*
 * Microseconds a message when many wait to be matched, by depth, and the whole way of it counts: posting, sending,
 * matching, completing. `posted`: the receives are there first, and messages come for the last of them first.
 * `unexpected`: the messages are there first, and are received last one first. `-any`: the receives name no source
 * (posted), or no tag (unexpected, so in the order sent).
 */
#include "bench.h"

#define DEEPEST 10000
#define GO 32000

struct queue {
    int depth, any, wrong;
    int *out, *in;
    MPI_Request *requests;
};

static void posted(void *argument)
{
    struct queue *q = argument;
    if (rank == 1) {
        for (int i = 0; i < q->depth; i++)
            MPI_Irecv(&q->in[i], 1, MPI_INT, q->any ? MPI_ANY_SOURCE : 0, i, MPI_COMM_WORLD, &q->requests[i]);
        MPI_Send(NULL, 0, MPI_BYTE, 0, GO, MPI_COMM_WORLD);
    } else {
        MPI_Recv(NULL, 0, MPI_BYTE, 1, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = q->depth - 1; i >= 0; i--)
            MPI_Isend(&q->out[i], 1, MPI_INT, 1, i, MPI_COMM_WORLD, &q->requests[i]);
    }
    MPI_Waitall(q->depth, q->requests, MPI_STATUSES_IGNORE);
}

static void unexpected(void *argument)
{
    struct queue *q = argument;
    if (rank == 0) {
        for (int i = 0; i < q->depth; i++)
            MPI_Isend(&q->out[i], 1, MPI_INT, 1, i, MPI_COMM_WORLD, &q->requests[i]);
        MPI_Send(NULL, 0, MPI_BYTE, 1, GO, MPI_COMM_WORLD);
        MPI_Waitall(q->depth, q->requests, MPI_STATUSES_IGNORE);
        MPI_Recv(NULL, 0, MPI_BYTE, 1, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(NULL, 0, MPI_BYTE, 0, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < q->depth; i++) {
            int place = q->any ? i : q->depth - 1 - i;
            MPI_Recv(&q->in[place], 1, MPI_INT, 0, q->any ? MPI_ANY_TAG : place, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        MPI_Send(NULL, 0, MPI_BYTE, 0, GO, MPI_COMM_WORLD);
    }
}

static void spoil(void *argument)
{
    struct queue *q = argument;
    memset(q->in, 0xee, sizeof(int) * (size_t)q->depth);
}

int main(int argc, char **argv)
{
    static const long depths[] = {1, 10, 100, 1000, DEEPEST, -1};
    bench_init(&argc, &argv);
    struct queue q = {.out = buffer(DEEPEST * sizeof(int)), .in = buffer(DEEPEST * sizeof(int))};
    q.requests = buffer(DEEPEST * sizeof(MPI_Request));
    for (const long *depth = sizes_of(argc, argv, 1, depths); *depth >= 0; depth++)
        for (int kind = 0; kind < 4; kind++) {
            q.depth = (int)*depth;
            q.any = kind & 1;
            begin_cell("%s%s/%ld", kind & 2 ? "unexpected" : "posted", q.any ? "-any" : "", *depth);
            for (int i = 0; i < q.depth; i++)
                q.out[i] = 7 * i + kind;
            double seconds = seconds_each(kind & 2 ? unexpected : posted, &q, spoil);
            int wrong = 0;
            for (int i = 0; i < q.depth && rank == 1; i++)
                wrong |= q.in[i] != 7 * i + kind;
            end_cell(seconds / q.depth * 1e6, "us", wrong);
        }
    free(q.out);
    free(q.in);
    free(q.requests);
    MPI_Finalize();
    return 0;
}
