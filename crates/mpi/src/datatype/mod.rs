//! Datatypes, which say what lies in memory, and buffers: memory with its datatype.
//!
//! A Rust type that implements [`Equivalence`] has a datatype; slices, arrays and vectors of it are buffers. Other layouts are
//! described by a [`UserDatatype`], and laid over a buffer by a [`View`].
//!
//! ```
//! use mpi::datatype::{UserDatatype, View};
//! use mpi::traits::*;
//!
//! let universe = mpi::initialize().unwrap();
//! let every_second = UserDatatype::vector(2, 1, 2, &i32::equivalent_datatype());
//! let numbers = [1, 2, 3, 4];
//! // SAFETY: the type reaches over three numbers, of which there are four.
//! let odd = unsafe { View::with_count_and_datatype(&numbers, 1, &every_second) };
//! assert_eq!(universe.world().pack(&odd), [[1, 0, 0, 0], [3, 0, 0, 0]].concat());
//! ```

mod buffer;
mod dynamic;
#[doc(hidden)]
pub mod internal;
mod memory;
mod partition;
mod reference;
mod user;
mod view;

pub(crate) use buffer::counted;
pub use buffer::{AsDatatype, Buffer, BufferMut, Collection, FixedBuffer, Pointer, PointerMut};
pub use dynamic::{DynBuffer, DynBufferMut};
pub(crate) use memory::{Memory, read, uninitialized, written};
pub use partition::{Partition, PartitionMut, Partitioned, PartitionedBuffer, PartitionedBufferMut};
pub use reference::{DatatypeRef, SystemDatatype, UncommittedDatatypeRef};
pub use user::{UncommittedUserDatatype, UserDatatype};
pub use view::{MutView, View};

use std::sync::Arc;

use banyan_datatype as dt;

use crate::Address;

/// The traits of datatypes and buffers.
pub mod traits {
    pub use super::{
        AsDatatype, Buffer, BufferMut, Collection, Datatype, Equivalence, Partitioned, PartitionedBuffer,
        PartitionedBufferMut, Pointer, PointerMut, UncommittedDatatype,
    };
}

/// What has a datatype of the runtime.
#[doc(hidden)]
pub trait AsObject {
    #[doc(hidden)]
    fn object(&self) -> &Arc<dt::Datatype>;
}

impl<T: AsObject> AsObject for &T {
    fn object(&self) -> &Arc<dt::Datatype> {
        (**self).object()
    }
}

/// A datatype that need not be committed.
///
/// ```
/// use mpi::datatype::{UncommittedUserDatatype, UserDatatype};
/// use mpi::traits::*;
///
/// fn pairs(of: &impl UncommittedDatatype) -> UserDatatype {
///     UserDatatype::contiguous(2, of)
/// }
///
/// let triple = UncommittedUserDatatype::contiguous(3, &u8::equivalent_datatype());
/// let same: UncommittedUserDatatype = triple.dup();
/// let six = pairs(&same);
/// # assert_eq!(mpi::initialize().unwrap().world().pack_size(1, &six), 6);
/// ```
pub trait UncommittedDatatype: AsObject {
    /// The type of duplicates.
    type DuplicatedDatatype: From<Arc<dt::Datatype>>;

    /// A datatype with the same layout.
    fn dup(&self) -> Self::DuplicatedDatatype {
        self.object().dup().into()
    }
}

impl<D: UncommittedDatatype> UncommittedDatatype for &D {
    type DuplicatedDatatype = D::DuplicatedDatatype;
}

/// A datatype that may be used in communication.
///
/// ```
/// use mpi::traits::*;
///
/// fn bytes_of_ten(comm: &impl Communicator, datatype: &impl Datatype) -> mpi::Count {
///     comm.pack_size(10, datatype)
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// assert_eq!(bytes_of_ten(&world, &u16::equivalent_datatype()), 20);
/// ```
pub trait Datatype: UncommittedDatatype {}

impl<D: Datatype> Datatype for &D {}

/// A type with a datatype. It is derived for structs of such types, arrays and tuples; or written:
///
/// ```
/// use mpi::datatype::UserDatatype;
/// use mpi::traits::*;
///
/// #[repr(C)]
/// struct Particle {
///     position: [f64; 3],
///     charge: i32,
/// }
///
/// // SAFETY: the datatype has the fields of the type, at their places, and no padding.
/// unsafe impl Equivalence for Particle {
///     type Out = UserDatatype;
///     fn equivalent_datatype() -> Self::Out {
///         UserDatatype::structured(
///             &[3, 1],
///             &[
///                 std::mem::offset_of!(Particle, position) as mpi::Address,
///                 std::mem::offset_of!(Particle, charge) as mpi::Address,
///             ],
///             &[f64::equivalent_datatype(), i32::equivalent_datatype()],
///         )
///     }
/// }
/// # let particle = Particle { position: [1.0; 3], charge: 2 };
/// # let universe = mpi::initialize().unwrap();
/// # assert_eq!(universe.world().pack(&particle).len(), 28);
/// # let _ = (particle.position, particle.charge);
/// ```
///
/// # Safety
/// The datatype describes bytes of the type that are always initialized, within its size, and its extent is the type's size. All
/// values that these bytes can get from a message of this datatype are values of the type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no datatype",
    note = "derive Equivalence for structs; what serde knows is sent by send_value"
)]
pub unsafe trait Equivalence {
    /// The type of its datatype.
    type Out: Datatype;
    /// Its datatype.
    fn equivalent_datatype() -> Self::Out;
}

macro_rules! equivalent {
    ($($($rust:ty)+ = $code:literal;)+) => {$($(
        // SAFETY: the handle's value in the MPI ABI names the datatype with this representation.
        unsafe impl Equivalence for $rust {
            type Out = SystemDatatype;

            #[inline]
            fn equivalent_datatype() -> Self::Out {
                SystemDatatype::builtin($code)
            }
        }
    )+)+};
}

equivalent! {
    f32 = 0x210;
    f64 = 0x214;
    bool = 0x238;
    i8 = 0x240;
    u8 = 0x241;
    i16 = 0x248;
    u16 = 0x249;
    i32 = 0x250;
    u32 = 0x251;
    i64 isize = 0x258;
    u64 usize = 0x259;
}

#[cfg(feature = "complex")]
equivalent! {
    num_complex::Complex32 = 0x212;
    num_complex::Complex64 = 0x216;
}

/// The address of a value, for the displacements of a datatype's blocks.
///
/// ```
/// use mpi::Address;
/// use mpi::datatype::address_of;
///
/// let pair = [1u16, 2];
/// let distance: Address = address_of(&pair[1]) - address_of(&pair[0]);
/// assert_eq!(distance, 2);
/// ```
pub fn address_of<T>(x: &T) -> Address {
    std::ptr::from_ref(x).addr().cast_signed()
}
