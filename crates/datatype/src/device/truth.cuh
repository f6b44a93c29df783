// Reductions of truth values, in C (and of integers as such) and in Fortran with values that the program gave.

LOGICAL(u8, u8, 1)
LOGICAL(u16, u16, 2)
LOGICAL(u32, u32, 4)
LOGICAL(u64, u64, 8)
FORTRAN_LOGICAL(i8, i8, 1)
FORTRAN_LOGICAL(i16, i16, 2)
FORTRAN_LOGICAL(i32, i32, 4)
FORTRAN_LOGICAL(i64, i64, 8)
