/* MPI_Pack, MPI_Unpack, their external forms and MPI_Reduce_local, with each buffer on the host, on either of two devices, managed, and as a
 * part of an allocation, in every mix. */
#include "../c/check.h"
#include "device.h"

enum { HOST, FIRST, SECOND, MANAGED, PLACES, ELEMENTS = 40, ROOM = 2048, OFFSET = 8 };

/* Memory in a place, of ROOM bytes, of which the first ones are not used. */
struct memory {
    int place;
    char *at;
};

static struct memory new_memory(int place)
{
    struct memory new = {place, NULL};
    if (place == HOST)
        new.at = malloc(ROOM + OFFSET);
    else {
        use_device(place == SECOND);
        new.at = (char *)(place == MANAGED ? managed_alloc(ROOM + OFFSET) : device_alloc(ROOM + OFFSET));
    }
    new.at += OFFSET;
    return new;
}

static void put(struct memory to, const void *from)
{
    if (to.place == HOST)
        memcpy(to.at, from, ROOM);
    else
        to_device((device_ptr)to.at, from, ROOM);
}

static void get(void *to, struct memory from)
{
    if (from.place == HOST)
        memcpy(to, from.at, ROOM);
    else
        from_device(to, (device_ptr)from.at, ROOM);
}

static void product(void *in, void *inout, int *count, MPI_Datatype *type)
{
    int *a = in, *b = inout;
    (void)type;
    for (int i = 0; i < *count; i++)
        b[3 * i + 1] = 10 * a[3 * i + 1] + b[3 * i + 1];
}

/* Both buffers, the operation on the host's memory, and the same in these places. */
static void reduced(struct memory in, struct memory inout, const void *a, const void *b, int count, MPI_Datatype type, MPI_Op op)
{
    char host[2][ROOM], got[ROOM];
    memcpy(host[0], a, ROOM);
    memcpy(host[1], b, ROOM);
    OK(MPI_Reduce_local(host[0], host[1], count, type, op));
    put(in, a);
    put(inout, b);
    OK(MPI_Reduce_local(in.at, inout.at, count, type, op));
    get(got, inout);
    CHECK(memcmp(got, host[1], ROOM) == 0);
    get(got, in);
    CHECK(memcmp(got, a, ROOM) == 0);
}

static void reductions(struct memory in, struct memory inout)
{
    int ints[2][ROOM / sizeof(int)];
    double doubles[2][ROOM / sizeof(double)];
    MPI_Datatype second, triple;
    MPI_Op op;
    for (int i = 0; i < (int)(ROOM / sizeof(int)); i++)
        ints[0][i] = i * 7 - 31, ints[1][i] = i * 3;
    for (int i = 0; i < (int)(ROOM / sizeof(double)); i++)
        doubles[0][i] = i * 0.37, doubles[1][i] = 9.1 - i;
    reduced(in, inout, ints[0], ints[1], ELEMENTS, MPI_INT, MPI_SUM);
    reduced(in, inout, ints[0], ints[1], ELEMENTS, MPI_INT, MPI_BXOR);
    reduced(in, inout, ints[0], ints[1], ELEMENTS, MPI_2INT, MPI_MINLOC);
    reduced(in, inout, ints[0], ints[1], ELEMENTS, MPI_INT, MPI_REPLACE);
    reduced(in, inout, ints[0], ints[1], ELEMENTS, MPI_INT, MPI_NO_OP);
    reduced(in, inout, ints[0], ints[1], 0, MPI_INT, MPI_SUM);
    reduced(in, inout, doubles[0], doubles[1], ELEMENTS, MPI_DOUBLE, MPI_PROD);
    reduced(in, inout, doubles[0], doubles[1], 1, MPI_DOUBLE, MPI_MAX);
    /* The program's own operation, on the middle one of three ints. */
    MPI_Type_create_indexed_block(1, 1, (int[]){1}, MPI_INT, &second);
    MPI_Type_create_resized(second, 0, 3 * sizeof(int), &triple);
    MPI_Type_commit(&triple);
    MPI_Op_create(product, 0, &op);
    reduced(in, inout, ints[0], ints[1], ELEMENTS, triple, op);
    MPI_Op_free(&op);
    MPI_Type_free(&second);
    MPI_Type_free(&triple);
}

/* Two ints of five, packed behind four bytes that stay, and unpacked again. */
static void packed(struct memory here, struct memory flat)
{
    MPI_Datatype type;
    int all[ROOM / sizeof(int)], got[ROOM / sizeof(int)], zero[ROOM / sizeof(int)] = {0}, position = 4, size = 4 + 2 * ELEMENTS * 4;
    MPI_Type_vector(ELEMENTS, 2, 5, MPI_INT, &type);
    MPI_Type_commit(&type);
    for (int i = 0; i < (int)(ROOM / sizeof(int)); i++)
        all[i] = i + 1;
    put(here, all);
    put(flat, zero);
    OK(MPI_Pack(here.at, 1, type, flat.at, size, &position, MPI_COMM_WORLD));
    CHECK(position == size);
    get(got, flat);
    CHECK(got[0] == 0 && got[2 * ELEMENTS + 1] == 0);
    for (int i = 0; i < 2 * ELEMENTS; i++)
        CHECK(got[i + 1] == i / 2 * 5 + i % 2 + 1);
    CHECK(class_of(MPI_Pack(here.at, 1, type, flat.at, size, &position, MPI_COMM_WORLD)) == MPI_ERR_TRUNCATE);
    put(here, zero);
    position = 4;
    OK(MPI_Unpack(flat.at, size, &position, here.at, 1, type, MPI_COMM_WORLD));
    CHECK(position == size);
    get(got, here);
    for (int i = 0; i < 5 * ELEMENTS; i++)
        CHECK(got[i] == (i % 5 < 2 ? i + 1 : 0));
    MPI_Aint at = 8, room = 8 + 2 * ELEMENTS * 4;
    put(flat, zero);
    OK(MPI_Pack_external("external32", here.at, 1, type, flat.at, room, &at));
    CHECK(at == room);
    get(got, flat);
    unsigned char *bytes = (unsigned char *)got;
    CHECK(got[0] == 0 && got[1] == 0 && bytes[8] == 0 && bytes[11] == 1 && bytes[15] == 2 && got[2 * ELEMENTS + 2] == 0);
    put(here, zero);
    at = 8;
    OK(MPI_Unpack_external("external32", flat.at, room, &at, here.at, 1, type));
    CHECK(at == room);
    get(got, here);
    for (int i = 0; i < 5 * ELEMENTS; i++)
        CHECK(got[i] == (i % 5 < 2 ? i + 1 : 0));
    MPI_Type_free(&type);
}

int main(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (int a = 0; a < PLACES; a++)
        for (int b = 0; b < PLACES; b++) {
            struct memory one = new_memory(a), other = new_memory(b);
            reductions(one, other);
            packed(one, other);
        }
    return finish();
}
