/* Kinds of memory by name (MPI 5.0, 11.4.3): what was asked for is in MPI_INFO_ENV, what calls take is in the info of communicators, and what the
 * program says of its buffers is kept wherever hints are given, if calls take all of it. Collectives are right whatever is said. A launcher whose ranks
 * do not find what was asked for in our variable is given it in an argument, too.
 * RUN: ranks=1,2,5 fabrics=shm,tcp only=banyan
 * RUN: ranks=2 only=banyan env=BANYAN_MEMORY_ALLOC_KINDS=none_such,MPI,mpi:alloc_mem,system:x,level_zero:device,mpi:win_allocate,mpi:Alloc_Mem */
#include "check.h"

#define TAKEN "mpi_memory_alloc_kinds"
#define SAID "mpi_assert_memory_alloc_kinds"

/* The value of a key; NULL if there is none. */
static const char *value_in(MPI_Info info, const char *key)
{
    static char value[MPI_MAX_INFO_VAL];
    int length = sizeof value, flag;
    OK(MPI_Info_get_string(info, key, &length, value, &flag));
    return flag ? value : NULL;
}

static const char *value_of(MPI_Comm comm, const char *key)
{
    MPI_Info info;
    OK(MPI_Comm_get_info(comm, &info));
    const char *value = value_in(info, key);
    OK(MPI_Info_free(&info));
    return value;
}

/* Whether a value, or NULL for none, is what is expected. */
static int is(const char *value, const char *expected)
{
    int same = value && expected ? strcmp(value, expected) == 0 : value == expected;
    if (!same)
        fprintf(stderr, "it is %s, and not %s\n", value ? value : "not there", expected ? expected : "left out");
    return same;
}

static MPI_Info hint(const char *key, const char *value)
{
    MPI_Info info;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, key, value));
    return info;
}

static void set_hint(MPI_Comm comm, const char *key, const char *value)
{
    MPI_Info info = hint(key, value);
    OK(MPI_Comm_set_info(comm, info));
    OK(MPI_Info_free(&info));
}

/* Collectives of both forms, of few bytes and of many. */
static void collectives(MPI_Comm comm)
{
    enum { MANY = 50000 };
    static int mine[MANY], sums[MANY];
    int rank = my_rank(comm), ranks = size_of(comm), wrong_ones = 0;
    for (int count = 1; count; count = count == 1 ? MANY : 0) {
        MPI_Request request;
        for (int i = 0; i < count; i++)
            mine[i] = rank + i;
        OK(MPI_Allreduce(mine, sums, count, MPI_INT, MPI_SUM, comm));
        OK(MPI_Iallreduce(MPI_IN_PLACE, sums, count, MPI_INT, MPI_MAX, comm, &request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        for (int i = 0; i < count; i++)
            wrong_ones += sums[i] != ranks * (ranks - 1) / 2 + i * ranks;
    }
    CHECK(wrong_ones == 0);
}

static void asked_and_taken(const char *asked)
{
    char world[MPI_MAX_INFO_VAL];
    MPI_Comm dup;
    CHECK(is(value_in(MPI_INFO_ENV, TAKEN), asked));
    const char *taken = value_of(MPI_COMM_WORLD, TAKEN);
    CHECK(taken && strncmp(taken, "mpi,system", 10) == 0);
    snprintf(world, sizeof world, "%s", taken);
    const char *more = strstr(world, ",mpi:");
    CHECK(is(more, asked ? ",mpi:alloc_mem" : NULL));
    CHECK(!strstr(world, "none_such") && !strstr(world, "system:") && !strstr(world, "level_zero"));
    CHECK(is(value_of(MPI_COMM_SELF, TAKEN), world));
    /* It is not for programs to set. */
    set_hint(MPI_COMM_WORLD, TAKEN, "none_such");
    CHECK(is(value_of(MPI_COMM_WORLD, TAKEN), world));
    MPI_Info info = hint(TAKEN, "");
    OK(MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &dup));
    OK(MPI_Info_free(&info));
    CHECK(is(value_of(dup, TAKEN), world));
    OK(MPI_Comm_free(&dup));
}

static void hints_are_added_and_not_inherited(void)
{
    MPI_Comm comm, dup;
    MPI_Request request;
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    set_hint(comm, "one", "1");
    set_hint(comm, "two", "2");
    set_hint(comm, "one", "uno");
    CHECK(is(value_of(comm, "one"), "uno") && is(value_of(comm, "two"), "2"));
    OK(MPI_Comm_dup(comm, &dup));
    CHECK(is(value_of(dup, "one"), NULL));
    OK(MPI_Comm_free(&dup));
    OK(MPI_Comm_idup(comm, &dup, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(is(value_of(dup, "two"), NULL));
    OK(MPI_Comm_free(&dup));
    OK(MPI_Comm_free(&comm));
}

/* Says by each call that takes hints what buffers are, and looks whether that is kept, where `takes` tells that it must, or must not be (-1: it
 * depends on the machine). */
static void say(const char *kinds, int takes)
{
    MPI_Comm comms[4];
    MPI_Request request;
    MPI_Info info = hint(SAID, kinds);
    OK(MPI_Comm_idup_with_info(MPI_COMM_WORLD, info, &comms[0], &request));
    OK(MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comms[1]));
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, info, &comms[2]));
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comms[3]));
    OK(MPI_Comm_set_info(comms[3], info));
    OK(MPI_Info_free(&info));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    for (int i = 0; i < 4; i++) {
        if (takes >= 0)
            CHECK(is(value_of(comms[i], SAID), takes ? kinds : NULL));
        collectives(comms[i]);
        /* What is not taken changes nothing; a word after the first collective is kept as well. */
        set_hint(comms[i], SAID, "system,none_such");
        if (takes >= 0)
            CHECK(is(value_of(comms[i], SAID), takes ? kinds : NULL));
        set_hint(comms[i], SAID, "rocm:device");
        set_hint(comms[i], SAID, "mpi,system");
        CHECK(is(value_of(comms[i], SAID), "mpi,system"));
        collectives(comms[i]);
        OK(MPI_Comm_free(&comms[i]));
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    asked_and_taken(argc > 1 ? argv[1] : getenv("BANYAN_MEMORY_ALLOC_KINDS"));
    hints_are_added_and_not_inherited();
    say("system", 1);
    say("MPI:alloc_mem, system", 1);
    say("", 1);
    say("system,none_such", 0);
    say("mpi:win_allocate", 0);
    say("system:", 0);
    say("system,", 0);
    say("level_zero:device", 0);
    say("cuda:device", -1);
    say("ROCM:Device,rocm:device", -1);
    collectives(MPI_COMM_WORLD);
    return finish();
}
