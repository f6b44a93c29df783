/* What may be called before Init and after Finalize, and the end of MPI_COMM_SELF's attributes.
 * RUN: ranks=1,2 */
#include "check.h"

static int order[3], deleted;

static int forget(MPI_Comm comm, int key, void *value, void *extra)
{
    int over;
    (void)comm, (void)key, (void)extra;
    MPI_Finalized(&over);
    CHECK(!over);
    order[deleted++] = *(int *)value;
    return MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    int major, minor, length, running, over;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    static int values[3] = {0, 1, 2};
    MPI_Get_version(&major, &minor);
    CHECK(major >= 4);
    MPI_Get_library_version(text, &length);
    CHECK(length > 0);
    MPI_Initialized(&running);
    MPI_Finalized(&over);
    CHECK(!running && !over);
    MPI_Init(NULL, NULL);
    (void)argc, (void)argv;
    int key[3], rank = my_rank(MPI_COMM_WORLD), all;
    for (int i = 0; i < 3; i++) {
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key[i], NULL);
        MPI_Comm_set_attr(MPI_COMM_SELF, key[i], &values[i]);
    }
    double before = MPI_Wtime();
    CHECK(MPI_Wtime() >= before && MPI_Wtick() > 0 && MPI_Wtick() < 1e-3);
    MPI_Allreduce(&check_failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    CHECK(deleted == 3 && order[0] == 2 && order[1] == 1 && order[2] == 0);
    MPI_Finalized(&over);
    CHECK(over);
    if (rank == 0 && all == 0 && check_failures == 0)
        printf("ok\n");
    return all + check_failures != 0;
}
