/* No rank can change the size of the memory that the ranks share: pages that it took away would be missing under all others,
 * who would be killed by SIGBUS.
 * RUN: ranks=2,5 fabrics=shm limit=20 only=banyan */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <unistd.h>
#include "check.h"

/* Tries to cut every memory file of this process; gives how many there are. */
static int cut(void)
{
    int found = 0;
    DIR *all = opendir("/proc/self/fd");
    for (struct dirent *one; (one = readdir(all)) != NULL;) {
        char path[300], name[300] = {0};
        snprintf(path, sizeof path, "/proc/self/fd/%s", one->d_name);
        if (readlink(path, name, sizeof name - 1) < 0 || strncmp(name, "/memfd:banyan", 13) != 0)
            continue;
        found++;
        errno = 0;
        CHECK(ftruncate(atoi(one->d_name), 0) == -1 && errno == EPERM);
    }
    closedir(all);
    return found;
}

int main(int argc, char **argv)
{
    static char bytes[1 << 20];
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD);
    /* The memory of the node, and the status lines of the ranks. */
    CHECK(cut() == 2);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        fill(bytes, sizeof bytes, 3);
    MPI_Bcast(bytes, sizeof bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    CHECK(wrong(bytes, sizeof bytes, 3) == 0);
    return finish();
}
