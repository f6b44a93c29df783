/* Long collectives asked for so often that they measure by which means they go best, and change them: among others, with roots that stay and that go
 * round, on several communicators, in place, with datatypes, and with nonblocking ones between. Ranks that were out of step would hang, or get wrong data.
 * RUN: ranks=1,2,3,4 limit=60
 * RUN: ranks=2 limit=60 only=banyan env=BANYAN_COLL=show says=scratch
 * Where ranks share cores they measure only what the profile has as nearly as quick: on 4 ranks three of the collectives by this one.
 * RUN: ranks=4 limit=60 only=banyan env=BANYAN_COLL=show env=BANYAN_MACHINE=xeon says=scratch */
#include "check.h"

enum { LONGEST = 100000, WORDS = LONGEST / 4, CALLS = 1500, APART = 997 };

static int rank, ranks, *out, *in;

/* What rank `from` has for rank `to` in a call, at some place. */
static int value(int call, int from, int to, int place)
{
    return call * 31 + from * 7919 + to * 104729 + place;
}

/* Some places of a block are looked at, the first and the last among them. */
static void give(int *block, int words, int call, int from, int to)
{
    for (int i = 0; i < words; i += APART)
        block[i] = value(call, from, to, i);
    block[words - 1] = value(call, from, to, words - 1);
}

static void expect(const int *block, int words, int call, int from, int to)
{
    int wrong = block[words - 1] != value(call, from, to, words - 1);
    for (int i = 0; i < words; i += APART)
        wrong += block[i] != value(call, from, to, i);
    CHECK(wrong == 0);
}

enum kind { BCAST, GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE, EXSCAN, KINDS };

static void once(enum kind kind, int call, int words, int root, MPI_Comm comm, MPI_Datatype one, int each)
{
    int me = my_rank(comm), all = size_of(comm), count = words / each, in_place = call % 3 == 0;
    switch (kind) {
    case BCAST:
        give(out, words, call, me, 0);
        OK(MPI_Bcast(out, count, one, root, comm));
        expect(out, words, call, root, 0);
        break;
    case GATHER:
        give(out, words, call, me, 0);
        give(in + me * words, words, call, me, 0);
        OK(MPI_Gather(in_place && me == root ? MPI_IN_PLACE : out, count, one, in, count, one, root, comm));
        for (int from = 0; from < all && me == root; from++)
            expect(in + from * words, words, call, from, 0);
        break;
    case SCATTER:
        for (int to = 0; to < all && me == root; to++)
            give(out + to * words, words, call, root, to);
        OK(MPI_Scatter(out, count, one, in_place && me == root ? MPI_IN_PLACE : in, count, one, root, comm));
        if (!in_place || me != root)
            expect(in, words, call, root, me);
        break;
    case ALLGATHER:
        give(out, words, call, me, 0);
        give(in + me * words, words, call, me, 0);
        OK(MPI_Allgather(in_place ? MPI_IN_PLACE : out, count, one, in, count, one, comm));
        for (int from = 0; from < all; from++)
            expect(in + from * words, words, call, from, 0);
        break;
    case ALLTOALL:
        for (int to = 0; to < all; to++)
            give((in_place ? in : out) + to * words, words, call, me, to);
        OK(MPI_Alltoall(in_place ? MPI_IN_PLACE : out, count, one, in, count, one, comm));
        for (int from = 0; from < all; from++)
            expect(in + from * words, words, call, from, me);
        break;
    case REDUCE:
        give(out, words, call, me, 0);
        OK(MPI_Reduce(out, in, words, MPI_INT, MPI_MAX, root, comm));
        if (me == root)
            expect(in, words, call, all - 1, 0);
        break;
    case EXSCAN:
        give(out, words, call, me, 0);
        OK(MPI_Exscan(out, in, words, MPI_INT, MPI_MAX, comm));
        if (me > 0)
            expect(in, words, call, me - 1, 0);
        break;
    case KINDS: break;
    }
}

/* The same numbers at all ranks. */
static unsigned some(unsigned below)
{
    static unsigned long long state = 20261128;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state >> 33) % below;
}

int main(void)
{
    OK(MPI_Init(NULL, NULL));
    rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
    out = calloc((size_t)ranks, LONGEST), in = calloc((size_t)ranks, LONGEST);
    MPI_Comm comms[3] = {MPI_COMM_WORLD};
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]));
    /* In the other order, and without the first rank where there are three or more. */
    OK(MPI_Comm_split(MPI_COMM_WORLD, ranks > 2 && rank == 0, -rank, &comms[2]));
    MPI_Datatype pair;
    OK(MPI_Type_contiguous(2, MPI_INT, &pair));
    OK(MPI_Type_commit(&pair));
    /* One kind over and over, with a root that stays, and one that goes round. */
    for (enum kind kind = BCAST; kind < KINDS; kind++)
        for (int call = 0; call < CALLS; call++)
            once(kind, call, 8192, call < CALLS / 2 ? 0 : call % ranks, MPI_COMM_WORLD, MPI_INT, 1);
    /* A short broadcast is over at its root before the others have come to it, also when a look is over: more than the standard promises. */
    for (int call = 0; call < 10 * CALLS && getenv("BANYAN_COLL") != NULL; call++) {
        int word = call;
        once(BCAST, call, 8192, 0, MPI_COMM_WORLD, MPI_INT, 1);
        if (rank > 0)
            OK(MPI_Recv(&word, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        OK(MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD));
        for (int to = 1; to < ranks && rank == 0; to++)
            OK(MPI_Send(&word, 1, MPI_INT, to, 0, MPI_COMM_WORLD));
        CHECK(word == call);
    }
    /* All kinds, in any order. */
    static const int WORDS_OF[] = {2, 4096, 8192, 12288, WORDS};
    for (int call = 0; call < 4 * CALLS; call++) {
        enum kind kind = (enum kind)some(KINDS);
        MPI_Comm comm = comms[some(4) == 0 ? 1 + some(2) : 0];
        int words = WORDS_OF[some(5)], root = some(3) == 0 ? (int)some((unsigned)ranks) : 0, pairs = some(4) == 0;
        once(kind, call, words, root % size_of(comm), comm, pairs ? pair : MPI_INT, pairs ? 2 : 1);
        if (some(20) == 0) {
            MPI_Request request;
            int word = rank == 0 ? call : -1;
            OK(MPI_Ibcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD, &request));
            once(BCAST, call, 8192, 0, MPI_COMM_WORLD, MPI_INT, 1);
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            CHECK(word == call);
        }
    }
    OK(MPI_Type_free(&pair));
    OK(MPI_Comm_free(&comms[1]));
    OK(MPI_Comm_free(&comms[2]));
    free(out);
    free(in);
    return finish();
}
