/* What the tests of the C interface share: each is one process, and says which line failed. */
#ifndef CHECK_H
#define CHECK_H
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);               \
            failures++;                                                                    \
        }                                                                                  \
    } while (0)

/* The call succeeds. */
#define OK(call)                                                                           \
    do {                                                                                   \
        int code_ = (call);                                                                \
        if (code_ != MPI_SUCCESS) {                                                        \
            char text_[MPI_MAX_ERROR_STRING];                                              \
            int length_;                                                                   \
            MPI_Error_string(code_, text_, &length_);                                      \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, text_);                   \
            failures++;                                                                    \
        }                                                                                  \
    } while (0)

/* The call fails with an error of this class. */
#define FAILS(class, call)                                                                 \
    do {                                                                                   \
        int code_ = (call), class_ = -1;                                                   \
        MPI_Error_class(code_, &class_);                                                   \
        if (class_ != (class)) {                                                           \
            printf("%s:%d: %s: class %d, not %s\n", __FILE__, __LINE__, #call, class_, #class); \
            failures++;                                                                    \
        }                                                                                  \
    } while (0)

static int done(void) {
    if (failures == 0) printf("No Errors\n");
    return failures != 0;
}
#endif
