/* operations.c once more, by the functions with 64-bit counts.
 * RUN: ranks=2,3,5 fabrics=shm,tcp limit=120 */
#define LARGE
#include "operations.c"
