/* After MPI_Finalize nothing of the job is left in the process, also when threads that communicated live on: neither
 * its shared memory nor sockets that it made.
 * RUN: ranks=1,2 fabrics=shm,tcp only=banyan */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <unistd.h>

static pthread_barrier_t meet;

/* Lines of a file of the kernel's, or links in a folder of it, that have a word in them. */
static int lines_with(const char *path, const char *word)
{
    char line[4096];
    int count = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, word) != NULL;
    if (file)
        fclose(file);
    return count;
}

static int sockets(void)
{
    char path[512], target[512];
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        count += length > 7 && strncmp(target, "socket:", 7) == 0;
    }
    if (folder)
        closedir(folder);
    return count;
}

static void *communicate(void *comm)
{
    int one = 1, all = 0, me, size;
    MPI_Comm_rank(*(MPI_Comm *)comm, &me);
    MPI_Comm_size(*(MPI_Comm *)comm, &size);
    MPI_Sendrecv(&one, 1, MPI_INT, (me + 1) % size, 0, &all, 1, MPI_INT, (me + size - 1) % size, 0, *(MPI_Comm *)comm,
                 MPI_STATUS_IGNORE);
    MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, *(MPI_Comm *)comm);
    CHECK(all == size);
    pthread_barrier_wait(&meet); /* all calls are over */
    pthread_barrier_wait(&meet); /* MPI is */
    return NULL;
}

int main(int argc, char **argv)
{
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    MPI_Comm comms[THREADS];
    int provided, rank, before = sockets();
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    pthread_barrier_init(&meet, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        pthread_create(&threads[i], NULL, communicate, &comms[i]);
    }
    pthread_barrier_wait(&meet);
    MPI_Finalize();
    CHECK(lines_with("/proc/self/maps", "memfd:banyan") == 0);
    CHECK(sockets() <= before); /* the launcher's stays, so that children can tell */
    pthread_barrier_wait(&meet);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (rank == 0 && check_failures == 0)
        printf("ok\n");
    return check_failures != 0;
}
