/* What runs while faults and strangers strike: rounds of an allreduce and of an exchange around a ring, all data checked, until rank 0
 * has done so for some seconds: `rounds SECONDS FILE`. FILE is made once the first rounds are over; who removes it ends the rounds.
 * From the time on that there is a FILE.go, the exchange is with one rank after the other, so that all pairs talk; then FILE.all is
 * made. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WORDS 16384
/* Rounds that the exchange is with the same ranks. */
#define STAY 20

static const char *file;

static int exists(const char *end)
{
    char name[4096];
    snprintf(name, sizeof name, "%s%s", file, end);
    return access(name, F_OK) == 0;
}

static void make(const char *end)
{
    char name[4096];
    snprintf(name, sizeof name, "%s%s", file, end);
    fclose(fopen(name, "w"));
}

int main(int argc, char **argv)
{
    static int out[WORDS], in[WORDS];
    int rank, ranks, round = 0, distance = 1, far = 0, wrong = 0;
    if (argc != 3)
        return 2;
    file = argv[2];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double begin = MPI_Wtime(), end = begin + atof(argv[1]);
    for (; distance > 0; round++) {
        int next = (rank + distance) % ranks, before = (rank + ranks - distance) % ranks, sum = 0, mine = rank + round;
        for (int i = 0; i < WORDS; i++)
            out[i] = rank * 7 + round + i;
        MPI_Sendrecv(out, WORDS, MPI_INT, next, 0, in, WORDS, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < WORDS; i++)
            wrong |= in[i] != before * 7 + round + i;
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        wrong |= sum != ranks * (ranks - 1) / 2 + ranks * round;
        if (rank == 0) {
            if (round == 5)
                make("");
            if (far > 0 || exists(".go"))
                far++;
            if (far == STAY * ranks)
                make(".all");
            distance = MPI_Wtime() < end && (round <= 5 || exists("")) ? 1 + far / STAY % (ranks - 1) : 0;
        }
        MPI_Bcast(&distance, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    int all = 1;
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        puts(all ? "wrong data" : "ok");
        printf("%d rounds in %.2f s\n", round, MPI_Wtime() - begin);
    }
    MPI_Finalize();
    return wrong;
}
