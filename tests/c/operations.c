/* User operations that do not commute, predefined operations on many types, the same bits everywhere.
 * RUN: ranks=1,2,3,5,8 fabrics=shm,tcp */
#include "check.h"
#include "large.h"

static int rank, ranks;

/* A 2 x 2 matrix modulo a prime: its product depends on the order. */
struct matrix {
    long m[4];
};

static struct matrix times(struct matrix a, struct matrix b)
{
    struct matrix c;
    for (int i = 0; i < 4; i++)
        c.m[i] = (a.m[i / 2 * 2] * b.m[i % 2] + a.m[i / 2 * 2 + 1] * b.m[i % 2 + 2]) % 10007;
    return c;
}

static void product(void *in, void *inout, count_t *count, MPI_Datatype *type)
{
    struct matrix *a = in, *b = inout;
    (void)type;
    for (count_t i = 0; i < *count; i++)
        b[i] = times(a[i], b[i]);
}

static struct matrix matrix_of(int who, int i)
{
    struct matrix a = {{who + 2, i + 3, who * i + 1, 5}};
    return a;
}

static struct matrix expected(int below, int i)
{
    struct matrix all = matrix_of(0, i);
    for (int r = 1; r < below; r++)
        all = times(all, matrix_of(r, i));
    return all;
}

static int same(struct matrix a, struct matrix b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void in_order(int n)
{
    MPI_Op op;
    MPI_Datatype type;
    int commutes = 1;
    MPI_Op_create(product, 0, &op);
    MPI_Op_commutative(op, &commutes);
    CHECK(!commutes);
    MPI_Type_contiguous(4, MPI_LONG, &type);
    MPI_Type_commit(&type);
    struct matrix *a = malloc(sizeof *a * (size_t)(n * ranks)), *b = malloc(sizeof *b * (size_t)(n * ranks));
    for (int i = 0; i < n * ranks; i++)
        a[i] = matrix_of(rank, i);
    OK(MPI_Allreduce(a, b, n, type, op, MPI_COMM_WORLD));
    for (int i = 0; i < n; i++)
        CHECK(same(b[i], expected(ranks, i)));
    for (int root = 0; root < ranks; root++) {
        OK(MPI_Reduce(a, b, n, type, op, root, MPI_COMM_WORLD));
        for (int i = 0; root == rank && i < n; i++)
            CHECK(same(b[i], expected(ranks, i)));
    }
    OK(MPI_Scan(a, b, n, type, op, MPI_COMM_WORLD));
    for (int i = 0; i < n; i++)
        CHECK(same(b[i], expected(rank + 1, i)));
    OK(MPI_Exscan(a, b, n, type, op, MPI_COMM_WORLD));
    for (int i = 0; rank > 0 && i < n; i++)
        CHECK(same(b[i], expected(rank, i)));
    struct matrix left = matrix_of(0, 0), right = matrix_of(1, 1);
    OK(MPI_Reduce_local(&left, &right, 1, type, op));
    CHECK(same(right, times(matrix_of(0, 0), matrix_of(1, 1))));
    OK(MPI_Reduce_scatter_block(a, b, n, type, op, MPI_COMM_WORLD));
    for (int i = 0; i < n; i++)
        CHECK(same(b[i], expected(ranks, rank * n + i)));
    free(a);
    free(b);
    MPI_Type_free(&type);
    MPI_Op_free(&op);
    CHECK(op == MPI_OP_NULL);
}

#define SUMS(ctype, mpitype)                                                      \
    do {                                                                          \
        ctype a[5], b[5];                                                         \
        for (int i = 0; i < 5; i++)                                               \
            a[i] = (ctype)(rank % 3 + i);                                         \
        OK(MPI_Allreduce(a, b, 5, mpitype, MPI_SUM, MPI_COMM_WORLD));             \
        int whole = 0;                                                            \
        for (int r = 0; r < ranks; r++)                                           \
            whole += r % 3;                                                       \
        for (int i = 0; i < 5; i++)                                               \
            CHECK(b[i] == (ctype)(whole + ranks * i));                            \
        OK(MPI_Allreduce(a, b, 5, mpitype, MPI_MAX, MPI_COMM_WORLD));             \
        CHECK(b[0] == (ctype)(ranks > 2 ? 2 : ranks - 1));                        \
    } while (0)

static void predefined(void)
{
    SUMS(signed char, MPI_SIGNED_CHAR);
    SUMS(unsigned char, MPI_UNSIGNED_CHAR);
    SUMS(short, MPI_SHORT);
    SUMS(unsigned short, MPI_UNSIGNED_SHORT);
    SUMS(int, MPI_INT);
    SUMS(unsigned, MPI_UNSIGNED);
    SUMS(long, MPI_LONG);
    SUMS(unsigned long, MPI_UNSIGNED_LONG);
    SUMS(long long, MPI_LONG_LONG);
    SUMS(float, MPI_FLOAT);
    SUMS(double, MPI_DOUBLE);
    SUMS(long double, MPI_LONG_DOUBLE);
    SUMS(MPI_Aint, MPI_AINT);
    SUMS(MPI_Count, MPI_COUNT);

    unsigned bits = 1u << rank, all, any = (unsigned)rank & 1;
    OK(MPI_Allreduce(&bits, &all, 1, MPI_UNSIGNED, MPI_BOR, MPI_COMM_WORLD));
    CHECK(all == (1u << ranks) - 1);
    OK(MPI_Allreduce(&bits, &all, 1, MPI_UNSIGNED, MPI_BXOR, MPI_COMM_WORLD));
    CHECK(all == (1u << ranks) - 1);
    OK(MPI_Allreduce(&any, &all, 1, MPI_UNSIGNED, MPI_LOR, MPI_COMM_WORLD));
    CHECK(all == (ranks > 1));
    OK(MPI_Allreduce(&any, &all, 1, MPI_UNSIGNED, MPI_LAND, MPI_COMM_WORLD));
    CHECK(all == 0);

    struct {
        double value;
        int place;
    } here = {rank % 2 ? 3.5 : 1.5, rank}, most;
    OK(MPI_Allreduce(&here, &most, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD));
    CHECK(most.value == (ranks > 1 ? 3.5 : 1.5) && most.place == (ranks > 1 ? 1 : 0));
    OK(MPI_Allreduce(&here, &most, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD));
    CHECK(most.value == 1.5 && most.place == 0);
}

/* A sum of numbers of very different size has the same bits on every rank, and again the next time. */
static void same_bits(int n)
{
    double *a = malloc(sizeof(double) * (size_t)n), *b = malloc(sizeof(double) * (size_t)n),
           *first = malloc(sizeof(double) * (size_t)n);
    for (int i = 0; i < n; i++)
        a[i] = (rank % 2 ? 1e16 : 1.0) / (rank + i + 1);
    for (int time = 0; time < 3; time++) {
        OK(MPI_Allreduce(a, b, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
        if (time == 0)
            memcpy(first, b, sizeof(double) * (size_t)n);
        CHECK(memcmp(first, b, sizeof(double) * (size_t)n) == 0);
    }
    MPI_Bcast(first, n, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    CHECK(memcmp(first, b, sizeof(double) * (size_t)n) == 0);
    free(a);
    free(b);
    free(first);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    ranks = size_of(MPI_COMM_WORLD);
    in_order(1);
    in_order(3);
    in_order(500);
    in_order(9000);
    predefined();
    same_bits(1);
    same_bits(1000);
    same_bits(100000);
    return finish();
}
