/* Collectives, split and create on intercommunicators: groups of 1 and 1, 1 and 3, 2 and 3 ranks, either one first.
 * RUN: ranks=2,4,5,8 fabrics=shm,tcp limit=60 */
#include "check.h"

enum { LEN = 1000, MOST = 8 };

static MPI_Comm inter;
/* My group is the first of MPI_COMM_WORLD's ranks; my rank, and how many there are on either side. */
static int low, me, mine, theirs;

/* What a rank of a side has at a place. */
static int value(int side, int rank, int i)
{
    return side * 1000000 + rank * 10000 + i;
}

/* The sum of that over the first ranks of a side. */
static int sum(int side, int ranks, int i)
{
    int all = 0;
    for (int rank = 0; rank < ranks; rank++)
        all += value(side, rank, i);
    return all;
}

/* x -> a x + b, composed: associative, not commutative. */
static void compose(void *in, void *inout, int *len, MPI_Datatype *type)
{
    unsigned *f = in, *g = inout;
    (void)type;
    for (int i = 0; i < *len; i++, f += 2, g += 2) {
        unsigned a = f[0] * g[0], b = f[0] * g[1] + f[1];
        g[0] = a, g[1] = b;
    }
}

/* What the composition of a side comes to. */
static void composed(int side, int ranks, unsigned out[2])
{
    out[0] = 1, out[1] = 0;
    for (int rank = 0; rank < ranks; rank++) {
        unsigned f[2] = {(unsigned)(2 * rank + 3 + side), (unsigned)(rank + 1)};
        out[1] = out[0] * f[1] + out[1];
        out[0] = out[0] * f[0];
    }
}

/* As what this rank calls when a rank of a side is root. */
static int root_of(int side, int rank)
{
    if (side != low)
        return rank;
    return rank == me ? MPI_ROOT : MPI_PROC_NULL;
}

static void wait_for(MPI_Request *request)
{
    OK(MPI_Wait(request, MPI_STATUS_IGNORE));
}

static void barriers(void)
{
    MPI_Request request;
    OK(MPI_Barrier(inter));
    OK(MPI_Ibarrier(inter, &request));
    wait_for(&request);
    OK(MPI_Barrier_init(inter, MPI_INFO_NULL, &request));
    for (int i = 0; i < 3; i++) {
        OK(MPI_Start(&request));
        wait_for(&request);
    }
    MPI_Request_free(&request);
}

static void broadcasts(int side, int rank, int len)
{
    int root = root_of(side, rank), data[LEN];
    MPI_Request request, kept;
    /* Beside the root nothing else counts. */
    int count = root == MPI_PROC_NULL ? -1 : len;
    MPI_Datatype type = root == MPI_PROC_NULL ? MPI_DATATYPE_NULL : MPI_INT;
    OK(MPI_Bcast_init(data, count, type, root, inter, MPI_INFO_NULL, &kept));
    for (int way = 0; way < 4; way++) {
        for (int i = 0; i < LEN; i++)
            data[i] = root == MPI_ROOT ? value(side, rank, i) + way : -1;
        if (way == 0) {
            OK(MPI_Bcast(data, count, type, root, inter));
        } else if (way == 1) {
            OK(MPI_Ibcast(data, count, type, root, inter, &request));
            wait_for(&request);
        } else {
            OK(MPI_Start(&kept));
            wait_for(&kept);
        }
        for (int i = 0; i < LEN; i++)
            CHECK(data[i] == (root == MPI_ROOT || (side != low && i < len) ? value(side, rank, i) + way : -1));
    }
    MPI_Request_free(&kept);
}

static void rooted(int side, int rank)
{
    int root = root_of(side, rank), at_root = root == MPI_ROOT, leaf = side != low, givers = theirs;
    int own[3], all[3 * MOST], counts[MOST], displs[MOST], result[2];
    for (int i = 0; i < 3; i++)
        own[i] = value(low, me, i);
    for (int i = 0; i < 3 * MOST; i++)
        all[i] = -1;
    OK(MPI_Gather(own, 2, MPI_INT, all, 2, MPI_INT, root, inter));
    for (int i = 0; i < 3 * MOST; i++)
        CHECK(all[i] == (at_root && i < 2 * givers ? value(!low, i / 2, i % 2) : -1));
    for (int i = 0; i < MOST; i++)
        counts[i] = i % 3, displs[i] = 3 * (MOST - 1 - i);
    for (int i = 0; i < 3 * MOST; i++)
        all[i] = -1;
    OK(MPI_Gatherv(own, leaf ? me % 3 : 7, MPI_INT, all, counts, displs, MPI_INT, root, inter));
    for (int from = 0; from < MOST; from++)
        for (int i = 0; i < 3; i++)
            CHECK(all[displs[from] + i] == (at_root && from < givers && i < counts[from] ? value(!low, from, i) : -1));
    for (int i = 0; i < 3 * MOST; i++)
        all[i] = value(side, rank, i);
    own[0] = own[1] = own[2] = -1;
    OK(MPI_Scatter(all, 2, MPI_INT, own, 2, MPI_INT, root, inter));
    CHECK(own[0] == (leaf ? value(side, rank, 2 * me) : -1) && own[1] == (leaf ? value(side, rank, 2 * me + 1) : -1));
    own[0] = own[1] = own[2] = -1;
    OK(MPI_Scatterv(all, counts, displs, MPI_INT, own, leaf ? me % 3 : 7, MPI_INT, root, inter));
    for (int i = 0; i < 3; i++)
        CHECK(own[i] == (leaf && i < me % 3 ? value(side, rank, displs[me] + i) : -1));
    own[0] = value(low, me, 0), own[1] = value(low, me, 1);
    result[0] = result[1] = -1;
    OK(MPI_Reduce(own, result, 2, MPI_INT, MPI_SUM, root, inter));
    for (int i = 0; i < 2; i++)
        CHECK(result[i] == (at_root ? sum(!low, theirs, i) : -1));
}

static void gathering_all(void)
{
    /* What one side gives and what the other gives need not be as long. */
    int give = 2 + low, get = 2 + !low, own[3], all[3 * MOST], counts[MOST], displs[MOST];
    for (int i = 0; i < 3; i++)
        own[i] = value(low, me, i);
    memset(all, 0, sizeof all);
    OK(MPI_Allgather(own, give, MPI_INT, all, get, MPI_INT, inter));
    for (int i = 0; i < get * theirs; i++)
        CHECK(all[i] == value(!low, i / get, i % get));
    for (int i = 0; i < MOST; i++)
        counts[i] = (i + !low) % 3, displs[i] = 3 * i;
    memset(all, 0, sizeof all);
    OK(MPI_Allgatherv(own, (me + low) % 3, MPI_INT, all, counts, displs, MPI_INT, inter));
    for (int from = 0; from < theirs; from++)
        for (int i = 0; i < 3; i++)
            CHECK(all[3 * from + i] == (i < counts[from] ? value(!low, from, i) : 0));
}

static void all_to_all(void)
{
    int give = 2 + low, get = 2 + !low, out[3 * MOST], in[3 * MOST];
    int sends[MOST], recvs[MOST], at[MOST], places[MOST];
    MPI_Datatype types[MOST];
    for (int to = 0; to < theirs; to++)
        for (int i = 0; i < give; i++)
            out[to * give + i] = value(low, me, 10 * to + i);
    memset(in, 0, sizeof in);
    OK(MPI_Alltoall(out, give, MPI_INT, in, get, MPI_INT, inter));
    for (int from = 0; from < theirs; from++)
        for (int i = 0; i < get; i++)
            CHECK(in[from * get + i] == value(!low, from, 10 * me + i));
    for (int other = 0; other < MOST; other++) {
        sends[other] = (me + 2 * other + low) % 4, recvs[other] = (other + 2 * me + !low) % 4;
        at[other] = 3 * other, places[other] = (int)sizeof(int) * 3 * other, types[other] = MPI_INT;
        if (sends[other] == 3)
            sends[other] = 0;
        if (recvs[other] == 3)
            recvs[other] = 0;
        for (int i = 0; i < 3; i++)
            out[3 * other + i] = value(low, me, 10 * other + i);
    }
    for (int way = 0; way < 2; way++) {
        memset(in, 0, sizeof in);
        if (way == 0)
            OK(MPI_Alltoallv(out, sends, at, MPI_INT, in, recvs, at, MPI_INT, inter));
        else
            OK(MPI_Alltoallw(out, sends, places, types, in, recvs, places, types, inter));
        for (int from = 0; from < theirs; from++)
            for (int i = 0; i < 3; i++)
                CHECK(in[3 * from + i] == (i < recvs[from] ? value(!low, from, 10 * me + i) : 0));
    }
}

static void reductions(void)
{
    int each = mine * theirs * 2, own[2 * MOST * MOST] = {0}, all[2 * MOST * MOST], counts[MOST], before = 0;
    unsigned function[2] = {(unsigned)(2 * me + 3 + low), (unsigned)(me + 1)}, result[2], expected[2];
    MPI_Datatype pair;
    MPI_Op op;
    MPI_Request request;
    for (int i = 0; i < each; i++)
        own[i] = value(low, me, i);
    memset(all, 0, sizeof all);
    OK(MPI_Allreduce(own, all, each, MPI_INT, MPI_SUM, inter));
    for (int i = 0; i < each; i++)
        CHECK(all[i] == sum(!low, theirs, i));
    memset(all, 0, sizeof all);
    OK(MPI_Reduce_scatter_block(own, all, each / mine, MPI_INT, MPI_SUM, inter));
    for (int i = 0; i < each / mine; i++)
        CHECK(all[i] == sum(!low, theirs, me * (each / mine) + i));
    for (int rank = 0; rank < mine; rank++) {
        counts[rank] = rank + 1 < mine ? rank % 2 : each - (mine - 1) / 2;
        before += rank < me ? counts[rank] : 0;
    }
    memset(all, 0, sizeof all);
    OK(MPI_Reduce_scatter(own, all, counts, MPI_INT, MPI_SUM, inter));
    for (int i = 0; i < counts[me]; i++)
        CHECK(all[i] == sum(!low, theirs, before + i));
    MPI_Type_contiguous(2, MPI_UNSIGNED, &pair);
    MPI_Type_commit(&pair);
    MPI_Op_create(compose, 0, &op);
    composed(!low, theirs, expected);
    OK(MPI_Allreduce(function, result, 1, pair, op, inter));
    CHECK(result[0] == expected[0] && result[1] == expected[1]);
    result[0] = 0;
    OK(MPI_Iallreduce(function, result, 1, pair, op, inter, &request));
    wait_for(&request);
    CHECK(result[0] == expected[0] && result[1] == expected[1]);
    for (int side = 0; side < 2; side++) {
        int root = root_of(side, 0);
        result[0] = 0;
        OK(MPI_Reduce(function, result, 1, pair, op, root, inter));
        CHECK(result[0] == (root == MPI_ROOT ? expected[0] : 0));
    }
    MPI_Op_free(&op);
    MPI_Type_free(&pair);
}

/* Vectors for which other algorithms are chosen than for a few bytes. */
static void large(void)
{
    enum { MANY = 60000, EACH = MANY / MOST };
    int *own = malloc(MANY * sizeof *own), *all = malloc(MANY * sizeof *all);
    for (int side = 0; side < 2; side++) {
        int last = (side == low ? mine : theirs) - 1, root = root_of(side, last);
        for (int i = 0; i < MANY; i++)
            own[i] = root == MPI_ROOT ? value(side, last, i) : -1;
        OK(MPI_Bcast(own, MANY, MPI_INT, root, inter));
        for (int i = 0; i < MANY; i++)
            CHECK(own[i] == (root == MPI_ROOT || side != low ? value(side, last, i) : -1));
    }
    for (int i = 0; i < MANY; i++)
        own[i] = value(low, me, i);
    for (int side = 0; side < 2; side++) {
        int root = root_of(side, 0);
        memset(all, 0, MANY * sizeof *all);
        OK(MPI_Reduce(own, all, MANY, MPI_INT, MPI_SUM, root, inter));
        for (int i = 0; i < MANY; i++)
            CHECK(all[i] == (root == MPI_ROOT ? sum(!low, theirs, i) : 0));
    }
    OK(MPI_Allreduce(own, all, MANY, MPI_INT, MPI_SUM, inter));
    for (int i = 0; i < MANY; i++)
        CHECK(all[i] == sum(!low, theirs, i));
    OK(MPI_Allgather(own, EACH, MPI_INT, all, EACH, MPI_INT, inter));
    for (int i = 0; i < EACH * theirs; i++)
        CHECK(all[i] == value(!low, i / EACH, i % EACH));
    /* The groups give each other blocks of other lengths, the one few bytes, the other many. */
    OK(MPI_Allgather(own, low ? 1 : EACH, MPI_INT, all, low ? EACH : 1, MPI_INT, inter));
    for (int i = 0; i < theirs; i++)
        CHECK(all[low ? i * EACH : i] == value(!low, i, 0));
    int each = MANY / mine / theirs;
    OK(MPI_Reduce_scatter_block(own, all, each * theirs, MPI_INT, MPI_SUM, inter));
    for (int i = 0; i < each * theirs; i++)
        CHECK(all[i] == sum(!low, theirs, me * each * theirs + i));
    free(own);
    free(all);
}

static int both(MPI_Comm comm)
{
    int size;
    MPI_Comm_remote_size(comm, &size);
    return size_of(comm) + size;
}

static void making(void)
{
    MPI_Comm other;
    MPI_Group group, part;
    int is_inter, out, in = value(low, me, 5), first = 0;
    OK(MPI_Comm_dup(inter, &other));
    OK(MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_MAX, other));
    CHECK(out == value(!low, theirs - 1, 5));
    MPI_Comm_free(&other);
    OK(MPI_Intercomm_merge(inter, low, &other));
    MPI_Comm_test_inter(other, &is_inter);
    CHECK(!is_inter && size_of(other) == mine + theirs && my_rank(other) == me + (low ? theirs : 0));
    OK(MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_MIN, other));
    CHECK(out == value(0, 0, 5));
    MPI_Comm_free(&other);
    /* Those of one colour on both sides, in reverse order. */
    OK(MPI_Comm_split(inter, me % 2, -me, &other));
    if (theirs > me % 2) {
        MPI_Comm_test_inter(other, &is_inter);
        CHECK(is_inter && both(other) == (mine + 1 - me % 2) / 2 + (theirs + 1 - me % 2) / 2);
        OK(MPI_Bcast(&in, 1, MPI_INT, low ? my_rank(other) == 0 ? MPI_ROOT : MPI_PROC_NULL : 0, other));
        if (!low)
            CHECK(in == value(1, (theirs - 1 - me % 2) / 2 * 2 + me % 2, 5));
        MPI_Comm_free(&other);
    } else {
        CHECK(other == MPI_COMM_NULL);
    }
    OK(MPI_Comm_split(inter, low, 0, &other));
    CHECK(other == MPI_COMM_NULL);
    OK(MPI_Comm_split(inter, me == 0 ? 3 : MPI_UNDEFINED, 0, &other));
    CHECK((other == MPI_COMM_NULL) == (me != 0));
    if (other != MPI_COMM_NULL) {
        CHECK(both(other) == 2);
        MPI_Comm_free(&other);
    }
    MPI_Comm_group(inter, &group);
    MPI_Group_incl(group, 1, &first, &part);
    OK(MPI_Comm_create(inter, part, &other));
    CHECK((other == MPI_COMM_NULL) == (me != 0));
    if (other != MPI_COMM_NULL) {
        CHECK(both(other) == 2);
        OK(MPI_Barrier(other));
        MPI_Comm_free(&other);
    }
    OK(MPI_Comm_create(inter, low ? MPI_GROUP_EMPTY : group, &other));
    CHECK(other == MPI_COMM_NULL);
    MPI_Group_free(&part);
    MPI_Group_free(&group);
}

static void says(int code, int class, const char *word)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    CHECK(class_of(code) == class && strstr(text, word) != NULL);
}

static void mistakes(void)
{
    int data = 0, all[MOST];
    MPI_Comm_set_errhandler(inter, MPI_ERRORS_RETURN);
    says(MPI_Bcast(&data, 1, MPI_INT, theirs, inter), MPI_ERR_ROOT, "the root gives MPI_ROOT");
    says(MPI_Gather(&data, 1, MPI_INT, all, 1, MPI_INT, -77, inter), MPI_ERR_ROOT, "the other group");
    if (mine == 1)
        says(MPI_Bcast(&data, 1, MPI_INT, MPI_PROC_NULL, inter), MPI_ERR_ROOT, "alone in its group");
    says(MPI_Scan(&data, all, 1, MPI_INT, MPI_SUM, inter), MPI_ERR_COMM, "intercommunicators");
    says(MPI_Allreduce(MPI_IN_PLACE, all, 1, MPI_INT, MPI_SUM, inter), MPI_ERR_BUFFER, "MPI_IN_PLACE");
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    says(MPI_Bcast(&data, 1, MPI_INT, MPI_ROOT, MPI_COMM_SELF), MPI_ERR_ROOT, "for intercommunicators");
    OK(MPI_Barrier(inter));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
    for (int turned = 0; turned < 2; turned++) {
        int few = ranks == 4 ? 1 : ranks * 2 / 5 + (ranks == 2), split = turned ? ranks - few : few;
        MPI_Comm half;
        low = rank < split;
        MPI_Comm_split(MPI_COMM_WORLD, low, turned ? -rank : rank, &half);
        int leader = turned ? low ? ranks - 1 : split - 1 : low ? split : 0;
        OK(MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, leader, 7, &inter));
        me = my_rank(inter), mine = size_of(inter);
        MPI_Comm_remote_size(inter, &theirs);
        barriers();
        for (int side = 0; side < 2; side++)
            for (int root = 0; root < (side == low ? mine : theirs); root++) {
                broadcasts(side, root, 0);
                broadcasts(side, root, 1);
                broadcasts(side, root, LEN);
                rooted(side, root);
            }
        gathering_all();
        all_to_all();
        reductions();
        large();
        making();
        mistakes();
        MPI_Comm_free(&inter);
        MPI_Comm_free(&half);
    }
    return finish();
}
