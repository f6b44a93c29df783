/* Touches memory of a device, which must end the program: so a library that does is found out. What MPI moves there is intact before. */
#include "../c/check.h"
#include "device.h"

#include <signal.h>
#include <unistd.h>

static void touched(int signal)
{
    static const char text[] = "the touch was caught\n";
    (void)signal;
    _exit(write(1, text, sizeof text - 1) > 0 ? 42 : 43);
}

int main(int argc, char **argv)
{
    int word = 5;
    MPI_Init(&argc, &argv);
    use_device(0);
    device_ptr there = device_alloc(sizeof word);
    OK(MPI_Sendrecv(&word, 1, MPI_INT, 0, 0, (void *)there, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE));
    word = 0;
    from_device(&word, there, sizeof word);
    CHECK(word == 5);
    if (check_failures)
        return 1;
    signal(SIGSEGV, touched);
    signal(SIGBUS, touched);
    fflush(stdout);
    return *(volatile int *)there;
}
