/* Messages that nobody receives stay with their senders beyond the budget: the receiver's memory is bounded. When it does look
 * for them it finds all, in order, whichever it asks for first.
 *
 * RUN: ranks=4 fabrics=shm limit=120 only=banyan env=BANYAN_EAGER_BUDGET=8M
 * RUN: ranks=4 fabrics=tcp limit=120 only=banyan env=BANYAN_EAGER_BUDGET=2M */
#include "check.h"

enum { LOOKS = 30000 };
/* The budget, KiB, and how many messages each sender has: more than that has room for. */
static long budget;
static int each;

/* The most memory that this process ever had, in KiB. */
static long most_memory(void)
{
    char line[256];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib;
}

static void send_all(long *values, MPI_Request *requests)
{
    for (int i = 0; i < each; i++) {
        values[i] = i;
        OK(MPI_Isend(&values[i], 1, MPI_LONG, 0, i == each - 1, MPI_COMM_WORLD, &requests[i]));
    }
}

static void receive_all(void)
{
    MPI_Status status;
    int next[4] = {0, 0, 0, 0};
    long value;
    /* The last of rank 1 first: it comes from behind all others. */
    OK(MPI_Recv(&value, 1, MPI_LONG, 1, 1, MPI_COMM_WORLD, &status));
    CHECK(value == each - 1);
    OK(MPI_Probe(2, 1, MPI_COMM_WORLD, &status));
    for (long i = 0; i < 3L * each - 1; i++) {
        OK(MPI_Recv(&value, 1, MPI_LONG, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
        if (value != next[status.MPI_SOURCE]++) {
            CHECK(!"the order of one sender");
            return;
        }
    }
}

int main(void)
{
    MPI_Init(NULL, NULL);
    int rank = my_rank(MPI_COMM_WORLD);
    budget = atol(getenv("BANYAN_EAGER_BUDGET")) << 10;
    each = (int)budget * 10;
    long *values = malloc(each * sizeof *values), before = 0;
    MPI_Request *requests = malloc(each * sizeof *requests);
    for (int i = 0; i < 100; i++)
        OK(MPI_Barrier(MPI_COMM_WORLD));
    before = most_memory();
    if (rank > 0)
        send_all(values, requests);
    /* Rank 0 takes in what comes, without looking for any of it; the others wait for it, and send what may leave. */
    OK(MPI_Barrier(MPI_COMM_WORLD));
    for (int i = 0, flag; rank == 0 && i < LOOKS; i++)
        OK(MPI_Iprobe(0, 0, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE));
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == 0) {
        long grown = most_memory() - before;
        /* The budget, half of it for what malloc keeps of tables that have grown into new places, and code and buffers of connections that were not
         * used before. Without a budget it is more than twice as much. */
        long most = budget + budget / 2 + 1024;
        if (grown > most)
            fprintf(stderr, "%ld KiB for a budget of %ld KiB\n", grown, budget);
        CHECK(grown <= most);
        receive_all();
    } else {
        OK(MPI_Waitall(each, requests, MPI_STATUSES_IGNORE));
    }
    free(values);
    free(requests);
    return finish();
}
