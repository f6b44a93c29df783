/*
 * What the machine itself can do, without MPI, printed like the bench programs do: a cache line that goes back and forth
 * between two cores, copies by one and by two cores, TCP on loopback, a token that goes round a ring of processes
 * that wait for it by sched_yield or by futex, and bare single copies, to and fro and in an alltoall. TCP is measured apart, by
 * `limits tcp`: the machine changes its speed by the minute, so that a limit is worth something only next to what is
 * compared with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long a figure is measured, in seconds. */
#define MEASURED 0.1
/* The most processes. */
#define MOST 16
/* What messages under way may take together, as in bandwidth.c. */
#define WINDOW_BYTES (16u << 20)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void cell(const char *name, long number, double value, const char *unit)
{
    if (number >= 0)
        printf("CELL %s/%ld %.6g %s\n", name, number, value, unit);
    else
        printf("CELL %s %.6g %s\n", name, value, unit);
    fflush(stdout);
}

static void check(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(1);
}

/* To the `index`th core that this process may use, counted round. */
static void pin(size_t index)
{
    cpu_set_t all, one;
    check(sched_getaffinity(0, sizeof all, &all) == 0, "sched_getaffinity");
    for (size_t core = 0, left = index % (size_t)CPU_COUNT(&all);; core++)
        if (CPU_ISSET(core, &all) && left-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            check(sched_setaffinity(0, sizeof one, &one) == 0, "sched_setaffinity");
            return;
        }
}

/* Waits on its core until the count is there. */
static void until(atomic_uint *count, unsigned wanted)
{
    while (atomic_load_explicit(count, memory_order_acquire) != wanted)
        ;
}

static _Alignas(128) atomic_uint there, back;

static void *echo(void *rounds)
{
    pin(1);
    for (unsigned i = 1; i <= *(unsigned *)rounds; i++) {
        until(&there, i);
        atomic_store_explicit(&back, i, memory_order_release);
    }
    return NULL;
}

static void cacheline(void)
{
    unsigned rounds = 500000;
    pthread_t other;
    check(pthread_create(&other, NULL, echo, &rounds) == 0, "pthread_create");
    pthread_t self = pthread_self();
    cpu_set_t before;
    pthread_getaffinity_np(self, sizeof before, &before);
    pin(0);
    double start = 0;
    for (unsigned i = 1; i <= rounds; i++) {
        if (i == rounds / 10)
            start = now();
        atomic_store_explicit(&there, i, memory_order_release);
        until(&back, i);
    }
    double took = now() - start;
    pthread_join(other, NULL);
    pthread_setaffinity_np(self, sizeof before, &before);
    cell("cacheline", -1, took / (rounds - rounds / 10) / 2 * 1e6, "us");
}

struct copier {
    size_t bytes;
    size_t core;
    double rate;
};

static pthread_barrier_t together;

static void *copies(void *argument)
{
    struct copier *c = argument;
    char *from = malloc(c->bytes), *to = malloc(c->bytes);
    check(from != NULL && to != NULL, "malloc");
    pin(c->core);
    memset(from, 1, c->bytes);
    memset(to, 2, c->bytes);
    pthread_barrier_wait(&together);
    double start = now(), took;
    long calls = 0;
    do {
        for (int i = 0; i < 8; i++) {
            memcpy(to, from, c->bytes);
            __asm__ volatile("" : : "r"(to) : "memory");
        }
        calls += 8;
        took = now() - start;
    } while (took < MEASURED / 2);
    c->rate = (double)calls * (double)c->bytes / took * 1e-6;
    free(from);
    free(to);
    return NULL;
}

static void memory(int cores)
{
    for (size_t bytes = 4096; bytes <= 32u << 20; bytes *= 8) {
        struct copier c[2] = {{bytes, 0, 0}, {bytes, 1, 0}};
        pthread_t thread[2];
        pthread_barrier_init(&together, NULL, (unsigned)cores);
        for (int i = 0; i < cores; i++)
            check(pthread_create(&thread[i], NULL, copies, &c[i]) == 0, "pthread_create");
        double rate = 0;
        for (int i = 0; i < cores; i++) {
            pthread_join(thread[i], NULL);
            rate += c[i].rate;
        }
        cell(cores == 1 ? "memcpy" : "memcpy-two-cores", (long)bytes, rate, "MB/s");
    }
}

/* Two ends of a connection on loopback. */
static void connection(int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    check(listen(listener, 1) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(ends[0], (struct sockaddr *)&address, sizeof address) == 0, "connect");
    ends[1] = accept(listener, NULL, NULL);
    check(ends[1] >= 0, "accept");
    for (int i = 0; i < 2; i++)
        setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
}

/* Reads all of it, asking again and again, as an MPI library with a core for each rank does. */
static void read_all(int socket, char *memory, size_t bytes)
{
    while (bytes > 0) {
        ssize_t got = recv(socket, memory, bytes, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got <= 0)
            exit(1);
        memory += got;
        bytes -= (size_t)got;
    }
}

static void write_all(int socket, const char *memory, size_t bytes)
{
    while (bytes > 0) {
        ssize_t put = send(socket, memory, bytes, MSG_NOSIGNAL);
        if (put <= 0)
            exit(1);
        memory += put;
        bytes -= (size_t)put;
    }
}

static pid_t child(void)
{
    pid_t pid = fork();
    check(pid >= 0, "fork");
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void tcp_latency(size_t bytes)
{
    char *memory = malloc(bytes);
    int ends[2], rounds = 5000;
    check(memory != NULL, "malloc");
    memset(memory, 1, bytes);
    connection(ends);
    if (child() == 0) {
        for (int i = 0; i < rounds; i++) {
            read_all(ends[1], memory, bytes);
            write_all(ends[1], memory, bytes);
        }
        _exit(0);
    }
    double start = 0;
    for (int i = 0; i < rounds; i++) {
        if (i == rounds / 5)
            start = now();
        write_all(ends[0], memory, bytes);
        read_all(ends[0], memory, bytes);
    }
    cell("tcp-latency", (long)bytes, (now() - start) / (rounds - rounds / 5) / 2 * 1e6, "us");
    wait(NULL);
    close(ends[0]);
    close(ends[1]);
    free(memory);
}

/*
 * A stream of messages that are all written from one buffer and read into a window of buffers, as bandwidth.c does: a
 * reader that fills one buffer again and again finds it in its cache, and is a quarter quicker than any program could be.
 */
static void tcp_bandwidth(size_t bytes)
{
    const size_t most = 64, window = WINDOW_BYTES / bytes < most ? WINDOW_BYTES / bytes : most;
    char *memory = malloc(bytes * window);
    int ends[2];
    long writes = (long)((1u << 30) / bytes), warm = writes / 8;
    check(memory != NULL, "malloc");
    memset(memory, 1, bytes * window);
    connection(ends);
    if (child() == 0) {
        for (long i = 0; i < writes; i++)
            write_all(ends[1], memory, bytes);
        read_all(ends[1], memory, 1);
        _exit(0);
    }
    double start = 0;
    for (long i = 0; i < writes; i++) {
        if (i == warm)
            start = now();
        read_all(ends[0], memory + (size_t)i % window * bytes, bytes);
    }
    cell("tcp-bandwidth", (long)bytes, (double)(writes - warm) * (double)bytes / (now() - start) * 1e-6, "MB/s");
    write_all(ends[0], memory, 1);
    wait(NULL);
    close(ends[0]);
    close(ends[1]);
    free(memory);
}

/* Memory, all zero, of this process and those that it starts. */
static void *shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    return memory;
}

static void await(atomic_uint *token, unsigned turn, int sleeps)
{
    unsigned have;
    while ((have = atomic_load(token)) != turn) {
        if (sleeps)
            syscall(SYS_futex, token, FUTEX_WAIT, have, NULL, NULL, 0);
        else
            sched_yield();
    }
}

/* Microseconds until a token has gone through `count` processes. */
static void ring(int count, int sleeps)
{
    /* Each process waits at a place of its own, so that only the next one is woken. */
    struct place {
        _Alignas(128) atomic_uint turn;
    } *places = shared(sizeof *places * (size_t)count);
    const unsigned rounds = sleeps ? 200 : 1000;
    double start = 0;
    for (int me = count - 1; me >= 0; me--) {
        if (me > 0 && child() != 0)
            continue;
        for (unsigned round = 1; round <= rounds; round++) {
            if (me == 0 && round == rounds / 5)
                start = now();
            if (me > 0)
                await(&places[me].turn, round, sleeps);
            atomic_uint *next = &places[(me + 1) % count].turn;
            atomic_store(next, round);
            if (sleeps)
                syscall(SYS_futex, next, FUTEX_WAKE, 1, NULL, NULL, 0);
            if (me == 0)
                await(&places[0].turn, round, sleeps);
        }
        if (me > 0)
            _exit(0);
    }
    cell(sleeps ? "futex-ring" : "yield-ring", count, (now() - start) / (rounds - rounds / 5 + 1) * 1e6, "us");
    while (wait(NULL) > 0)
        ;
    munmap(places, sizeof *places * (size_t)count);
}

/* One of two processes, as the other one sees it. */
struct end {
    /* How many messages it has announced, and how many of the other's it has read. */
    _Alignas(128) atomic_uint announced;
    _Alignas(128) atomic_uint read;
    pid_t pid;
    char *out;
};

struct pair {
    struct end ends[2];
    atomic_int refused;
    long rounds;
};

/* A single copy out of another process. */
static void get(pid_t pid, char *from, char *to, size_t bytes, atomic_int *refused)
{
    struct iovec here = {to, bytes}, there = {from, bytes};
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)bytes)
        atomic_store(refused, 1);
}

/* A message there and one back; its receiver reads each of them. */
static void ping(struct pair *pair, int me, char *in, size_t bytes, unsigned *times)
{
    struct end *mine = &pair->ends[me], *other = &pair->ends[1 - me];
    ++*times;
    for (int from = 0; from < 2; from++) {
        if (from == me) {
            atomic_store_explicit(&mine->announced, *times, memory_order_release);
            until(&other->read, *times);
            continue;
        }
        until(&other->announced, *times);
        get(other->pid, other->out, in, bytes, &pair->refused);
        atomic_store_explicit(&mine->read, *times, memory_order_release);
    }
}

static void single_copy_process(struct pair *pair, int me, size_t bytes)
{
    char *out = malloc(bytes), *in = malloc(bytes);
    /* The first time neither end announces a message, but where its own are. */
    unsigned times = 1;
    check(out != NULL && in != NULL, "malloc");
    pin((size_t)me);
    memset(out, 1, bytes);
    memset(in, 2, bytes);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pair->ends[me].pid = getpid();
    pair->ends[me].out = out;
    atomic_store_explicit(&pair->ends[me].announced, times, memory_order_release);
    until(&pair->ends[1 - me].announced, times);
    double start = now();
    for (int i = 0; i < 20; i++)
        ping(pair, me, in, bytes, &times);
    if (me == 0)
        pair->rounds = (long)(MEASURED / (now() - start) * 20) + 1;
    ping(pair, me, in, bytes, &times);
    long rounds = pair->rounds;
    start = now();
    for (long round = 0; round < rounds; round++)
        ping(pair, me, in, bytes, &times);
    if (me == 0 && !atomic_load(&pair->refused))
        cell("single-copy", (long)bytes, (now() - start) / (double)rounds / 2 * 1e6, "us");
    _exit(0);
}

/* Microseconds of a message that one process announces by a line and the other one reads by a single copy: nothing where the system refuses that. */
static void single_copy(size_t bytes)
{
    struct pair *pair = shared(sizeof *pair);
    for (int me = 0; me < 2; me++)
        if (child() == 0)
            single_copy_process(pair, me, bytes);
    while (wait(NULL) > 0)
        ;
    munmap(pair, sizeof *pair);
}

struct all {
    /* How often a process has come to where all meet. */
    atomic_uint come;
    atomic_int refused;
    long rounds;
    pid_t pids[MOST];
    char *out[MOST];
};

/* Waits for the others, for the `times`th time. */
static void meet(struct all *all, unsigned count, unsigned *times)
{
    unsigned wanted = count * ++*times;
    atomic_fetch_add(&all->come, 1);
    while (atomic_load(&all->come) < wanted)
        sched_yield();
}

/* Once all are there, gets the block of each other process, and its own, and waits until all have theirs. */
static void get_all(struct all *all, int count, int me, char *in, size_t bytes, unsigned *times)
{
    meet(all, (unsigned)count, times);
    for (int i = 1; i < count; i++) {
        int from = (me + i) % count;
        get(all->pids[from], all->out[from] + (size_t)me * bytes, in + (size_t)from * bytes, bytes, &all->refused);
    }
    memcpy(in + (size_t)me * bytes, all->out[me] + (size_t)me * bytes, bytes);
    meet(all, (unsigned)count, times);
}

static void alltoall_process(struct all *all, int count, int me, size_t bytes)
{
    char *out = malloc((size_t)count * bytes), *in = malloc((size_t)count * bytes);
    unsigned times = 0;
    check(out != NULL && in != NULL, "malloc");
    if (count <= sysconf(_SC_NPROCESSORS_ONLN))
        pin((size_t)me);
    memset(out, 1, (size_t)count * bytes);
    memset(in, 2, (size_t)count * bytes);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    all->pids[me] = getpid();
    all->out[me] = out;
    get_all(all, count, me, in, bytes, &times);
    double start = now();
    get_all(all, count, me, in, bytes, &times);
    double took = now() - start;
    if (me == 0)
        all->rounds = took < MEASURED / 2 ? (long)(MEASURED / took) : 2;
    meet(all, (unsigned)count, &times);
    start = now();
    for (long round = 0; round < all->rounds; round++)
        get_all(all, count, me, in, bytes, &times);
    if (me == 0 && !atomic_load(&all->refused)) {
        char name[32];
        snprintf(name, sizeof name, "single-copy-alltoall-%d", count);
        cell(name, (long)bytes, (now() - start) / (double)all->rounds * 1e6, "us");
    }
    _exit(0);
}

/*
 * Microseconds of an alltoall in which each process gets the block of each other one by a single copy, and waits until all
 * have theirs: nothing where the system refuses that.
 */
static void alltoall(int count, size_t bytes)
{
    struct all *all = shared(sizeof *all);
    for (int me = 0; me < count; me++)
        if (child() == 0)
            alltoall_process(all, count, me, bytes);
    while (wait(NULL) > 0)
        ;
    munmap(all, sizeof *all);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    if (argc > 1 && strcmp(argv[1], "tcp") == 0) {
        tcp_latency(8);
        tcp_latency(1024);
        tcp_latency(65536);
        tcp_bandwidth(65536);
        tcp_bandwidth(1 << 20);
        return 0;
    }
    cacheline();
    memory(1);
    memory(2);
    for (int count = 2; count <= MOST; count *= 2) {
        ring(count, 0);
        ring(count, 1);
    }
    for (size_t bytes = 8 << 10; bytes <= 8 << 20; bytes *= 2)
        single_copy(bytes);
    for (int count = 2; count <= MOST; count *= 2)
        for (size_t bytes = 256 << 10; bytes <= 4 << 20; bytes *= 4)
            alltoall(count, bytes);
    return 0;
}
