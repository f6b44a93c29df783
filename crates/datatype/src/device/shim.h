// What a C++ compiler needs to take the kernels: a thread of theirs is a turn of a loop of one of the processor's.
#define SHIM
#define __device__
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

struct Index { unsigned x; };
static thread_local Index blockIdx, threadIdx, blockDim, gridDim;
static thread_local void *(*address_of)(void *);
#define ADDRESS(address) (address_of((void *)(address)))

// A kernel takes what cuLaunchKernel does: the addresses of its parameters.
#define KERNEL(name, Values)                                                                                 \
    static void name##_thread(u64 a, u64 b, u64 c, const Values &given);                                     \
    extern "C" void name(void **parameters) {                                                                \
        u64 *const *addresses = (u64 **)parameters;                                                          \
        name##_thread(*addresses[0], *addresses[1], *addresses[2], *(const Values *)parameters[3]);          \
    }                                                                                                        \
    static void name##_thread(u64 a, u64 b, u64 c, const Values &given)

// Runs all threads of a grid, one after the other. `address` says where memory is that the program knows by an address of a device.
extern "C" void banyan_launch(void (*kernel)(void **), unsigned blocks, unsigned threads, void **parameters, void *(*address)(void *)) {
    address_of = address;
    gridDim.x = blocks, blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) kernel(parameters);
    }
}

static inline unsigned __float_as_uint(float value) { unsigned bits; __builtin_memcpy(&bits, &value, 4); return bits; }
static inline float __uint_as_float(unsigned bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline int __clzll(long long value) { return value ? __builtin_clzll(value) : 64; }
