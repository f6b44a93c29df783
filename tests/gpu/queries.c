/* What programs are told of GPUs, and drivers that come late. The word in the program's argument is what is to be seen: "no" device at all, the
 * driver from the "first" moment on, or "late": it is loaded after MPI_Init, and seen from the first query on. "refused": it is there first, and
 * what is on a device must not be passed. */
#include "../c/check.h"
#include "device.h"
#include "kinds.h"

#include <mpi-ext.h>

/* Whether the driver in question is seen; the other one never is. */
static int seen(void)
{
    int cuda = MPIX_Query_cuda_support(), hip = MPIX_Query_hip_support();
    CHECK((is_hip() ? cuda : hip) == 0);
    return is_hip() ? hip : cuda;
}

int main(int argc, char **argv)
{
    const char *expected = argc > 1 ? argv[1] : "";
    int refused = strcmp(expected, "refused") == 0, late = strcmp(expected, "late") == 0, word = 9;
    int no = strcmp(expected, "no") == 0 || refused;
    CHECK(no || late || strcmp(expected, "first") == 0);
    if (strcmp(expected, "first") == 0 || refused)
        driver_load();
    CHECK(seen() == 0);
    MPI_Init(&argc, &argv);
    CHECK(seen() == !(no || late));
    CHECK(!kinds_have(is_hip() ? "rocm" : "cuda") == (no || late));
    use_device(0);
    CHECK(seen() == !no);
    CHECK(kinds_have(is_hip() ? "rocm:device" : "cuda:device") == !no);
    if (!no) {
        device_ptr there = device_alloc(sizeof word);
        OK(MPI_Sendrecv(&word, 1, MPI_INT, 0, 0, (void *)there, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE));
        word = 0;
        from_device(&word, there, sizeof word);
        CHECK(word == 9);
        device_free(there);
    }
    if (refused) {
        device_ptr there = device_alloc(sizeof word);
        int *pinned = pinned_alloc(sizeof word), code;
        char text[MPI_MAX_ERROR_STRING];
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        code = MPI_Sendrecv(&word, 1, MPI_INT, 0, 0, (void *)there, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
        CHECK(class_of(code) == MPI_ERR_BUFFER && MPI_Error_string(code, text, &code) == MPI_SUCCESS && strstr(text, "BANYAN_GPU is \"off\""));
        OK(MPI_Sendrecv(&word, 1, MPI_INT, 0, 0, pinned, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE));
        CHECK(*pinned == 9);
        pinned_free(pinned);
        device_free(there);
    }
    return finish();
}
