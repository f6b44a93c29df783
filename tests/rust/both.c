/* One program in two languages: this is the part of C, both.rs that of Rust. Ranks of both are in one job, at any places. */
#include <stddef.h>

#include "../c/check.h"

typedef struct {
    double position[3];
    unsigned char spin;
    int mass;
} particle;

static double number(int rank, size_t at)
{
    return rank * 1000003.0 + (double)at;
}

/* Numbers go round. */
static void round_trip(int rank, int ranks, size_t count)
{
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, came = -1;
    double *mine = malloc((count + 1) * sizeof *mine), *got = malloc((count + 1) * sizeof *got);
    MPI_Status status;
    for (size_t i = 0; i < count; i++)
        mine[i] = number(rank, i);
    OK(MPI_Sendrecv(mine, (int)count, MPI_DOUBLE, next, 7, got, (int)count, MPI_DOUBLE, before, 7, MPI_COMM_WORLD,
                    &status));
    OK(MPI_Get_count(&status, MPI_DOUBLE, &came));
    CHECK(came == (int)count && status.MPI_SOURCE == before && status.MPI_TAG == 7);
    for (size_t i = 0; i < count; i++)
        CHECK(got[i] == number(before, i));
    free(mine);
    free(got);
}

/* Each rank in turn broadcasts a particle. */
static void particles(int rank, int ranks)
{
    int lengths[] = {3, 1, 1};
    MPI_Aint places[] = {offsetof(particle, position), offsetof(particle, spin), offsetof(particle, mass)};
    MPI_Datatype types[] = {MPI_DOUBLE, MPI_UINT8_T, MPI_INT32_T}, fields, type;
    OK(MPI_Type_create_struct(3, lengths, places, types, &fields));
    OK(MPI_Type_create_resized(fields, 0, sizeof(particle), &type));
    OK(MPI_Type_commit(&type));
    for (int root = 0; root < ranks; root++) {
        particle all[2] = {{{0, 0, 0}, 0, 0}, {{0, 0, 0}, 0, 0}};
        for (int i = 0; i < 2 && rank == root; i++)
            all[i] = (particle){{root, i, 0.5}, (unsigned char)(200 + root), -root};
        OK(MPI_Bcast(all, 2, type, root, MPI_COMM_WORLD));
        for (int i = 0; i < 2; i++) {
            CHECK(all[i].position[0] == root && all[i].position[1] == i && all[i].position[2] == 0.5);
            CHECK(all[i].spin == 200 + root && all[i].mass == -root);
        }
    }
    OK(MPI_Type_free(&type));
    OK(MPI_Type_free(&fields));
}

/* Sums over all ranks, and over every other one. */
static void sums(int rank, int ranks)
{
    enum { COUNT = 50000 };
    static int64_t mine[COUNT], all[COUNT];
    MPI_Comm half;
    int expected = 0, sum = -1;
    for (int i = 0; i < COUNT; i++)
        mine[i] = (int64_t)rank * i;
    OK(MPI_Allreduce(mine, all, COUNT, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD));
    for (int i = 0; i < COUNT; i++)
        CHECK(all[i] == (int64_t)ranks * (ranks - 1) / 2 * i);
    OK(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half));
    OK(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half));
    for (int other = rank % 2; other < ranks; other += 2)
        expected += other;
    CHECK(sum == expected);
    OK(MPI_Comm_free(&half));
}

int main(int argc, char **argv)
{
    static const size_t counts[] = {0, 1, 5, 500, 8000, 200001};
    int failures = -1;
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        round_trip(rank, ranks, counts[i]);
    particles(rank, ranks);
    sums(rank, ranks);
    MPI_Allreduce(&check_failures, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d in C: %d wrong\n", rank, ranks, failures);
    MPI_Finalize();
    return failures != 0;
}
