/*
 * A ping-pong of data that does not lie together, by its bytes, one way: as a derived datatype, and (`-hand`) packed
 * into a buffer, sent and unpacked by the program itself. `strided`: every second double; `indexed`: pieces of 1 to 4
 * doubles with gaps; `struct`: a structure with a hole in it.
 */
#include "bench.h"
#include <stddef.h>

struct particle {
    double place[3];
    int kind;
    char flag;
    /* Not sent: */
    double scratch;
};

enum { STRIDED, INDEXED, STRUCT, KINDS };
static const char *const NAMES[KINDS] = {"strided", "indexed", "struct"};
/* Bytes of data, and of memory, in a `struct particle`, and of a group of indexed pieces: 1, 2, 3, 4 doubles, each with
 * a double between. */
#define PARTICLE_DATA (3 * sizeof(double) + sizeof(int) + 1)
#define GROUP_DATA (10 * sizeof(double))
#define GROUP_ROOM (14 * sizeof(double))

struct shape {
    int kind, hand, count;
    size_t bytes, room;
    char *out, *in, *packed;
    MPI_Datatype type;
};

/* Copies all data between its places in `memory` and `packed`. */
static void copy(const struct shape *s, char *memory, char *packed, int pack)
{
    double *m = (double *)memory, *p = (double *)packed;
    if (s->kind == STRIDED) {
        if (pack)
            for (int i = 0; i < s->count; i++)
                p[i] = m[2 * i];
        else
            for (int i = 0; i < s->count; i++)
                m[2 * i] = p[i];
    } else if (s->kind == INDEXED) {
        for (int group = 0; group < s->count; group++, m += GROUP_ROOM / sizeof(double))
            for (int piece = 0, at = 0; piece < 4; at += ++piece + 1) {
                size_t length = (size_t)(piece + 1) * sizeof(double);
                if (pack)
                    memcpy(p, m + at, length);
                else
                    memcpy(m + at, p, length);
                p += piece + 1;
            }
    } else {
        struct particle *all = (struct particle *)memory;
        for (int i = 0; i < s->count; i++, packed += PARTICLE_DATA) {
            if (pack)
                memcpy(packed, &all[i], PARTICLE_DATA);
            else
                memcpy(&all[i], packed, PARTICLE_DATA);
        }
    }
}

static MPI_Datatype type_of(const struct shape *s)
{
    MPI_Datatype type, part;
    if (s->kind == STRIDED) {
        MPI_Type_vector(s->count, 1, 2, MPI_DOUBLE, &type);
    } else if (s->kind == INDEXED) {
        int *lengths = malloc(4 * sizeof(int) * (size_t)s->count), *at = malloc(4 * sizeof(int) * (size_t)s->count);
        static const int first[4] = {0, 2, 5, 9};
        for (int i = 0; i < 4 * s->count; i++) {
            lengths[i] = i % 4 + 1;
            at[i] = i / 4 * (int)(GROUP_ROOM / sizeof(double)) + first[i % 4];
        }
        MPI_Type_indexed(4 * s->count, lengths, at, MPI_DOUBLE, &type);
        free(lengths);
        free(at);
    } else {
        int lengths[3] = {3, 1, 1};
        MPI_Aint at[3] = {offsetof(struct particle, place), offsetof(struct particle, kind),
                          offsetof(struct particle, flag)};
        MPI_Datatype types[3] = {MPI_DOUBLE, MPI_INT, MPI_CHAR}, one;
        MPI_Type_create_struct(3, lengths, at, types, &one);
        MPI_Type_create_resized(one, 0, sizeof(struct particle), &part);
        MPI_Type_contiguous(s->count, part, &type);
        MPI_Type_free(&one);
        MPI_Type_free(&part);
    }
    MPI_Type_commit(&type);
    return type;
}

static void send(struct shape *s)
{
    if (!s->hand) {
        MPI_Send(s->out, 1, s->type, 1 - rank, 0, MPI_COMM_WORLD);
        return;
    }
    copy(s, s->out, s->packed, 1);
    MPI_Send(s->packed, (int)s->bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD);
}

static void receive(struct shape *s)
{
    if (!s->hand) {
        MPI_Recv(s->in, 1, s->type, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Recv(s->packed, (int)s->bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    copy(s, s->in, s->packed, 0);
}

static void once(void *argument)
{
    if (rank == 0)
        send(argument);
    receive(argument);
    if (rank == 1)
        send(argument);
}

static void spoil(void *argument)
{
    struct shape *s = argument;
    memset(s->in, 0xee, s->room);
}

int main(int argc, char **argv)
{
    static const long all[] = {1024, 16384, 262144, 1048576, -1};
    bench_init(&argc, &argv);
    for (const long *size = sizes_of(argc, argv, 1, all); *size >= 0; size++)
        for (int kind = 0; kind < KINDS; kind++) {
            static const size_t data[KINDS] = {sizeof(double), GROUP_DATA, PARTICLE_DATA};
            static const size_t room[KINDS] = {2 * sizeof(double), GROUP_ROOM, sizeof(struct particle)};
            struct shape s = {.kind = kind, .count = (int)((size_t)*size / data[kind])};
            s.bytes = (size_t)s.count * data[kind];
            s.room = (size_t)s.count * room[kind];
            s.out = buffer(s.room);
            s.in = buffer(s.room);
            s.packed = buffer(s.bytes);
            s.type = type_of(&s);
            char *expected = buffer(s.bytes), *got = buffer(s.bytes);
            for (s.hand = 0; s.hand <= 1; s.hand++) {
                begin_cell("%s%s/%ld", NAMES[kind], s.hand ? "-hand" : "", *size);
                fill(s.out, s.room, (uint32_t)(1 - rank));
                copy(&s, s.out, expected, 1);
                fill(s.out, s.room, (uint32_t)rank);
                double seconds = seconds_each(once, &s, spoil);
                copy(&s, s.in, got, 1);
                int wrong = memcmp(expected, got, s.bytes) != 0;
                if (kind == STRIDED)
                    wrong |= s.in[sizeof(double)] != (char)0xee;
                end_cell(seconds / 2 * 1e6, "us", wrong);
            }
            MPI_Type_free(&s.type);
            free(s.out);
            free(s.in);
            free(s.packed);
            free(expected);
            free(got);
        }
    MPI_Finalize();
    return 0;
}
