//! References to datatypes.

use std::sync::Arc;

use banyan_datatype as dt;

use super::{AsObject, Datatype, UncommittedDatatype, UncommittedUserDatatype, UserDatatype};

/// A reference to a datatype that may be used in communication.
#[derive(Copy, Clone, Debug)]
pub struct DatatypeRef<'a>(pub(crate) &'a Arc<dt::Datatype>);

/// A datatype that the library has, such as that of `f64`.
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
