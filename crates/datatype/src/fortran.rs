//! What a Fortran compiler's options decide: the sizes of the default kinds and the values of LOGICAL
//! (MPI 5.0, 20.4: MPI_Abi_set_fortran_info and MPI_Abi_set_fortran_booleans).

use std::sync::OnceLock;

use crate::basic::{self, Basic, Class};
use crate::{Datatype, Error};

/// Sizes in bytes of the default kinds of Fortran's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the type of the same name")]
pub struct Sizes {
    pub logical: u8,
    pub integer: u8,
    pub real: u8,
    pub double_precision: u8,
}

/// The sizes until [`set_sizes`] sets others.
pub const USUAL: Sizes = Sizes { logical: 4, integer: 4, real: 4, double_precision: 8 };

static KINDS: OnceLock<Vec<Basic>> = OnceLock::new();
static TRUTH: OnceLock<Truth> = OnceLock::new();

/// Gives MPI_INTEGER, MPI_REAL and the like the sizes of this program's compiler, once, before any of them is used.
///
/// # Errors
/// [`Error::Arg`] if there is no type of such a size, one of these types was used before, or the sizes were set before.
pub fn set_sizes(sizes: Sizes) -> Result<(), Error> {
    let Sizes { logical, integer, real, double_precision } = sizes;
    let known = |size: u8, all: &[u8]| all.contains(&size);
    let integers = [1, 2, 4, 8];
    if !known(logical, &integers) || !known(integer, &integers) {
        return Err(Error::Arg(format!(
            "LOGICAL of {logical} or INTEGER of {integer} bytes is not supported"
        )));
    }
    if !known(real, &[4, 8, 16]) || !known(double_precision, &[4, 8, 16]) {
        let kinds =
            format!("REAL of {real} or DOUBLE PRECISION of {double_precision} bytes is not supported");
        return Err(Error::Arg(kinds));
    }
    let rows = || basic::ALL.iter().filter(|row| is_default_kind(row.code));
    if let Some(used) = rows().find(|row| Datatype::is_in_use(row.code)) {
        return Err(Error::Arg(format!("{} was used before its size was set", used.name)));
    }
    let kinds = rows().map(|row| resized(row, sizes)).collect();
    KINDS.set(kinds).map_err(|_| Error::Arg("the sizes of Fortran's types were set before".into()))
}

/// Gives the values of a LOGICAL of `size` bytes that mean true and false, once; other sizes take the
/// same number. Until then, anything but 0 is true, and 1 is written.
///
/// # Errors
/// [`Error::Arg`] if the two are the same, or were set before.
pub fn set_booleans(size: u8, yes: u128, no: u128) -> Result<(), Error> {
    if yes == no || !matches!(size, 1 | 2 | 4 | 8 | 16) {
        return Err(Error::Arg("the values of LOGICAL do not tell true from false".into()));
    }
    let unused = 128 - 8 * u32::from(size);
    let extend = |value: u128| ((value << unused) as i128 >> unused) as u128;
    let set = TRUTH.set(Truth { yes: extend(yes), no: extend(no) });
    set.map_err(|_| Error::Arg("the values of LOGICAL were set before".into()))
}

/// The numbers that mean true and false, sign-extended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Truth {
    pub(crate) yes: u128,
    pub(crate) no: u128,
}

pub(crate) fn truth() -> Option<Truth> {
    TRUTH.get().copied()
}

/// True for the types whose size depends on the compiler: LOGICAL to DOUBLE COMPLEX, and Fortran's pairs.
#[inline]
pub(crate) fn is_default_kind(code: u16) -> bool {
    matches!(code, 0x218..=0x21d | 0x230..=0x232)
}

/// The basic type with this handle value, if sizes were set.
pub(crate) fn basic(code: u16) -> Option<&'static Basic> {
    KINDS.get()?.iter().find(|row| row.code == code)
}

fn resized(row: &Basic, sizes: Sizes) -> Basic {
    let (part, parts) = match row.code {
        0x218 => (sizes.logical, 1),
        0x219 => (sizes.integer, 1),
        0x21a => (sizes.real, 1),
        0x21b => (sizes.real, 2),
        0x21c => (sizes.double_precision, 1),
        0x21d => (sizes.double_precision, 2),
        0x230 => (sizes.real, 2),
        0x231 => (sizes.double_precision, 2),
        _ => (sizes.integer, 2),
    };
    let size = part * parts;
    let external32 = if row.class == Class::Pair { 0 } else { size };
    Basic { size, extent: size, align: part, external32, ..*row }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_a_type_in_use_do_not_change() {
        let integer = Datatype::builtin(0x219).expect("MPI_INTEGER");
        let refused = set_sizes(Sizes { integer: 8, ..USUAL });
        assert!(
            matches!(&refused, Err(Error::Arg(why)) if why.contains("MPI_INTEGER was used")),
            "{refused:?}"
        );
        assert_eq!(integer.size(), 4);
    }
}
