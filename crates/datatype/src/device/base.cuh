// What runs on a device, in CUDA C. The files of this folder are one text (`SOURCE` in mod.rs joins them): NVRTC or hipRTC compiles it for a
// device, and a C++ compiler for the tests, after `shim.h`. It includes nothing, as NVRTC has no headers.
//
// This part: types, and memory that may lie at any alignment.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned __int128 u128;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef __int128 i128;

// A parameter that stays where it is, unless a thread writes to it; HIP's compiler has no word for it, and finds out.
#if defined(__HIP__) && !defined(__grid_constant__)
#define __grid_constant__
#endif

// All kernels take the addresses of three pieces of memory, and values.
#ifndef KERNEL
#define KERNEL(name, Values) extern "C" __global__ void name(u64 a, u64 b, u64 c, const __grid_constant__ Values given)
#endif

// This thread's number, and how many there are: thread t does what is t, t + threads, t + 2 * threads and so on.
static __device__ u64 this_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static __device__ u64 all_threads() { return (u64)gridDim.x * blockDim.x; }

// What is loaded or stored at a time.
struct __align__(16) Two { u64 low, high; };
template <int BYTES> struct Word {};
template <> struct Word<1> { typedef u8 type; };
template <> struct Word<2> { typedef u16 type; };
template <> struct Word<4> { typedef u32 type; };
template <> struct Word<8> { typedef u64 type; };
template <> struct Word<16> { typedef Two type; };

template <class T, int BYTES> union Words {
    T value;
    typename Word<BYTES>::type words[sizeof(T) / BYTES];
};

// A T of which each word of so many bytes is aligned.
template <int BYTES, class T> static __device__ T load(u64 from) {
    Words<T, BYTES> read;
    for (int i = 0; i < int(sizeof(T) / BYTES); i++) {
        read.words[i] = ((const typename Word<BYTES>::type *)from)[i];
    }
    return read.value;
}

template <int BYTES, class T> static __device__ void store(u64 to, const T &value) {
    Words<T, BYTES> written;
    written.value = value;
    for (int i = 0; i < int(sizeof(T) / BYTES); i++) {
        ((typename Word<BYTES>::type *)to)[i] = written.words[i];
    }
}
