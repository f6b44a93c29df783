/* MPI_Sendrecv fails because rank 1, which it sends to, is lost; what rank 2 sends is in the middle of its way into the receive
 * buffer, which is the program's again from then on: nothing more is written to it.
 *
 * RUN: ranks=3 fabrics=tcp limit=60 status=1 only=banyan */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MINE = 0x5a, BYTES = 64 << 20, PAGE = 4096 };

/* What ranks tell each other without MPI: how far they are. */
struct stage {
    atomic_int arrives, reused, over;
};

/* The receive buffer of rank 0, which all ranks see, and behind it how far they are. */
static unsigned char *memory;
static struct stage *stage;

static void share(int rank)
{
    long where[2] = {getpid(), rank == 0 ? memfd_create("sendrecv_lost", 0) : -1};
    int file = (int)where[1];
    char path[64];
    if (rank == 0)
        CHECK(ftruncate(file, BYTES + PAGE) == 0);
    OK(MPI_Bcast(where, 2, MPI_LONG, 0, MPI_COMM_WORLD));
    if (rank != 0) {
        snprintf(path, sizeof path, "/proc/%ld/fd/%ld", where[0], where[1]);
        file = open(path, O_RDWR);
    }
    memory = mmap(NULL, BYTES + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || memory == MAP_FAILED) {
        fprintf(stderr, "rank %d: cannot map the memory of rank 0\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    stage = (struct stage *)(memory + BYTES);
    OK(MPI_Barrier(MPI_COMM_WORLD));
}

static void await(atomic_int *which)
{
    while (!atomic_load(which))
        usleep(1000);
}

/* Ends all TCP connections of this process. */
static void hang_up(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        int protocol = 0;
        socklen_t length = sizeof protocol;
        if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 && protocol == IPPROTO_TCP)
            shutdown(fd, SHUT_RDWR);
    }
}

static void rank_0(unsigned char *out)
{
    MPI_Status status;
    size_t touched = 0;
    int there = 1;
    int code = MPI_Sendrecv(out, BYTES, MPI_BYTE, 1, 1, memory, BYTES, MPI_BYTE, 2, 2, MPI_COMM_WORLD, &status);
    CHECK(class_of(code) == MPI_ERR_PROC_ABORTED);
    memset(memory, MINE, BYTES);
    atomic_store(&stage->reused, 1);
    /* Rank 2 can still be talked to, and this comes behind what it sent before. */
    OK(MPI_Recv(&there, 1, MPI_INT, 2, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    for (size_t i = 0; i < BYTES; i++)
        touched += memory[i] != MINE;
    if (touched > 0)
        fprintf(stderr, "%zu bytes were written after MPI_Sendrecv had failed\n", touched);
    CHECK(touched == 0 && there == 0);
}

static void rank_2(unsigned char *out)
{
    MPI_Request request;
    int flag = 0;
    OK(MPI_Isend(out, BYTES, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &request));
    while (!flag && memory[BYTES / 64] == 0)
        OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
    CHECK(!flag);
    atomic_store(&stage->arrives, 1);
    await(&stage->reused);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Ssend(&check_failures, 1, MPI_INT, 0, 3, MPI_COMM_WORLD));
}

int main(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = my_rank(MPI_COMM_WORLD);
    unsigned char *out = malloc(BYTES);
    memset(out, 1, BYTES);
    share(rank);
    if (rank == 0)
        rank_0(out);
    if (rank == 1) {
        await(&stage->arrives);
        hang_up();
    }
    if (rank == 2)
        rank_2(out);
    free(out);
    if (rank == 0) {
        if (check_failures == 0)
            printf("ok\n");
        fflush(stdout);
        atomic_store(&stage->over, 1);
    }
    /* MPI_Finalize needs all ranks, of which one is lost: so the job ends with an error, but not before this is over. */
    await(&stage->over);
    MPI_Finalize();
    return 1;
}
