/* The kinds of memory that programs are told of. */
#ifndef BANYAN_KINDS_H
#define BANYAN_KINDS_H

#include "../c/check.h"

#include <string.h>

/* Whether the word is part of what MPI_COMM_WORLD's info says of the kinds of memory that calls take. */
static int kinds_have(const char *word)
{
    MPI_Info info;
    char value[200] = "";
    int len = sizeof value, flag = 0;
    OK(MPI_Comm_get_info(MPI_COMM_WORLD, &info));
    OK(MPI_Info_get_string(info, "mpi_memory_alloc_kinds", &len, value, &flag));
    OK(MPI_Info_free(&info));
    CHECK(flag && strstr(value, "mpi") && strstr(value, "system"));
    return strstr(value, word) != NULL;
}

#endif
