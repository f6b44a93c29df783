/* MPI_T with nothing in it: counts are 0, indices and handles are refused, no error handler is called. */
#include "check.h"

int main(int argc, char **argv) {
    int level, n = -1;
    MPI_T_pvar_session session;
    CHECK(MPI_T_cvar_get_num(&n) == MPI_T_ERR_NOT_INITIALIZED);
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &level));
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &level));
    OK(MPI_T_cvar_get_num(&n));
    CHECK(n == 0);
    n = -1;
    OK(MPI_T_pvar_get_num(&n));
    CHECK(n == 0);
    n = -1;
    OK(MPI_T_category_get_num(&n));
    CHECK(n == 0);
    n = -1;
    OK(MPI_T_event_get_num(&n));
    CHECK(n == 0);
    n = -1;
    OK(MPI_T_source_get_num(&n));
    CHECK(n == 0);
    CHECK(MPI_T_cvar_get_info(0, 0, 0, 0, 0, 0, 0, 0, 0, 0) == MPI_T_ERR_INVALID_INDEX);
    CHECK(MPI_T_cvar_get_index("none", &n) == MPI_T_ERR_INVALID_NAME);
    CHECK(MPI_T_cvar_read(0, &n) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_pvar_start(MPI_T_PVAR_SESSION_NULL, MPI_T_PVAR_ALL_HANDLES) == MPI_T_ERR_INVALID_SESSION);
    OK(MPI_T_pvar_session_create(&session));
    OK(MPI_T_pvar_start(session, MPI_T_PVAR_ALL_HANDLES));
    OK(MPI_T_pvar_stop(session, MPI_T_PVAR_ALL_HANDLES));
    OK(MPI_T_pvar_session_free(&session));
    CHECK(session == MPI_T_PVAR_SESSION_NULL);
    CHECK(MPI_T_pvar_session_free(&session) == MPI_T_ERR_INVALID_SESSION);
    OK(MPI_Init(&argc, &argv));
    OK(MPI_Finalize());
    OK(MPI_T_category_changed(&n));
    OK(MPI_T_finalize());
    OK(MPI_T_finalize());
    CHECK(MPI_T_finalize() == MPI_T_ERR_NOT_INITIALIZED);
    return done();
}
