//! Which kernel reduces elements of a type.

use banyan_memory::{Arg, Buffer, Copying, DeviceFailure};

use super::{NUMBERS, RARE, Run, TRUTH};
use crate::Datatype;
use crate::basic::{Basic, Class};
use crate::fortran::truth;
use crate::op::{Builtin, is_fortran, is_x87};

/// An operation on a type, as a device carries it out: `out[i] = a[i] op b[i]`, for the addresses of `a`, `b` and `out`, where `out`
/// may be one of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduction {
    text: usize,
    kernel: String,
    /// Bytes from one element of the type to the next.
    extent: u64,
    /// Bytes from the beginning of an element to the end of its data.
    data: u64,
    /// Elements of the kernel in each.
    elements: u64,
}

impl Reduction {
    /// The kernel for `op` on `ty`; `None` where the operation is not defined on the type, or needs none (MPI_REPLACE, MPI_NO_OP).
    pub fn find(op: Builtin, ty: &Datatype) -> Option<Reduction> {
        let basic = ty.basic()?;
        if op.is_accumulate_only() || !crate::op::defined_on(op, ty) {
            return None;
        }
        let (number, elements) = number(op, basic)?;
        let prefix = if is_given_truth(basic) { "fortran_" } else { "" };
        let text = match op {
            _ if ["128", "x87", "quad"].iter().any(|rare| number.contains(rare)) => RARE,
            Builtin::Minloc | Builtin::Maxloc => RARE,
            Builtin::Land | Builtin::Lor | Builtin::Lxor => TRUTH,
            _ => NUMBERS,
        };
        let name = op.name().trim_start_matches("MPI_").to_lowercase();
        let kernel = format!("{prefix}{name}_{number}");
        let (extent, data) = (basic.extent.into(), ty.true_extent() as u64);
        Some(Reduction { text, kernel, extent, data, elements })
    }

    /// Bytes from the first one of so many elements to the end of the last one.
    pub fn reach(&self, count: u64) -> usize {
        (count * self.extent - if count > 0 { self.extent - self.data } else { 0 }) as usize
    }

    /// Starts `out[i] = a[i] op b[i]` for `count` elements from offset 0 of each, in memory of devices. `out` may be one of the others; else
    /// it does not overlap them.
    ///
    /// # Errors
    /// Why no device does it.
    ///
    /// # Panics
    /// If elements are outside their buffer.
    pub fn start(&self, [a, b, out]: [&Buffer; 3], count: u64) -> Result<Copying, DeviceFailure> {
        let reach = self.reach(count);
        // SAFETY: a kernel touches the elements alone.
        unsafe { self.run(count).start([a, b, out].map(|memory| Arg::Memory(memory, 0, reach))) }
    }

    /// The run on `count` elements.
    pub fn run(&self, count: u64) -> Run {
        let (yes, no) = truth().map_or((1, 0), |truth| (truth.yes, truth.no));
        let halves = |value: u128| [value as u64, (value >> 64) as u64];
        let values = [count * self.elements].into_iter().chain(halves(yes)).chain(halves(no));
        Run::new(self.text, &self.kernel, (count * self.extent).div_ceil(16), values)
    }
}

/// A LOGICAL with values that the program gave.
fn is_given_truth(basic: &Basic) -> bool {
    basic.class == Class::Logical && is_fortran(basic) && truth().is_some()
}

/// What the kernels call the elements, and how many of those are in one of the type.
fn number(op: Builtin, basic: &Basic) -> Option<(String, u64)> {
    let bits = u64::from(basic.size) * 8;
    let integer = |signed: bool| format!("{}{bits}", if signed { "i" } else { "u" });
    let is_signed = match basic.class {
        Class::Char => std::ffi::c_char::MIN != 0,
        Class::Unsigned | Class::Byte => false,
        Class::Logical => is_given_truth(basic),
        _ => true,
    };
    let name = match basic.class {
        Class::Float => real(basic.size, is_x87(basic))?.to_owned(),
        Class::Complex => format!("complex_{}", real(basic.size / 2, is_x87(basic))?),
        Class::Pair => pair(basic)?.to_owned(),
        Class::Opaque => return None,
        _ if matches!(op, Builtin::Band | Builtin::Bor | Builtin::Bxor) => {
            return Some(("u8".to_owned(), basic.size.into()));
        }
        Class::Logical => integer(is_signed),
        _ => integer(is_signed && matches!(op, Builtin::Min | Builtin::Max)),
    };
    Some((name, 1))
}

fn real(size: u8, x87: bool) -> Option<&'static str> {
    Some(match size {
        2 => "f16",
        4 => "f32",
        8 => "f64",
        16 if x87 => "x87",
        16 => "quad",
        _ => return None,
    })
}

/// C's structs by handle value, Fortran's by the size of their numbers.
fn pair(basic: &Basic) -> Option<&'static str> {
    Some(match (basic.code, basic.size) {
        (0x228, _) => "f32_i32",
        (0x229, _) => "f64_i32",
        (0x22a, _) => "i64_i32",
        (0x22b, _) => "i32_i32",
        (0x22c, _) => "i16_i32",
        (0x22d, _) => "x87_i32",
        (0x230 | 0x231, 8) => "f32_f32",
        (0x230 | 0x231, 16) => "f64_f64",
        (0x230 | 0x231, 32) => "quad_quad",
        (0x232, 2) => "i8_i8",
        (0x232, 4) => "i16_i16",
        (0x232, 8) => "i32_i32",
        (0x232, 16) => "i64_i64",
        _ => return None,
    })
}
