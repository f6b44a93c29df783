/* What works before MPI_Init and after MPI_Finalize, and what says that it does not. */
#include "check.h"
#include <unistd.h>

static void any_time(void) {
    int major, minor, length, flag, class, code, n;
    char version[MPI_MAX_LIBRARY_VERSION_STRING], text[MPI_MAX_ERROR_STRING], value[16];
    char key[MPI_MAX_INFO_KEY];
    MPI_Info info, copy;
    OK(MPI_Get_version(&major, &minor));
    CHECK(major == 5 && minor == 0);
    OK(MPI_Abi_get_version(&major, &minor));
    CHECK(major == 1 && minor == 0);
    OK(MPI_Get_library_version(version, &length));
    CHECK(strstr(version, "Banyan") && (int)strlen(version) == length);
    OK(MPI_Initialized(&flag));
    OK(MPI_Finalized(&flag));
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "color", "green"));
    OK(MPI_Info_set(info, "size", "12"));
    OK(MPI_Info_get_nkeys(info, &n));
    CHECK(n == 2);
    OK(MPI_Info_get_nthkey(info, 1, key));
    CHECK(!strcmp(key, "size"));
    length = sizeof value;
    OK(MPI_Info_get_string(info, "color", &length, value, &flag));
    CHECK(flag && length == 6 && !strcmp(value, "green"));
    length = 3;
    OK(MPI_Info_get_string(info, "color", &length, value, &flag));
    CHECK(flag && length == 6 && !strcmp(value, "gr"));
    length = 0;
    OK(MPI_Info_get_string(info, "color", &length, NULL, &flag));
    CHECK(flag && length == 6);
    OK(MPI_Info_get(info, "color", 4, value, &flag));
    CHECK(flag && !strcmp(value, "gree"));
    OK(MPI_Info_get_valuelen(info, "color", &length, &flag));
    CHECK(flag && length == 5);
    OK(MPI_Info_get_valuelen(info, "none", &length, &flag));
    CHECK(!flag);
    OK(MPI_Info_dup(info, &copy));
    OK(MPI_Info_delete(info, "color"));
    OK(MPI_Info_get_nkeys(copy, &n));
    CHECK(n == 2);
    CHECK(MPI_Info_fromint(MPI_Info_toint(copy)) == copy);
    CHECK(MPI_Info_f2c(MPI_Info_c2f(copy)) == copy);
    OK(MPI_Info_free(&info));
    OK(MPI_Info_free(&copy));
    CHECK(info == MPI_INFO_NULL);
    OK(MPI_Info_create_env(0, NULL, &info));
    OK(MPI_Info_get_nkeys(info, &n));
    CHECK(n > 0);
    OK(MPI_Info_free(&info));
    OK(MPI_Abi_get_info(&info));
    length = sizeof value;
    OK(MPI_Info_get_string(info, "mpi_aint_size", &length, value, &flag));
    CHECK(flag && atoi(value) == (int)sizeof(MPI_Aint));
    OK(MPI_Info_free(&info));
    OK(MPI_Add_error_class(&class));
    OK(MPI_Add_error_code(class, &code));
    OK(MPI_Add_error_string(code, "all wrong"));
    OK(MPI_Error_string(code, text, &length));
    CHECK(!strcmp(text, "all wrong"));
    OK(MPI_Error_class(code, &n));
    CHECK(n == class && class > MPI_ERR_LASTCODE);
    OK(MPI_Remove_error_string(code));
    OK(MPI_Remove_error_code(code));
    OK(MPI_Remove_error_class(class));
    CHECK(MPI_Aint_diff(MPI_Aint_add(5, 7), 7) == 5);
    CHECK(MPI_Wtime() > 0 && MPI_Wtick() > 0);
    CHECK(MPI_Comm_toint(MPI_COMM_WORLD) == 0x101 && MPI_Type_fromint(0x209) == MPI_INT);
    OK(MPI_Pcontrol(1, "x"));
}

static void fortran_facts(void) {
    int yes, no, set = -1;
    MPI_Info info;
    OK(MPI_Abi_get_fortran_booleans(sizeof yes, &yes, &no, &set));
    CHECK(yes == 1 && no == 0 && set == 0);
    yes = -1;
    OK(MPI_Abi_set_fortran_booleans(sizeof yes, &yes, &no));
    yes = 7;
    OK(MPI_Abi_get_fortran_booleans(sizeof yes, &yes, &no, &set));
    CHECK(yes == -1 && no == 0 && set == 1);
    OK(MPI_Abi_get_fortran_info(&info));
    OK(MPI_Abi_set_fortran_info(info));
    OK(MPI_Info_free(&info));
}

int main(int argc, char **argv) {
    int flag, level, length, *p;
    char name[MPI_MAX_PROCESSOR_NAME], started[4096], wdir[4096];
    MPI_Info info;
    MPI_Comm parent;
    any_time();
    fortran_facts();
    OK(MPI_Initialized(&flag));
    CHECK(!flag);
    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level));
    CHECK(level == MPI_THREAD_MULTIPLE);
    OK(MPI_Query_thread(&level));
    CHECK(level == MPI_THREAD_MULTIPLE);
    OK(MPI_Is_thread_main(&flag));
    CHECK(flag);
    OK(MPI_Initialized(&flag));
    CHECK(flag);
    any_time();
    OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    FAILS(MPI_ERR_OTHER, MPI_Init(NULL, NULL));
    FAILS(MPI_ERR_ABI, MPI_Abi_set_fortran_booleans(sizeof level, &level, &flag));
    OK(MPI_Abi_get_fortran_info(&info));
    FAILS(MPI_ERR_ABI, MPI_Abi_set_fortran_info(info));
    OK(MPI_Info_free(&info));
    OK(MPI_Get_processor_name(name, &length));
    CHECK(length > 0 && (int)strlen(name) == length);
    OK(MPI_Comm_get_parent(&parent));
    CHECK(parent == MPI_COMM_NULL);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &p, &flag));
    CHECK(flag && *p >= 1 << 29);
    OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_WTIME_IS_GLOBAL, &p, &flag));
    CHECK(flag && (*p == 0 || *p == 1));
    /* How the process was started, though it is elsewhere by now. */
    CHECK(getcwd(started, sizeof started) != NULL && chdir("/") == 0);
    OK(MPI_Info_get_nkeys(MPI_INFO_ENV, &length));
    CHECK(length > 0);
    length = sizeof wdir;
    OK(MPI_Info_get_string(MPI_INFO_ENV, "wdir", &length, wdir, &flag));
    CHECK(flag && strcmp(wdir, started) == 0);
    FAILS(MPI_ERR_INFO, MPI_Info_set(MPI_INFO_ENV, "a", "b"));
    OK(MPI_Finalize());
    OK(MPI_Finalized(&flag));
    CHECK(flag);
    OK(MPI_Initialized(&flag));
    CHECK(flag);
    any_time();
    return done();
}
