/* MPI_T without devices: settings and counters, no categories, events and sources; wrong indices, names and handles are refused, no error handler
 * is called. */
#include "check.h"

/* All control variables: each has a name by which it is found again, and a text. */
static void settings(void) {
    int n = 0, fabrics = -1;
    OK(MPI_T_cvar_get_num(&n));
    CHECK(n > 10);
    for (int i = 0; i < n; i++) {
        char name[100], about[20], text[5000] = "";
        int name_len = sizeof name, about_len = sizeof about, room = 0, verbosity, bind, scope, found = -1, count = 0;
        MPI_Datatype type;
        MPI_T_enum none;
        MPI_T_cvar_handle handle;
        OK(MPI_T_cvar_get_info(i, name, &name_len, &verbosity, &type, &none, about, &about_len, &bind, &scope));
        CHECK(strncmp(name, "BANYAN_", 7) == 0 && name_len == (int)strlen(name) + 1);
        CHECK(strlen(about) == 19 && about_len > 20);
        CHECK(type == MPI_CHAR && none == MPI_T_ENUM_NULL && bind == MPI_T_BIND_NO_OBJECT && scope == MPI_T_SCOPE_READONLY);
        OK(MPI_T_cvar_get_info(i, 0, &room, 0, 0, 0, 0, 0, 0, 0));
        CHECK(room == name_len);
        OK(MPI_T_cvar_get_index(name, &found));
        CHECK(found == i);
        OK(MPI_T_cvar_handle_alloc(i, 0, &handle, &count));
        CHECK(count <= (int)sizeof text);
        OK(MPI_T_cvar_read(handle, text));
        CHECK(text[0]);
        if (strcmp(name, "BANYAN_FABRICS") == 0) {
            fabrics = i;
            CHECK(strcmp(text, "shm,rdma,tcp") == 0);
        }
        OK(MPI_T_cvar_handle_free(&handle));
        CHECK(MPI_T_cvar_read(handle, text) == MPI_T_ERR_INVALID_HANDLE);
    }
    CHECK(fabrics >= 0);
    CHECK(MPI_T_cvar_get_info(n, 0, 0, 0, 0, 0, 0, 0, 0, 0) == MPI_T_ERR_INVALID_INDEX);
    CHECK(MPI_T_cvar_get_info(-1, 0, 0, 0, 0, 0, 0, 0, 0, 0) == MPI_T_ERR_INVALID_INDEX);
}

/* All performance variables: without a device nothing is counted. */
static void counters(void) {
    int n = 0;
    MPI_T_pvar_session session;
    OK(MPI_T_pvar_session_create(&session));
    OK(MPI_T_pvar_get_num(&n));
    CHECK(n > 10);
    for (int i = 0; i < n; i++) {
        char name[100], about[300];
        int name_len = sizeof name, about_len = sizeof about, verbosity, class, bind, readonly, continuous, atomic, found = -1, count = 0;
        unsigned long long value = 9;
        MPI_Datatype type;
        MPI_T_enum none;
        MPI_T_pvar_handle handle;
        OK(MPI_T_pvar_get_info(i, name, &name_len, &verbosity, &class, &type, &none, about, &about_len, &bind, &readonly, &continuous, &atomic));
        CHECK(strncmp(name, "gpu_", 4) == 0 && about_len == (int)strlen(about) + 1 && strchr(about, '['));
        CHECK(class == MPI_T_PVAR_CLASS_COUNTER && type == MPI_UNSIGNED_LONG_LONG && none == MPI_T_ENUM_NULL && bind == MPI_T_BIND_NO_OBJECT);
        CHECK(!readonly && !continuous && atomic);
        OK(MPI_T_pvar_get_index(name, class, &found));
        CHECK(found == i);
        CHECK(MPI_T_pvar_get_index(name, MPI_T_PVAR_CLASS_SIZE, &found) == MPI_T_ERR_INVALID_NAME);
        OK(MPI_T_pvar_handle_alloc(session, i, 0, &handle, &count));
        OK(MPI_T_pvar_start(session, handle));
        OK(MPI_T_pvar_read(session, handle, &value));
        CHECK(value == 0 && count == 1);
    }
    CHECK(MPI_T_pvar_get_info(n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) == MPI_T_ERR_INVALID_INDEX);
    OK(MPI_T_pvar_session_free(&session));
}

int main(int argc, char **argv) {
    int level, n = -1;
    MPI_T_pvar_session session;
    MPI_T_pvar_handle handle;
    CHECK(MPI_T_cvar_get_num(&n) == MPI_T_ERR_NOT_INITIALIZED);
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &level));
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &level));
    settings();
    counters();
    OK(MPI_T_category_get_num(&n));
    CHECK(n == 0);
    n = -1;
    OK(MPI_T_event_get_num(&n));
    CHECK(n == 0);
    n = -1;
    OK(MPI_T_source_get_num(&n));
    CHECK(n == 0);
    CHECK(MPI_T_cvar_get_index("none", &n) == MPI_T_ERR_INVALID_NAME);
    CHECK(MPI_T_cvar_read(0, &n) == MPI_T_ERR_INVALID_HANDLE);
    CHECK(MPI_T_pvar_start(MPI_T_PVAR_SESSION_NULL, MPI_T_PVAR_ALL_HANDLES) == MPI_T_ERR_INVALID_SESSION);
    OK(MPI_T_pvar_session_create(&session));
    OK(MPI_T_pvar_start(session, MPI_T_PVAR_ALL_HANDLES));
    OK(MPI_T_pvar_stop(session, MPI_T_PVAR_ALL_HANDLES));
    CHECK(MPI_T_pvar_handle_alloc(session, -1, 0, &handle, &n) == MPI_T_ERR_INVALID_INDEX);
    OK(MPI_T_pvar_handle_alloc(session, 0, 0, &handle, &n));
    OK(MPI_T_pvar_session_free(&session));
    CHECK(session == MPI_T_PVAR_SESSION_NULL);
    CHECK(MPI_T_pvar_session_free(&session) == MPI_T_ERR_INVALID_SESSION);
    CHECK(MPI_T_pvar_start(session, handle) == MPI_T_ERR_INVALID_SESSION);
    OK(MPI_Init(&argc, &argv));
    settings();
    OK(MPI_Finalize());
    OK(MPI_T_category_changed(&n));
    OK(MPI_T_finalize());
    OK(MPI_T_finalize());
    CHECK(MPI_T_finalize() == MPI_T_ERR_NOT_INITIALIZED);
    return done();
}
