/* Attributes, groups, names, topologies, generalized requests, memory, datatype names: the face of each. */
#include "check.h"

static int copies, deletes;

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm;
    (void)key;
    CHECK(extra == &copies);
    copies++;
    *(void **)out = (char *)in + 1;
    *flag = 1;
    return MPI_SUCCESS;
}

static int drop(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm;
    (void)key;
    CHECK(extra == &copies && value != NULL);
    deletes++;
    return MPI_SUCCESS;
}

static int refuse(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm; (void)key; (void)extra; (void)in; (void)out; (void)flag;
    return MPI_ERR_NO_SPACE;
}

static void attributes(void) {
    int key, dup_key, null_key, bad_key, type_key, flag;
    char place[4], *value;
    MPI_Comm comm;
    MPI_Datatype type;
    OK(MPI_Comm_create_keyval(copy, drop, &key, &copies));
    OK(MPI_Comm_create_keyval(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, &dup_key, NULL));
    OK(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &null_key, NULL));
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, key, place));
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, dup_key, place));
    OK(MPI_Attr_put(MPI_COMM_SELF, null_key, place));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
    OK(MPI_Comm_get_attr(comm, key, &value, &flag));
    CHECK(copies == 1 && flag && value == place + 1);
    OK(MPI_Comm_get_attr(comm, dup_key, &value, &flag));
    CHECK(flag && value == place);
    OK(MPI_Attr_get(comm, null_key, &value, &flag));
    CHECK(!flag);
    OK(MPI_Comm_free(&comm));
    CHECK(deletes == 1);
    OK(MPI_Comm_delete_attr(MPI_COMM_SELF, key));
    OK(MPI_Comm_delete_attr(MPI_COMM_SELF, dup_key));
    CHECK(deletes == 2);
    OK(MPI_Comm_create_keyval(refuse, MPI_COMM_NULL_DELETE_FN, &bad_key, NULL));
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, bad_key, place));
    FAILS(MPI_ERR_NO_SPACE, MPI_Comm_dup(MPI_COMM_SELF, &comm));
    CHECK(comm == MPI_COMM_NULL);
    OK(MPI_Comm_delete_attr(MPI_COMM_SELF, bad_key));
    OK(MPI_Comm_free_keyval(&bad_key));
    CHECK(bad_key == MPI_KEYVAL_INVALID);
    FAILS(MPI_ERR_KEYVAL, MPI_Comm_free_keyval(&bad_key));
    OK(MPI_Comm_free_keyval(&dup_key));
    OK(MPI_Type_create_keyval(MPI_TYPE_DUP_FN, MPI_TYPE_NULL_DELETE_FN, &type_key, NULL));
    FAILS(MPI_ERR_KEYVAL, MPI_Comm_set_attr(MPI_COMM_SELF, type_key, place));
    OK(MPI_Type_set_attr(MPI_INT, type_key, place));
    OK(MPI_Type_dup(MPI_INT, &type));
    OK(MPI_Type_get_attr(type, type_key, &value, &flag));
    CHECK(flag && value == place);
    OK(MPI_Type_delete_attr(MPI_INT, type_key));
    OK(MPI_Type_free(&type));
    OK(MPI_Type_free_keyval(&type_key));
    /* This one is for MPI_Finalize to delete. */
    OK(MPI_Comm_set_attr(MPI_COMM_SELF, key, place));
}

static void groups(void) {
    MPI_Group world, empty, both;
    int rank = 0, other, result;
    int range[1][3] = {{0, 0, 1}};
    OK(MPI_Comm_group(MPI_COMM_WORLD, &world));
    OK(MPI_Group_excl(world, 1, &rank, &empty));
    CHECK(empty == MPI_GROUP_EMPTY);
    OK(MPI_Group_union(world, empty, &both));
    OK(MPI_Group_compare(world, both, &result));
    CHECK(result == MPI_IDENT);
    OK(MPI_Group_translate_ranks(world, 1, &rank, empty, &other));
    CHECK(other == MPI_UNDEFINED);
    OK(MPI_Group_free(&both));
    OK(MPI_Group_range_incl(world, 1, range, &both));
    OK(MPI_Group_rank(both, &rank));
    CHECK(rank == 0);
    FAILS(MPI_ERR_RANK, MPI_Group_incl(world, 1, &(int){5}, &empty));
    OK(MPI_Group_free(&both));
    OK(MPI_Group_free(&world));
}

static void names(void) {
    char name[MPI_MAX_OBJECT_NAME], longer[300];
    int length;
    MPI_Comm comm;
    MPI_Datatype type;
    OK(MPI_Comm_get_name(MPI_COMM_WORLD, name, &length));
    CHECK(!strcmp(name, "MPI_COMM_WORLD"));
    OK(MPI_Comm_get_name(MPI_COMM_NULL, name, &length));
    CHECK(!strcmp(name, "MPI_COMM_NULL"));
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Comm_get_name(comm, name, &length));
    CHECK(length == 0 && name[0] == 0);
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    OK(MPI_Comm_set_name(comm, longer));
    OK(MPI_Comm_get_name(comm, name, &length));
    CHECK(length == MPI_MAX_OBJECT_NAME - 1 && (int)strlen(name) == length);
    OK(MPI_Comm_free(&comm));
    OK(MPI_Type_get_name(MPI_DOUBLE, name, &length));
    CHECK(!strcmp(name, "MPI_DOUBLE"));
    OK(MPI_Type_get_name(MPI_DATATYPE_NULL, name, &length));
    CHECK(!strcmp(name, "MPI_DATATYPE_NULL"));
    OK(MPI_Type_contiguous(3, MPI_INT, &type));
    OK(MPI_Type_get_name(type, name, &length));
    CHECK(length == 0);
    OK(MPI_Type_set_name(type, "three"));
    OK(MPI_Type_get_name(type, name, &length));
    CHECK(!strcmp(name, "three"));
    OK(MPI_Type_free(&type));
}

static void topologies(void) {
    int dims[2] = {0, 0}, periods[2] = {1, 0}, coords[2], source, dest, kind, rank;
    MPI_Comm cart, part;
    OK(MPI_Dims_create(12, 2, dims));
    CHECK(dims[0] == 4 && dims[1] == 3);
    dims[0] = dims[1] = 1;
    OK(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &cart));
    OK(MPI_Topo_test(cart, &kind));
    CHECK(kind == MPI_CART);
    OK(MPI_Topo_test(MPI_COMM_WORLD, &kind));
    CHECK(kind == MPI_UNDEFINED);
    OK(MPI_Cart_shift(cart, 0, 1, &source, &dest));
    CHECK(source == 0 && dest == 0);
    OK(MPI_Cart_shift(cart, 1, 1, &source, &dest));
    CHECK(source == MPI_PROC_NULL && dest == MPI_PROC_NULL);
    OK(MPI_Cart_get(cart, 2, dims, periods, coords));
    CHECK(periods[0] == 1 && periods[1] == 0 && coords[0] == 0 && coords[1] == 0);
    OK(MPI_Cart_rank(cart, coords, &rank));
    CHECK(rank == 0);
    OK(MPI_Cart_sub(cart, dims, &part));
    OK(MPI_Cartdim_get(part, &kind));
    CHECK(kind == 2);
    OK(MPI_Comm_free(&part));
    OK(MPI_Comm_free(&cart));
}

static int freed;

static int query(void *extra, MPI_Status *status) {
    CHECK(extra == &freed);
    status->MPI_SOURCE = 4;
    status->MPI_TAG = 5;
    OK(MPI_Status_set_elements(status, MPI_INT, 6));
    OK(MPI_Status_set_cancelled(status, 0));
    return MPI_SUCCESS;
}

static int release(void *extra) {
    CHECK(extra == &freed);
    freed++;
    return MPI_SUCCESS;
}

static int cancel(void *extra, int complete) {
    (void)extra;
    return complete ? MPI_ERR_OTHER : MPI_SUCCESS;
}

static void general(void) {
    MPI_Request request, copy;
    MPI_Status status;
    int flag, count;
    OK(MPI_Grequest_start(query, release, cancel, &freed, &request));
    copy = request;
    OK(MPI_Test(&request, &flag, &status));
    CHECK(!flag);
    OK(MPI_Cancel(&request));
    OK(MPI_Grequest_complete(copy));
    OK(MPI_Request_get_status(request, &flag, &status));
    CHECK(flag && freed == 0);
    OK(MPI_Wait(&request, &status));
    OK(MPI_Get_count(&status, MPI_INT, &count));
    CHECK(freed == 1 && status.MPI_SOURCE == 4 && status.MPI_TAG == 5 && count == 6);
    OK(MPI_Test_cancelled(&status, &flag));
    CHECK(!flag && request == MPI_REQUEST_NULL);
}

static void fortran(void) {
    MPI_Status status, back;
    MPI_Fint f[MPI_F_STATUS_SIZE];
    int tag;
    memset(&status, 0, sizeof status);
    OK(MPI_Status_set_tag(&status, 9));
    OK(MPI_Status_set_source(&status, 8));
    OK(MPI_Status_set_error(&status, 7));
    OK(MPI_Status_c2f(&status, f));
    CHECK(f[MPI_F_SOURCE] == 8 && f[MPI_F_TAG] == 9 && f[MPI_F_ERROR] == 7);
    OK(MPI_Status_f2c(f, &back));
    OK(MPI_Status_get_tag(&back, &tag));
    CHECK(tag == 9 && !memcmp(&status, &back, sizeof back));
    CHECK(MPI_Comm_f2c(MPI_Comm_c2f(MPI_COMM_SELF)) == MPI_COMM_SELF);
    CHECK(MPI_Type_f2c(MPI_Type_c2f(MPI_DOUBLE)) == MPI_DOUBLE);
}

static void memory(void) {
    char *bytes;
    MPI_Info info;
    OK(MPI_Alloc_mem(1000, MPI_INFO_NULL, &bytes));
    memset(bytes, 1, 1000);
    OK(MPI_Free_mem(bytes));
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "mpi_minimum_memory_alignment", "4096"));
    OK(MPI_Alloc_mem(10, info, &bytes));
    CHECK((uintptr_t)bytes % 4096 == 0);
    OK(MPI_Free_mem(bytes));
    OK(MPI_Info_free(&info));
    FAILS(MPI_ERR_ARG, MPI_Alloc_mem(-1, MPI_INFO_NULL, &bytes));
}

static void split(void) {
    MPI_Comm part, dup;
    MPI_Request request;
    MPI_Info info;
    int result, flag, length = 20;
    char value[20];
    OK(MPI_Comm_split(MPI_COMM_WORLD, 3, 0, &part));
    OK(MPI_Comm_compare(part, MPI_COMM_WORLD, &result));
    CHECK(result == MPI_CONGRUENT);
    OK(MPI_Comm_free(&part));
    OK(MPI_Comm_split(MPI_COMM_WORLD, MPI_UNDEFINED, 0, &part));
    CHECK(part == MPI_COMM_NULL);
    FAILS(MPI_ERR_ARG, MPI_Comm_split(MPI_COMM_WORLD, -7, 0, &part));
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &part));
    CHECK(part != MPI_COMM_NULL);
    OK(MPI_Comm_test_inter(part, &flag));
    CHECK(!flag);
    FAILS(MPI_ERR_COMM, MPI_Comm_remote_size(part, &flag));
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "my_hint", "yes"));
    OK(MPI_Comm_idup_with_info(part, info, &dup, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Info_free(&info));
    OK(MPI_Comm_get_info(dup, &info));
    OK(MPI_Info_get_string(info, "my_hint", &length, value, &flag));
    CHECK(flag && !strcmp(value, "yes"));
    OK(MPI_Info_free(&info));
    OK(MPI_Comm_disconnect(&dup));
    CHECK(dup == MPI_COMM_NULL);
    OK(MPI_Comm_free(&part));
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    attributes();
    groups();
    names();
    topologies();
    general();
    fortran();
    memory();
    split();
    OK(MPI_Finalize());
    CHECK(deletes == 3);
    return done();
}
