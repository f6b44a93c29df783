/* Memory of a device that is freed while a long message goes to or from it, or is too short: the call that finds out ends with an error that says so, at that
 * rank, and the other one does not hang. Then both go on. */
#include "../c/check.h"
#include "device.h"

#include <sys/mman.h>

enum { BYTES = 3 << 20, GO = 1, BULK = 2 };

static void says_why(int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len;
    MPI_Error_string(code, text, &len);
    if (class_of(code) != MPI_ERR_OTHER)
        fprintf(stderr, "rank %d: %s\n", my_rank(MPI_COMM_WORLD), text);
    CHECK(class_of(code) == MPI_ERR_OTHER && strstr(text, is_hip() ? "HIP device" : "CUDA device") && strstr(text, "allocated until the operation is over"));
}

/* The memory is shorter than the call says: of a short message nothing leaves. */
static void too_short(void)
{
    int rank = my_rank(MPI_COMM_WORLD);
    device_ptr memory = device_alloc(1000);
    MPI_Request request;
    if (rank == 0) {
        says_why(MPI_Send((void *)memory, 20000, MPI_BYTE, 1, BULK, MPI_COMM_WORLD));
        says_why(MPI_Isend((void *)memory, 20000, MPI_BYTE, 1, BULK, MPI_COMM_WORLD, &request));
        OK(MPI_Send((void *)memory, 1000, MPI_BYTE, 1, GO, MPI_COMM_WORLD));
        OK(MPI_Send((void *)memory, 1000, MPI_BYTE, 1, GO, MPI_COMM_WORLD));
    } else {
        says_why(MPI_Recv((void *)(memory + 100), 1000, MPI_BYTE, 0, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        OK(MPI_Recv((void *)memory, 1000, MPI_BYTE, 0, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    }
    device_free(memory);
}

/* Rank 0 frees what it sends, or rank 1 what it receives to. */
static void freed(int by_sender)
{
    int rank = my_rank(MPI_COMM_WORLD), mine = rank == !by_sender, code;
    device_ptr memory = device_alloc(BYTES);
    MPI_Request request;
    /* The other one comes when the memory is gone. */
    if (!mine)
        OK(MPI_Recv(NULL, 0, MPI_BYTE, !rank, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    if (rank == 0)
        OK(MPI_Isend((void *)memory, BYTES, MPI_BYTE, 1, BULK, MPI_COMM_WORLD, &request));
    else
        OK(MPI_Irecv((void *)memory, BYTES, MPI_BYTE, 0, BULK, MPI_COMM_WORLD, &request));
    if (mine) {
        device_free(memory);
        /* Nothing else comes to its address. */
        CHECK(mmap((void *)memory, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == (void *)memory);
        OK(MPI_Send(NULL, 0, MPI_BYTE, !rank, GO, MPI_COMM_WORLD));
    }
    code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (mine) {
        says_why(code);
        return;
    }
    /* A sender is done when all has left. */
    CHECK(class_of(code) == (by_sender ? MPI_ERR_OTHER : MPI_SUCCESS));
    device_free(memory);
}

int main(int argc, char **argv)
{
    unsigned char in[1000], out[1000];
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = my_rank(MPI_COMM_WORLD), other = 1 - rank;
    use_device(rank);
    for (int by_sender = 0; by_sender < 2; by_sender++)
        freed(by_sender);
    too_short();
    device_ptr good = device_alloc(sizeof out);
    fill(out, sizeof out, rank);
    to_device(good, out, sizeof out);
    OK(MPI_Sendrecv((void *)good, sizeof out, MPI_BYTE, other, GO, in, sizeof in, MPI_BYTE, other, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(wrong(in, sizeof in, other) == 0);
    return finish();
}
