/* More than 2^20 objects of a kind may be open at a time: requests that complete in one call, and groups. A handle is good until
 * it is freed, and stale then.
 *
 * RUN: ranks=1 fabrics=shm limit=60 only=banyan */
#include "check.h"

enum { MANY = (1 << 20) + 1000 };

static int value;

static void requests(void)
{
    MPI_Request *all = malloc(MANY * sizeof *all), stale;
    int bad = 0;
    for (int i = 0; i < MANY; i++)
        bad += MPI_Irecv(&value, 0, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_SELF, &all[i]) != MPI_SUCCESS;
    stale = all[0];
    OK(MPI_Waitall(MANY, all, MPI_STATUSES_IGNORE));
    for (int i = 0; i < MANY; i++)
        bad += all[i] != MPI_REQUEST_NULL;
    CHECK(bad == 0);
    CHECK(class_of(MPI_Wait(&stale, MPI_STATUS_IGNORE)) == MPI_ERR_REQUEST);
    free(all);
}

static void groups(void)
{
    MPI_Group *all = malloc(MANY * sizeof *all), stale;
    int bad = 0, size;
    for (int i = 0; i < MANY; i++)
        bad += MPI_Comm_group(MPI_COMM_SELF, &all[i]) != MPI_SUCCESS;
    for (int i = 0; i < MANY; i += MANY - 1)
        CHECK(MPI_Group_size(all[i], &size) == MPI_SUCCESS && size == 1);
    stale = all[MANY - 1];
    for (int i = 0; i < MANY; i++)
        bad += MPI_Group_free(&all[i]) != MPI_SUCCESS;
    CHECK(bad == 0);
    CHECK(class_of(MPI_Group_size(stale, &size)) == MPI_ERR_GROUP);
    free(all);
}

int main(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    requests();
    groups();
    return finish();
}
