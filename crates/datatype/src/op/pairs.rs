//! MPI_MINLOC and MPI_MAXLOC on pairs of a value and an index (MPI 5.0, 6.9.4).

use std::cmp::Ordering;

use super::wide::{Quad, X87};
use super::{Builtin, Raw};
use crate::basic::Basic;

pub(super) fn kernel(op: Builtin, pair: &Basic) -> Option<Raw> {
    match op {
        Builtin::Minloc => extreme::<false>(pair),
        Builtin::Maxloc => extreme::<true>(pair),
        _ => None,
    }
}

/// C's structs by handle value, Fortran's by the size of their numbers.
fn extreme<const MAX: bool>(pair: &Basic) -> Option<Raw> {
    Some(match (pair.code, pair.size) {
        (0x228, _) => run::<f32, i32, 4, 8, MAX>,
        (0x229, _) => run::<f64, i32, 8, 16, MAX>,
        (0x22a, _) => run::<i64, i32, 8, 16, MAX>,
        (0x22b, _) => run::<i32, i32, 4, 8, MAX>,
        (0x22c, _) => run::<i16, i32, 4, 8, MAX>,
        (0x22d, _) => run::<X87, i32, 16, 32, MAX>,
        (0x230 | 0x231, 8) => run::<f32, f32, 4, 8, MAX>,
        (0x230 | 0x231, 16) => run::<f64, f64, 8, 16, MAX>,
        (0x230 | 0x231, 32) => run::<Quad, Quad, 16, 32, MAX>,
        (0x232, 2) => run::<i8, i8, 1, 2, MAX>,
        (0x232, 4) => run::<i16, i16, 2, 4, MAX>,
        (0x232, 8) => run::<i32, i32, 4, 8, MAX>,
        (0x232, 16) => run::<i64, i64, 8, 16, MAX>,
        _ => return None,
    })
}

/// A [`Raw`] loop over pairs whose index lies `AT` bytes in; gaps are neither read nor written.
///
/// # Safety
/// The promise of [`Raw`].
unsafe fn run<V, I, const AT: usize, const EXTENT: usize, const MAX: bool>(
    input: *const u8,
    inout: *mut u8,
    count: usize,
) where
    V: Copy + PartialOrd,
    I: Copy + PartialOrd,
{
    for i in 0..count {
        let (from, to) = (input.wrapping_add(i * EXTENT), inout.wrapping_add(i * EXTENT));
        // SAFETY: `i` is below `count`, so value and index lie inside what the caller promised.
        unsafe {
            let a = (from.cast::<V>().read_unaligned(), from.add(AT).cast::<I>().read_unaligned());
            let b = (to.cast::<V>().read_unaligned(), to.add(AT).cast::<I>().read_unaligned());
            if wins::<V, I, MAX>(a, b) {
                to.cast::<V>().write_unaligned(a.0);
                to.add(AT).cast::<I>().write_unaligned(a.1);
            }
        }
    }
}

/// True if `a` is to replace `b`: the better value, NaN before all others, the lower index on a tie.
fn wins<V: Copy + PartialOrd, I: PartialOrd, const MAX: bool>(a: (V, I), b: (V, I)) -> bool {
    let is_nan = |value: V| value.partial_cmp(&value).is_none();
    match a.0.partial_cmp(&b.0) {
        Some(Ordering::Less) => !MAX,
        Some(Ordering::Greater) => MAX,
        Some(Ordering::Equal) => a.1 < b.1,
        None if is_nan(a.0) && is_nan(b.0) => a.1 < b.1,
        None => is_nan(a.0),
    }
}
