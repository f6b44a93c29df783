/* Drivers of two platforms in one program. The word in the program's argument is what is to be seen: memory of "both", of "cuda" or of "hip" alone, where
 * that of the other one must be refused. BANYAN_TEST_DRIVER must not say hip: CUDA's functions are called by device.h, HIP's here. */
#include "../c/check.h"
#include "device.h"
#include "kinds.h"

#include <mpi-ext.h>

static void *hip_library;

static int hip(const char *name, uintptr_t a, uintptr_t b, uintptr_t c)
{
    int (*function)(uintptr_t, uintptr_t, uintptr_t);
    *(void **)&function = dlsym(hip_library, name);
    CHECK(function != NULL);
    return function(a, b, c);
}

static int move(const void *from, void *to)
{
    return MPI_Sendrecv(from, 8, MPI_BYTE, 0, 0, to, 8, MPI_BYTE, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE);
}

/* Passing memory of a device whose driver is not to be used. */
static void refused(uintptr_t there, const char *name)
{
    char word[8] = "", text[MPI_MAX_ERROR_STRING] = "";
    int len, code = move((void *)there, word);
    CHECK(class_of(code) == MPI_ERR_BUFFER);
    if (code != MPI_SUCCESS)
        MPI_Error_string(code, text, &len);
    if (!strstr(text, name))
        fprintf(stderr, "it says: %s\n", text);
    CHECK(strstr(text, name) && strstr(text, "BANYAN_GPU"));
}

int main(int argc, char **argv)
{
    const char *seen = argc > 1 ? argv[1] : "";
    int with_cuda = strcmp(seen, "hip") != 0, with_hip = strcmp(seen, "cuda") != 0;
    char word[8] = "seven", back[8] = "";
    uintptr_t on_hip = 0;
    use_device(0);
    hip_library = dlopen("libamdhip64.so.6", RTLD_NOW);
    CHECK(hip_library && hip("hipMalloc", (uintptr_t)&on_hip, 8, 0) == 0);
    device_ptr on_cuda = device_alloc(8);
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    CHECK(MPIX_Query_cuda_support() == with_cuda && MPIX_Query_hip_support() == with_hip);
    CHECK(kinds_have("cuda:device") == with_cuda && kinds_have("rocm:device") == with_hip);
    if (with_cuda)
        OK(move(word, (void *)on_cuda));
    else
        refused(on_cuda, "CUDA device");
    if (with_cuda && with_hip) {
        OK(move((void *)on_cuda, (void *)on_hip));
        OK(move((void *)on_hip, back));
    } else if (with_hip) {
        OK(move(word, (void *)on_hip));
        OK(move((void *)on_hip, back));
    } else {
        refused(on_hip, "HIP device");
        OK(move((void *)on_cuda, back));
    }
    CHECK(strcmp(back, word) == 0);
    return finish();
}
