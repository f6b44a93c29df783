// A C++ exception leaves an error handler through the library, and the library goes on.
#include "check.h"
#include <stdexcept>

static void thrower(MPI_Comm *, int *code, ...) { throw *code; }

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Errhandler handler;
    MPI_Comm_create_errhandler(thrower, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    int value = 1, sum = 0, caught = 0;
    for (int i = 0; i < 100; i++) {
        try {
            MPI_Send(&value, 1, MPI_INT, 17, 0, MPI_COMM_WORLD);
        } catch (int code) {
            caught += code == MPI_ERR_RANK;
        }
    }
    CHECK(caught == 100);
    OK(MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    CHECK(sum == 1);
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
    OK(MPI_Errhandler_free(&handler));
    OK(MPI_Finalize());
    return done();
}
