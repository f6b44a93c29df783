//! Reals of more than 64 bits: the x87's 80 bits (C's long double), and IEEE binary128.

use std::cmp::Ordering;

use rustc_apfloat::Float;
use rustc_apfloat::ieee;

use super::kernels::kernel;
use super::{Builtin, Raw};

/// An x87 real in memory: 64 bits of significand, then sign and exponent.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct X87 {
    significand: u64,
    sign_exponent: u16,
}

/// An x87 real and what fills it up to C's 16 bytes, which is kept as it is.
#[derive(Debug, Clone, Copy)]
#[repr(C, packed)]
struct LongDouble {
    value: X87,
    filler: [u8; 6],
}

/// An IEEE binary128.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Quad(u128);

impl PartialEq for X87 {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for X87 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.key()?.cmp(&other.key()?))
    }
}

impl X87 {
    /// An integer that orders as the value does; `None` for NaN.
    fn key(self) -> Option<i128> {
        let exponent = self.sign_exponent & 0x7fff;
        let (negative, significand) = (self.sign_exponent >> 15 == 1, self.significand);
        if exponent == 0x7fff && significand << 1 != 0 {
            return None;
        }
        let magnitude = i128::from(exponent) << 64 | i128::from(significand);
        Some(if negative { -magnitude } else { magnitude })
    }
}

impl PartialEq for Quad {
    fn eq(&self, other: &Self) -> bool {
        self.partial_cmp(other) == Some(Ordering::Equal)
    }
}

impl PartialOrd for Quad {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.key()?.cmp(&other.key()?))
    }
}

impl Quad {
    fn key(self) -> Option<i128> {
        let magnitude = (self.0 << 1 >> 1) as i128;
        if magnitude > 0x7fff << 112 {
            return None;
        }
        Some(if self.0 >> 127 == 1 { -magnitude } else { magnitude })
    }

    fn soft(self) -> ieee::Quad {
        ieee::Quad::from_bits(self.0)
    }
}

/// The smaller one, or a NaN if there is one.
fn least<T: PartialOrd>(a: T, b: T) -> T {
    if a < b || a.partial_cmp(&a).is_none() { a } else { b }
}

/// The greater one, or a NaN if there is one.
fn greatest<T: PartialOrd>(a: T, b: T) -> T {
    if a > b || a.partial_cmp(&a).is_none() { a } else { b }
}

impl LongDouble {
    fn with(self, value: X87) -> Self {
        Self { value, ..self }
    }
}

pub(super) fn x87_real(op: Builtin) -> Option<Raw> {
    match op {
        Builtin::Min => kernel!(LongDouble, |a, b| b.with(least(a.value, b.value))),
        Builtin::Max => kernel!(LongDouble, |a, b| b.with(greatest(a.value, b.value))),
        _ => x87_real_arithmetic(op),
    }
}

#[cfg(target_arch = "x86_64")]
fn x87_real_arithmetic(op: Builtin) -> Option<Raw> {
    match op {
        Builtin::Sum => Some(x87::sum),
        Builtin::Prod => Some(x87::product),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) fn x87_complex(op: Builtin) -> Option<Raw> {
    match op {
        Builtin::Sum => Some(x87::complex_sum),
        Builtin::Prod => Some(x87::complex_product),
        _ => None,
    }
}

/// The x87's instructions are only on x86.
#[cfg(not(target_arch = "x86_64"))]
fn x87_real_arithmetic(_: Builtin) -> Option<Raw> {
    None
}

/// The x87's instructions are only on x86.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn x87_complex(_: Builtin) -> Option<Raw> {
    None
}

/// Loops in x87 instructions, which compute in 80 bits as a C compiler's long double does. They load and
/// store ten bytes a number, so the filler stays as it is.
#[cfg(target_arch = "x86_64")]
mod x87 {
    use std::arch::asm;

    /// A [`Raw`](super::Raw) loop over elements of `$size` bytes; the instructions see one at `{a}` and
    /// one at `{b}`, which they replace.
    macro_rules! x87_loop {
        ($name:ident, $size:literal, $($instruction:literal),+) => {
            /// # Safety
            /// The promise of [`Raw`](super::Raw).
            pub(super) unsafe fn $name(input: *const u8, inout: *mut u8, count: usize) {
                for i in 0..count {
                    let (a, b) = (input.wrapping_add(i * $size), inout.wrapping_add(i * $size));
                    // SAFETY: touches only the numbers of element `i`, which the caller promised; leaves the
                    // register stack as deep as it was, and declares all of it as changed.
                    unsafe {
                        asm!(
                            $($instruction),+,
                            a = in(reg) a,
                            b = in(reg) b,
                            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                            options(nostack),
                        );
                    }
                }
            }
        };
    }

    x87_loop!(
        sum,
        16,
        "fld tbyte ptr [{a}]",
        "fld tbyte ptr [{b}]",
        "faddp st(1), st",
        "fstp tbyte ptr [{b}]"
    );
    x87_loop!(
        product,
        16,
        "fld tbyte ptr [{a}]",
        "fld tbyte ptr [{b}]",
        "fmulp st(1), st",
        "fstp tbyte ptr [{b}]"
    );
    x87_loop!(
        complex_sum,
        32,
        "fld tbyte ptr [{a}]",
        "fld tbyte ptr [{b}]",
        "faddp st(1), st",
        "fstp tbyte ptr [{b}]",
        "fld tbyte ptr [{a} + 16]",
        "fld tbyte ptr [{b} + 16]",
        "faddp st(1), st",
        "fstp tbyte ptr [{b} + 16]"
    );
    // The real part, then the imaginary part, both still on the stack when they are stored.
    x87_loop!(
        complex_product,
        32,
        "fld tbyte ptr [{a}]",
        "fld tbyte ptr [{b}]",
        "fmulp st(1), st",
        "fld tbyte ptr [{a} + 16]",
        "fld tbyte ptr [{b} + 16]",
        "fmulp st(1), st",
        "fsubp st(1), st",
        "fld tbyte ptr [{a}]",
        "fld tbyte ptr [{b} + 16]",
        "fmulp st(1), st",
        "fld tbyte ptr [{a} + 16]",
        "fld tbyte ptr [{b}]",
        "fmulp st(1), st",
        "faddp st(1), st",
        "fstp tbyte ptr [{b} + 16]",
        "fstp tbyte ptr [{b}]"
    );
}

pub(super) fn quad_real(op: Builtin) -> Option<Raw> {
    match op {
        Builtin::Sum => kernel!(Quad, |a, b| Quad((a.soft() + b.soft()).value.to_bits())),
        Builtin::Prod => kernel!(Quad, |a, b| Quad((a.soft() * b.soft()).value.to_bits())),
        Builtin::Min => kernel!(Quad, |a, b| least(a, b)),
        Builtin::Max => kernel!(Quad, |a, b| greatest(a, b)),
        _ => None,
    }
}

pub(super) fn quad_complex(op: Builtin) -> Option<Raw> {
    match op {
        Builtin::Sum => kernel!([Quad; 2], |a, b| {
            [0, 1].map(|part| Quad((a[part].soft() + b[part].soft()).value.to_bits()))
        }),
        Builtin::Prod => kernel!([Quad; 2], |a, b| {
            let (a, b) = (a.map(Quad::soft), b.map(Quad::soft));
            let re = ((a[0] * b[0]).value - (a[1] * b[1]).value).value;
            let im = ((a[0] * b[1]).value + (a[1] * b[0]).value).value;
            [Quad(re.to_bits()), Quad(im.to_bits())]
        }),
        _ => None,
    }
}
