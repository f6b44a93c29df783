// The kernels of training.c: a network of two layers and its gradients, in CUDA C. NVRTC compiles this text by itself for a device; for the stand-in
// it stands behind that of banyan-datatype's kernels, which a C++ compiler takes.
//
// All take the addresses of the samples, of the weights, and of what is worked out: gradients, and what each sample does to the layers.
#ifndef KERNEL
#define KERNEL(name, Values) extern "C" __global__ void name(u64 a, u64 b, u64 c, const Values given)
typedef unsigned long long u64;
static __device__ u64 this_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ u64 all_threads() { return (u64)gridDim.x * blockDim.x; }
#endif

// As training.c has them.
enum { INPUTS = 4, HIDDEN = 16, OUT = HIDDEN * (INPUTS + 1), LAST = OUT + HIDDEN, WEIGHTS = LAST + 1 };

// Which samples a rank has, of how many in the whole batch.
struct Step {
    u64 first, samples, whole;
    double rate;
};

static __device__ double *hidden(u64 c) { return (double *)c + WEIGHTS + 1; }
static __device__ double *errors(u64 c, const Step &given) { return hidden(c) + given.samples * HIDDEN; }
static __device__ const double *sample(u64 a, const Step &given, u64 s) {
    return (const double *)a + (given.first + s) * (INPUTS + 1);
}

// x / (1 + |x|) of what goes into each hidden unit.
KERNEL(training_hidden, Step) {
    for (u64 t = this_thread(); t < given.samples * HIDDEN; t += all_threads()) {
        const double *x = sample(a, given, t / HIDDEN), *w = (const double *)b + t % HIDDEN * (INPUTS + 1);
        double sum = w[INPUTS];
        for (int i = 0; i < INPUTS; i++) sum += w[i] * x[i];
        hidden(c)[t] = sum / (1 + (sum < 0 ? -sum : sum));
    }
}

// What comes out of the network less what should.
KERNEL(training_errors, Step) {
    for (u64 t = this_thread(); t < given.samples; t += all_threads()) {
        const double *w = (const double *)b, *h = hidden(c) + t * HIDDEN;
        double sum = w[LAST] - sample(a, given, t)[INPUTS];
        for (int j = 0; j < HIDDEN; j++) sum += w[OUT + j] * h[j];
        errors(c, given)[t] = sum;
    }
}

// What a sample adds to the gradient of a weight, or, behind the weights, to the loss.
static __device__ double part(u64 a, u64 b, u64 c, const Step &given, u64 weight, u64 s) {
    double error = errors(c, given)[s];
    const double *h = hidden(c) + s * HIDDEN;
    if (weight > LAST) return error * error;
    if (weight == LAST) return 2 * error;
    if (weight >= OUT) return 2 * error * h[weight - OUT];
    u64 j = weight / (INPUTS + 1), i = weight % (INPUTS + 1);
    double slope = 1 - (h[j] < 0 ? -h[j] : h[j]), in = i < INPUTS ? sample(a, given, s)[i] : 1;
    return 2 * error * ((const double *)b)[OUT + j] * slope * slope * in;
}

// This rank's part of the means over the whole batch.
KERNEL(training_gradients, Step) {
    for (u64 t = this_thread(); t < WEIGHTS + 1; t += all_threads()) {
        double sum = 0;
        for (u64 s = 0; s < given.samples; s++) sum += part(a, b, c, given, t, s);
        ((double *)c)[t] = sum / given.whole;
    }
}

KERNEL(training_update, Step) {
    (void)a;
    for (u64 t = this_thread(); t < WEIGHTS; t += all_threads()) {
        ((double *)b)[t] -= given.rate * ((const double *)c)[t];
    }
}
