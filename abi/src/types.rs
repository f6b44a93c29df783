//! Datatypes behind handles: predefined ones by their number, the user's by a table, with names and attributes.

use crate::ffi::*;
use crate::instance::INSTANCE;
use banyan_datatype::{Datatype, TypeArc};
use banyan_runtime::{Attributes, Class, Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

/// A datatype with the name and attributes that the user attached to it.
pub(crate) struct Type {
    pub(crate) ty: Arc<Datatype>,
    pub(crate) name: Mutex<Option<String>>,
    pub(crate) attributes: Attributes,
}

/// What is kept of datatypes besides their table.
pub(crate) struct Types {
    /// Names and attributes that users attached to predefined types, by handle.
    predefined: LazyLock<Mutex<HashMap<usize, Arc<Type>>>>,
    /// Handles of the types of MPI_Type_create_f90_X: equal arguments give equal handles.
    kinds: LazyLock<Mutex<HashMap<usize, MPI_Datatype>>>,
}

impl Types {
    pub(crate) const fn new() -> Types {
        Types { predefined: LazyLock::new(Mutex::default), kinds: LazyLock::new(Mutex::default) }
    }
}

/// The type of a handle, committed or not.
#[inline(always)]
pub(crate) fn lookup(datatype: MPI_Datatype) -> Result<TypeArc> {
    if datatype.0 < 0x1000 {
        return builtin(datatype).map(TypeArc::Predefined);
    }
    INSTANCE.handles.datatypes.with(datatype.0, |made| TypeArc::Made(made.ty.clone()))
}

/// The type of a handle, if it may be used in communication.
#[inline(always)]
pub(crate) fn committed(datatype: MPI_Datatype) -> Result<TypeArc> {
    let ty = lookup(datatype)?;
    if !ty.is_committed() {
        return Err(not_committed(datatype));
    }
    Ok(ty)
}

#[cold]
fn not_committed(datatype: MPI_Datatype) -> Error {
    let what = format!("the datatype {:#x} is not committed: call MPI_Type_commit first", datatype.0);
    Error::new(Class::ERR_TYPE, what)
}

/// The predefined type of a handle, if it is one.
#[inline(always)]
pub(crate) fn predefined(datatype: MPI_Datatype) -> Option<&'static Arc<Datatype>> {
    u16::try_from(datatype.0).ok().and_then(Datatype::builtin)
}

#[inline(always)]
fn builtin(datatype: MPI_Datatype) -> Result<&'static Arc<Datatype>> {
    match predefined(datatype) {
        Some(ty) => Ok(ty),
        None => Err(not_builtin(datatype)),
    }
}

#[cold]
fn not_builtin(datatype: MPI_Datatype) -> Error {
    match datatype {
        MPI_DATATYPE_NULL => Error::new(Class::ERR_TYPE, "the datatype is MPI_DATATYPE_NULL"),
        MPI_Datatype(number) => Error::new(Class::ERR_TYPE, format!("handle {number:#x} is not a datatype")),
    }
}

/// The object of a handle, for names and attributes.
pub(crate) fn object(datatype: MPI_Datatype) -> Result<Arc<Type>> {
    if datatype.0 >= 0x1000 {
        return INSTANCE.handles.datatypes.lookup(datatype.0);
    }
    let ty = builtin(datatype)?;
    let mut known = INSTANCE.types.predefined.lock().unwrap_or_else(|poison| poison.into_inner());
    Ok(known.entry(datatype.0).or_insert_with(|| Arc::new(Type::new(ty.clone()))).clone())
}

impl Type {
    pub(crate) fn new(ty: Arc<Datatype>) -> Self {
        Self { ty, name: Mutex::new(None), attributes: Attributes::new() }
    }
}

/// A handle for a type: its own if it is predefined, otherwise a new one that the user frees.
pub(crate) fn handle(ty: &Arc<Datatype>) -> Result<MPI_Datatype> {
    if let Some(code) = ty.code() {
        return Ok(MPI_Datatype(code.into()));
    }
    if !ty.is_predefined() {
        return Ok(MPI_Datatype(INSTANCE.handles.datatypes.insert(Arc::new(Type::new(ty.clone())))?));
    }
    let mut known = INSTANCE.types.kinds.lock().unwrap_or_else(|poison| poison.into_inner());
    let key = Arc::as_ptr(ty) as usize;
    if let Some(handle) = known.get(&key) {
        return Ok(*handle);
    }
    let handle = MPI_Datatype(INSTANCE.handles.datatypes.insert(Arc::new(Type::new(ty.clone())))?);
    known.insert(key, handle);
    Ok(handle)
}

/// True if the handle stands for exactly this type.
pub(crate) fn is(datatype: MPI_Datatype, ty: &Arc<Datatype>) -> bool {
    lookup(datatype).is_ok_and(|known| Arc::ptr_eq(&known, ty))
}

/// Forgets a handle that [`handle`] made for the time of a callback.
pub(crate) fn forget(datatype: MPI_Datatype) {
    if datatype.0 >= 0x1000 {
        let _ = INSTANCE.handles.datatypes.remove(datatype.0);
    }
}
