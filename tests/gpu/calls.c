/* How often the driver is called for a short message whose memory is a device's: once for the copy at each end, by which the bytes go straight
 * into the frame or out of it, and once more for its end. Nothing else is waited for, asked for or made. The stand-in counts. */
#include "../c/check.h"
#include "device.h"

enum { TIMES = 50, MOST = (64 << 10) - 1 };

/* Messages one after the other, each of which waits for a word, so that none is unexpected unless it is `late` that it is received. */
static void messages(device_ptr buffer, int bytes, int late)
{
    static const char *const of_cuda[] = {"cuMemcpyAsync", "cuStreamSynchronize", "cuPointerGetAttribute"};
    static const char *const of_hip[] = {"hipMemcpyAsync", "hipStreamSynchronize", "hipPointerGetAttribute", "hipGetDevice"};
    const char *const *kinds = is_hip() ? of_hip : of_cuda;
    enum { CUDA_KINDS = sizeof of_cuda / sizeof of_cuda[0], MOST_KINDS = sizeof of_hip / sizeof of_hip[0] };
    const int many = is_hip() ? MOST_KINDS : CUDA_KINDS;
    unsigned long long before[MOST_KINDS], all = driver_calls(""), ours = 0;
    int rank = my_rank(MPI_COMM_WORLD);
    for (int i = 0; i < many; i++)
        before[i] = driver_calls(kinds[i]);
    for (int i = 0; i < TIMES; i++) {
        if (rank == 0) {
            if (!late)
                OK(MPI_Recv(NULL, 0, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            OK(MPI_Send((void *)buffer, bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD));
            if (late)
                OK(MPI_Send(NULL, 0, MPI_INT, 1, 1, MPI_COMM_WORLD));
        } else if (late) {
            OK(MPI_Recv(NULL, 0, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            OK(MPI_Recv((void *)buffer, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        } else {
            MPI_Request request;
            OK(MPI_Irecv((void *)buffer, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &request));
            OK(MPI_Send(NULL, 0, MPI_INT, 0, 1, MPI_COMM_WORLD));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        }
    }
    for (int i = 0; i < many; i++) {
        unsigned long long now = driver_calls(kinds[i]) - before[i];
        ours += now;
        if (now != TIMES)
            fprintf(stderr, "rank %d: %d messages of %d bytes, late %d: %s was called %llu times\n", rank, TIMES, bytes, late, kinds[i], now);
        CHECK(now == TIMES);
    }
    all = driver_calls("") - all;
    if (all != ours)
        fprintf(stderr, "rank %d: %d messages of %d bytes: %llu calls, %llu of them as they should\n", rank, TIMES, bytes, all, ours);
    CHECK(all == ours);
}

int main(int argc, char **argv)
{
    static const int lengths[] = {1, 8, 64, 65, 1000, 20000, 32 << 10, MOST};
    MPI_Init(&argc, &argv);
    use_device(my_rank(MPI_COMM_WORLD));
    device_ptr buffer = device_alloc(MOST);
    for (int late = 0; late < 2; late++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            /* What is done once, such as making a stream and pinning a bounce buffer, is done by now. */
            if (i == 0 && !late) {
                int rank = my_rank(MPI_COMM_WORLD);
                OK(MPI_Sendrecv((void *)buffer, 1000, MPI_BYTE, 1 - rank, 0, (void *)(buffer + 1000), 1000, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD,
                                MPI_STATUS_IGNORE));
            }
            /* The credit may not be enough for the longest ones, whose sends would wait for receives that come later. */
            if (late && lengths[i] > 20000)
                continue;
            OK(MPI_Barrier(MPI_COMM_WORLD));
            messages(buffer, lengths[i], late);
        }
    return finish();
}
