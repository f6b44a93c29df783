/* Puts the buffers of a program that knows nothing of devices onto devices. Each allocation is, as a seed decides (BANYAN_TEST_SEED), memory
 * of one of the devices, managed memory, pinned memory or plain memory. One on a device has a shadow there. MPI's functions are wrapped (wrapped.h, which is made
 * from the table of functions): they get the shadow's address, after what the program has changed since was copied there; when a call
 * has completed something, what MPI has changed comes back. Only bytes that differ go to the device, so that what a receive under
 * way has written there stays. */
#include "on_device.h"
#undef malloc
#undef calloc
#undef free

#include "device.h"

#include <mpi.h>
#include <string.h>

struct shadow {
    char *host;
    /* What the host and the device had alike last. */
    char *alike;
    device_ptr device;
    size_t bytes;
    enum { PLAIN, PINNED, MANAGED, DEVICE } kind;
    /* MPI has been given a part of it. */
    int given;
};

static struct shadow *shadows;
static size_t shadow_count, shadow_room;
/* Buffers that MPI got on devices. */
static unsigned long on_devices;

static unsigned random_number(void)
{
    static unsigned long long state;
    if (!state) {
        int running = 0, rank = 0;
        const char *seed = getenv("BANYAN_TEST_SEED");
        MPI_Initialized(&running);
        if (running)
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        state = (seed ? strtoull(seed, NULL, 10) : 1) * 1000003 + (unsigned long long)rank * 7919 + 1;
    }
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33);
}

void *on_device_malloc(size_t bytes)
{
    struct shadow new = {0};
    unsigned choice = random_number() % 16;
    int own = (int)(random_number() % 3);
    new.bytes = bytes;
    new.kind = bytes == 0 || choice < 4 ? PLAIN : choice < 5 ? PINNED : choice < 6 ? MANAGED : DEVICE;
    if (new.kind != PLAIN)
        use_device(own);
    if (new.kind == PINNED)
        new.host = pinned_alloc(bytes);
    else if (new.kind == MANAGED)
        new.host = (char *)managed_alloc(bytes);
    else
        new.host = malloc(bytes ? bytes : 1);
    if (new.kind == DEVICE) {
        new.device = device_alloc(bytes);
        new.alike = malloc(bytes);
        memset(new.host, 0x5b, bytes);
        memcpy(new.alike, new.host, bytes);
        to_device(new.device, new.host, bytes);
    }
    if (shadow_count == shadow_room) {
        shadow_room = shadow_room * 2 + 64;
        shadows = realloc(shadows, shadow_room * sizeof *shadows);
    }
    shadows[shadow_count++] = new;
    return new.host;
}

void *on_device_calloc(size_t count, size_t bytes)
{
    void *new = on_device_malloc(count * bytes);
    memset(new, 0, count * bytes);
    return new;
}

void on_device_free(void *memory)
{
    for (size_t i = shadow_count; i-- > 0;) {
        struct shadow old = shadows[i];
        if (old.host != memory)
            continue;
        shadows[i] = shadows[--shadow_count];
        if (old.kind == PINNED)
            pinned_free(old.host);
        else if (old.kind == MANAGED)
            device_free((device_ptr)old.host);
        else
            free(old.host);
        if (old.kind == DEVICE)
            device_free(old.device);
        free(old.alike);
        return;
    }
    free(memory);
}

/* What the program has changed goes to the device. */
static void push(struct shadow *s)
{
    size_t at = 0;
    if (s->kind != DEVICE || memcmp(s->host, s->alike, s->bytes) == 0)
        return;
    while (at < s->bytes) {
        size_t end;
        if (s->host[at] == s->alike[at]) {
            at++;
            continue;
        }
        for (end = at + 1; end < s->bytes && s->host[end] != s->alike[end]; end++)
            ;
        to_device(s->device + at, s->host + at, end - at);
        memcpy(s->alike + at, s->host + at, end - at);
        at = end;
    }
}

/* What the program passes to MPI in the place of an address of its own. */
static void *given(const void *memory)
{
    const char *at = memory;
    for (size_t i = shadow_count; i-- > 0;) {
        struct shadow *s = &shadows[i];
        if (at < s->host || at >= s->host + s->bytes)
            continue;
        if (s->kind == MANAGED || s->kind == DEVICE)
            on_devices++;
        if (s->kind != DEVICE)
            break;
        push(s);
        s->given = 1;
        return (void *)(s->device + (size_t)(at - s->host));
    }
    return (void *)(uintptr_t)memory;
}

/* Requests start again: what they send may have changed. */
static void before(void)
{
    for (size_t i = 0; i < shadow_count; i++)
        if (shadows[i].given)
            push(&shadows[i]);
}

/* What MPI has changed comes to the program. */
static void after(void)
{
    for (size_t i = 0; i < shadow_count; i++) {
        struct shadow *s = &shadows[i];
        if (!s->given)
            continue;
        push(s);
        from_device(s->alike, s->device, s->bytes);
        memcpy(s->host, s->alike, s->bytes);
    }
}

int MPI_Finalize(void)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    printf("rank %d passed %lu buffers on devices\n", rank, on_devices);
    fflush(stdout);
    return PMPI_Finalize();
}

#include "wrapped.h"
