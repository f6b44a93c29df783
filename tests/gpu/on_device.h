/* Included before everything else in a program of tests/c, so that its buffers are on devices: what it allocates has a shadow there,
 * which MPI gets in its place (on_device.c). */
#ifndef BANYAN_ON_DEVICE_H
#define BANYAN_ON_DEVICE_H

#include <stdlib.h>

void *on_device_malloc(size_t bytes);
void *on_device_calloc(size_t count, size_t bytes);
void on_device_free(void *memory);

#define malloc on_device_malloc
#define calloc on_device_calloc
#define free on_device_free

#endif
