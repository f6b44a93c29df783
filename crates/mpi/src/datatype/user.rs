//! Datatypes that programs make.

use std::sync::Arc;

use banyan_datatype as dt;

use super::{AsObject, Datatype, DatatypeRef, UncommittedDatatype, UncommittedDatatypeRef};
use crate::error::expect;
use crate::{Address, Count};

/// A datatype that a program has made, committed.
#[derive(Clone, Debug)]
pub struct UserDatatype(Arc<dt::Datatype>);

/// A datatype that a program has made and not committed: a part of others.
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
