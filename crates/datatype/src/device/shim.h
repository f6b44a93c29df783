// What a C++ compiler needs to take the kernels: a thread of theirs is a turn of a loop of one of the processor's.
#include <cstring>

#define __device__
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Index { unsigned x; };
static thread_local Index blockIdx, threadIdx, blockDim, gridDim;

// How a kernel is found and run, by the stand-in for CUDA's driver, too: `run` runs all threads of a grid, one after the other.
struct DoubleKernel {
    void (*run)(const unsigned grid[3], const unsigned block[3], unsigned shared, void **parameters);
    unsigned parameters;
    const unsigned *sizes;
};
struct Registered {
    const char *name;
    DoubleKernel kernel;
    unsigned sizes[4];
    const Registered *next;

    Registered(const char *called, void (*run)(const unsigned *, const unsigned *, unsigned, void **), unsigned values);
};
static const Registered *registered;
inline Registered::Registered(const char *called, void (*run)(const unsigned *, const unsigned *, unsigned, void **), unsigned values)
    : name(called), kernel{run, 4, sizes}, sizes{8, 8, 8, values}, next(registered) {
    registered = this;
}

extern "C" const DoubleKernel *banyan_double_kernel(const char *name) {
    const Registered *each = registered;
    while (each && strcmp(each->name, name)) each = each->next;
    return each ? &each->kernel : nullptr;
}

#define KERNEL(name, Values)                                                                                 \
    static void name##_thread(u64 a, u64 b, u64 c, const Values &given);                                     \
    static void name##_run(const unsigned *grid, const unsigned *block, unsigned, void **parameters) {       \
        u64 *const *addresses = (u64 **)parameters;                                                          \
        gridDim.x = grid[0], blockDim.x = block[0];                                                          \
        for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++) {                                           \
            for (threadIdx.x = 0; threadIdx.x < block[0]; threadIdx.x++) {                                   \
                name##_thread(*addresses[0], *addresses[1], *addresses[2], *(const Values *)parameters[3]);  \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static const Registered name##_registered(#name, name##_run, sizeof(Values));                            \
    static void name##_thread(u64 a, u64 b, u64 c, const Values &given)

static inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline int __clzll(long long value) { return value ? __builtin_clzll(value) : 64; }
