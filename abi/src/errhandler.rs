//! Error handlers: their handles, where they are attached, and which one an error goes to (MPI 5.0, 9.3).

use crate::boundary::{SelfComm, Target, ask_to_raise, mpi};
use crate::ffi::*;
use crate::handles::{Kind, Table};
use crate::pointer::Ptr;
use banyan_runtime::{Class, Error, Result, bail, error_codes};
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

/// An error handler that is attached to an object, or has a handle, or both.
pub(crate) type Attached = Arc<Errhandler>;

/// An error handler. While the user holds it, `handle` is its handle and the number of times it was given out.
#[derive(Debug)]
pub(crate) struct Errhandler {
    handler: Handler,
    object: Object,
    handle: Mutex<Option<(usize, usize)>>,
}

static TABLE: Table<Attached> = Table::new(Kind::Errhandler);

/// Error handlers of the objects that have no table (yet): the fallback where there is no communicator, and
/// MPI_FILE_NULL.
static INITIAL: Mutex<Slot> = Mutex::new(Slot::Fatal);
static FILES: Mutex<Slot> = Mutex::new(Slot::Return);

/// The error handler of one object.
#[derive(Clone, Debug, Default)]
pub(crate) enum Slot {
    #[default]
    Fatal,
    Abort,
    Return,
    User(Attached),
}

impl Slot {
    fn handler(&self) -> Handler {
        match self {
            Slot::Fatal => Handler::Fatal,
            Slot::Abort => Handler::Abort,
            Slot::Return => Handler::Return,
            Slot::User(errhandler) => errhandler.handler,
        }
    }

    /// A handle for the user, to be freed by the user.
    pub(crate) fn lend(&self) -> Result<MPI_Errhandler> {
        match self {
            Slot::Fatal => Ok(MPI_ERRORS_ARE_FATAL),
            Slot::Abort => Ok(MPI_ERRORS_ABORT),
            Slot::Return => Ok(MPI_ERRORS_RETURN),
            Slot::User(errhandler) => errhandler.lend(),
        }
    }
}

trait Lend {
    fn lend(&self) -> Result<MPI_Errhandler>;
}

impl Lend for Attached {
    fn lend(&self) -> Result<MPI_Errhandler> {
        let mut handle = self.handle.lock().unwrap_or_else(|poison| poison.into_inner());
        let (number, lent) = match *handle {
            Some((number, lent)) => (number, lent + 1),
            None => (TABLE.insert(self.clone())?, 1),
        };
        *handle = Some((number, lent));
        Ok(MPI_Errhandler(number))
    }
}

/// The handler that an error on `target` goes to.
pub(crate) fn of(target: Target) -> Handler {
    match target {
        Target::Code => Handler::Return,
        Target::File(_) => lock(&FILES).handler(),
        other => match crate::comm::errhandler_of(comm_of(other)) {
            Some(slot) => slot.handler(),
            None => lock(&INITIAL).handler(),
        },
    }
}

/// The communicator that an error is about: without a valid one it is MPI_COMM_SELF, as MPI 4.0 says, or
/// MPI_COMM_WORLD if only that has been given an error handler, as programs for older MPI expect.
fn comm_of(target: Target) -> MPI_Comm {
    match target {
        Target::Comm(comm) if crate::comm::errhandler_of(comm).is_some() => comm,
        Target::Request(request) => match crate::request::comm_of(request) {
            Some(comm) => comm,
            None => comm_of(Target::SelfComm),
        },
        _ if crate::comm::only_world_has_errhandler() => MPI_COMM_WORLD,
        _ => MPI_COMM_SELF,
    }
}

/// The handle that a user's error handler gets a pointer to.
pub(crate) fn handle_of(target: Target) -> usize {
    match target {
        Target::File(file) => file.0,
        other => comm_of(other).0,
    }
}

/// What an error is about, in words.
pub(crate) fn describe(target: Target) -> String {
    match target {
        Target::File(_) => "MPI_FILE_NULL".to_string(),
        Target::Comm(_) | Target::Request(_) => crate::comm::describe(comm_of(target)),
        _ => "no communicator (the error handler of MPI_COMM_SELF applies)".to_string(),
    }
}

/// What an error handler handle stands for, if it fits objects of that kind.
fn slot(errhandler: MPI_Errhandler, object: Object) -> Result<Slot> {
    Ok(match errhandler {
        MPI_ERRORS_ARE_FATAL => Slot::Fatal,
        MPI_ERRORS_ABORT => Slot::Abort,
        MPI_ERRORS_RETURN => Slot::Return,
        MPI_ERRHANDLER_NULL => bail!(ERR_ERRHANDLER, "the error handler is MPI_ERRHANDLER_NULL"),
        MPI_Errhandler(number) => {
            let errhandler = TABLE.lookup(number)?;
            if errhandler.object != object {
                bail!(ERR_ERRHANDLER, "the error handler is for {:?} objects", errhandler.object);
            }
            Slot::User(errhandler)
        }
    })
}

fn create(function: Callback, object: Object, errhandler: Ptr<MPI_Errhandler>) -> Result<()> {
    if function == 0 {
        bail!(ERR_ARG, "the error handler function is NULL");
    }
    // SAFETY: by MPI's contract the user passes a function of the type that MPI_X_create_errhandler wants.
    let function = unsafe { std::mem::transmute::<usize, ErrhandlerFunction>(function) };
    let new = Errhandler { handler: Handler::User(function), object, handle: Mutex::new(None) };
    errhandler.set(Arc::new(new).lend()?)
}

fn lock(slot: &'static Mutex<Slot>) -> std::sync::MutexGuard<'static, Slot> {
    slot.lock().unwrap_or_else(|poison| poison.into_inner())
}

mpi! {
    fn MPI_Comm_create_errhandler(function: Callback, errhandler: Ptr<MPI_Errhandler>) on SelfComm {
        create(function, Object::Comm, errhandler)
    }

    fn MPI_Win_create_errhandler(function: Callback, errhandler: Ptr<MPI_Errhandler>) on SelfComm {
        create(function, Object::Win, errhandler)
    }

    fn MPI_File_create_errhandler(function: Callback, errhandler: Ptr<MPI_Errhandler>) on SelfComm {
        create(function, Object::File, errhandler)
    }

    fn MPI_Session_create_errhandler(function: Callback, errhandler: Ptr<MPI_Errhandler>) on SelfComm {
        create(function, Object::Session, errhandler)
    }

    fn MPI_Errhandler_free(errhandler: Ptr<MPI_Errhandler>) on SelfComm {
        let handle = errhandler.get()?;
        if handle == MPI_ERRHANDLER_NULL {
            bail!(ERR_ERRHANDLER, "the error handler is MPI_ERRHANDLER_NULL already");
        }
        // Predefined handlers may come from MPI_Comm_get_errhandler, and are freed like the others.
        if handle.0 >= 0x1000 {
            let object = TABLE.lookup(handle.0)?;
            let mut lent = object.handle.lock().unwrap_or_else(|poison| poison.into_inner());
            *lent = match *lent {
                Some((number, times)) if times > 1 => Some((number, times - 1)),
                _ => {
                    TABLE.remove(handle.0)?;
                    None
                }
            };
        }
        errhandler.set(MPI_ERRHANDLER_NULL)
    }

    fn MPI_Comm_set_errhandler(comm: MPI_Comm, errhandler: MPI_Errhandler) on comm {
        crate::comm::set_errhandler(comm, slot(errhandler, Object::Comm)?)
    }

    fn MPI_Comm_get_errhandler(comm: MPI_Comm, errhandler: Ptr<MPI_Errhandler>) on comm {
        crate::comm::known(comm)?;
        match crate::comm::errhandler_of(comm) {
            Some(slot) => errhandler.set(slot.lend()?),
            None => bail!(ERR_COMM, "the communicator has no error handler"),
        }
    }

    fn MPI_File_set_errhandler(file: MPI_File, errhandler: MPI_Errhandler) on file {
        if file != MPI_FILE_NULL {
            bail!(ERR_FILE, "there are no files yet: only MPI_FILE_NULL has an error handler");
        }
        *lock(&FILES) = slot(errhandler, Object::File)?;
        Ok(())
    }

    fn MPI_File_get_errhandler(file: MPI_File, errhandler: Ptr<MPI_Errhandler>) on file {
        if file != MPI_FILE_NULL {
            bail!(ERR_FILE, "there are no files yet: only MPI_FILE_NULL has an error handler");
        }
        let slot = lock(&FILES).clone();
        errhandler.set(slot.lend()?)
    }

    fn MPI_Win_set_errhandler(win: MPI_Win, _errhandler: MPI_Errhandler) on win {
        bail!(ERR_WIN, "there are no windows yet; {:#x} is not one", win.0)
    }

    fn MPI_Win_get_errhandler(win: MPI_Win, _errhandler: Ptr<MPI_Errhandler>) on win {
        bail!(ERR_WIN, "there are no windows yet; {:#x} is not one", win.0)
    }

    fn MPI_Session_set_errhandler(session: MPI_Session, _errhandler: MPI_Errhandler) on session {
        bail!(ERR_SESSION, "there are no sessions yet; {:#x} is not one", session.0)
    }

    fn MPI_Session_get_errhandler(session: MPI_Session, _errhandler: Ptr<MPI_Errhandler>) on session {
        bail!(ERR_SESSION, "there are no sessions yet; {:#x} is not one", session.0)
    }

    fn MPI_Comm_call_errhandler(comm: MPI_Comm, errorcode: c_int) on comm {
        crate::comm::known(comm)?;
        call(errorcode)
    }

    fn MPI_File_call_errhandler(file: MPI_File, errorcode: c_int) on file {
        if file != MPI_FILE_NULL {
            bail!(ERR_FILE, "there are no files yet: only MPI_FILE_NULL has an error handler");
        }
        call(errorcode)
    }

    fn MPI_Win_call_errhandler(win: MPI_Win, _errorcode: c_int) on win {
        bail!(ERR_WIN, "there are no windows yet; {:#x} is not one", win.0)
    }

    fn MPI_Session_call_errhandler(session: MPI_Session, _errorcode: c_int) on session {
        bail!(ERR_SESSION, "there are no sessions yet; {:#x} is not one", session.0)
    }

    fn MPI_Add_error_class(errorclass: Ptr<c_int>) on SelfComm {
        errorclass.set(error_codes().add_class()?)
    }

    fn MPI_Remove_error_class(errorclass: c_int) on SelfComm {
        error_codes().remove_class(errorclass)
    }

    fn MPI_Add_error_code(errorclass: c_int, errorcode: Ptr<c_int>) on SelfComm {
        errorcode.set(error_codes().add_code(errorclass)?)
    }

    fn MPI_Remove_error_code(errorcode: c_int) on SelfComm {
        error_codes().remove_code(errorcode)
    }

    fn MPI_Add_error_string(errorcode: c_int, string: Ptr<c_char>) on SelfComm {
        error_codes().add_string(errorcode, &string.text()?)
    }

    fn MPI_Remove_error_string(errorcode: c_int) on SelfComm {
        error_codes().remove_string(errorcode)
    }

    fn MPI_Error_class(errorcode: c_int, errorclass: Ptr<c_int>) on SelfComm {
        errorclass.set(error_codes().class(errorcode)?)
    }

    fn MPI_Error_string(errorcode: c_int, string: Ptr<c_char>, resultlen: Ptr<c_int>) on SelfComm {
        let mut text = error_codes().string(errorcode)?;
        let last = crate::boundary::sentence(errorcode).filter(|_| errorcode != MPI_SUCCESS);
        if let Some(last) = last {
            text = format!("{text}: {last}");
        }
        let len = string.write(text.as_bytes(), MPI_MAX_ERROR_STRING as usize)?;
        resultlen.set(len as c_int)
    }
}

/// Has an error of the program's own raised; the call itself succeeds if the error handler returns.
fn call(code: c_int) -> Result<()> {
    error_codes().class(code)?;
    if code == MPI_SUCCESS {
        return Ok(());
    }
    ask_to_raise();
    Err(Error::new(Class(code), "raised by the program through its error handler"))
}
