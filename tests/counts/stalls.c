/* What the step `counts` looks at for loads that wait for several stores: CALLS calls of each part of the paths, where nothing is made for the
 * first time any more. The store to `part` before each part, and after the last one, is where it begins in the trace. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>

enum { FIRST = 40, CALLS = 50, MANY = 1024 };
static volatile int part;
static char given[MANY], got[MANY];
static int counts[2] = { 8, 8 }, places[2] = { 0, 8 };

static void there_and_back(int rank, int bytes)
{
    if (rank == 0)
        MPI_Send(given, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    MPI_Recv(got, bytes, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1)
        MPI_Send(given, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
}

static void one_way(int rank)
{
    MPI_Request request;
    if (rank == 0)
        MPI_Isend(given, 8, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &request);
    else
        MPI_Irecv(got, 8, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void both_ways(int rank)
{
    MPI_Request requests[2];
    MPI_Irecv(got, 8, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(given, 8, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

/* The parts, in the order of `PARTS` in `stalls.rs`. */
static void call(int which, int rank)
{
    MPI_Comm world = MPI_COMM_WORLD;
    switch (which) {
    case 0: there_and_back(rank, 8); break;
    case 1: there_and_back(rank, MANY); break;
    case 2: one_way(rank); break;
    case 3: both_ways(rank); break;
    case 4: MPI_Barrier(world); break;
    case 5: MPI_Bcast(given, 8, MPI_BYTE, 0, world); break;
    case 6: MPI_Reduce(given, got, 1, MPI_DOUBLE, MPI_SUM, 0, world); break;
    case 7: MPI_Allreduce(given, got, 1, MPI_DOUBLE, MPI_SUM, world); break;
    case 8: MPI_Gather(given, 8, MPI_BYTE, got, 8, MPI_BYTE, 0, world); break;
    case 9: MPI_Gatherv(given, 8, MPI_BYTE, got, counts, places, MPI_BYTE, 0, world); break;
    case 10: MPI_Scatterv(given, counts, places, MPI_BYTE, got, 8, MPI_BYTE, 0, world); break;
    case 11: MPI_Alltoall(given, 8, MPI_BYTE, got, 8, MPI_BYTE, world); break;
    case 12: MPI_Exscan(given, got, 1, MPI_DOUBLE, MPI_SUM, world); break;
    }
}

int main(int argc, char **argv)
{
    enum { PARTS = 13 };
    int rank;
    Dl_info library;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!dladdr((void *) MPI_Init, &library))
        return 1;
    printf("rank %d part %#lx library %#lx\n", rank, (unsigned long) &part, (unsigned long) library.dli_fbase);
    fflush(stdout);
    for (int which = 0; which < PARTS; which++) {
        for (int n = 0; n < FIRST; n++)
            call(which, rank);
        part = which;
        for (int n = 0; n < CALLS; n++)
            call(which, rank);
        part = PARTS;
    }
    MPI_Finalize();
    return 0;
}
