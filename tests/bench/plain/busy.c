/* A process that is busy and does nothing, until it is ended, or after argv[1] seconds. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    alarm(argc > 1 ? (unsigned)atoi(argv[1]) : 60);
    for (volatile unsigned long count = 0;; count++)
        ;
}
