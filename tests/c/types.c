/* Derived datatypes through messages, packing, external32, envelopes, counts of elements.
 * RUN: ranks=2 fabrics=shm,tcp */
#include <stddef.h>
#include "check.h"
#include "large.h"

static int rank, peer;

/* Sends `count` of `type` from one place; the other side takes it as ints, and the other way round. */
static void as_ints(MPI_Datatype type, int count, int span)
{
    count_t size;
    int ints, *data = malloc(sizeof(int) * (size_t)span), *flat;
    MPI_Type_commit(&type);
    MPI_Type_size(type, &size);
    ints = (int)size / (int)sizeof(int) * count;
    flat = malloc(sizeof(int) * (size_t)(ints + 1));
    for (int i = 0; i < span; i++)
        data[i] = rank == 0 ? i : -1;
    if (rank == 0) {
        count_t position = 0;
        MPI_Pack(data, count, type, flat, ints * (int)sizeof(int), &position, MPI_COMM_SELF);
        CHECK(position == ints * (int)sizeof(int));
        MPI_Send(data, count, type, peer, 1, MPI_COMM_WORLD);
        MPI_Recv(data, count, type, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < span; i++)
            CHECK(data[i] == i); /* came back to where it was */
    } else {
        MPI_Status status;
        count_t got;
        MPI_Recv(flat, ints, MPI_INT, peer, 1, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, type, &got);
        CHECK(got == count);
        MPI_Get_elements(&status, type, &got);
        CHECK(got == ints);
        count_t position = 0;
        int filled = 0;
        MPI_Unpack(flat, ints * (int)sizeof(int), &position, data, count, type, MPI_COMM_SELF);
        CHECK(position == ints * (int)sizeof(int));
        for (int i = 0; i < span; i++) {
            CHECK(data[i] == i || data[i] == -1);
            filled += data[i] == i;
        }
        CHECK(filled == ints);
        MPI_Send(flat, ints, MPI_INT, peer, 2, MPI_COMM_WORLD);
    }
    MPI_Type_free(&type);
    free(data);
    free(flat);
}

static void shapes(int scale)
{
    MPI_Datatype type, inner;
    MPI_Type_vector(7 * scale, 2, 5, MPI_INT, &type);
    as_ints(type, 1, 7 * scale * 5);
    MPI_Type_vector(3, 1, 4, MPI_INT, &inner);
    MPI_Type_create_resized(inner, 0, 12 * sizeof(int), &type);
    MPI_Type_free(&inner);
    as_ints(type, 9 * scale, 9 * scale * 12);
    count_t lengths[3] = {1, 4, 2}, places[3] = {9, 0, 5};
    MPI_Type_indexed(3, lengths, places, MPI_INT, &type);
    as_ints(type, 2, 30);
    MPI_Type_create_indexed_block(3, 2, places, MPI_INT, &type);
    as_ints(type, 1, 30);
    MPI_Aint bytes[3] = {40, 0, 20};
    MPI_Type_create_hindexed(3, lengths, bytes, MPI_INT, &type);
    as_ints(type, 1, 30);
    MPI_Type_create_hindexed_block(3, 2, bytes, MPI_INT, &type);
    as_ints(type, 1, 30);
    MPI_Type_contiguous(13 * scale, MPI_INT, &type);
    as_ints(type, 3, 39 * scale);
    count_t whole[2] = {8, 6 * scale};
    int spread[2] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC}, way[2] = {MPI_DISTRIBUTE_DFLT_DARG, 2}, grid[2] = {2, 1};
    MPI_Type_create_darray(2, 1, 2, whole, spread, way, grid, MPI_ORDER_C, MPI_INT, &type);
    as_ints(type, 1, 48 * scale);
    MPI_Type_create_hvector(5 * scale, 3, 16, MPI_INT, &type);
    as_ints(type, 1, 5 * scale * 4);
    count_t sizes[3] = {5 * scale, 6, 7}, part[3] = {3 * scale, 2, 4}, start[3] = {1, 3, 2};
    MPI_Type_create_subarray(3, sizes, part, start, MPI_ORDER_C, MPI_INT, &type);
    as_ints(type, 1, 5 * scale * 42);
    MPI_Type_create_subarray(3, sizes, part, start, MPI_ORDER_FORTRAN, MPI_INT, &type);
    as_ints(type, 1, 5 * scale * 42);
}

struct record {
    char name[3];
    double value;
    int count;
    short tail;
};

/* What the constructor of the struct was given comes back. */
static void decoded(MPI_Datatype type, MPI_Aint second)
{
    int combiner, ints[5];
    MPI_Aint found[4];
    MPI_Datatype parts[4];
#ifdef LARGE
    MPI_Count integers, addresses, counts, types, large[9];
    MPI_Type_get_envelope_c(type, &integers, &addresses, &counts, &types, &combiner);
    CHECK(integers == 0 && addresses == 0 && counts == 9 && types == 4 && combiner == MPI_COMBINER_STRUCT);
    MPI_Type_get_contents_c(type, 0, 0, 9, 4, ints, found, large, parts);
    CHECK(large[0] == 4 && large[1] == 3 && large[6] == second && parts[1] == MPI_DOUBLE);
#else
    int integers, addresses, types;
    MPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    CHECK(integers == 5 && addresses == 4 && types == 4 && combiner == MPI_COMBINER_STRUCT);
    MPI_Type_get_contents(type, 5, 4, 4, ints, found, parts);
    CHECK(ints[0] == 4 && ints[1] == 3 && found[1] == second && parts[1] == MPI_DOUBLE);
#endif
}

static void records(int count)
{
    count_t lengths[4] = {3, 1, 1, 1};
    MPI_Aint places[4] = {offsetof(struct record, name), offsetof(struct record, value), offsetof(struct record, count),
                          offsetof(struct record, tail)};
    MPI_Datatype kinds[4] = {MPI_CHAR, MPI_DOUBLE, MPI_INT, MPI_SHORT}, bare, type;
    MPI_Type_create_struct(4, lengths, places, kinds, &bare);
    MPI_Type_create_resized(bare, 0, sizeof(struct record), &type);
    MPI_Type_commit(&type);
    struct record *all = calloc((size_t)count, sizeof *all);
    for (int i = 0; i < count && rank == 0; i++)
        all[i] = (struct record){{'a', (char)(i % 20 + 60), 'z'}, i * 0.5, i, (short)i};
    if (rank == 0)
        MPI_Send(all, count, type, peer, 3, MPI_COMM_WORLD);
    else
        MPI_Recv(all, count, type, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; i++)
        CHECK(all[i].name[1] == i % 20 + 60 && all[i].value == i * 0.5 && all[i].count == i && all[i].tail == (short)i);

    MPI_Aint size, position = 0, back = 0;
    count_t room;
    MPI_Pack_size(count, type, MPI_COMM_SELF, &room);
    CHECK(room >= 17 * count);
    MPI_Pack_external_size("external32", count, type, &size);
    CHECK(size == 17L * count);
    char *wire = malloc((size_t)size);
    MPI_Pack_external("external32", all, count, type, wire, size, &position);
    CHECK(position == size);
    struct record *again = calloc((size_t)count, sizeof *again);
    MPI_Unpack_external("external32", wire, size, &back, again, count, type);
    CHECK(back == size && again[count - 1].value == all[count - 1].value && again[count - 1].count == count - 1);
    CHECK(count < 2 || (wire[17 + 3] == 0x3f && (unsigned char)wire[17 + 4] == 0xe0)); /* 0.5, big end first */

    decoded(bare, places[1]);
    MPI_Type_free(&bare);
    MPI_Type_free(&type);
    free(all);
    free(again);
    free(wire);
}

/* Sizes past 2^31, by the _c functions; no such memory is touched. */
static void large(void)
{
    MPI_Datatype type, twice;
    MPI_Count size, low, extent;
    MPI_Type_contiguous_c((MPI_Count)3 << 30, MPI_INT, &type);
    MPI_Type_size_c(type, &size);
    CHECK(size == (MPI_Count)12 << 30);
    MPI_Type_vector_c(2, 1, 5, type, &twice);
    MPI_Type_get_extent_c(twice, &low, &extent);
    CHECK(low == 0 && extent == ((MPI_Count)12 << 30) * 6);
    MPI_Type_get_true_extent_c(type, &low, &extent);
    CHECK(low == 0 && extent == (MPI_Count)12 << 30);
    count_t known;
    MPI_Type_size(type, &known);
    CHECK(known == (sizeof known == sizeof(int) ? MPI_UNDEFINED : (count_t)size));
    MPI_Status status;
    MPI_Count elements;
    MPI_Status_set_elements_c(&status, MPI_BYTE, (MPI_Count)5 << 32);
    MPI_Get_elements_c(&status, MPI_BYTE, &elements);
    CHECK(elements == (MPI_Count)5 << 32);
    MPI_Type_free(&type);
    MPI_Type_free(&twice);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    peer = 1 - rank;
    shapes(1);
    shapes(100);
    shapes(3000);
    records(1);
    records(5);
    records(50000);
    large();
    return finish();
}
