/* Memory of a rank (PSS: shared pages count by share) after a first exchange with a neighbour, mean over the ranks. */
#include "bench.h"

static double pss_mb(void)
{
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "Pss:", 4) == 0)
            kib = atof(line + 4);
    if (file != NULL)
        fclose(file);
    return kib / 1024;
}

int main(int argc, char **argv)
{
    int rank, ranks, token;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % ranks, 0, &token, 1, MPI_INT, (rank + ranks - 1) % ranks, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    double here = pss_mb(), all;
    MPI_Reduce(&here, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        result("memory", all / ranks, "MB");
    MPI_Finalize();
    return 0;
}
