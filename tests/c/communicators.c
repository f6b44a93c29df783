/* Communicators, groups, Cartesian grids, intercommunicators, attributes.
 * RUN: ranks=1,2,5,8 fabrics=shm,tcp */
#include "check.h"

static int rank, ranks;

static void adds_up(MPI_Comm comm, int expected)
{
    int one = 1, all = 0;
    OK(MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, comm));
    CHECK(all == expected);
}

static void making(void)
{
    MPI_Comm a, b, c;
    MPI_Group world, odd;
    MPI_Request request;
    int how, other[3] = {rank, 0, 0};
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &a));
    OK(MPI_Comm_idup(MPI_COMM_WORLD, &b, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    MPI_Comm_compare(a, b, &how);
    CHECK(how == MPI_CONGRUENT);
    adds_up(b, ranks);
    OK(MPI_Comm_split(a, rank % 2, -rank, &c));
    adds_up(c, (ranks + 1 - rank % 2) / 2);
    CHECK(my_rank(c) == size_of(c) - 1 - rank / 2);
    MPI_Comm_free(&c);
    OK(MPI_Comm_split(a, rank == 0 ? MPI_UNDEFINED : 0, 0, &c));
    CHECK((c == MPI_COMM_NULL) == (rank == 0));
    if (c != MPI_COMM_NULL) {
        adds_up(c, ranks - 1);
        MPI_Comm_free(&c);
    }
    OK(MPI_Comm_split_type(a, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &c));
    adds_up(c, ranks);
    MPI_Comm_free(&c);

    MPI_Comm_group(MPI_COMM_WORLD, &world);
    int range[1][3] = {{0, ranks - 1, 2}};
    MPI_Group_range_incl(world, 1, range, &odd);
    OK(MPI_Comm_create(MPI_COMM_WORLD, odd, &c));
    if (c != MPI_COMM_NULL) {
        adds_up(c, (ranks + 1) / 2);
        MPI_Comm_free(&c);
        OK(MPI_Comm_create_group(MPI_COMM_WORLD, odd, 7, &c));
        adds_up(c, (ranks + 1) / 2);
        MPI_Comm_free(&c);
    }
    MPI_Group_translate_ranks(world, 1, other, odd, other + 1);
    CHECK(other[1] == (rank % 2 ? MPI_UNDEFINED : rank / 2));
    MPI_Group_free(&world);
    MPI_Group_free(&odd);
    char name[MPI_MAX_OBJECT_NAME];
    int length;
    MPI_Comm_set_name(a, "first");
    MPI_Comm_get_name(a, name, &length);
    CHECK(length == 5 && strcmp(name, "first") == 0);
    MPI_Comm_free(&a);
    MPI_Comm_free(&b);
    CHECK(a == MPI_COMM_NULL);
}

static void grids(void)
{
    int dims[2] = {0, 0}, periods[2] = {1, 0}, at[2], up, down, back, kind, keep[2] = {0, 1};
    MPI_Comm grid, row;
    OK(MPI_Dims_create(ranks, 2, dims));
    CHECK(dims[0] * dims[1] == ranks && dims[0] >= dims[1]);
    OK(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid));
    MPI_Topo_test(grid, &kind);
    CHECK(kind == MPI_CART);
    MPI_Cart_coords(grid, my_rank(grid), 2, at);
    MPI_Cart_rank(grid, at, &back);
    CHECK(back == my_rank(grid));
    MPI_Cart_shift(grid, 0, 1, &up, &down);
    CHECK(up != MPI_PROC_NULL && down != MPI_PROC_NULL);
    int sent = rank, got = -1;
    MPI_Sendrecv(&sent, 1, MPI_INT, down, 0, &got, 1, MPI_INT, up, 0, grid, MPI_STATUS_IGNORE);
    CHECK(got == up);
    MPI_Cart_shift(grid, 1, 1, &up, &down);
    CHECK((up == MPI_PROC_NULL) == (at[1] == 0) && (down == MPI_PROC_NULL) == (at[1] == dims[1] - 1));
    OK(MPI_Cart_sub(grid, keep, &row));
    adds_up(row, dims[1]);
    MPI_Comm_free(&row);
    MPI_Comm_free(&grid);
}

static void between(void)
{
    if (ranks < 2)
        return;
    MPI_Comm half, inter, merged;
    int side = rank % 2, is_inter, size;
    MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
    OK(MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 12, &inter));
    MPI_Comm_test_inter(inter, &is_inter);
    MPI_Comm_remote_size(inter, &size);
    CHECK(is_inter && size == (ranks + side) / 2);
    OK(MPI_Intercomm_merge(inter, side, &merged));
    adds_up(merged, ranks);
    CHECK(my_rank(merged) == (side ? (ranks + 1) / 2 + rank / 2 : rank / 2));
    MPI_Comm_free(&merged);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
}

static int copied, deleted;

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)key;
    *(void **)out = (char *)in + 1;
    *flag = extra == &copied;
    copied++;
    return MPI_SUCCESS;
}

static int forget(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    deleted++;
    return MPI_SUCCESS;
}

static void attributes(void)
{
    static char values[2];
    int key, flag;
    void *found;
    MPI_Comm other;
    MPI_Comm_create_keyval(copy, forget, &key, &copied);
    MPI_Comm_set_attr(MPI_COMM_WORLD, key, values);
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    MPI_Comm_get_attr(other, key, &found, &flag);
    CHECK(flag && found == values + 1 && copied == 1);
    MPI_Comm_free(&other);
    CHECK(deleted == 1);
    MPI_Comm_delete_attr(MPI_COMM_WORLD, key);
    CHECK(deleted == 2);
    MPI_Comm_free_keyval(&key);
    CHECK(key == MPI_KEYVAL_INVALID);
}

/* Many communicators at once and one after another: nothing runs out. */
static void many(void)
{
    MPI_Comm comms[100];
    for (int i = 0; i < 100; i++)
        OK(MPI_Comm_dup(i == 0 ? MPI_COMM_WORLD : comms[i - 1], &comms[i]));
    adds_up(comms[99], ranks);
    for (int i = 0; i < 100; i++)
        MPI_Comm_free(&comms[i]);
    for (int i = 0; i < 500; i++) {
        MPI_Comm comm;
        OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
        MPI_Comm_free(&comm);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    ranks = size_of(MPI_COMM_WORLD);
    making();
    grids();
    between();
    attributes();
    many();
    return finish();
}
