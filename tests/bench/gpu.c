/*
 * What messages and sums take whose buffers are on a GPU, and the copies that bound them: on the driver alone, no headers of CUDA are needed.
 * The argument says what is measured: "limits" (1 rank), "messages" (2 ranks) or "sums". Every rank uses the first device.
 */
#include "bench.h"

#include "../gpu/device.h"

enum { LARGE = 64 << 20 };

static void synchronize(void)
{
    cuda("cuCtxSynchronize", 0, 0, 0);
}

/* Seconds that a copy of LARGE bytes takes, the best of several. */
static double copy_time(const char *function, uintptr_t to, uintptr_t from)
{
    double best = 1e9;
    for (int i = 0; i < 8; i++) {
        synchronize();
        double begun = now();
        cuda(function, to, from, LARGE);
        synchronize();
        double took = now() - begun;
        best = took < best ? took : best;
    }
    return best;
}

static void limits(void)
{
    char name[100] = "";
    int version = 0;
    device_ptr one = device_alloc(LARGE), other = device_alloc(LARGE);
    void *pinned = pinned_alloc(LARGE);
    cuda("cuDeviceGetName", (uintptr_t)name, sizeof name - 1, 0);
    cuda("cuDriverGetVersion", (uintptr_t)&version, 0, 0);
    printf("DEVICE %s, CUDA %d.%d\n", name, version / 1000, version % 1000 / 10);
    printf("CELL limit/device %g GB/s\n", 1e-9 * LARGE / copy_time("cuMemcpyDtoD_v2", other, one));
    printf("CELL limit/to %g GB/s\n", 1e-9 * LARGE / copy_time("cuMemcpyHtoD_v2", one, (uintptr_t)pinned));
    printf("CELL limit/from %g GB/s\n", 1e-9 * LARGE / copy_time("cuMemcpyDtoH_v2", (uintptr_t)pinned, one));
}

/* There and back; the time one way, the best of some rounds. */
static double ping_pong(device_ptr buffer, int bytes, int times)
{
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = now();
        for (int i = 0; i < times; i++) {
            if (rank == 0)
                MPI_Send((void *)buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv((void *)buffer, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1)
                MPI_Send((void *)buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
        double took = (now() - begun) / times / 2;
        best = took < best ? took : best;
    }
    return best;
}

/* What rank 0 sends comes to rank 1 as it was. */
static int is_right(device_ptr buffer, int bytes)
{
    unsigned char *host = malloc(bytes);
    int right = 1;
    for (int i = 0; i < bytes; i++)
        host[i] = (unsigned char)(rank == 0 ? i * 131 + (i >> 8) * 17 : 0);
    to_device(buffer, host, bytes);
    if (rank == 0) {
        MPI_Send((void *)buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    } else {
        MPI_Recv((void *)buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        from_device(host, buffer, bytes);
        for (int i = 0; i < bytes; i++)
            right &= host[i] == (unsigned char)(i * 131 + (i >> 8) * 17);
    }
    MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    free(host);
    return right;
}

static void messages(void)
{
    static const int lengths[] = {8, 8 << 10, 64 << 10, 1 << 20, 8 << 20, LARGE};
    device_ptr buffer = device_alloc(LARGE);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int bytes = lengths[i];
        int right = is_right(buffer, bytes);
        double took = ping_pong(buffer, bytes, bytes > 1 << 20 ? 2 : bytes > 64 << 10 ? 20 : 200);
        if (rank == 0 && !right)
            printf("FAIL messages/%d wrong data\n", bytes);
        else if (rank == 0 && bytes <= 8 << 10)
            printf("CELL messages/%d %g us\n", bytes, 1e6 * took);
        else if (rank == 0)
            printf("CELL messages/%d %g GB/s\n", bytes, 1e-9 * bytes / took);
    }
}

static void sums(void)
{
    enum { COUNT = LARGE / sizeof(float) };
    float *host = malloc(LARGE);
    device_ptr in = device_alloc(LARGE), out = device_alloc(LARGE);
    double best = 1e9;
    int bad = 0;
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)(i % 1000 + rank);
    to_device(in, host, LARGE);
    for (int round = 0; round < 4; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = now();
        MPI_Allreduce((void *)in, (void *)out, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double took = now() - begun;
        best = took < best ? took : best;
    }
    from_device(host, out, LARGE);
    for (int i = 0; i < COUNT; i++)
        bad += host[i] != (float)(i % 1000 * ranks + ranks * (ranks - 1) / 2);
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && bad)
        printf("FAIL allreduce/%d wrong data\n", LARGE);
    else if (rank == 0)
        printf("CELL allreduce/%d %g ms\n", LARGE, 1e3 * best);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    use_device(0);
    if (argc > 1 && strcmp(argv[1], "limits") == 0)
        limits();
    else if (argc > 1 && strcmp(argv[1], "messages") == 0)
        messages();
    else
        sums();
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
