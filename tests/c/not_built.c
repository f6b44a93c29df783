/* What is not built yet says so: an error of its own class that names the function.
 * RUN: ranks=1,2 only=banyan */
#include "check.h"

static void says_so(int code, const char *function)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    CHECK(class_of(code) == MPI_ERR_UNSUPPORTED_OPERATION);
    MPI_Error_string(code, text, &length);
    CHECK(strstr(text, function) != NULL);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int memory[4];
    MPI_Win win;
    MPI_File file;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    says_so(MPI_Win_create(memory, sizeof memory, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &win), "MPI_Win_create");
    says_so(MPI_File_open(MPI_COMM_WORLD, "nowhere", MPI_MODE_RDONLY, MPI_INFO_NULL, &file), "MPI_File_open");
    return finish();
}
