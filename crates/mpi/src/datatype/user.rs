//! Datatypes that programs make.

use std::sync::Arc;

use banyan_datatype as dt;

use super::{AsObject, Datatype, DatatypeRef, UncommittedDatatype, UncommittedDatatypeRef};
use crate::error::expect;
use crate::{Address, Count};

/// A datatype that a program has made, committed.
///
/// ```
/// use mpi::datatype::{UserDatatype, View};
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (numbers, byte) = ([0u8, 1, 2, 3, 4, 5, 6, 7], u8::equivalent_datatype());
/// let sent = |ty: UserDatatype| -> Vec<u8> {
///     // SAFETY: none of the types reaches beyond eight bytes.
///     world.pack(&unsafe { View::with_count_and_datatype(&numbers, 1, &ty) })
/// };
/// assert_eq!(sent(UserDatatype::contiguous(3, &byte)), [0, 1, 2]);
/// assert_eq!(sent(UserDatatype::vector(2, 1, 4, &byte)), [0, 4]);
/// assert_eq!(sent(UserDatatype::heterogeneous_vector(2, 2, 5, &byte)), [0, 1, 5, 6]);
/// assert_eq!(sent(UserDatatype::indexed(&[1, 2], &[7, 3], &byte)), [7, 3, 4]);
/// assert_eq!(sent(UserDatatype::heterogeneous_indexed(&[1, 2], &[7, 3], &byte)), [7, 3, 4]);
/// assert_eq!(sent(UserDatatype::indexed_block(2, &[4, 0], &byte)), [4, 5, 0, 1]);
/// assert_eq!(sent(UserDatatype::heterogeneous_indexed_block(2, &[4, 0], &byte)), [4, 5, 0, 1]);
/// assert_eq!(sent(UserDatatype::structured(&[1, 2], &[6, 2], &[byte, byte])), [6, 2, 3]);
/// let pairs = UserDatatype::contiguous(2, &byte);
/// assert_eq!(sent(UserDatatype::contiguous(2, &pairs.as_ref())), [0, 1, 2, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct UserDatatype(Arc<dt::Datatype>);

/// A datatype that a program has made and not committed: a part of others.
///
/// ```
/// use mpi::datatype::{UncommittedUserDatatype, UserDatatype, View};
/// use mpi::traits::*;
///
/// let byte = u8::equivalent_datatype();
/// // Constructors are those of committed datatypes.
/// let parts = [
///     UncommittedUserDatatype::contiguous(2, &byte),
///     UncommittedUserDatatype::vector(2, 1, 2, &byte),
///     UncommittedUserDatatype::heterogeneous_vector(2, 1, 2, &byte),
///     UncommittedUserDatatype::indexed(&[1, 1], &[0, 2], &byte),
///     UncommittedUserDatatype::heterogeneous_indexed(&[1, 1], &[0, 2], &byte),
///     UncommittedUserDatatype::indexed_block(1, &[0, 2], &byte),
///     UncommittedUserDatatype::heterogeneous_indexed_block(1, &[0, 2], &byte),
///     UncommittedUserDatatype::structured(&[1, 1], &[0, 2], &[byte, byte]),
/// ];
/// let whole = UncommittedUserDatatype::structured(&[1; 8], &[0, 3, 6, 9, 12, 15, 18, 21], &parts);
/// let twice: UserDatatype = UncommittedUserDatatype::contiguous(2, &whole.as_ref()).commit();
/// # let universe = mpi::initialize().unwrap();
/// # let world = universe.world();
/// // SAFETY: the type reaches over 48 bytes.
/// let sent = world.pack(&unsafe { View::with_count_and_datatype(&[7u8; 48], 1, &twice) });
/// assert_eq!(sent.len(), 32);
/// ```
#[derive(Clone, Debug)]
pub struct UncommittedUserDatatype(Arc<dt::Datatype>);

impl AsObject for UserDatatype {
    fn object(&self) -> &Arc<dt::Datatype> {
        &self.0
    }
}

impl UncommittedDatatype for UserDatatype {
    type DuplicatedDatatype = UserDatatype;
}

impl Datatype for UserDatatype {}

impl AsObject for UncommittedUserDatatype {
    fn object(&self) -> &Arc<dt::Datatype> {
        &self.0
    }
}

impl UncommittedDatatype for UncommittedUserDatatype {
    type DuplicatedDatatype = UncommittedUserDatatype;
}

impl From<Arc<dt::Datatype>> for UserDatatype {
    fn from(ty: Arc<dt::Datatype>) -> Self {
        ty.commit();
        UserDatatype(ty)
    }
}

impl From<Arc<dt::Datatype>> for UncommittedUserDatatype {
    fn from(ty: Arc<dt::Datatype>) -> Self {
        UncommittedUserDatatype(ty)
    }
}

impl UserDatatype {
    /// A reference to it.
    pub fn as_ref(&self) -> DatatypeRef<'_> {
        DatatypeRef(&self.0)
    }
}

impl UncommittedUserDatatype {
    /// Makes it usable in communication.
    pub fn commit(self) -> UserDatatype {
        self.0.into()
    }

    /// A reference to it.
    pub fn as_ref(&self) -> UncommittedDatatypeRef<'_> {
        UncommittedDatatypeRef(&self.0)
    }
}

fn made<D: From<Arc<dt::Datatype>>>(ty: Result<Arc<dt::Datatype>, dt::Error>) -> D {
    expect(ty.map_err(Into::into)).into()
}

fn wide<N: Copy + TryInto<i64>>(list: &[N]) -> Vec<i64> {
    // No integer that counts or addresses is wider than 64 bits.
    list.iter().map(|&number| number.try_into().unwrap_or(i64::MAX)).collect()
}

macro_rules! constructors {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) = |$old:ident| $make:expr;)*) => {
        constructors! { @on UserDatatype $($(#[$doc])* fn $name($($argument: $type),*) = |$old| $make;)* }
        constructors! { @on UncommittedUserDatatype $($(#[$doc])* fn $name($($argument: $type),*) = |$old| $make;)* }
    };
    (@on $made:ident $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) = |$old:ident| $make:expr;)*) => {
        /// Constructors panic where a number is negative that must not be, where lists differ in length, and where sizes do not fit.
        impl $made {
            $(
                $(#[$doc])*
                pub fn $name<D: UncommittedDatatype>($($argument: $type,)* oldtype: &D) -> $made {
                    let $old = oldtype.object();
                    made($make)
                }
            )*

            /// Blocks of different datatypes, so many elements at so many bytes from the start.
            pub fn structured<D: UncommittedDatatype>(
                blocklengths: &[Count],
                displacements: &[Address],
                types: &[D],
            ) -> $made {
                let types: Vec<_> = types.iter().map(|ty| ty.object().clone()).collect();
                made(dt::Datatype::create_struct(&wide(blocklengths), &wide(displacements), &types))
            }
        }
    };
}

constructors! {
    /// So many elements side by side.
    fn contiguous(count: Count) = |old| dt::Datatype::contiguous(count.into(), old);
    /// So many blocks of so many elements, whose starts are so many elements apart.
    fn vector(count: Count, blocklength: Count, stride: Count) =
        |old| dt::Datatype::vector(count.into(), blocklength.into(), stride.into(), old);
    /// So many blocks of so many elements, whose starts are so many bytes apart.
    fn heterogeneous_vector(count: Count, blocklength: Count, stride: Address) =
        |old| dt::Datatype::hvector(count.into(), blocklength.into(), stride as i64, old);
    /// Blocks of so many elements, so many elements from the start.
    fn indexed(blocklengths: &[Count], displacements: &[Count]) =
        |old| dt::Datatype::indexed(&wide(blocklengths), &wide(displacements), old);
    /// Blocks of so many elements, so many bytes from the start.
    fn heterogeneous_indexed(blocklengths: &[Count], displacements: &[Address]) =
        |old| dt::Datatype::hindexed(&wide(blocklengths), &wide(displacements), old);
    /// Blocks of one length, so many elements from the start.
    fn indexed_block(blocklength: Count, displacements: &[Count]) =
        |old| dt::Datatype::indexed_block(blocklength.into(), &wide(displacements), old);
    /// Blocks of one length, so many bytes from the start.
    fn heterogeneous_indexed_block(blocklength: Count, displacements: &[Address]) =
        |old| dt::Datatype::hindexed_block(blocklength.into(), &wide(displacements), old);
}
