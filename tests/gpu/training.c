/* Data-parallel training in plain CUDA: a network of two layers, whose kernels NVRTC compiles, on a device of each rank. Every rank takes its part of each
 * batch, and an allreduce of the device's memory adds the gradients up. The losses are those of one rank that has all of each batch. The argument is
 * the file with the kernels. */
#include "../c/check.h"
#include "device.h"

/* As the kernels have them. */
enum { INPUTS = 4, HIDDEN = 16, OUT = HIDDEN * (INPUTS + 1), WEIGHTS = OUT + HIDDEN + 1 };
struct step {
    unsigned long long first, samples, whole;
    double rate;
};

enum { SAMPLES = 512, BATCH = 64, EPOCHS = 40, THREADS = 64 };

static uintptr_t module;

/* A function of NVRTC's, which must succeed. */
static int nvrtc(void *library, const char *name, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f)
{
    int (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
    *(void **)&function = dlsym(library, name);
    if (!function || function(a, b, c, d, e, f) != 0) {
        fprintf(stderr, "%s fails\n", name);
        exit(81);
    }
    return 0;
}

/* Compiles a text for the device in use, and loads it. */
static void load_kernels(const char *path)
{
    static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    static char source[1 << 16];
    void *library = NULL;
    int major, minor;
    uintptr_t program;
    size_t length;
    char target[64], *image;
    FILE *file = fopen(path, "r");
    if (!file || fread(source, 1, sizeof source - 1, file) == 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(80);
    }
    fclose(file);
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "there is no NVRTC: %s\n", dlerror());
        exit(80);
    }
    cuda("cuDeviceGetAttribute", (uintptr_t)&major, 75, 0);
    cuda("cuDeviceGetAttribute", (uintptr_t)&minor, 76, 0);
    snprintf(target, sizeof target, "--gpu-architecture=sm_%d%d", major, minor);
    const char *options[] = {target};
    nvrtc(library, "nvrtcCreateProgram", (uintptr_t)&program, (uintptr_t)source, 0, 0, 0, 0);
    nvrtc(library, "nvrtcCompileProgram", program, 1, (uintptr_t)options, 0, 0, 0);
    nvrtc(library, "nvrtcGetCUBINSize", program, (uintptr_t)&length, 0, 0, 0, 0);
    image = calloc(length + 1, 1);
    nvrtc(library, "nvrtcGetCUBIN", program, (uintptr_t)image, 0, 0, 0, 0);
    cuda("cuModuleLoadData", (uintptr_t)&module, (uintptr_t)image, 0);
    free(image);
}

static void launch(const char *name, device_ptr samples, device_ptr weights, device_ptr work, struct step step)
{
    int (*start)(uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, uintptr_t, void **, void **);
    unsigned long long a = samples, b = weights, c = work;
    void *parameters[] = {&a, &b, &c, &step};
    uintptr_t function;
    cuda("cuModuleGetFunction", (uintptr_t)&function, module, (uintptr_t)name);
    *(void **)&start = driver_function("cuLaunchKernel");
    CHECK(start(function, 4, 1, 1, THREADS, 1, 1, 0, 0, parameters, NULL) == 0);
}

/* A number from -1 to 1 that follows from the state. */
static double drawn(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) / (double)(1 << 23) - 1;
}

/* What is to be learnt, on the device: the product of two inputs, and a third. */
static device_ptr new_samples(void)
{
    static double samples[SAMPLES][INPUTS + 1];
    unsigned state = 1;
    for (int s = 0; s < SAMPLES; s++) {
        double *x = samples[s];
        for (int i = 0; i < INPUTS; i++)
            x[i] = drawn(&state);
        x[INPUTS] = x[0] * x[1] + x[2] / 2;
    }
    device_ptr new = device_alloc(sizeof samples);
    to_device(new, samples, sizeof samples);
    return new;
}

/* Trains on the ranks of a communicator, and gives the loss of each epoch. */
static void train(MPI_Comm comm, device_ptr samples, double losses[EPOCHS])
{
    int rank = my_rank(comm), ranks = size_of(comm);
    unsigned state = 7 + (unsigned)rank;
    double start[WEIGHTS], loss;
    device_ptr weights = device_alloc(sizeof start), work = device_alloc((WEIGHTS + 1 + BATCH * (HIDDEN + 1)) * sizeof(double));
    /* Each rank draws other weights, and all begin with those of rank 0. */
    for (int i = 0; i < WEIGHTS; i++)
        start[i] = drawn(&state);
    to_device(weights, start, sizeof start);
    OK(MPI_Bcast((void *)weights, WEIGHTS, MPI_DOUBLE, 0, comm));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        losses[epoch] = 0;
        for (int batch = 0; batch < SAMPLES; batch += BATCH) {
            int first = BATCH * rank / ranks, end = BATCH * (rank + 1) / ranks;
            struct step step = {(unsigned)(batch + first), (unsigned)(end - first), BATCH, 0.3};
            launch("training_hidden", samples, weights, work, step);
            launch("training_errors", samples, weights, work, step);
            launch("training_gradients", samples, weights, work, step);
            cuda("cuCtxSynchronize", 0, 0, 0);
            /* The loss is behind the gradients. */
            OK(MPI_Allreduce(MPI_IN_PLACE, (void *)work, WEIGHTS + 1, MPI_DOUBLE, MPI_SUM, comm));
            launch("training_update", samples, weights, work, step);
            from_device(&loss, work + WEIGHTS * sizeof loss, sizeof loss);
            losses[epoch] += loss * BATCH / SAMPLES;
        }
    }
    cuda("cuCtxSynchronize", 0, 0, 0);
    device_free(weights);
    device_free(work);
}

int main(int argc, char **argv)
{
    double together[EPOCHS], alone[EPOCHS];
    MPI_Init(&argc, &argv);
    if (argc < 2)
        return fprintf(stderr, "which kernels?\n"), 80;
    use_device(my_rank(MPI_COMM_WORLD));
    load_kernels(argv[1]);
    device_ptr samples = new_samples();
    train(MPI_COMM_WORLD, samples, together);
    train(MPI_COMM_SELF, samples, alone);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double apart = together[epoch] - alone[epoch];
        CHECK((apart < 0 ? -apart : apart) < 1e-9 * alone[epoch]);
        if (my_rank(MPI_COMM_WORLD) == 0)
            printf("epoch %2d  loss %.6e\n", epoch, together[epoch]);
    }
    CHECK(together[EPOCHS - 1] < together[0] / 10);
    device_free(samples);
    return finish();
}
