/* MPI_Send and MPI_Recv of 0 bytes to oneself, for counting instructions: nothing waits. What is made on
 * first use is made before `counted`. */
#include <mpi.h>

static void rounds(int n)
{
    for (int i = 0; i < n; i++) {
        MPI_Send(0, 0, MPI_BYTE, 0, 7, MPI_COMM_SELF);
        MPI_Recv(0, 0, MPI_BYTE, 0, 7, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    }
}

void counted(void);
void __attribute__((noinline)) counted(void)
{
    rounds(1000);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    rounds(10);
    counted();
    MPI_Finalize();
    return 0;
}
