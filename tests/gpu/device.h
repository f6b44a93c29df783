/* Memory of devices for test programs, by the driver's own interface, which is loaded at run time: no headers of CUDA or HIP are needed.
 * Functions are called by CUDA's names; with BANYAN_TEST_DRIVER=hip those of HIP are called that do the same. One that fails ends the program. */
#ifndef BANYAN_DEVICE_H
#define BANYAN_DEVICE_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uintptr_t device_ptr;

static void *driver_library;

static int is_hip(void)
{
    const char *driver = getenv("BANYAN_TEST_DRIVER");
    return driver && strcmp(driver, "hip") == 0;
}

/* Loads the driver, as a runtime does when it is first used. */
static void driver_load(void)
{
    if (driver_library)
        return;
    driver_library = dlopen(is_hip() ? "libamdhip64.so.6" : "libcuda.so.1", RTLD_NOW);
    if (!driver_library) {
        fprintf(stderr, "there is no driver: %s\n", dlerror());
        exit(77);
    }
}

/* HIP's name of a function of CUDA's that takes the same. */
static const char *hip_name(const char *name)
{
    static const char *const names[][2] = {
        {"cuInit", "hipInit"},
        {"cuDeviceGetCount", "hipGetDeviceCount"},
        {"cuMemAlloc_v2", "hipMalloc"},
        {"cuMemAllocManaged", "hipMallocManaged"},
        {"cuMemHostAlloc", "hipHostMalloc"},
        {"cuMemFree_v2", "hipFree"},
        {"cuMemFreeHost", "hipHostFree"},
        {"cuMemcpyHtoD_v2", "hipMemcpyHtoD"},
        {"cuMemcpyDtoH_v2", "hipMemcpyDtoH"},
        {"cuMemsetD8Async", "hipMemsetD8Async"},
        {"cuStreamCreate", "hipStreamCreateWithFlags"},
        {"cuStreamSynchronize", "hipStreamSynchronize"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i][0], name) == 0)
            return names[i][1];
    return name;
}

static void *driver_function(const char *name)
{
    void *function;
    driver_load();
    name = is_hip() ? hip_name(name) : name;
    function = dlsym(driver_library, name);
    if (!function) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(78);
    }
    return function;
}

/* How often a function of the driver was called; "" is all of them. Only the stand-in counts. */
static inline unsigned long long driver_calls(const char *name)
{
    unsigned long long (*count)(const char *);
    *(void **)&count = driver_function("banyan_double_calls");
    return count(name);
}

/* Calls a function of integers and addresses; the result is the driver's. */
static int cuda_try(const char *name, uintptr_t a, uintptr_t b, uintptr_t c)
{
    int (*function)(uintptr_t, uintptr_t, uintptr_t);
    *(void **)&function = driver_function(name);
    return function(a, b, c);
}

static void cuda(const char *name, uintptr_t a, uintptr_t b, uintptr_t c)
{
    int error = cuda_try(name, a, b, c);
    if (error) {
        fprintf(stderr, "%s fails with error %d\n", name, error);
        exit(79);
    }
}

static int device_count(void)
{
    int count = 0;
    cuda("cuInit", 0, 0, 0);
    cuda("cuDeviceGetCount", (uintptr_t)&count, 0, 0);
    return count;
}

/* The device of that number, modulo how many there are, is the one in use from now on. */
static void use_device(int number)
{
    static uintptr_t contexts[64];
    int device = number % device_count() % 64;
    if (is_hip()) {
        cuda("hipSetDevice", (uintptr_t)device, 0, 0);
        return;
    }
    if (!contexts[device])
        cuda("cuDevicePrimaryCtxRetain", (uintptr_t)&contexts[device], (uintptr_t)device, 0);
    cuda("cuCtxSetCurrent", contexts[device], 0, 0);
}

/* Memory of the device in use. */
static device_ptr device_alloc(size_t bytes)
{
    device_ptr new = 0;
    cuda("cuMemAlloc_v2", (uintptr_t)&new, bytes ? bytes : 1, 0);
    return new;
}

static device_ptr managed_alloc(size_t bytes)
{
    device_ptr new = 0;
    cuda("cuMemAllocManaged", (uintptr_t)&new, bytes ? bytes : 1, 1);
    return new;
}

static void *pinned_alloc(size_t bytes)
{
    void *new = NULL;
    cuda("cuMemHostAlloc", (uintptr_t)&new, bytes ? bytes : 1, 0);
    return new;
}

static void device_free(device_ptr memory)
{
    cuda("cuMemFree_v2", memory, 0, 0);
}

static void pinned_free(void *memory)
{
    cuda("cuMemFreeHost", (uintptr_t)memory, 0, 0);
}

static void to_device(device_ptr to, const void *from, size_t bytes)
{
    if (bytes)
        cuda("cuMemcpyHtoD_v2", to, (uintptr_t)from, bytes);
}

static void from_device(void *to, device_ptr from, size_t bytes)
{
    if (bytes)
        cuda("cuMemcpyDtoH_v2", (uintptr_t)to, from, bytes);
}

#endif
