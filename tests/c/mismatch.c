/* Counts, roots, operations and kinds that differ between ranks: an error at each rank that cannot have the right data, with
 * both ranks in its words, never other data, never an endless wait.
 * RUN: ranks=2,3,4,8 fabrics=shm,tcp limit=120 only=banyan */
#include "check.h"

enum { MOST = 400000 };

static int *give, *get, rank, ranks;

/* A communicator of its own for each case, as one whose ranks are out of step stays so. */
static MPI_Comm fresh(void)
{
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    for (int i = 0; i < MOST; i++) {
        give[i] = rank + 1 + i;
        get[i] = -1;
    }
    return comm;
}

/* The error names both calls. */
static void names(int code, const char *one, const char *other)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    if (!strstr(text, one) || !strstr(text, other))
        fprintf(stderr, "rank %d: \"%s\" and \"%s\" are not in: %s\n", rank, one, other, text);
    CHECK(strstr(text, one) && strstr(text, other));
}

/* Receivers of a broadcast expect more or less than the root gives; before it others went through the same memory. */
static void broadcasts(int rooted, int elsewhere)
{
    MPI_Comm comm = fresh();
    char one[80], other[80];
    for (int i = 0; i < 20; i++) {
        get[0] = 7;
        OK(MPI_Bcast(get, MOST / 20, MPI_INT, 0, comm));
    }
    for (int i = 0; i < MOST; i++)
        get[i] = rank == 0 ? 1000 + i : -1;
    int code = MPI_Bcast(get, rank == 0 ? rooted : elsewhere, MPI_INT, 0, comm);
    snprintf(one, sizeof one, "rank 0 called MPI_Bcast with root 0 and %d bytes", 4 * rooted);
    snprintf(other, sizeof other, "called MPI_Bcast with root 0 and %d bytes", 4 * elsewhere);
    if (rank > 0) {
        CHECK(class_of(code) == MPI_ERR_TRUNCATE);
        names(code, one, other);
    } else if (code != MPI_SUCCESS) {
        names(code, one, other);
    }
    for (int i = rooted > elsewhere ? rooted : elsewhere; i < MOST; i++)
        CHECK(get[i] == (rank == 0 ? 1000 + i : -1));
    MPI_Comm_free(&comm);
}

/* Rank 0 gives more than the others to a sum for all. */
static void sums(int rooted, int elsewhere)
{
    MPI_Comm comm = fresh();
    char one[80], other[80];
    int code = MPI_Allreduce(give, get, rank == 0 ? rooted : elsewhere, MPI_INT, MPI_SUM, comm);
    snprintf(one, sizeof one, "rank 0 called MPI_Allreduce with MPI_SUM and %d bytes", 4 * rooted);
    snprintf(other, sizeof other, "called MPI_Allreduce with MPI_SUM and %d bytes", 4 * elsewhere);
    CHECK(class_of(code) == MPI_ERR_TRUNCATE);
    names(code, one, other);
    MPI_Comm_free(&comm);
}

/* The same without a wait of its own. */
static void sums_started(int rooted, int elsewhere)
{
    MPI_Comm comm = fresh();
    MPI_Request request;
    int done = 0, code;
    OK(MPI_Iallreduce(give, get, rank == 0 ? rooted : elsewhere, MPI_INT, MPI_SUM, comm, &request));
    do
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    while (code == MPI_SUCCESS && !done);
    CHECK(class_of(code) == MPI_ERR_TRUNCATE);
    MPI_Comm_free(&comm);
}

/* Two ranks each wait for the other to begin, or call something else. */
static void others(void)
{
    MPI_Comm comm = fresh();
    int code = MPI_Bcast(get, 5, MPI_INT, rank == 0 ? 1 : 0, comm);
    if (rank == 0) {
        CHECK(class_of(code) == MPI_ERR_ROOT);
        names(code, "rank 0 called MPI_Bcast with root 1", "called MPI_Bcast with root 0");
    }
    MPI_Comm_free(&comm);
    comm = fresh();
    code = rank == 0 ? MPI_Allreduce(give, get, 5, MPI_INT, MPI_SUM, comm) :
                       MPI_Allgather(give, 5, MPI_INT, get, 5, MPI_INT, comm);
    CHECK(class_of(code) == MPI_ERR_OTHER);
    names(code, "rank 0 called MPI_Allreduce with MPI_SUM and 20 bytes", "called MPI_Allgather with 20 bytes per rank");
    MPI_Comm_free(&comm);
    comm = fresh();
    code = MPI_Allreduce(give, get, 5, MPI_INT, rank == 0 ? MPI_MAX : MPI_SUM, comm);
    CHECK(class_of(code) == MPI_ERR_OP);
    names(code, "rank 0 called MPI_Allreduce with MPI_MAX", "called MPI_Allreduce with MPI_SUM");
    MPI_Comm_free(&comm);
    /* One is a collective ahead of the others. */
    comm = fresh();
    if (rank == 0)
        code = MPI_Bcast(get, 1, MPI_INT, 0, comm);
    code = MPI_Barrier(comm);
    CHECK(class_of(code) == MPI_ERR_OTHER);
    MPI_Comm_free(&comm);
}

/* One rank waits for what another one does not give, in collectives where each pair has its own counts. */
static void pairs(int gives, int wants)
{
    MPI_Comm comm = fresh();
    int *counts = calloc(ranks, sizeof(int)), *displs = calloc(ranks, sizeof(int));
    counts[1] = wants;
    int code = MPI_Gatherv(give, rank == 1 ? gives : 0, MPI_INT, get, counts, displs, MPI_INT, 0, comm);
    /* Who wants nothing has it. */
    if (rank == 0 && wants > 0) {
        char text[80];
        CHECK(class_of(code) == MPI_ERR_TRUNCATE);
        if (ranks == 2) {
            /* Both know what the two calls differ in. */
            snprintf(text, sizeof text, "rank 0 called MPI_Gatherv with root 0 and %d bytes between", 4 * wants);
            names(code, text, "rank 1 called MPI_Gatherv with root 0");
        } else {
            snprintf(text, sizeof text, "rank 1 sent %d bytes", 4 * gives);
            names(code, text, "this rank's arguments say");
        }
    }
    MPI_Comm_free(&comm);
    comm = fresh();
    counts[1] = gives;
    code = MPI_Scatterv(give, counts, displs, MPI_INT, get, rank == 1 ? wants : 0, MPI_INT, 0, comm);
    if (rank == 1 && wants > 0)
        CHECK(class_of(code) == MPI_ERR_TRUNCATE);
    MPI_Comm_free(&comm);
    free(counts);
    free(displs);
}

/* What is alike in another form is alike. */
static void forms(void)
{
    MPI_Comm comm = fresh();
    MPI_Datatype ten;
    MPI_Type_contiguous(10, MPI_INT, &ten);
    MPI_Type_commit(&ten);
    for (int i = 0; i < 50; i++)
        get[i] = rank == 0 ? i : -1;
    OK(rank == 0 ? MPI_Bcast(get, 5, ten, 0, comm) : MPI_Bcast(get, 50, MPI_INT, 0, comm));
    for (int i = 0; i < 50; i++)
        CHECK(get[i] == i);
    OK(MPI_Allgather(give, rank == 0 ? 2 : 20, rank == 0 ? ten : MPI_INT, get, 20, MPI_INT, comm));
    MPI_Type_free(&ten);
    MPI_Comm_free(&comm);
}

int main(int argc, char **argv)
{
    const int counts[][2] = {{4000, 5000}, {4000, 100000}, {100000, 4000}, {1, 2}, {100000, 400000}, {10000, 5000},
                             {400000, 5000}};
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    ranks = size_of(MPI_COMM_WORLD);
    give = malloc(MOST * sizeof(int));
    get = malloc(MOST * sizeof(int));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        broadcasts(counts[i][0], counts[i][1]);
        sums(counts[i][0], counts[i][1]);
    }
    sums_started(10, 20);
    sums_started(10000, 5000);
    others();
    pairs(0, 5);
    pairs(7, 5);
    pairs(100000, 0);
    pairs(100000, 99999);
    forms();
    free(give);
    free(get);
    return finish();
}
