//! Element loops on integers, reals, complex numbers and truth values. They are plain loops over
//! unaligned elements, which the compiler turns into vector instructions.

use half::f16;

use super::{Builtin, Raw};
use crate::fortran::{Truth, truth};

/// A [`Raw`] loop: `kernel!(type, |input, inout| result)`.
macro_rules! kernel {
    ($t:ty, |$a:ident, $b:ident| $result:expr) => {{
        // SAFETY: callers keep the promise of `Raw`.
        unsafe fn run(input: *const u8, inout: *mut u8, count: usize) {
            let (input, inout) = (input.cast::<$t>(), inout.cast::<$t>());
            for i in 0..count {
                // SAFETY: `i` is below `count`, and the callers promise that many elements.
                let ($a, $b) = unsafe { (input.add(i).read_unaligned(), inout.add(i).read_unaligned()) };
                let result: $t = $result;
                // SAFETY: as above.
                unsafe { inout.add(i).write_unaligned(result) };
            }
        }
        Some(run as Raw)
    }};
}
pub(super) use kernel;

macro_rules! integer {
    ($op:ident, $t:ty) => {
        match $op {
            Builtin::Sum => kernel!($t, |a, b| a.wrapping_add(b)),
            Builtin::Prod => kernel!($t, |a, b| a.wrapping_mul(b)),
            Builtin::Min => kernel!($t, |a, b| a.min(b)),
            Builtin::Max => kernel!($t, |a, b| a.max(b)),
            Builtin::Band => kernel!($t, |a, b| a & b),
            Builtin::Bor => kernel!($t, |a, b| a | b),
            Builtin::Bxor => kernel!($t, |a, b| a ^ b),
            _ => logical!($op, $t),
        }
    };
}

macro_rules! logical {
    ($op:ident, $t:ty) => {
        match $op {
            Builtin::Land => kernel!($t, |a, b| <$t>::from((a != 0) & (b != 0))),
            Builtin::Lor => kernel!($t, |a, b| <$t>::from((a != 0) | (b != 0))),
            Builtin::Lxor => kernel!($t, |a, b| <$t>::from((a != 0) ^ (b != 0))),
            _ => None,
        }
    };
}

/// Kernels of LOGICAL with the values of true and false that the program gave.
macro_rules! fortran_logical {
    ($op:ident, $t:ty) => {
        match $op {
            Builtin::Land => kernel!($t, |a, b| written(is_true(a.into()) & is_true(b.into())) as $t),
            Builtin::Lor => kernel!($t, |a, b| written(is_true(a.into()) | is_true(b.into())) as $t),
            Builtin::Lxor => kernel!($t, |a, b| written(is_true(a.into()) ^ is_true(b.into())) as $t),
            _ => None,
        }
    };
}

macro_rules! real {
    ($op:ident, $t:ty) => {
        match $op {
            Builtin::Sum => kernel!($t, |a, b| a + b),
            Builtin::Prod => kernel!($t, |a, b| a * b),
            // A NaN on either side is kept: `a` by the second test, `b` because it is not greater.
            Builtin::Min => kernel!($t, |a, b| if a < b || a.is_nan() { a } else { b }),
            Builtin::Max => kernel!($t, |a, b| if a > b || a.is_nan() { a } else { b }),
            _ => None,
        }
    };
}

macro_rules! complex {
    ($op:ident, $t:ty) => {
        match $op {
            Builtin::Sum => kernel!([$t; 2], |a, b| [a[0] + b[0], a[1] + b[1]]),
            Builtin::Prod => {
                kernel!([$t; 2], |a, b| [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]])
            }
            _ => None,
        }
    };
}

/// C's plain char.
pub(super) fn char(op: Builtin) -> Option<Raw> {
    integer!(op, std::ffi::c_char)
}

pub(super) fn signed(op: Builtin, size: u8) -> Option<Raw> {
    match size {
        1 => integer!(op, i8),
        2 => integer!(op, i16),
        4 => integer!(op, i32),
        8 => integer!(op, i64),
        16 => integer!(op, i128),
        _ => None,
    }
}

pub(super) fn unsigned(op: Builtin, size: u8) -> Option<Raw> {
    match size {
        1 => integer!(op, u8),
        2 => integer!(op, u16),
        4 => integer!(op, u32),
        8 => integer!(op, u64),
        _ => None,
    }
}

/// Truth values of C and Fortran: anything but zero is true, and true is written as 1.
pub(super) fn logical(op: Builtin, size: u8) -> Option<Raw> {
    match size {
        1 => logical!(op, u8),
        2 => logical!(op, u16),
        4 => logical!(op, u32),
        8 => logical!(op, u64),
        16 => logical!(op, u128),
        _ => None,
    }
}

/// LOGICAL, once its values are known: what is not false is true.
pub(super) fn fortran_logical(op: Builtin, size: u8) -> Option<Raw> {
    match size {
        1 => fortran_logical!(op, i8),
        2 => fortran_logical!(op, i16),
        4 => fortran_logical!(op, i32),
        8 => fortran_logical!(op, i64),
        16 => fortran_logical!(op, i128),
        _ => None,
    }
}

/// Values are compared and written as sign-extended numbers.
fn is_true(value: i128) -> bool {
    truth().map_or(value != 0, |truth| value as u128 != truth.no)
}

fn written(value: bool) -> i128 {
    let usual = Truth { yes: 1, no: 0 };
    let truth = truth().unwrap_or(usual);
    (if value { truth.yes } else { truth.no }) as i128
}

pub(super) fn real(op: Builtin, size: u8) -> Option<Raw> {
    match size {
        2 => half(op),
        4 => real!(op, f32),
        8 => real!(op, f64),
        _ => None,
    }
}

pub(super) fn complex(op: Builtin, size: u8) -> Option<Raw> {
    match size {
        4 => half_complex(op),
        8 => complex!(op, f32),
        16 => complex!(op, f64),
        _ => None,
    }
}

/// 16-bit reals compute in 32 bits; sums and products are then rounded as if computed exactly.
fn half(op: Builtin) -> Option<Raw> {
    match op {
        Builtin::Sum => kernel!(f16, |a, b| f16::from_f32(a.to_f32() + b.to_f32())),
        Builtin::Prod => kernel!(f16, |a, b| f16::from_f32(a.to_f32() * b.to_f32())),
        Builtin::Min => kernel!(f16, |a, b| if a < b || a.is_nan() { a } else { b }),
        Builtin::Max => kernel!(f16, |a, b| if a > b || a.is_nan() { a } else { b }),
        _ => None,
    }
}

fn half_complex(op: Builtin) -> Option<Raw> {
    fn wide(z: [f16; 2]) -> [f32; 2] {
        z.map(f16::to_f32)
    }
    match op {
        Builtin::Sum => kernel!([f16; 2], |a, b| {
            let (a, b) = (wide(a), wide(b));
            [a[0] + b[0], a[1] + b[1]].map(f16::from_f32)
        }),
        Builtin::Prod => kernel!([f16; 2], |a, b| {
            let (a, b) = (wide(a), wide(b));
            [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]].map(f16::from_f32)
        }),
        _ => None,
    }
}
