/* A device that fails at one rank while it works for a collective: the call, or its request, ends there with an error that says so, and at ranks that wait
 * for what that rank does not give. A message that is under way meanwhile arrives, nobody hangs, and when the device works again, so do collectives on
 * the same communicator. The stand-in refuses copies when it is told. */
#include "../c/check.h"
#include "device.h"

enum { INTS = 70000, BYTES = INTS * (int)sizeof(int), LONG = 1 << 20, KINDS = 4 };

static const char *const names[KINDS] = {"bcast", "allreduce", "allgather", "alltoall"};

static int rank, ranks, failed_here;

/* From now on no copy of this process's devices begins, or they do again (0). */
static void fail(int error)
{
    void (*from_now_on)(const char *, int);
    *(void **)&from_now_on = dlsym(driver_library, "banyan_double_fail");
    if (!from_now_on) {
        fprintf(stderr, "this driver does not fail when it is told\n");
        exit(78);
    }
    from_now_on(is_hip() ? "hipMemcpyAsync" : "cuMemcpyAsync", error);
    from_now_on(is_hip() ? "hipMemcpy" : "cuMemcpy", error);
}

/* A collective of long data on devices, which is waited for, or whose request is given. */
static int collective(int kind, device_ptr in, device_ptr out, MPI_Request *request)
{
    int each = INTS / ranks;
    void *send = (void *)in, *recv = (void *)out;
    MPI_Comm comm = MPI_COMM_WORLD;
    switch (kind) {
    case 0:
        return request ? MPI_Ibcast(send, INTS, MPI_INT, 1, comm, request) : MPI_Bcast(send, INTS, MPI_INT, 1, comm);
    case 1:
        return request ? MPI_Iallreduce(send, recv, INTS, MPI_INT, MPI_SUM, comm, request) : MPI_Allreduce(send, recv, INTS, MPI_INT, MPI_SUM, comm);
    case 2:
        return request ? MPI_Iallgather(send, each, MPI_INT, recv, each, MPI_INT, comm, request)
                       : MPI_Allgather(send, each, MPI_INT, recv, each, MPI_INT, comm);
    default:
        return request ? MPI_Ialltoall(MPI_IN_PLACE, each, MPI_INT, recv, each, MPI_INT, comm, request)
                       : MPI_Alltoall(MPI_IN_PLACE, each, MPI_INT, recv, each, MPI_INT, comm);
    }
}

/* What became of it: at the rank with the device an error that names all that is to be known, elsewhere perhaps one that names that rank, or
 * another one that has given the collective up because of it. Gives the rank that is named, or -1. */
static int ended(int kind, int bad, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "", who[20];
    const char *exposed = NULL;
    int len, named = -1;
    if (code == MPI_SUCCESS)
        return -1;
    MPI_Error_string(code, text, &len);
    snprintf(who, sizeof who, "rank %d", bad);
    CHECK(class_of(code) == MPI_ERR_OTHER);
    int told = strstr(text, who) != NULL;
    if (rank == bad) {
        told = told && strstr(text, names[kind] + 1) && strstr(text, is_hip() ? "HIP device" : "CUDA device") && strstr(text, "says");
        failed_here++;
    } else if (!told && (exposed = strstr(text, "memory that rank ")) && sscanf(exposed, "memory that rank %d exposed", &named) == 1) {
        return named;
    }
    if (!told)
        fprintf(stderr, "rank %d, %s: %s\n", rank, names[kind], text);
    CHECK(told);
    return told ? bad : -1;
}

/* Whoever is named failed for a reason, too: from each rank that had an error names lead to the one with the device. */
static void leads_to(int bad, int named)
{
    static int all[64];
    OK(MPI_Allgather(&named, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD));
    for (int step = 0; step < ranks && named >= 0 && named != bad; step++)
        named = all[named];
    CHECK(named == bad || all[rank] == -1);
}

/* An allreduce on devices gives what it should. */
static void works_again(device_ptr in, device_ptr out)
{
    static int there[INTS];
    for (int i = 0; i < INTS; i++)
        there[i] = rank + i;
    to_device(in, there, BYTES);
    OK(MPI_Allreduce((void *)in, (void *)out, INTS, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    from_device(there, out, BYTES);
    int wrong_ones = 0;
    for (int i = 0; i < INTS; i++)
        wrong_ones += there[i] != ranks * (ranks - 1) / 2 + ranks * i;
    CHECK(wrong_ones == 0);
}

int main(int argc, char **argv)
{
    static unsigned char sent[LONG], received[LONG];
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    use_device(rank);
    device_ptr in = device_alloc(BYTES), out = device_alloc(BYTES);
    works_again(in, out);
    for (int round = 0; round < 2 * KINDS * 2; round++) {
        int kind = round % KINDS, waits = round / KINDS % 2, early = round / KINDS / 2, bad = round % ranks;
        MPI_Request messages[2], request = MPI_REQUEST_NULL;
        int code, left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
        fill(sent, LONG, rank + round);
        /* A message of each rank to the next one goes on meanwhile. */
        OK(MPI_Irecv(received, LONG, MPI_BYTE, left, round, MPI_COMM_WORLD, &messages[0]));
        OK(MPI_Isend(sent, LONG, MPI_BYTE, right, round, MPI_COMM_WORLD, &messages[1]));
        if (rank == bad && (early || waits))
            fail(700);
        code = collective(kind, in, out, waits ? NULL : &request);
        if (rank == bad && !(early || waits))
            fail(700);
        if (!waits && code != MPI_SUCCESS)
            request = MPI_REQUEST_NULL;
        /* These calls make progress, and are not the ones that fail. */
        OK(MPI_Wait(&messages[0], MPI_STATUS_IGNORE));
        OK(MPI_Wait(&messages[1], MPI_STATUS_IGNORE));
        CHECK(wrong(received, LONG, left + round) == 0);
        if (request != MPI_REQUEST_NULL)
            code = MPI_Wait(&request, MPI_STATUS_IGNORE);
        int named = ended(kind, bad, code);
        if (rank == bad)
            fail(0);
        leads_to(bad, named);
        works_again(in, out);
    }
    /* It was not for nothing: where functions fail before the call each round ends so. */
    MPI_Allreduce(MPI_IN_PLACE, &failed_here, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(failed_here >= 3 * KINDS);
    device_free(in);
    device_free(out);
    return finish();
}
