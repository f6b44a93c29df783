/* Counts that no memory holds, and walks that no time is enough for: an error, or an answer at once. */
#include "check.h"
#include <stdint.h>

/* Structs of an int and a double, so many that to go from one to the next would take years. */
static void elements(void) {
    int lengths[2] = {1, 1};
    MPI_Aint displacements[2] = {0, 8};
    MPI_Datatype types[2] = {MPI_INT, MPI_DOUBLE}, pair, row, many;
    const MPI_Count rows = 1 << 20, pairs = (MPI_Count)1 << 50;
    MPI_Count count, size, lb, extent;
    MPI_Status status;
    memset(&status, 0, sizeof status);
    OK(MPI_Type_create_struct(2, lengths, displacements, types, &pair));
    OK(MPI_Type_contiguous_c(rows, pair, &row));
    OK(MPI_Type_contiguous_c(pairs / rows, row, &many));
    OK(MPI_Type_commit(&many));
    OK(MPI_Status_set_elements_c(&status, many, 2 * pairs - 1));
    OK(MPI_Get_elements_c(&status, many, &count));
    CHECK(count == 2 * pairs - 1);
    OK(MPI_Get_elements_c(&status, MPI_BYTE, &count));
    CHECK(count == 12 * pairs - 8);
    OK(MPI_Get_count_c(&status, many, &count));
    CHECK(count == MPI_UNDEFINED);
    OK(MPI_Status_set_elements_c(&status, many, 2 * pairs));
    OK(MPI_Get_count_c(&status, many, &count));
    CHECK(count == 1);
    FAILS(MPI_ERR_COUNT, MPI_Status_set_elements_c(&status, many, INT64_MAX));
    OK(MPI_Type_size_c(many, &size));
    CHECK(size == 12 * pairs);
    OK(MPI_Type_get_extent_c(many, &lb, &extent));
    CHECK(lb == 0 && extent == 16 * pairs);
    OK(MPI_Pack_size_c(1, many, MPI_COMM_SELF, &size));
    CHECK(size == 12 * pairs);
    OK(MPI_Pack_external_size_c("external32", 1, many, &size));
    CHECK(size == 12 * pairs);
    FAILS(MPI_ERR_COUNT, MPI_Pack_size_c(INT64_MAX, many, MPI_COMM_SELF, &size));
    OK(MPI_Type_free(&pair));
    OK(MPI_Type_free(&row));
    OK(MPI_Type_free(&many));
}

/* The first error is found before a list is read. */
static void lists(void) {
    const MPI_Count most[2] = {(MPI_Count)1 << 50, (MPI_Count)1 << 60};
    MPI_Count length = 1, displacement = 0;
    MPI_Aint address = 0;
    MPI_Datatype type = MPI_INT, new;
    for (int i = 0; i < 2; i++) {
        FAILS(MPI_ERR_NO_MEM, MPI_Type_indexed_c(most[i], &length, &displacement, MPI_INT, &new));
        FAILS(MPI_ERR_NO_MEM, MPI_Type_create_hindexed_block_c(most[i], 1, &address, MPI_INT, &new));
        FAILS(MPI_ERR_NO_MEM, MPI_Type_create_struct_c(most[i], &length, &address, &type, &new));
    }
}

static void copies(void) {
    char a[8] = "";
    const MPI_Count most = (MPI_Count)1 << 50;
    MPI_Request request;
    FAILS(MPI_ERR_NO_MEM, MPI_Isendrecv_replace_c(a, most, MPI_BYTE, 0, 0, 0, 0, MPI_COMM_SELF, &request));
}

/* A packed buffer that may not be written. */
static void constant(void) {
    static const unsigned char packed[8] = {0, 0, 0, 7, 0, 0, 0, 9};
    int values[2] = {0, 0};
    MPI_Aint at = 0;
    OK(MPI_Unpack_external("external32", packed, 8, &at, values, 2, MPI_INT));
    CHECK(values[0] == 7 && values[1] == 9 && at == 8);
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    elements();
    lists();
    copies();
    constant();
    OK(MPI_Finalize());
    return done();
}
