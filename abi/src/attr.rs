//! Attribute caching (MPI 5.0, 7.7) on communicators and datatypes, with the deprecated forms: the C calls over
//! `runtime::attr`. Keys of windows can be made; there are no windows to use them on yet.

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::pointer::Ptr;
use crate::{comm, types};
use banyan_runtime::{
    Attributes, Class, CopyFn, CopyRule, DeleteFn, Error, Keyvals, Result, bail, error_codes,
};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};

static COMM_KEYS: LazyLock<Keyvals> = LazyLock::new(|| Keyvals::new(0x1000_0000));
static TYPE_KEYS: LazyLock<Keyvals> = LazyLock::new(|| Keyvals::new(0x2000_0000));
static WIN_KEYS: LazyLock<Keyvals> = LazyLock::new(|| Keyvals::new(0x3000_0000));

/// Values of the predefined attributes, which programs get pointers to.
static TAG_UB: AtomicI32 = AtomicI32::new(banyan_runtime::TAG_UB);
static IO: AtomicI32 = AtomicI32::new(MPI_ANY_SOURCE);
static HOST: AtomicI32 = AtomicI32::new(MPI_PROC_NULL);
static WTIME_IS_GLOBAL: AtomicI32 = AtomicI32::new(0);
static APPNUM: AtomicI32 = AtomicI32::new(-1);
static LASTUSEDCODE: AtomicI32 = AtomicI32::new(MPI_ERR_LASTCODE);
static UNIVERSE_SIZE: AtomicI32 = AtomicI32::new(-1);

/// Sets the predefined attributes that depend on the job; those not known stay unset.
pub(crate) fn open(appnum: Option<u32>, universe_size: Option<u32>) {
    for (attribute, value) in [(&APPNUM, appnum), (&UNIVERSE_SIZE, universe_size)] {
        attribute.store(value.map_or(-1, |value| value as i32), Ordering::Relaxed);
    }
}

fn predefined(keyval: c_int) -> Option<&'static AtomicI32> {
    Some(match keyval {
        MPI_TAG_UB => &TAG_UB,
        MPI_IO => &IO,
        MPI_HOST => &HOST,
        MPI_WTIME_IS_GLOBAL => &WTIME_IS_GLOBAL,
        MPI_APPNUM => &APPNUM,
        MPI_LASTUSEDCODE => &LASTUSEDCODE,
        MPI_UNIVERSE_SIZE => &UNIVERSE_SIZE,
        _ => return None,
    })
}

/// The code that a callback of the user returned, as an error.
fn refused(code: c_int) -> Error {
    let class = if error_codes().class(code).is_ok() { Class(code) } else { Class::ERR_OTHER };
    Error::new(class, format!("the attribute's callback returned {code}"))
}

fn copy_rule(function: Callback, extra_state: usize) -> CopyRule {
    match function {
        MPI_COMM_NULL_COPY_FN => CopyRule::Null,
        MPI_COMM_DUP_FN => CopyRule::Dup,
        function => CopyRule::User(user_copy(function, extra_state)),
    }
}

fn user_copy(function: Callback, extra_state: usize) -> CopyFn {
    // SAFETY: by MPI's contract the user passes a copy function; all kinds of object have the same signature.
    let function = unsafe { std::mem::transmute::<usize, CopyFunction>(function) };
    Arc::new(move |object, keyval, value| {
        let (mut out, mut flag) = (0usize, 0);
        let to = (&raw mut out).cast();
        // SAFETY: the user's function gets what MPI says, its own extra state and value among it.
        let code = unsafe {
            function(object, keyval, extra_state as *mut c_void, value as *mut c_void, to, &raw mut flag)
        };
        match code {
            MPI_SUCCESS => Ok((flag != 0).then_some(out)),
            code => Err(refused(code)),
        }
    })
}

fn delete_rule(function: Callback, extra_state: usize) -> Option<DeleteFn> {
    if function == MPI_COMM_NULL_DELETE_FN {
        return None;
    }
    // SAFETY: as for the copy function.
    let function = unsafe { std::mem::transmute::<usize, DeleteFunction>(function) };
    Some(Arc::new(move |object, keyval, value| {
        // SAFETY: as for the copy function.
        let code = unsafe { function(object, keyval, value as *mut c_void, extra_state as *mut c_void) };
        if code == MPI_SUCCESS { Ok(()) } else { Err(refused(code)) }
    }))
}

fn create(
    keys: &Keyvals,
    (copy, delete): (Callback, Callback),
    keyval: Ptr<c_int>,
    extra_state: Ptr<c_void>,
) -> Result<()> {
    let extra = extra_state.address();
    keyval.set(keys.create(copy_rule(copy, extra), delete_rule(delete, extra))?)
}

/// Frees a key. One that was freed and is still in use may be freed again, by another copy of its number:
/// programs do that, and it changes nothing.
fn free(keys: &Keyvals, keyval: Ptr<c_int>) -> Result<()> {
    let key = keyval.get()?;
    if let Err(error) = keys.free(key) {
        Attributes::new().value(keys, key).map_err(|_| error)?;
    }
    keyval.set(MPI_KEYVAL_INVALID)
}

/// Stores an attribute's value in the `void *` that the user's argument points to.
fn found(value: Option<usize>, attribute_val: Ptr<c_void>, flag: Ptr<c_int>) -> Result<()> {
    flag.set(value.is_some().into())?;
    match value {
        Some(value) => attribute_val.cast::<usize>().set(value),
        None => Ok(()),
    }
}

fn comm_get(comm: MPI_Comm, keyval: c_int, attribute_val: Ptr<c_void>, flag: Ptr<c_int>) -> Result<()> {
    let object = comm::lookup(comm)?;
    if let Some(attribute) = predefined(keyval) {
        LASTUSEDCODE.store(error_codes().last_used(), Ordering::Relaxed);
        let unknown =
            matches!(keyval, MPI_APPNUM | MPI_UNIVERSE_SIZE) && attribute.load(Ordering::Relaxed) < 0;
        return found((!unknown).then_some(attribute.as_ptr() as usize), attribute_val, flag);
    }
    found(object.attributes.value(&COMM_KEYS, keyval)?, attribute_val, flag)
}

fn comm_set(comm: MPI_Comm, keyval: c_int, value: Ptr<c_void>) -> Result<()> {
    let object = comm::lookup(comm)?;
    changeable(keyval)?;
    object.attributes.set(&COMM_KEYS, comm.0, keyval, value.address())
}

fn comm_delete(comm: MPI_Comm, keyval: c_int) -> Result<()> {
    let object = comm::lookup(comm)?;
    changeable(keyval)?;
    object.attributes.delete(&COMM_KEYS, comm.0, keyval)
}

fn changeable(keyval: c_int) -> Result<()> {
    match predefined(keyval) {
        Some(_) => bail!(ERR_KEYVAL, "attribute {keyval} is MPI's own and cannot be changed"),
        None => Ok(()),
    }
}

/// Declares how keys of a kind of object are made and freed.
macro_rules! keyvals {
    ($(fn $create:ident fn $free:ident of $keys:ident;)*) => { mpi! {$(
        fn $create(copy_fn, delete_fn, keyval, extra_state) on SelfComm {
            create(&$keys, (copy_fn, delete_fn), keyval, extra_state)
        }
        fn $free(keyval) on SelfComm { free(&$keys, keyval) }
    )*}};
}

keyvals! {
    fn MPI_Comm_create_keyval fn MPI_Comm_free_keyval of COMM_KEYS;
    fn MPI_Keyval_create fn MPI_Keyval_free of COMM_KEYS;
    fn MPI_Type_create_keyval fn MPI_Type_free_keyval of TYPE_KEYS;
    fn MPI_Win_create_keyval fn MPI_Win_free_keyval of WIN_KEYS;
}

mpi! {
    fn MPI_Comm_get_attr(comm, keyval, value, flag) on comm { comm_get(comm, keyval, value, flag) }
    fn MPI_Comm_set_attr(comm, keyval, value) on comm { comm_set(comm, keyval, value) }
    fn MPI_Comm_delete_attr(comm, keyval) on comm { comm_delete(comm, keyval) }

    fn MPI_Attr_get(comm, keyval, value, flag) on comm { comm_get(comm, keyval, value, flag) }
    fn MPI_Attr_put(comm, keyval, value) on comm { comm_set(comm, keyval, value) }
    fn MPI_Attr_delete(comm, keyval) on comm { comm_delete(comm, keyval) }

    fn MPI_Type_get_attr(datatype, keyval, attribute_val, flag) on SelfComm {
        found(types::object(datatype)?.attributes.value(&TYPE_KEYS, keyval)?, attribute_val, flag)
    }

    fn MPI_Type_set_attr(datatype, keyval, attribute_val) on SelfComm {
        types::object(datatype)?.attributes.set(&TYPE_KEYS, datatype.0, keyval, attribute_val.address())
    }

    fn MPI_Type_delete_attr(datatype, keyval) on SelfComm {
        types::object(datatype)?.attributes.delete(&TYPE_KEYS, datatype.0, keyval)
    }
}
