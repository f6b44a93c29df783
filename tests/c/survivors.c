/* Ranks are killed, one after the other, while the others wait for them in many ways: each such call returns
 * MPI_ERR_PROC_ABORTED, as do new ones, and whatever needs only living ranks works. `survivors RANKS FILE`: that many die at once,
 * by somebody's hand, when they have made the file.
 *
 * RUN: ranks=3,6,8 fabrics=shm,tcp limit=60 status=137 keep_going=yes only=banyan */
#include "check.h"

#include <signal.h>
#include <unistd.h>

enum { LONG = 1 << 20, ROUNDS = 30 };

#define ABORTED(call) CHECK(class_of(call) == MPI_ERR_PROC_ABORTED)

static int numbers[LONG], others[LONG];

/* Waits for the victim, which lives or has just died, in a way that depends on the rank. `other` is a communicator that only this
 * is done on. */
static void wait_for(int victim, MPI_Comm other)
{
    MPI_Request request;
    MPI_Status status;
    int done = 0, code = MPI_SUCCESS, rank = my_rank(MPI_COMM_WORLD);
    switch (rank % 6) {
    case 0:
        ABORTED(MPI_Recv(numbers, 1, MPI_INT, MPI_ANY_SOURCE, 1, other, &status));
        break;
    case 1:
        OK(MPI_Irecv(numbers, LONG, MPI_INT, victim, 1, MPI_COMM_WORLD, &request));
        while (!done && code == MPI_SUCCESS)
            code = MPI_Test(&request, &done, &status);
        ABORTED(code);
        break;
    case 2:
        ABORTED(MPI_Allreduce(&rank, &done, 1, MPI_INT, MPI_SUM, other));
        break;
    case 3:
        ABORTED(MPI_Probe(victim, 1, MPI_COMM_WORLD, &status));
        break;
    case 4:
        ABORTED(MPI_Send(numbers, LONG, MPI_INT, victim, 1, MPI_COMM_WORLD));
        break;
    default:
        OK(MPI_Ialltoall(numbers, 1, MPI_INT, others, 1, MPI_INT, other, &request));
        ABORTED(MPI_Wait(&request, &status));
    }
}

/* Calls that begin after the death. */
static void call_in_vain(int victim)
{
    MPI_Comm none;
    MPI_Request request;
    MPI_Status status;
    int flag = 0;
    ABORTED(MPI_Ssend(numbers, 1, MPI_INT, victim, 2, MPI_COMM_WORLD));
    ABORTED(MPI_Recv(numbers, 1, MPI_INT, victim, 2, MPI_COMM_WORLD, &status));
    ABORTED(MPI_Iprobe(victim, 2, MPI_COMM_WORLD, &flag, &status));
    ABORTED(MPI_Barrier(MPI_COMM_WORLD));
    ABORTED(MPI_Allreduce(numbers, others, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    ABORTED(MPI_Allreduce(numbers, others, LONG, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    /* The error comes when it is started, or when it is waited for. */
    int code = MPI_Iallreduce(numbers, others, 8, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    ABORTED(code == MPI_SUCCESS ? MPI_Wait(&request, &status) : code);
    ABORTED(MPI_Comm_split(MPI_COMM_WORLD, 0, 0, &none));
}

/* What living ranks do among themselves, when so many have died since the last time. */
static void go_on(MPI_Comm living, int dead)
{
    MPI_Comm again;
    MPI_Group group;
    MPI_Status status;
    int rank = my_rank(living), ranks = size_of(living), sum, from;
    for (int round = 0; round < ROUNDS; round++) {
        OK(MPI_Allreduce(&round, &sum, 1, MPI_INT, MPI_SUM, living));
        CHECK(sum == round * ranks);
        for (int i = 0; i < LONG; i++)
            numbers[i] = round + i;
        OK(MPI_Bcast(numbers, LONG, MPI_INT, round % ranks, living));
        OK(MPI_Sendrecv(numbers, LONG, MPI_INT, (rank + 1) % ranks, 3, others, LONG, MPI_INT, (rank + ranks - 1) % ranks, 3,
                        living, &status));
        for (int i = 0; i < LONG; i++)
            if (others[i] != round + i) {
                fprintf(stderr, "round %d of %d ranks: number %d is %d\n", round, ranks, i, others[i]);
                CHECK(others[i] == round + i);
                break;
            }
    }
    /* A receive from any source tells of a death, if it finds no message: the next ones wait for the living. */
    if (rank > 0)
        OK(MPI_Send(&rank, 1, MPI_INT, 0, 4, MPI_COMM_WORLD));
    for (int i = 1; rank == 0 && i < ranks; i++) {
        int code = MPI_Recv(&from, 1, MPI_INT, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &status);
        for (; dead > 0 && class_of(code) == MPI_ERR_PROC_ABORTED; dead--)
            code = MPI_Recv(&from, 1, MPI_INT, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &status);
        OK(code);
        CHECK(from == status.MPI_SOURCE);
    }
    OK(MPI_Comm_group(living, &group));
    OK(MPI_Comm_create_group(MPI_COMM_WORLD, group, 5, &again));
    OK(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, again));
    CHECK(sum == ranks * (ranks - 1) / 2);
    OK(MPI_Comm_free(&again));
    OK(MPI_Group_free(&group));
}

/* Dies, by its own hand if there is no file to be made. */
static void die(const char *file)
{
    if (file != NULL) {
        FILE *made = fopen(file, "w");
        CHECK(made != NULL);
        fclose(made);
        pause();
    }
    usleep(200 * 1000);
    raise(SIGKILL);
}

int main(int argc, char **argv)
{
    MPI_Comm living[3], other[3];
    int failures = 0, dying = argc > 1 ? atoi(argv[1]) : 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD), deaths = ranks > 4 && argc == 1 ? 2 : 1;
    for (int death = 1; death <= deaths; death++) {
        OK(MPI_Comm_split(MPI_COMM_WORLD, rank < ranks - death * dying, rank, &living[death]));
        OK(MPI_Comm_dup(death == 1 ? MPI_COMM_WORLD : living[death - 1], &other[death]));
    }
    for (int round = 0; round < ROUNDS; round++)
        OK(MPI_Allreduce(&rank, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    for (int death = 1; death <= deaths; death++) {
        int victim = ranks - death * dying;
        if (rank >= victim)
            die(argc > 2 ? argv[2] : NULL);
        wait_for(victim, other[death]);
        call_in_vain(victim);
        go_on(living[death], dying);
    }
    OK(MPI_Allreduce(&check_failures, &failures, 1, MPI_INT, MPI_SUM, living[deaths]));
    if (rank == 0 && failures == 0)
        puts("ok");
    OK(MPI_Finalize());
    return 0;
}
