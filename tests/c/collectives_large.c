/* collectives.c once more, by the functions with 64-bit counts.
 * RUN: ranks=1,2,4,5 fabrics=shm,tcp limit=120 */
#define LARGE
#include "collectives.c"
