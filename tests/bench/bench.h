/*
 * What the bench programs share. A program measures many cells in one start and prints, on rank 0, a line for each:
 *
 *     CELL name value unit     a figure
 *     FAIL name reason         what arrived was wrong
 *     SLOW name                the cell took longer than CELL_LIMIT; the program has ended itself
 */
#ifndef BANYAN_BENCH_H
#define BANYAN_BENCH_H

#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * How long the measured loop of a cell takes, about, in seconds. Ranks that take turns on few cores begin it one after
 * the other, some milliseconds apart, which must not be what is measured.
 */
#ifndef MEASURED
#define MEASURED (ranks > sysconf(_SC_NPROCESSORS_ONLN) ? 0.1 : 0.02)
#endif
/* The most that a cell may take, in seconds. */
#define CELL_LIMIT 10

static int rank, ranks;
static char cell_name[128];

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Memory of a process (PSS: shared pages count by share), in MB; 0 if it is gone. `process` is its number, or "self". */
static inline double pss_mb(const char *process)
{
    char path[300], line[256];
    double kib = 0;
    snprintf(path, sizeof path, "/proc/%s/smaps_rollup", process);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "Pss:", 4) == 0)
            kib = atof(line + 4);
    if (file != NULL)
        fclose(file);
    return kib / 1024;
}

static void too_slow(int signal)
{
    char line[sizeof cell_name + 8] = "SLOW ";
    (void)signal;
    strcat(line, cell_name);
    strcat(line, "\n");
    if (write(1, line, strlen(line)) < 0)
        _exit(2);
    _exit(1);
}

static inline void bench_init(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    setvbuf(stdout, NULL, _IOLBF, 0);
}

/* Names the cell that is measured from here on, and sets its alarm. */
#define begin_cell(...)                                                                                               \
    do {                                                                                                               \
        snprintf(cell_name, sizeof cell_name, __VA_ARGS__);                                                            \
        if (rank == 0) {                                                                                               \
            signal(SIGALRM, too_slow);                                                                                 \
            alarm(CELL_LIMIT);                                                                                         \
        }                                                                                                              \
    } while (0)

/* Ends the cell with the largest `value` of all ranks; any of them may report that what it got was wrong. */
static inline void end_cell(double value, const char *unit, int wrong)
{
    double mine[2] = {value, wrong}, all[2] = {0, 0};
    MPI_Reduce(mine, all, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank != 0)
        return;
    alarm(0);
    if (all[1] != 0)
        printf("FAIL %s wrong data\n", cell_name);
    else
        printf("CELL %s %.6g %s\n", cell_name, all[0], unit);
    fflush(stdout);
}

/*
 * Seconds for one call of `once`, as this rank sees it: as many calls as fit in MEASURED, which a short batch tells.
 * `between` runs before the measured calls, to spoil what the first ones left in buffers. One time for all calls, since
 * a rank may run ahead of the others and wait for them only at the end.
 */
static inline double seconds_each(void (*once)(void *), void *argument, void (*between)(void *))
{
    long calls = 1;
    once(argument);
    for (;;) {
        double start = now();
        for (long i = 0; i < calls; i++)
            once(argument);
        double took = now() - start;
        /* A tenth of the time is enough to know the rest. */
        long next = took >= MEASURED / 10 ? -(long)(MEASURED / took * (double)calls + 1) : calls * 4;
        MPI_Bcast(&next, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        calls = next < 0 ? -next : next;
        if (next < 0)
            break;
    }
    between(argument);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    for (long i = 0; i < calls; i++)
        once(argument);
    double each = (now() - start) / (double)calls;
    /* Who is through must not take a core from the others for what comes next. */
    MPI_Barrier(MPI_COMM_WORLD);
    return each;
}

/* Memory for a buffer of the bench, on pages of its own, touched. */
static inline void *buffer(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes + 8) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(memory, 0xee, bytes + 8);
    return memory;
}

/* A pattern that tells blocks and places in them apart. */
static inline void fill(void *memory, size_t bytes, uint32_t seed)
{
    uint32_t *words = memory, i, count = (uint32_t)(bytes / 4);
    for (i = 0; i < count; i++)
        words[i] = seed * 2654435761u + i;
    for (size_t tail = bytes / 4 * 4; tail < bytes; tail++)
        ((unsigned char *)memory)[tail] = (unsigned char)(seed + tail);
}

/* Whether the pattern is not there. */
static inline int differs(const void *memory, size_t bytes, uint32_t seed)
{
    const uint32_t *words = memory;
    uint32_t i, count = (uint32_t)(bytes / 4), wrong = 0;
    for (i = 0; i < count; i++)
        wrong |= words[i] ^ (seed * 2654435761u + i);
    for (size_t tail = bytes / 4 * 4; tail < bytes; tail++)
        wrong |= ((const unsigned char *)memory)[tail] ^ (unsigned char)(seed + tail);
    return wrong != 0;
}

/* The sizes of argv[index], separated by commas, or else those given; ends with -1. */
static inline const long *sizes_of(int argc, char **argv, int index, const long *otherwise)
{
    static long sizes[64];
    int count = 0;
    if (argc <= index)
        return otherwise;
    for (char *next = argv[index]; *next != 0 && count < 63; next += *next == ',')
        sizes[count++] = strtol(next, &next, 10);
    sizes[count] = -1;
    return sizes;
}

#endif
