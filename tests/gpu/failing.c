/* Memory that was freed or is too short, contexts that are gone, drivers that fail: an error that says what to do, and no crash.
 * Each rank works with itself. What the stand-in alone can do is asked for in the environment. */
#include "../c/check.h"
#include "device.h"

#include <unistd.h>

static int code_of(int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int len;
    if (code != MPI_SUCCESS) {
        MPI_Error_string(code, text, &len);
        CHECK(len > 40);
    }
    return class_of(code);
}

static int send_to_self(const void *from, void *to, int bytes)
{
    return code_of(MPI_Sendrecv(from, bytes, MPI_BYTE, 0, 0, to, bytes, MPI_BYTE, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE));
}

/* The context that is current, or in HIP the device. */
static uintptr_t current(void)
{
    uintptr_t now = 0;
    cuda(is_hip() ? "hipGetDevice" : "cuCtxGetCurrent", (uintptr_t)&now, 0, 0);
    return now;
}

int main(int argc, char **argv)
{
    enum { BYTES = 1000 };
    unsigned char in[BYTES], out[BYTES];
    uintptr_t context = 0, mine;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    use_device(1);
    mine = current();
    device_ptr good = device_alloc(BYTES);
    fill(out, BYTES, 3);

    /* The driver may fail in what it needs not have: streams and events. */
    CHECK(send_to_self(out, (void *)good, BYTES) == MPI_SUCCESS);
    memset(in, 0, BYTES);
    CHECK(send_to_self((void *)good, in, BYTES) == MPI_SUCCESS);
    CHECK(wrong(in, BYTES, 3) == 0);

    /* A thread without a context; in HIP each has a device. */
    if (!is_hip()) {
        cuda("cuCtxSetCurrent", 0, 0, 0);
        memset(in, 0, BYTES);
        CHECK(send_to_self((void *)good, in, BYTES) == MPI_SUCCESS);
        CHECK(wrong(in, BYTES, 3) == 0);
        CHECK(current() == 0);
        cuda("cuCtxSetCurrent", mine, 0, 0);
    }

    /* Freed memory, also such as MPI has never seen. */
    device_ptr gone = device_alloc(1 << 20), unseen = device_alloc(1 << 20);
    CHECK(send_to_self((void *)good, (void *)gone, BYTES) == MPI_SUCCESS);
    device_free(gone);
    device_free(unseen);
    CHECK(send_to_self((void *)gone, in, BYTES) == MPI_ERR_BUFFER);
    CHECK(send_to_self((void *)unseen, in, BYTES) == MPI_ERR_BUFFER);
    CHECK(code_of(MPI_Bcast((void *)unseen, BYTES, MPI_BYTE, 0, MPI_COMM_SELF)) == MPI_ERR_BUFFER);
    CHECK(code_of(MPI_Allreduce(MPI_IN_PLACE, (void *)gone, 10, MPI_INT, MPI_SUM, MPI_COMM_SELF)) == MPI_ERR_BUFFER);
    /* Nothing is at an address where no bytes are asked for. */
    CHECK(send_to_self((void *)gone, in, 0) == MPI_SUCCESS);
    /* And its address, used again on another device. */
    use_device(2);
    device_ptr again = device_alloc(1 << 20);
    CHECK(send_to_self(out, (void *)again, BYTES) == MPI_SUCCESS);
    memset(in, 0, BYTES);
    CHECK(send_to_self((void *)again, in, BYTES) == MPI_SUCCESS);
    CHECK(wrong(in, BYTES, 3) == 0);

    /* A context of the program's own, which then goes. */
    if (!is_hip()) {
        cuda("cuCtxCreate_v2", (uintptr_t)&context, 0, 0);
        device_ptr own = device_alloc(BYTES);
        CHECK(send_to_self(out, (void *)own, BYTES) == MPI_SUCCESS);
        CHECK(send_to_self((void *)own, (void *)good, BYTES) == MPI_SUCCESS);
        CHECK(current() == context);
        cuda("cuCtxDestroy_v2", context, 0, 0);
        CHECK(send_to_self(out, (void *)own, BYTES) != MPI_SUCCESS);
    }
    use_device(1);
    CHECK(current() == mine);

    /* Functions that need memory of the host say so. */
    CHECK(code_of(MPI_Buffer_attach((void *)good, BYTES)) != MPI_SUCCESS);
    CHECK(send_to_self((void *)good, in, BYTES) == MPI_SUCCESS);
    return finish();
}
