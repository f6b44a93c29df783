//! What the derive macro uses. No program does.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use banyan_datatype as dt;

use super::{AsObject, DatatypeRef, Equivalence};
use crate::error::expect;

type Object = Arc<dt::Datatype>;

/// The type of a field: one with a datatype, or an array or tuple of such.
#[diagnostic::on_unimplemented(message = "`{Self}` has no datatype: it cannot be a part of a message")]
pub trait Part {
    #[doc(hidden)]
    fn part() -> Object;
}

impl<T: Equivalence> Part for T {
    fn part() -> Object {
        T::equivalent_datatype().object().clone()
    }
}

impl<T: Part, const N: usize> Part for [T; N] {
    fn part() -> Object {
        expect(dt::Datatype::contiguous(N as i64, &T::part()).map_err(Into::into))
    }
}

macro_rules! tuples {
    ($($($name:ident $at:tt),+;)*) => {$(
        impl<$($name: Part),+> Part for ($($name,)+) {
            fn part() -> Object {
                object::<Self>(&[$((std::mem::offset_of!(Self, $at), $name::part())),+])
            }
        }
    )*};
}

tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
}

/// The datatype of `T` from its parts, with their distances from its start.
fn object<T>(parts: &[(usize, Object)]) -> Object {
    let displacements: Vec<i64> = parts.iter().map(|part| part.0 as i64).collect();
    let types: Vec<Object> = parts.iter().map(|part| part.1.clone()).collect();
    let whole = dt::Datatype::create_struct(&vec![1; parts.len()], &displacements, &types);
    let resized = whole.and_then(|whole| dt::Datatype::resized(&whole, 0, size_of::<T>() as i64));
    expect(resized.map_err(Into::into))
}

/// The datatype of `T` from its parts, with their distances from its start, committed.
pub fn structure<T>(parts: &[(usize, Object)]) -> Object {
    let object = object::<T>(parts);
    object.commit();
    object
}

/// The datatype of a type, from its first use on.
pub struct Kept(OnceLock<Object>);

impl Kept {
    #[doc(hidden)]
    pub const fn new() -> Kept {
        Kept(OnceLock::new())
    }

    #[doc(hidden)]
    pub fn get(&'static self, make: impl FnOnce() -> Object) -> DatatypeRef<'static> {
        DatatypeRef(self.0.get_or_init(make))
    }
}

/// The datatypes of generic types, which are kept for good.
static BY_TYPE: Mutex<Option<HashMap<TypeId, &'static Object>>> = Mutex::new(None);

#[doc(hidden)]
pub fn kept_by_type<T: 'static>(make: impl FnOnce() -> Object) -> DatatypeRef<'static> {
    let kept = || BY_TYPE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept().as_ref().and_then(|known| known.get(&TypeId::of::<T>())) {
        return DatatypeRef(known);
    }
    // Made outside the lock: a part may be such a type.
    let made = make();
    let mut kept = kept();
    let known = kept.get_or_insert_default();
    DatatypeRef(known.entry(TypeId::of::<T>()).or_insert_with(|| Box::leak(Box::new(made))))
}
