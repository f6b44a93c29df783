/* Memory of CUDA devices for test programs, by the driver's own interface, which is loaded at run time: no headers of CUDA are needed.
 * A function that fails ends the program. */
#ifndef BANYAN_DEVICE_H
#define BANYAN_DEVICE_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uintptr_t device_ptr;

static void *cuda_library;

/* Loads the driver, as the CUDA runtime does when it is first used. */
static void cuda_load(void)
{
    if (cuda_library)
        return;
    cuda_library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda_library) {
        fprintf(stderr, "there is no CUDA driver: %s\n", dlerror());
        exit(77);
    }
}

/* Calls a function of integers and addresses; the result is CUDA's. */
static int cuda_try(const char *name, uintptr_t a, uintptr_t b, uintptr_t c)
{
    int (*function)(uintptr_t, uintptr_t, uintptr_t);
    cuda_load();
    *(void **)&function = dlsym(cuda_library, name);
    if (!function) {
        fprintf(stderr, "the CUDA driver has no %s\n", name);
        exit(78);
    }
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
