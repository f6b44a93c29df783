//! The predefined datatypes of MPI 5.0: one row each (annex A.1 and the ABI chapter, x86-64 Linux).

use crate::fortran;

/// What a basic type holds; it decides which operations are defined on it (MPI 5.0, 6.9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A C integer with a sign.
    Signed,
    /// A C integer without a sign.
    Unsigned,
    /// A Fortran integer.
    FortranInteger,
    /// A real number, in C or Fortran.
    Float,
    /// Two reals.
    Complex,
    /// A truth value, in C or Fortran; anything but zero is true.
    Logical,
    /// MPI_BYTE.
    Byte,
    /// Addresses, counts and offsets, the integers of every language.
    Multi,
    /// MPI_CHAR: printable, but other MPIs reduce it as an integer, and so do we.
    Char,
    /// A value and an index, for MPI_MINLOC and MPI_MAXLOC.
    Pair,
    /// Characters and packed data: no operation is defined.
    Opaque,
}

/// A predefined datatype.
#[derive(Debug)]
pub struct Basic {
    /// Its handle's value in the MPI ABI.
    pub code: u16,
    /// Its name, as MPI_Type_get_name gives it; of two names for one type the older, as MPICH does.
    pub name: &'static str,
    /// Bytes of data.
    pub size: u8,
    /// Bytes from one to the next.
    pub extent: u8,
    /// The alignment that a C or Fortran compiler gives it.
    pub align: u8,
    /// What it holds.
    pub class: Class,
    /// Bytes in the external32 representation (MPI 5.0, 14.5.2); 0 for pairs, whose parts have one.
    pub external32: u8,
}

impl Basic {
    /// The basic type with this handle value.
    pub fn find(code: u16) -> Option<&'static Basic> {
        if fortran::is_default_kind(code)
            && let Some(sized) = fortran::basic(code)
        {
            return Some(sized);
        }
        ALL.binary_search_by_key(&code, |basic| basic.code).ok().map(|at| &ALL[at])
    }

    /// Of a pair: the type of the value, the type of the index, and where the index lies.
    pub fn pair(&self) -> Option<(&'static Basic, &'static Basic, u8)> {
        let row = PAIRS.iter().find(|row| row.0 == self.code)?;
        let (value, index) = (Basic::find(row.1)?, Basic::find(row.2)?);
        // Fortran's pairs are two numbers of one size; C's are structs.
        let at = if fortran::is_default_kind(self.code) { value.size } else { row.3 };
        Some((value, index, at))
    }

    /// The pair type made of these two, if there is one with a name.
    pub(crate) fn pair_of(value: u16, index: u16) -> Option<u16> {
        PAIRS.iter().find(|row| (row.1, row.2) == (value, index)).map(|row| row.0)
    }
}

const fn row(
    code: u16,
    name: &'static str,
    size: u8,
    extent: u8,
    align: u8,
    class: Class,
    external32: u8,
) -> Basic {
    Basic { code, name, size, extent, align, class, external32 }
}

/// Pair, value, index, offset of the index.
const PAIRS: &[(u16, u16, u16, u8)] = &[
    (0x228, 0x210, 0x209, 4),
    (0x229, 0x214, 0x209, 8),
    (0x22a, 0x20a, 0x209, 8),
    (0x22b, 0x209, 0x209, 4),
    (0x22c, 0x208, 0x209, 4),
    (0x22d, 0x220, 0x209, 16),
    (0x230, 0x21a, 0x21a, 4),
    (0x231, 0x21c, 0x21c, 8),
    (0x232, 0x219, 0x219, 4),
];

use Class::*;

/// All predefined datatypes, by rising handle value. Fortran's default kinds have
/// their usual sizes ([`fortran::USUAL`]).
#[rustfmt::skip]
pub static ALL: &[Basic] = &[
    row(0x201, "MPI_AINT", 8, 8, 8, Multi, 8),
    row(0x202, "MPI_COUNT", 8, 8, 8, Multi, 8),
    row(0x203, "MPI_OFFSET", 8, 8, 8, Multi, 8),
    row(0x207, "MPI_PACKED", 1, 1, 1, Opaque, 1),
    row(0x208, "MPI_SHORT", 2, 2, 2, Signed, 2),
    row(0x209, "MPI_INT", 4, 4, 4, Signed, 4),
    row(0x20a, "MPI_LONG", 8, 8, 8, Signed, 4),
    row(0x20b, "MPI_LONG_LONG_INT", 8, 8, 8, Signed, 8),
    row(0x20c, "MPI_UNSIGNED_SHORT", 2, 2, 2, Unsigned, 2),
    row(0x20d, "MPI_UNSIGNED", 4, 4, 4, Unsigned, 4),
    row(0x20e, "MPI_UNSIGNED_LONG", 8, 8, 8, Unsigned, 4),
    row(0x20f, "MPI_UNSIGNED_LONG_LONG", 8, 8, 8, Unsigned, 8),
    row(0x210, "MPI_FLOAT", 4, 4, 4, Float, 4),
    row(0x212, "MPI_C_COMPLEX", 8, 8, 4, Complex, 8),
    row(0x213, "MPI_CXX_FLOAT_COMPLEX", 8, 8, 4, Complex, 8),
    row(0x214, "MPI_DOUBLE", 8, 8, 8, Float, 8),
    row(0x216, "MPI_C_DOUBLE_COMPLEX", 16, 16, 8, Complex, 16),
    row(0x217, "MPI_CXX_DOUBLE_COMPLEX", 16, 16, 8, Complex, 16),
    row(0x218, "MPI_LOGICAL", 4, 4, 4, Logical, 4),
    row(0x219, "MPI_INTEGER", 4, 4, 4, FortranInteger, 4),
    row(0x21a, "MPI_REAL", 4, 4, 4, Float, 4),
    row(0x21b, "MPI_COMPLEX", 8, 8, 4, Complex, 8),
    row(0x21c, "MPI_DOUBLE_PRECISION", 8, 8, 8, Float, 8),
    row(0x21d, "MPI_DOUBLE_COMPLEX", 16, 16, 8, Complex, 16),
    row(0x21e, "MPI_CHARACTER", 1, 1, 1, Opaque, 1),
    row(0x220, "MPI_LONG_DOUBLE", 16, 16, 16, Float, 16),
    row(0x224, "MPI_C_LONG_DOUBLE_COMPLEX", 32, 32, 16, Complex, 32),
    row(0x225, "MPI_CXX_LONG_DOUBLE_COMPLEX", 32, 32, 16, Complex, 32),
    row(0x228, "MPI_FLOAT_INT", 8, 8, 4, Pair, 0),
    row(0x229, "MPI_DOUBLE_INT", 12, 16, 8, Pair, 0),
    row(0x22a, "MPI_LONG_INT", 12, 16, 8, Pair, 0),
    row(0x22b, "MPI_2INT", 8, 8, 4, Pair, 0),
    row(0x22c, "MPI_SHORT_INT", 6, 8, 4, Pair, 0),
    row(0x22d, "MPI_LONG_DOUBLE_INT", 20, 32, 16, Pair, 0),
    row(0x230, "MPI_2REAL", 8, 8, 4, Pair, 0),
    row(0x231, "MPI_2DOUBLE_PRECISION", 16, 16, 8, Pair, 0),
    row(0x232, "MPI_2INTEGER", 8, 8, 4, Pair, 0),
    row(0x238, "MPI_C_BOOL", 1, 1, 1, Logical, 1),
    row(0x239, "MPI_CXX_BOOL", 1, 1, 1, Logical, 1),
    row(0x23c, "MPI_WCHAR", 4, 4, 4, Opaque, 2),
    row(0x240, "MPI_INT8_T", 1, 1, 1, Signed, 1),
    row(0x241, "MPI_UINT8_T", 1, 1, 1, Unsigned, 1),
    row(0x243, "MPI_CHAR", 1, 1, 1, Char, 1),
    row(0x244, "MPI_SIGNED_CHAR", 1, 1, 1, Signed, 1),
    row(0x245, "MPI_UNSIGNED_CHAR", 1, 1, 1, Unsigned, 1),
    row(0x247, "MPI_BYTE", 1, 1, 1, Byte, 1),
    row(0x248, "MPI_INT16_T", 2, 2, 2, Signed, 2),
    row(0x249, "MPI_UINT16_T", 2, 2, 2, Unsigned, 2),
    row(0x250, "MPI_INT32_T", 4, 4, 4, Signed, 4),
    row(0x251, "MPI_UINT32_T", 4, 4, 4, Unsigned, 4),
    row(0x258, "MPI_INT64_T", 8, 8, 8, Signed, 8),
    row(0x259, "MPI_UINT64_T", 8, 8, 8, Unsigned, 8),
    row(0x2c0, "MPI_LOGICAL1", 1, 1, 1, Logical, 1),
    row(0x2c1, "MPI_INTEGER1", 1, 1, 1, FortranInteger, 1),
    row(0x2c8, "MPI_LOGICAL2", 2, 2, 2, Logical, 2),
    row(0x2c9, "MPI_INTEGER2", 2, 2, 2, FortranInteger, 2),
    row(0x2ca, "MPI_REAL2", 2, 2, 2, Float, 2),
    row(0x2d0, "MPI_LOGICAL4", 4, 4, 4, Logical, 4),
    row(0x2d1, "MPI_INTEGER4", 4, 4, 4, FortranInteger, 4),
    row(0x2d2, "MPI_REAL4", 4, 4, 4, Float, 4),
    row(0x2d3, "MPI_COMPLEX4", 4, 4, 2, Complex, 4),
    row(0x2d8, "MPI_LOGICAL8", 8, 8, 8, Logical, 8),
    row(0x2d9, "MPI_INTEGER8", 8, 8, 8, FortranInteger, 8),
    row(0x2da, "MPI_REAL8", 8, 8, 8, Float, 8),
    row(0x2db, "MPI_COMPLEX8", 8, 8, 4, Complex, 8),
    row(0x2e0, "MPI_LOGICAL16", 16, 16, 16, Logical, 16),
    row(0x2e1, "MPI_INTEGER16", 16, 16, 16, FortranInteger, 16),
    row(0x2e2, "MPI_REAL16", 16, 16, 16, Float, 16),
    row(0x2e3, "MPI_COMPLEX16", 16, 16, 8, Complex, 16),
    row(0x2eb, "MPI_COMPLEX32", 32, 32, 16, Complex, 32),
];
