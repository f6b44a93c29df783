//! The predefined reduction operations (MPI 5.0, 6.9.2 to 6.9.4), on every type they are defined for.

mod kernels;
mod pairs;
mod staged;
mod sums;
mod wide;

use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use banyan_memory::Buffer;

use crate::basic::{Basic, Class};
use crate::fortran::{is_default_kind, truth};
use crate::{Data, Datatype, Error};

pub use staged::on_host;

/// A predefined operation; the values are those of the MPI ABI's handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[expect(missing_docs, reason = "each is the operation of the same name")]
pub enum Builtin {
    Sum = 0x21,
    Min = 0x22,
    Max = 0x23,
    Prod = 0x24,
    Band = 0x28,
    Bor = 0x29,
    Bxor = 0x2a,
    Land = 0x30,
    Lor = 0x31,
    Lxor = 0x32,
    Minloc = 0x38,
    Maxloc = 0x39,
    Replace = 0x3c,
    NoOp = 0x3d,
}

/// All predefined operations and their names.
pub const ALL: &[(Builtin, &str)] = &[
    (Builtin::Sum, "MPI_SUM"),
    (Builtin::Min, "MPI_MIN"),
    (Builtin::Max, "MPI_MAX"),
    (Builtin::Prod, "MPI_PROD"),
    (Builtin::Band, "MPI_BAND"),
    (Builtin::Bor, "MPI_BOR"),
    (Builtin::Bxor, "MPI_BXOR"),
    (Builtin::Land, "MPI_LAND"),
    (Builtin::Lor, "MPI_LOR"),
    (Builtin::Lxor, "MPI_LXOR"),
    (Builtin::Minloc, "MPI_MINLOC"),
    (Builtin::Maxloc, "MPI_MAXLOC"),
    (Builtin::Replace, "MPI_REPLACE"),
    (Builtin::NoOp, "MPI_NO_OP"),
];

impl Builtin {
    /// The operation with this handle value.
    #[inline]
    pub fn from_code(code: u16) -> Option<Self> {
        const FIRST: u16 = Builtin::Sum as u16;
        const BY_CODE: [Option<Builtin>; (Builtin::NoOp as u16 - FIRST + 1) as usize] = {
            let mut all = [None; (Builtin::NoOp as u16 - FIRST + 1) as usize];
            let mut row = 0;
            while row < ALL.len() {
                all[(ALL[row].0 as u16 - FIRST) as usize] = Some(ALL[row].0);
                row += 1;
            }
            all
        };
        *BY_CODE.get(usize::from(code.checked_sub(FIRST)?))?
    }

    /// Its handle value.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The standard's name.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// True for all but MPI_REPLACE and MPI_NO_OP.
    #[inline]
    pub fn is_commutative(self) -> bool {
        !self.is_accumulate_only()
    }

    /// True for the two that only one-sided accumulation may use.
    pub fn is_accumulate_only(self) -> bool {
        matches!(self, Builtin::Replace | Builtin::NoOp)
    }
}

/// True if `op` is defined on `ty`: a predefined type of a class that the operation takes, or another
/// name for one. MPI_CHAR counts as an integer, and addresses and counts as truth values, as programs
/// written for other MPIs expect.
#[inline]
pub fn defined_on(op: Builtin, ty: &Datatype) -> bool {
    Kernel::find(op, ty).is_ok()
}

/// `inout[i] = input[i] op inout[i]` for `count` elements, the type's extent apart.
///
/// Integers wrap. MPI_MIN, MPI_MAX, MPI_MINLOC and MPI_MAXLOC yield NaN where either value is one. On
/// equal values the two with an index yield the lower index.
///
/// # Errors
/// [`Error::Op`] if the operation is not defined on the type, [`Error::Overflow`] for impossible counts.
///
/// # Panics
/// If the elements are not inside the buffers' bounds.
pub fn reduce(
    op: Builtin,
    ty: &Arc<Datatype>,
    input: &Buffer,
    inout: &Buffer,
    count: u64,
) -> Result<(), Error> {
    Reducer::find(op, ty)?.reduce(ty, input, inout, count)
}

/// True if nothing about this predefined type, or what operations do on it, can change any more: a program may set the sizes of
/// Fortran's default kinds and the values of LOGICAL late.
pub fn is_settled(ty: &Datatype) -> bool {
    ty.basic().is_some_and(settled)
}

#[inline]
fn settled(basic: &Basic) -> bool {
    basic.class != Class::Logical && !is_default_kind(basic.code)
}

/// An operation on a type, found once: [`reduce`] for callers that repeat it.
#[derive(Clone, Copy, Debug)]
pub struct Reducer(Kernel);

impl Reducer {
    /// The reducer for `op` on `ty`.
    ///
    /// # Errors
    /// [`Error::Op`] if the operation is not defined on the type.
    #[inline]
    pub fn find(op: Builtin, ty: &Datatype) -> Result<Reducer, Error> {
        Kernel::find(op, ty).map(Reducer)
    }

    /// Reduces like [`reduce`]; `ty` is the type that the reducer was found for.
    #[inline]
    pub fn reduce(
        &self,
        ty: &Arc<Datatype>,
        input: &Buffer,
        inout: &Buffer,
        count: u64,
    ) -> Result<(), Error> {
        let span = ty.span(count)?;
        self.0.apply(ty, span.hi as usize, input, inout, count);
        Ok(())
    }
}

/// How an operation is carried out on a type.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Elements(Raw),
    Copy,
    Nothing,
}

/// `inout[i] = input[i] op inout[i]` on `count` elements at any alignment.
///
/// Safety: the elements of `input` must be readable, those of `inout` readable and writable. The two
/// may be the same memory, or apart.
type Raw = unsafe fn(input: *const u8, inout: *mut u8, count: usize);

/// A cache of kernels by the codes of type and operation, as many reductions are small: each a [`Raw`], or null while it was not
/// asked for.
static FOUND: [[AtomicPtr<()>; OPS]; CODES] = [const { [const { AtomicPtr::new(null_mut()) }; OPS] }; CODES];
/// Number of codes of predefined types, from [`FIRST_CODE`] on.
const CODES: usize = 0x80;
const FIRST_CODE: u16 = 0x200;
/// Number of operations.
const OPS: usize = (Builtin::NoOp as u16 - Builtin::Sum as u16 + 1) as usize;

/// The kernel for a predefined type, if the operation is defined on it.
#[inline]
fn found(op: Builtin, basic: &Basic) -> Option<Raw> {
    let select = || if takes(op, basic.class) { kernel(op, basic) } else { None };
    let row = FOUND.get(usize::from(basic.code.wrapping_sub(FIRST_CODE)));
    match row.filter(|_| settled(basic)) {
        Some(row) => {
            let place = &row[usize::from(op as u16 - Builtin::Sum as u16)];
            let found = place.load(Ordering::Relaxed);
            if !found.is_null() {
                // SAFETY: what is not null was stored below, out of a function pointer of this type. Code needs no ordering.
                return Some(unsafe { transmute::<*mut (), Raw>(found) });
            }
            let kernel = select()?;
            place.store(kernel as *mut (), Ordering::Relaxed);
            Some(kernel)
        }
        None => select(),
    }
}

impl Kernel {
    #[inline]
    fn find(op: Builtin, ty: &Datatype) -> Result<Self, Error> {
        match op {
            Builtin::Replace => return Ok(Kernel::Copy),
            Builtin::NoOp => return Ok(Kernel::Nothing),
            _ => {}
        }
        ty.basic().and_then(|basic| found(op, basic)).map(Kernel::Elements).ok_or_else(|| {
            let name = ty.basic().map_or("a derived datatype", |basic| basic.name);
            Error::Op { op: op.name(), ty: name.into() }
        })
    }

    /// Reduces `count` elements. `reach`: bytes from the first to the end of the last element.
    #[inline]
    fn apply(self, ty: &Arc<Datatype>, reach: usize, input: &Buffer, inout: &Buffer, count: u64) {
        match self {
            Kernel::Nothing => {}
            Kernel::Copy => {
                let from = Data::typed(input.clone(), count, ty);
                Data::typed(inout.clone(), count, ty).copy_from(&from);
            }
            Kernel::Elements(raw) => {
                let (Some(from), Some(to)) = (input.host(0, reach), inout.host(0, reach)) else {
                    return self.apply_staged(ty, reach, input, inout, count);
                };
                // SAFETY: both buffers hold `reach` bytes from offset 0, which is where the elements of a
                // predefined type end.
                unsafe { raw(from, to, count as usize) }
            }
        }
    }
}

impl Kernel {
    /// Reduces elements of which some are in memory of a device, by copies of them.
    #[cold]
    fn apply_staged(self, ty: &Arc<Datatype>, reach: usize, input: &Buffer, inout: &Buffer, count: u64) {
        on_host(ty, input, inout, count, |input, inout| self.apply(ty, reach, input, inout, count));
    }
}

/// The table of MPI 5.0, 6.9.2: which classes of types an operation takes.
fn takes(op: Builtin, class: Class) -> bool {
    use Builtin::*;
    use Class::*;
    let integer = matches!(class, Signed | Unsigned | Multi | Char);
    match op {
        Sum | Prod => integer || matches!(class, FortranInteger | Float | Complex),
        Min | Max => integer || matches!(class, FortranInteger | Float),
        Band | Bor | Bxor => integer || matches!(class, FortranInteger | Byte),
        Land | Lor | Lxor => integer || class == Logical,
        Minloc | Maxloc => class == Pair,
        Replace | NoOp => true,
    }
}

fn kernel(op: Builtin, basic: &Basic) -> Option<Raw> {
    use Class::*;
    match (basic.class, basic.size) {
        (Char, _) => kernels::char(op),
        (Signed | FortranInteger | Multi, size) => kernels::signed(op, size),
        (Unsigned | Byte, size) => kernels::unsigned(op, size),
        (Logical, size) if is_fortran(basic) && truth().is_some() => kernels::fortran_logical(op, size),
        (Logical, size) => kernels::logical(op, size),
        (Float, 16) if is_x87(basic) => wide::x87_real(op),
        (Float, 16) => wide::quad_real(op),
        (Float, size) if op == Builtin::Sum => sums::widest(size).or_else(|| kernels::real(op, size)),
        (Float, size) => kernels::real(op, size),
        (Complex, 32) if is_x87(basic) => wide::x87_complex(op),
        (Complex, 32) => wide::quad_complex(op),
        (Complex, size) => kernels::complex(op, size),
        (Pair, _) => pairs::kernel(op, basic),
        (Opaque, _) => None,
    }
}

/// A LOGICAL, as opposed to the bool of C and C++.
pub(crate) fn is_fortran(basic: &Basic) -> bool {
    !matches!(basic.code, 0x238 | 0x239)
}

/// C's long double and what is made of it: 80 bits in 16 bytes on x86-64.
pub(crate) fn is_x87(basic: &Basic) -> bool {
    matches!(basic.code, 0x220 | 0x224 | 0x225)
}
