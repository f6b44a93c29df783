/* A device on which no byte is left: what kernels and copies would take of it goes another way, and all is right. */
#include "../c/check.h"
#include "device.h"

enum { COUNT = 50000 };

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), other = rank ^ 1;
    int *host = malloc(2 * COUNT * sizeof(int));
    use_device(rank);
    device_ptr in = device_alloc(2 * COUNT * sizeof(int)), out = device_alloc(2 * COUNT * sizeof(int)), rest = 0;
    for (size_t bytes = 1 << 30; bytes >= 4096; bytes /= 2)
        while (cuda_try("cuMemAlloc_v2", (uintptr_t)&rest, bytes, 0) == 0)
            ;
    CHECK(cuda_try("cuMemAlloc_v2", (uintptr_t)&rest, 1, 0) == 2);
    for (int i = 0; i < 2 * COUNT; i++)
        host[i] = i + 1000 * rank;
    to_device(out, host, 2 * COUNT * sizeof(int));
    /* Every other number, packed by a kernel where there is room for what it makes. */
    for (int count = 100; count <= COUNT; count *= 500) {
        MPI_Datatype some;
        MPI_Type_vector(count, 1, 2, MPI_INT, &some);
        MPI_Type_commit(&some);
        OK(MPI_Sendrecv((void *)out, 1, some, other, 1, (void *)in, 1, some, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        memset(host, 0, 2 * COUNT * sizeof(int));
        from_device(host, in, 2 * COUNT * sizeof(int));
        int bad = 0;
        for (int i = 0; i < count; i++)
            bad += host[2 * i] != 2 * i + 1000 * other;
        CHECK(bad == 0);
        MPI_Type_free(&some);
    }
    OK(MPI_Allreduce((void *)out, (void *)in, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    from_device(host, in, COUNT * sizeof(int));
    int bad = 0;
    for (int i = 0; i < COUNT; i++)
        bad += host[i] != 2 * i + 1000;
    CHECK(bad == 0);
    free(host);
    return finish();
}
