/* A library that stands in for one call of libibverbs, ibv_reg_dmabuf_mr, as devices in software register no dma-buf. The stand-in for the driver of GPUs
 * exports the file of its memory in the place of a dma-buf, which stands at the first byte: that is mapped here, and the mapping registered as memory of
 * the host is, under the address that the caller names. All else is the device's own. The mapping ends with the registration, as the memory behind a
 * dma-buf would, whatever the program has freed. To be named in LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 4096 };

static struct {
    struct ibv_mr *mr;
    void *start;
    size_t len;
} kept[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void end_mapping(struct ibv_mr *mr)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST; i++)
        if (kept[i].mr == mr) {
            munmap(kept[i].start, kept[i].len);
            kept[i].mr = NULL;
            break;
        }
    pthread_mutex_unlock(&lock);
}

static int keep_mapping(struct ibv_mr *mr, void *start, size_t len)
{
    int at = 0;
    pthread_mutex_lock(&lock);
    while (at < MOST && kept[at].mr)
        at++;
    if (at < MOST) {
        kept[at].mr = mr;
        kept[at].start = start;
        kept[at].len = len;
    }
    pthread_mutex_unlock(&lock);
    return at < MOST;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = offset % page, len = before + length;
    off_t first = lseek(fd, 0, SEEK_CUR);
    if (first < 0 || (offset - iova) % page != 0) {
        errno = EINVAL;
        return NULL;
    }
    char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, first + (off_t)(offset - before));
    if (start == MAP_FAILED)
        return NULL;
    struct ibv_mr *mr = ibv_reg_mr_iova(pd, start + before, length, iova, access);
    if (!mr) {
        munmap(start, len);
        return NULL;
    }
    if (!keep_mapping(mr, start, len)) {
        ibv_dereg_mr(mr);
        munmap(start, len);
        errno = ENOMEM;
        return NULL;
    }
    return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    static int (*next)(struct ibv_mr *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "ibv_dereg_mr");
    if (!next)
        return ENOSYS;
    int done = next(mr);
    if (!done)
        end_mapping(mr);
    return done;
}
