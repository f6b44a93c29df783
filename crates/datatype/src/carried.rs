//! [`TypeArc`]: the reference to a datatype that a call holds.

use std::ops::Deref;
use std::sync::Arc;

use crate::Datatype;

/// A reference to a datatype, counted only for types that can be freed: predefined types never are.
#[derive(Clone, Debug)]
pub enum TypeArc {
    /// A predefined type.
    Predefined(&'static Arc<Datatype>),
    /// Any type.
    Made(Arc<Datatype>),
}

impl Deref for TypeArc {
    type Target = Arc<Datatype>;

    #[inline]
    fn deref(&self) -> &Arc<Datatype> {
        match self {
            TypeArc::Predefined(ty) => ty,
            TypeArc::Made(ty) => ty,
        }
    }
}

impl From<Arc<Datatype>> for TypeArc {
    fn from(ty: Arc<Datatype>) -> TypeArc {
        TypeArc::Made(ty)
    }
}
