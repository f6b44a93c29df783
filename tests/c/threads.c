/* MPI_THREAD_MULTIPLE: threads that send, receive and reduce at the same time, each on its communicator.
 * RUN: ranks=2,3 fabrics=shm,tcp */
#include <pthread.h>
#include "check.h"

enum { THREADS = 4, ROUNDS = 300 };

static int rank, ranks;
static MPI_Comm comms[THREADS];
static int bad[THREADS];

static void *work(void *argument)
{
    int me = (int)(long)argument, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    enum { SIZE = 20000 };
    int *out = malloc(SIZE * sizeof(int)), *in = malloc(SIZE * sizeof(int));
    for (int round = 0; round < ROUNDS; round++) {
        int count = round % 10 == 0 ? SIZE : round % 50 + 1, sum;
        MPI_Request request;
        out[0] = rank * 1000 + round;
        out[count - 1] = out[0];
        /* all threads on one communicator, told apart by tag */
        MPI_Isend(out, count, MPI_INT, next, me, MPI_COMM_WORLD, &request);
        MPI_Recv(in, SIZE, MPI_INT, before, me, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        bad[me] += in[0] != before * 1000 + round || in[count - 1] != in[0];
        MPI_Allreduce(&round, &sum, 1, MPI_INT, MPI_SUM, comms[me]);
        bad[me] += sum != round * ranks;
    }
    free(out);
    free(in);
    return NULL;
}

int main(int argc, char **argv)
{
    int provided, main_thread;
    pthread_t threads[THREADS];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    MPI_Is_thread_main(&main_thread);
    CHECK(main_thread);
    rank = my_rank(MPI_COMM_WORLD);
    ranks = size_of(MPI_COMM_WORLD);
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CHECK(bad[i] == 0);
        MPI_Comm_free(&comms[i]);
    }
    return finish();
}
