//! References to datatypes.

use std::sync::Arc;

use banyan_datatype as dt;

use super::{AsObject, Datatype, UncommittedDatatype, UncommittedUserDatatype, UserDatatype};

/// A reference to a datatype that may be used in communication.
///
/// ```
/// use mpi::datatype::{DatatypeRef, UserDatatype};
/// use mpi::traits::*;
///
/// fn elements(status: mpi::point_to_point::Status, of: DatatypeRef<'_>) -> mpi::Count {
///     status.count(of)
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// world.this_process().send(&[1u8; 6][..]);
/// let status = world.any_process().probe();
/// let pairs = UserDatatype::contiguous(2, &u8::equivalent_datatype());
/// assert_eq!((elements(status, pairs.as_ref()), elements(status, u8::equivalent_datatype())), (3, 6));
/// # world.any_process().receive_vec::<u8>();
/// ```
#[derive(Copy, Clone, Debug)]
pub struct DatatypeRef<'a>(pub(crate) &'a Arc<dt::Datatype>);

/// A datatype that the library has, such as that of `f64`.
///
/// ```
/// use mpi::datatype::SystemDatatype;
/// use mpi::traits::*;
///
/// let _: SystemDatatype = f64::equivalent_datatype();
/// ```
pub type SystemDatatype = DatatypeRef<'static>;

impl SystemDatatype {
    /// The datatype of a handle's value in the MPI ABI.
    #[inline]
    pub(super) fn builtin(code: u16) -> SystemDatatype {
        DatatypeRef(dt::Datatype::builtin(code).expect("the codes of this crate are those of datatypes"))
    }
}

impl AsObject for DatatypeRef<'_> {
    fn object(&self) -> &Arc<dt::Datatype> {
        self.0
    }
}

impl UncommittedDatatype for DatatypeRef<'_> {
    type DuplicatedDatatype = UserDatatype;
}

impl Datatype for DatatypeRef<'_> {}

/// A reference to a datatype that need not be committed.
///
/// ```
/// use mpi::datatype::{UncommittedDatatypeRef, UncommittedUserDatatype, UserDatatype};
/// use mpi::traits::*;
///
/// // The parts of a structure are of one type: references.
/// let pair = UncommittedUserDatatype::contiguous(2, &u8::equivalent_datatype());
/// let parts: [UncommittedDatatypeRef<'_>; 2] = [pair.as_ref(), f64::equivalent_datatype().into()];
/// let record = UserDatatype::structured(&[1, 1], &[0, 8], &parts);
/// # let _ = record;
/// ```
#[derive(Copy, Clone, Debug)]
pub struct UncommittedDatatypeRef<'a>(pub(super) &'a Arc<dt::Datatype>);

impl AsObject for UncommittedDatatypeRef<'_> {
    fn object(&self) -> &Arc<dt::Datatype> {
        self.0
    }
}

impl UncommittedDatatype for UncommittedDatatypeRef<'_> {
    type DuplicatedDatatype = UncommittedUserDatatype;
}

impl<'a> From<DatatypeRef<'a>> for UncommittedDatatypeRef<'a> {
    fn from(datatype: DatatypeRef<'a>) -> Self {
        UncommittedDatatypeRef(datatype.0)
    }
}

impl<'a> From<&'a UserDatatype> for DatatypeRef<'a> {
    fn from(datatype: &'a UserDatatype) -> Self {
        datatype.as_ref()
    }
}

impl<'a> From<&'a UserDatatype> for UncommittedDatatypeRef<'a> {
    fn from(datatype: &'a UserDatatype) -> Self {
        datatype.as_ref().into()
    }
}

impl<'a> From<&'a UncommittedUserDatatype> for UncommittedDatatypeRef<'a> {
    fn from(datatype: &'a UncommittedUserDatatype) -> Self {
        datatype.as_ref()
    }
}
