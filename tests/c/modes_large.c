/* modes.c once more, by the functions with 64-bit counts.
 * RUN: ranks=2 fabrics=shm,tcp limit=120 */
#define LARGE
#include "modes.c"
