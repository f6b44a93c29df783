//! Error handlers: their handles, where they are attached, and which one an error goes to (MPI 5.0, 9.3).

use crate::boundary::{SelfComm, Target, mark_as_asked_for, mpi};
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::pointer::Ptr;
use banyan_runtime::{Class, Errhandler, Error, Result, bail, error_codes};
use std::sync::{Arc, Mutex};

/// What is done about an error.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handler {
    Fatal,
    Abort,
    Return,
    User(ErrhandlerFunction),
}

/// The kind of object that an error handler is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Object {
    Comm,
    Win,
    File,
    Session,
}

/// An error handler of the user. While the user holds it, `handle` has its handle and how often that was given out.
#[derive(Debug)]
pub(crate) struct User {
    function: ErrhandlerFunction,
    object: Object,
    handle: Mutex<Option<(usize, usize)>>,
}

/// The error handler of files that are not open (MPI_FILE_NULL).
static FILES: Mutex<Errhandler> = Mutex::new(Errhandler::Return);

/// Gives out a handle, which the user is to free.
fn give_out(errhandler: &Errhandler) -> Result<MPI_Errhandler> {
    let user = match errhandler {
        Errhandler::Fatal => return Ok(MPI_ERRORS_ARE_FATAL),
        Errhandler::Abort => return Ok(MPI_ERRORS_ABORT),
        Errhandler::Return => return Ok(MPI_ERRORS_RETURN),
        Errhandler::User(user) => user.clone().downcast::<User>(),
    };
    let Ok(user) = user else { bail!(ERR_INTERN, "an error handler that was not made by this interface") };
    let mut handle = user.handle.lock().unwrap_or_else(|poison| poison.into_inner());
    let (number, times_given) = match *handle {
        Some((number, times_given)) => (number, times_given + 1),
        None => (INSTANCE.handles.errhandlers.insert(user.clone())?, 1),
    };
    *handle = Some((number, times_given));
    Ok(MPI_Errhandler(number))
}

fn handler(errhandler: &Errhandler) -> Handler {
    match errhandler {
        Errhandler::Fatal => Handler::Fatal,
        Errhandler::Abort => Handler::Abort,
        Errhandler::Return => Handler::Return,
        Errhandler::User(user) => match user.downcast_ref::<User>() {
            Some(user) => Handler::User(user.function),
            None => Handler::Fatal,
        },
    }
}

/// The handler that an error on `target` goes to.
pub(crate) fn of(target: Target) -> Handler {
    match target {
        Target::Code => Handler::Return,
        Target::File(_) => handler(&lock(&FILES)),
        Target::SelfComm | Target::Comm(_) => crate::comm::errhandler_of(comm_of(target))
            .map_or(Handler::Fatal, |errhandler| handler(&errhandler)),
    }
}

/// The communicator that an error is about: without a valid one it is MPI_COMM_SELF, as MPI 4.0 says, or
/// MPI_COMM_WORLD if only that has been given an error handler, as programs for older MPI expect.
fn comm_of(target: Target) -> MPI_Comm {
    match named(target) {
        Some(comm) => comm,
        None if crate::comm::only_world_has_errhandler() => MPI_COMM_WORLD,
        None => MPI_COMM_SELF,
    }
}

/// The communicator that the call, or its request or message, names, if it is a valid one.
pub(crate) fn named(target: Target) -> Option<MPI_Comm> {
    match target {
        Target::Comm(comm) => crate::comm::check_handle(comm).is_ok().then_some(comm),
        Target::SelfComm | Target::File(_) | Target::Code => None,
    }
}

/// The handle that a user's error handler gets a pointer to.
pub(crate) fn handle_of(target: Target) -> usize {
    match target {
        Target::File(file) => file.0,
        Target::SelfComm | Target::Comm(_) | Target::Code => comm_of(target).0,
    }
}

/// Whose error handler an error goes to, in words.
pub(crate) fn describe(target: Target) -> String {
    match target {
        Target::File(_) => "MPI_FILE_NULL".to_string(),
        Target::SelfComm | Target::Comm(_) | Target::Code => crate::comm::describe(comm_of(target)),
    }
}

/// The error handler of a handle, if it is for objects of that kind.
fn fitting(errhandler: MPI_Errhandler, object: Object) -> Result<Errhandler> {
    Ok(match errhandler {
        MPI_ERRORS_ARE_FATAL => Errhandler::Fatal,
        MPI_ERRORS_ABORT => Errhandler::Abort,
        MPI_ERRORS_RETURN => Errhandler::Return,
        MPI_ERRHANDLER_NULL => bail!(ERR_ERRHANDLER, "the error handler is MPI_ERRHANDLER_NULL"),
        MPI_Errhandler(number) => {
            let errhandler = INSTANCE.handles.errhandlers.lookup(number)?;
            if errhandler.object != object {
                bail!(ERR_ERRHANDLER, "the error handler is for {:?} objects", errhandler.object);
            }
            Errhandler::User(errhandler)
        }
    })
}

fn create(function: Callback, object: Object, errhandler: Ptr<MPI_Errhandler>) -> Result<()> {
    if function == 0 {
        bail!(ERR_ARG, "the error handler function is NULL");
    }
    // SAFETY: by MPI's contract the user passes a function of the type that MPI_X_create_errhandler wants.
    let function = unsafe { std::mem::transmute::<usize, ErrhandlerFunction>(function) };
    let new = User { function, object, handle: Mutex::new(None) };
    errhandler.set(give_out(&Errhandler::User(Arc::new(new)))?)
}

fn lock(files: &'static Mutex<Errhandler>) -> std::sync::MutexGuard<'static, Errhandler> {
    files.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// There are no files yet: only MPI_FILE_NULL has an error handler.
fn check_file(file: MPI_File) -> Result<()> {
    match file {
        MPI_FILE_NULL => Ok(()),
        _ => bail!(ERR_FILE, "there are no files yet: only MPI_FILE_NULL has an error handler"),
    }
}

macro_rules! create {
    ($(fn $create:ident for $object:ident;)*) => { mpi! {$(
        fn $create(function, errhandler) on SelfComm gives errhandler {
            create(function, Object::$object, errhandler)
        }
    )*}};
}

create! {
    fn MPI_Comm_create_errhandler for Comm;
    fn MPI_Win_create_errhandler for Win;
    fn MPI_File_create_errhandler for File;
    fn MPI_Session_create_errhandler for Session;
}

mpi! {
    fn MPI_Errhandler_free(errhandler) on SelfComm {
        let handle = errhandler.get()?;
        if handle == MPI_ERRHANDLER_NULL {
            bail!(ERR_ERRHANDLER, "the error handler is MPI_ERRHANDLER_NULL already");
        }
        // Predefined handlers may come from MPI_Comm_get_errhandler, and are freed like the others.
        if handle.0 >= 0x1000 {
            let object = INSTANCE.handles.errhandlers.lookup(handle.0)?;
            let mut times_given = object.handle.lock().unwrap_or_else(|poison| poison.into_inner());
            *times_given = match *times_given {
                Some((number, times)) if times > 1 => Some((number, times - 1)),
                _ => {
                    INSTANCE.handles.errhandlers.remove(handle.0)?;
                    None
                }
            };
        }
        errhandler.set(MPI_ERRHANDLER_NULL)
    }

    fn MPI_Comm_set_errhandler(comm, errhandler) on comm {
        crate::comm::set_errhandler(comm, fitting(errhandler, Object::Comm)?)
    }

    fn MPI_Comm_get_errhandler(comm, errhandler) on comm gives errhandler {
        crate::comm::check_handle(comm)?;
        match crate::comm::errhandler_of(comm) {
            Some(attached) => errhandler.set(give_out(&attached)?),
            None => bail!(ERR_COMM, "the communicator has no error handler"),
        }
    }

    fn MPI_File_set_errhandler(file, errhandler) on file {
        check_file(file)?;
        *lock(&FILES) = fitting(errhandler, Object::File)?;
        Ok(())
    }

    fn MPI_File_get_errhandler(file, errhandler) on file gives errhandler {
        check_file(file)?;
        let attached = lock(&FILES).clone();
        errhandler.set(give_out(&attached)?)
    }

    fn MPI_Comm_call_errhandler(comm, errorcode) on comm {
        crate::comm::check_handle(comm)?;
        call(errorcode)
    }

    fn MPI_File_call_errhandler(file, errorcode) on file {
        check_file(file)?;
        call(errorcode)
    }

    fn MPI_Add_error_class(errorclass) on SelfComm {
        errorclass.set(error_codes().add_class()?)
    }

    fn MPI_Remove_error_class(errorclass) on SelfComm {
        error_codes().remove_class(errorclass)
    }

    fn MPI_Add_error_code(errorclass, errorcode) on SelfComm {
        errorcode.set(error_codes().add_code(errorclass)?)
    }

    fn MPI_Remove_error_code(errorcode) on SelfComm {
        error_codes().remove_code(errorcode)
    }

    fn MPI_Add_error_string(errorcode, string) on SelfComm {
        error_codes().add_string(errorcode, &string.text()?)
    }

    fn MPI_Remove_error_string(errorcode) on SelfComm {
        error_codes().remove_string(errorcode)
    }

    fn MPI_Error_class(errorcode, errorclass) on SelfComm {
        errorclass.set(error_codes().class(errorcode)?)
    }

    fn MPI_Error_string(errorcode, string, resultlen) on SelfComm {
        let mut text = error_codes().string(errorcode)?;
        // A code that the program added has only the text that the program gave it.
        let last = crate::boundary::sentence(errorcode).filter(|_| errorcode < MPI_ERR_LASTCODE);
        if let Some(last) = last {
            text = format!("{text}: {last}");
        }
        let len = string.write(text.as_bytes(), MPI_MAX_ERROR_STRING as usize)?;
        resultlen.set(len as c_int)
    }
}

/// Raises an error for the program; the call itself succeeds if the error handler returns.
fn call(code: c_int) -> Result<()> {
    error_codes().class(code)?;
    if code == MPI_SUCCESS {
        return Ok(());
    }
    mark_as_asked_for();
    let own = error_codes().string(code)?;
    Err(Error::new(Class(code), format!("raised by the program: {own}")))
}
