/* What runs while faults strike: rounds of an allreduce and of an exchange around a ring, all data checked, until rank 0 has done
 * so for some seconds: `rounds SECONDS FILE`. FILE is made once the first rounds are over. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define WORDS 16384

int main(int argc, char **argv)
{
    static int out[WORDS], in[WORDS];
    int rank, ranks, more = 1, wrong = 0;
    if (argc != 3)
        return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double end = MPI_Wtime() + atof(argv[1]);
    for (int round = 0; more; round++) {
        int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, sum = 0, mine = rank + round;
        for (int i = 0; i < WORDS; i++)
            out[i] = rank * 7 + round + i;
        MPI_Sendrecv(out, WORDS, MPI_INT, next, 0, in, WORDS, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < WORDS; i++)
            wrong |= in[i] != before * 7 + round + i;
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        wrong |= sum != ranks * (ranks - 1) / 2 + ranks * round;
        more = MPI_Wtime() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (rank == 0 && round == 5)
            fclose(fopen(argv[2], "w"));
    }
    int all = 1;
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        puts(all ? "wrong data" : "ok");
    MPI_Finalize();
    return wrong;
}
