/* Error handlers, and the classes of wrong arguments: wild and stale handles among them. */
#include "check.h"
#include <setjmp.h>

static int seen_code, seen_calls;
static MPI_Comm seen_comm;
static jmp_buf back;

static void note(MPI_Comm *comm, int *code, ...) {
    seen_comm = *comm;
    seen_code = *code;
    seen_calls++;
}

static void leap(MPI_Comm *comm, int *code, ...) {
    (void)comm;
    seen_code = *code;
    longjmp(back, 1);
}

static void note_file(MPI_File *file, int *code, ...) {
    CHECK(*file == MPI_FILE_NULL);
    seen_code = *code;
}

static void handlers(void) {
    MPI_Errhandler own, same, other, file;
    MPI_Comm dup;
    int i = 0, volatile_rounds = 0, code, class;
    OK(MPI_Comm_create_errhandler(note, &own));
    OK(MPI_Comm_dup(MPI_COMM_WORLD, &dup));
    OK(MPI_Comm_set_errhandler(dup, own));
    OK(MPI_Comm_get_errhandler(dup, &same));
    CHECK(same == own);
    OK(MPI_Errhandler_free(&same));
    CHECK(same == MPI_ERRHANDLER_NULL);
    OK(MPI_Errhandler_free(&own));
    FAILS(MPI_ERR_RANK, MPI_Send(&i, 1, MPI_INT, 99, 0, dup));
    CHECK(seen_calls == 1 && seen_comm == dup && seen_code == MPI_ERR_RANK);
    OK(MPI_Comm_call_errhandler(dup, MPI_ERR_OTHER));
    CHECK(seen_calls == 2 && seen_code == MPI_ERR_OTHER);
    OK(MPI_Add_error_class(&class));
    OK(MPI_Add_error_code(class, &code));
    OK(MPI_Comm_call_errhandler(dup, code));
    CHECK(seen_code == code);
    OK(MPI_Comm_get_errhandler(dup, &same));
    CHECK(same != MPI_ERRHANDLER_NULL);
    OK(MPI_Errhandler_free(&same));
    OK(MPI_Comm_create_errhandler(leap, &other));
    OK(MPI_Comm_set_errhandler(dup, other));
    for (volatile_rounds = 0; volatile_rounds < 3; volatile_rounds++) {
        seen_code = 0;
        if (!setjmp(back)) {
            MPI_Send(&i, 1, MPI_INT, 0, -5, dup);
            CHECK(!"reached");
        }
        CHECK(seen_code == MPI_ERR_TAG);
    }
    OK(MPI_Errhandler_free(&other));
    OK(MPI_Comm_free(&dup));
    OK(MPI_File_create_errhandler(note_file, &file));
    FAILS(MPI_ERR_ERRHANDLER, MPI_Comm_set_errhandler(MPI_COMM_WORLD, file));
    OK(MPI_File_set_errhandler(MPI_FILE_NULL, file));
    OK(MPI_Errhandler_free(&file));
    FAILS(MPI_ERR_UNSUPPORTED_OPERATION, MPI_File_delete("x", MPI_INFO_NULL));
    CHECK(seen_code == MPI_ERR_UNSUPPORTED_OPERATION);
    OK(MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN));
    FAILS(MPI_ERR_ERRHANDLER, MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRHANDLER_NULL));
    OK(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &same));
    CHECK(same == MPI_ERRORS_RETURN);
    OK(MPI_Errhandler_free(&same));
}

static void handles(void) {
    MPI_Comm wild = (MPI_Comm)0x12345678, stale, old;
    MPI_Datatype type, old_type;
    MPI_Group group, old_group;
    MPI_Request request = (MPI_Request)0x41414141;
    MPI_Info info;
    MPI_Op op;
    int i = 0, n;
    FAILS(MPI_ERR_COMM, MPI_Comm_size(MPI_COMM_NULL, &n));
    FAILS(MPI_ERR_COMM, MPI_Comm_size(wild, &n));
    FAILS(MPI_ERR_COMM, MPI_Comm_size((MPI_Comm)0, &n));
    FAILS(MPI_ERR_COMM, MPI_Comm_size((MPI_Comm)MPI_INT, &n));
    FAILS(MPI_ERR_COMM, MPI_Comm_size((MPI_Comm)(intptr_t)-1, &n));
    OK(MPI_Comm_dup(MPI_COMM_SELF, &stale));
    old = stale;
    OK(MPI_Comm_free(&stale));
    CHECK(stale == MPI_COMM_NULL);
    FAILS(MPI_ERR_COMM, MPI_Comm_rank(old, &n));
    FAILS(MPI_ERR_COMM, MPI_Comm_free(&old));
    stale = MPI_COMM_WORLD;
    FAILS(MPI_ERR_COMM, MPI_Comm_free(&stale));
    OK(MPI_Type_contiguous(2, MPI_INT, &type));
    FAILS(MPI_ERR_TYPE, MPI_Send(&i, 1, type, 0, 0, MPI_COMM_SELF));
    old_type = type;
    OK(MPI_Type_free(&type));
    FAILS(MPI_ERR_TYPE, MPI_Type_size(old_type, &n));
    FAILS(MPI_ERR_TYPE, MPI_Type_size(MPI_DATATYPE_NULL, &n));
    FAILS(MPI_ERR_TYPE, MPI_Type_size((MPI_Datatype)0x277777, &n));
    type = MPI_INT;
    FAILS(MPI_ERR_TYPE, MPI_Type_free(&type));
    OK(MPI_Comm_group(MPI_COMM_WORLD, &group));
    old_group = group;
    OK(MPI_Group_free(&group));
    FAILS(MPI_ERR_GROUP, MPI_Group_size(old_group, &n));
    FAILS(MPI_ERR_GROUP, MPI_Group_size(MPI_GROUP_NULL, &n));
    FAILS(MPI_ERR_REQUEST, MPI_Wait(&request, MPI_STATUS_IGNORE));
    request = MPI_REQUEST_NULL;
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    FAILS(MPI_ERR_REQUEST, MPI_Start(&request));
    info = MPI_INFO_NULL;
    FAILS(MPI_ERR_INFO, MPI_Info_free(&info));
    op = MPI_SUM;
    FAILS(MPI_ERR_OP, MPI_Op_free(&op));
    FAILS(MPI_ERR_OP, MPI_Allreduce(&i, &n, 1, MPI_INT, MPI_OP_NULL, MPI_COMM_SELF));
    FAILS(MPI_ERR_OP, MPI_Allreduce(&i, &n, 1, MPI_FLOAT, MPI_BAND, MPI_COMM_SELF));
    FAILS(MPI_ERR_OP, MPI_Allreduce(&i, &n, 1, MPI_INT, (MPI_Op)0x7777777, MPI_COMM_SELF));
}

/* What was freed stays so, however many come after it. */
static void stale_for_long(void) {
    MPI_Datatype old, type;
    MPI_Group old_group, group;
    int i, n, size;
    OK(MPI_Type_contiguous(10, MPI_INT, &type));
    old = type;
    OK(MPI_Type_free(&type));
    OK(MPI_Comm_group(MPI_COMM_WORLD, &group));
    old_group = group;
    OK(MPI_Group_free(&group));
    for (n = 1000; n <= 100000; n *= 100) {
        for (i = 0; i < n; i++) {
            MPI_Type_contiguous(3, MPI_INT, &type);
            MPI_Comm_group(MPI_COMM_WORLD, &group);
            if (MPI_Type_size(old, &size) != MPI_ERR_TYPE || MPI_Group_size(old_group, &size) != MPI_ERR_GROUP) {
                CHECK(!"stale");
                return;
            }
            MPI_Type_free(&type);
            MPI_Group_free(&group);
        }
    }
}

static void arguments(void) {
    int a = 1, b = 2, count;
    double d[4];
    MPI_Status status;
    MPI_Request request;
    FAILS(MPI_ERR_COUNT, MPI_Send(&a, -1, MPI_INT, 0, 0, MPI_COMM_SELF));
    FAILS(MPI_ERR_RANK, MPI_Send(&a, 1, MPI_INT, 1, 0, MPI_COMM_SELF));
    FAILS(MPI_ERR_RANK, MPI_Send(&a, 1, MPI_INT, MPI_ANY_SOURCE, 0, MPI_COMM_SELF));
    FAILS(MPI_ERR_TAG, MPI_Send(&a, 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_SELF));
    FAILS(MPI_ERR_TAG, MPI_Irecv(&a, 1, MPI_INT, 0, -7, MPI_COMM_SELF, &request));
    FAILS(MPI_ERR_BUFFER, MPI_Send(NULL, 1, MPI_INT, 0, 0, MPI_COMM_SELF));
    FAILS(MPI_ERR_BUFFER, MPI_Bcast(NULL, 1, MPI_INT, 0, MPI_COMM_SELF));
    FAILS(MPI_ERR_BUFFER, MPI_Send(MPI_IN_PLACE, 1, MPI_INT, 0, 0, MPI_COMM_SELF));
    OK(MPI_Send(NULL, 5, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_SELF));
    OK(MPI_Bcast(NULL, 0, MPI_INT, 0, MPI_COMM_SELF));
    FAILS(MPI_ERR_ROOT, MPI_Bcast(&a, 1, MPI_INT, 1, MPI_COMM_SELF));
    FAILS(MPI_ERR_ROOT, MPI_Reduce(&a, &b, 1, MPI_INT, MPI_SUM, -1, MPI_COMM_SELF));
    FAILS(MPI_ERR_COUNT, MPI_Allreduce(&a, &b, -1, MPI_INT, MPI_SUM, MPI_COMM_SELF));
    FAILS(MPI_ERR_TYPE, MPI_Allreduce(&a, &b, 1, MPI_DATATYPE_NULL, MPI_SUM, MPI_COMM_SELF));
    FAILS(MPI_ERR_ARG, MPI_Comm_rank(MPI_COMM_SELF, NULL));
    OK(MPI_Isend(d, 4, MPI_DOUBLE, 0, 1, MPI_COMM_SELF, &request));
    FAILS(MPI_ERR_TRUNCATE, MPI_Recv(&a, 1, MPI_INT, 0, 1, MPI_COMM_SELF, &status));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Sendrecv(&a, 1, MPI_INT, 0, 3, d, 4, MPI_DOUBLE, 0, 3, MPI_COMM_SELF, &status));
    OK(MPI_Get_count(&status, MPI_DOUBLE, &count));
    CHECK(count == MPI_UNDEFINED && status.MPI_TAG == 3 && status.MPI_SOURCE == 0);
    OK(MPI_Get_count(&status, MPI_INT, &count));
    CHECK(count == 1);
    FAILS(MPI_ERR_DIMS, MPI_Dims_create(6, -1, &a));
    FAILS(MPI_ERR_TOPOLOGY, MPI_Cartdim_get(MPI_COMM_SELF, &a));
    FAILS(MPI_ERR_KEYVAL, MPI_Comm_set_attr(MPI_COMM_SELF, MPI_TAG_UB, NULL));
    FAILS(MPI_ERR_UNSUPPORTED_OPERATION, MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_SELF, (MPI_Win *)d));
    FAILS(MPI_ERR_UNSUPPORTED_OPERATION, MPI_Graph_create(MPI_COMM_SELF, 1, &a, &b, 0, (MPI_Comm *)d));
}

static void in_status(void) {
    int a[4] = {1, 2, 3, 4}, b = 0, c = 0;
    MPI_Request requests[4];
    MPI_Status statuses[4];
    OK(MPI_Irecv(&b, 1, MPI_INT, 0, 1, MPI_COMM_SELF, &requests[0]));
    OK(MPI_Irecv(&c, 1, MPI_INT, 0, 2, MPI_COMM_SELF, &requests[1]));
    OK(MPI_Isend(a, 4, MPI_INT, 0, 1, MPI_COMM_SELF, &requests[2]));
    OK(MPI_Isend(a, 1, MPI_INT, 0, 2, MPI_COMM_SELF, &requests[3]));
    FAILS(MPI_ERR_IN_STATUS, MPI_Waitall(4, requests, statuses));
    CHECK(statuses[0].MPI_ERROR == MPI_ERR_TRUNCATE && statuses[1].MPI_ERROR == MPI_SUCCESS);
    CHECK(c == 1 && requests[0] == MPI_REQUEST_NULL);
}

int main(int argc, char **argv) {
    char text[MPI_MAX_ERROR_STRING];
    int class, length;
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    handlers();
    handles();
    stale_for_long();
    arguments();
    in_status();
    for (class = 0; class <= MPI_ERR_ABI; class++) {
        int same;
        OK(MPI_Error_string(class, text, &length));
        OK(MPI_Error_class(class, &same));
        CHECK(length > 0 && length < MPI_MAX_ERROR_STRING && same == class);
    }
    FAILS(MPI_ERR_ARG, MPI_Error_string(777777, text, &length));
    OK(MPI_Finalize());
    return done();
}
