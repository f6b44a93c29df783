/* Two threads in MPI at once where the program asked for less than MPI_THREAD_MULTIPLE: the error says which level there is and which
 * is needed. One thread sleeps in MPI_Recv, which the other one sees, before it calls.
 * RUN: ranks=2 fabrics=shm,tcp limit=20 only=banyan */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "check.h"

static volatile pid_t receiver;

static void *receive(void *got)
{
    receiver = (pid_t)syscall(SYS_gettid);
    MPI_Recv(got, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return NULL;
}

/* The state of a thread of this process, as in /proc: 'S' when it sleeps. */
static char state_of(pid_t thread)
{
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
    FILE *stat = fopen(path, "r");
    if (stat != NULL && fscanf(stat, "%*d %*[^)]) %c", &state) != 1)
        state = '?';
    if (stat != NULL)
        fclose(stat);
    return state;
}

static void misuse(void)
{
    int got = -1, flag, length;
    pid_t other;
    char text[MPI_MAX_ERROR_STRING];
    pthread_t thread;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Recv(&other, (int)sizeof other, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    pthread_create(&thread, NULL, receive, &got);
    while (receiver == 0 || state_of(receiver) != 'S')
        usleep(1000);
    int code = MPI_Iprobe(1, 3, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    CHECK(class_of(code) == MPI_ERR_OTHER);
    MPI_Error_string(code, text, &length);
    CHECK(strstr(text, "MPI_THREAD_SINGLE") != NULL);
    CHECK(strstr(text, "MPI_Init_thread") != NULL);
    CHECK(strstr(text, "MPI_THREAD_MULTIPLE") != NULL);
    CHECK(strstr(text, "fault of the library") == NULL);
    kill(other, SIGUSR1);
    pthread_join(thread, NULL);
    CHECK(got == 77);
}

int main(int argc, char **argv)
{
    int number = 77, signal;
    sigset_t told;
    pid_t me = getpid();
    MPI_Init(&argc, &argv);
    sigemptyset(&told);
    sigaddset(&told, SIGUSR1);
    sigprocmask(SIG_BLOCK, &told, NULL);
    if (my_rank(MPI_COMM_WORLD) == 0) {
        misuse();
    } else {
        MPI_Send(&me, (int)sizeof me, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        sigwait(&told, &signal);
        MPI_Send(&number, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
    }
    return finish();
}
