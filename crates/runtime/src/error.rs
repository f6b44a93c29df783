//! [`Error`]: an MPI error class with a sentence that says what was wrong, and [`Class`], the list of classes.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Deref;

use banyan_p2p::Fault;

/// An MPI error class, by its number in the MPI 5.0 ABI (annex A.1.1), or one that the user added.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(pub i32);

macro_rules! classes {
    ($($name:ident = $value:literal $text:literal;)*) => {
        #[allow(missing_docs, reason = "each is described by its text in ALL")]
        impl Class {
            $(pub const $name: Class = Class($value);)*
            /// Every predefined class: number, MPI name, and a sentence for MPI_Error_string.
            pub const ALL: &'static [(i32, &'static str, &'static str)] =
                &[$(($value, concat!("MPI_", stringify!($name)), $text)),*];
        }
    };
}

classes! {
    SUCCESS = 0 "no error";
    ERR_BUFFER = 1 "invalid buffer pointer";
    ERR_COUNT = 2 "invalid count";
    ERR_TYPE = 3 "invalid datatype";
    ERR_TAG = 4 "invalid tag";
    ERR_COMM = 5 "invalid communicator";
    ERR_RANK = 6 "invalid rank";
    ERR_REQUEST = 7 "invalid request";
    ERR_ROOT = 8 "invalid root";
    ERR_GROUP = 9 "invalid group";
    ERR_OP = 10 "invalid reduction operation, or one not defined for the datatype";
    ERR_TOPOLOGY = 11 "invalid topology";
    ERR_DIMS = 12 "invalid dimension argument";
    ERR_ARG = 13 "invalid argument";
    ERR_UNKNOWN = 14 "unknown error";
    ERR_TRUNCATE = 15 "message truncated: what is sent and what is received are not equally long";
    ERR_OTHER = 16 "other error";
    ERR_INTERN = 17 "internal error of the MPI library";
    ERR_PENDING = 18 "the request is still pending";
    ERR_IN_STATUS = 19 "the error code is in the status";
    ERR_ACCESS = 20 "permission denied";
    ERR_AMODE = 21 "invalid access mode";
    ERR_ASSERT = 22 "invalid assertion";
    ERR_BAD_FILE = 23 "invalid file name";
    ERR_BASE = 24 "invalid base address";
    ERR_CONVERSION = 25 "a data conversion function failed";
    ERR_DISP = 26 "invalid displacement";
    ERR_DUP_DATAREP = 27 "the data representation is defined already";
    ERR_FILE_EXISTS = 28 "the file exists";
    ERR_FILE_IN_USE = 29 "the file is in use";
    ERR_FILE = 30 "invalid file handle";
    ERR_INFO_KEY = 31 "invalid info key: empty or too long";
    ERR_INFO_NOKEY = 32 "the info key is not defined";
    ERR_INFO_VALUE = 33 "invalid info value: too long";
    ERR_INFO = 34 "invalid info object";
    ERR_IO = 35 "input/output error";
    ERR_KEYVAL = 36 "invalid attribute key";
    ERR_LOCKTYPE = 37 "invalid lock type";
    ERR_NAME = 38 "the service name is not published";
    ERR_NO_MEM = 39 "out of memory";
    ERR_NOT_SAME = 40 "an argument that must be the same on all processes differs";
    ERR_NO_SPACE = 41 "no space left";
    ERR_NO_SUCH_FILE = 42 "no such file";
    ERR_PORT = 43 "invalid port name";
    ERR_QUOTA = 44 "quota exceeded";
    ERR_READ_ONLY = 45 "read-only file or file system";
    ERR_RMA_ATTACH = 46 "memory cannot be attached to the window";
    ERR_RMA_CONFLICT = 47 "conflicting accesses to the window";
    ERR_RMA_RANGE = 48 "the target memory is not part of the window";
    ERR_RMA_SHARED = 49 "memory cannot be shared";
    ERR_RMA_SYNC = 50 "wrong synchronization of one-sided calls";
    ERR_SERVICE = 51 "the service name cannot be unpublished: it was not published here";
    ERR_SIZE = 52 "invalid size";
    ERR_SPAWN = 53 "processes could not be started";
    ERR_UNSUPPORTED_DATAREP = 54 "unsupported data representation";
    ERR_UNSUPPORTED_OPERATION = 55 "unsupported operation";
    ERR_WIN = 56 "invalid window";
    ERR_RMA_FLAVOR = 57 "the call is not allowed for this flavour of window";
    ERR_PROC_ABORTED = 58 "a peer process has aborted";
    ERR_VALUE_TOO_LARGE = 59 "the value does not fit the output parameter";
    ERR_SESSION = 60 "invalid session";
    ERR_ERRHANDLER = 61 "invalid error handler";
    ERR_ABI = 62 "the ABI does not fit, or was set already";
    T_ERR_CANNOT_INIT = 1001 "the tool interface cannot be initialized now";
    T_ERR_NOT_ACCESSIBLE = 1002 "the tool interface is not accessible now";
    T_ERR_NOT_INITIALIZED = 1003 "the tool interface is not initialized";
    T_ERR_NOT_SUPPORTED = 1004 "not supported by the tool interface";
    T_ERR_MEMORY = 1005 "out of memory in the tool interface";
    T_ERR_INVALID = 1006 "invalid use of the tool interface, or invalid argument";
    T_ERR_INVALID_INDEX = 1007 "invalid index of a tool variable";
    T_ERR_INVALID_ITEM = 1008 "invalid item of an enumeration";
    T_ERR_INVALID_SESSION = 1009 "invalid performance session";
    T_ERR_INVALID_HANDLE = 1010 "invalid handle of the tool interface";
    T_ERR_INVALID_NAME = 1011 "no tool variable or category of that name";
    T_ERR_OUT_OF_HANDLES = 1012 "no more tool handles";
    T_ERR_OUT_OF_SESSIONS = 1013 "no more performance sessions";
    T_ERR_CVAR_SET_NOT_NOW = 1014 "the control variable cannot be set now";
    T_ERR_CVAR_SET_NEVER = 1015 "the control variable cannot be set any more";
    T_ERR_PVAR_NO_WRITE = 1016 "the performance variable cannot be written";
    T_ERR_PVAR_NO_STARTSTOP = 1017 "the performance variable cannot be started or stopped";
    T_ERR_PVAR_NO_ATOMIC = 1018 "the performance variable cannot be read and reset at once";
    ERR_LASTCODE = 16383 "last predefined error code";
}

impl Class {
    /// The MPI name (`MPI_ERR_RANK`), or "user-defined error class".
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|row| row.0 == self.0).map_or("user-defined error class", |row| row.1)
    }

    /// One sentence on what the class means; `None` for a class that MPI does not define.
    pub fn text(self) -> Option<&'static str> {
        Self::ALL.iter().find(|row| row.0 == self.0).map(|row| row.2)
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

/// What went wrong, for the error handler of the object concerned. It is a pointer, so that results that are good are small, and stay in registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(Box<Reason>);

/// What is said of an [`Error`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    /// The code that the MPI call returns; its class, unless the user made the code (MPI_Add_error_code).
    pub class: Class,
    /// The handle of the object whose error handler gets the error, if that is not the object that the call names (the
    /// communicator of a request).
    pub about: Option<NonZeroU32>,
    /// What was wrong: the argument and its value, the peer, the cause, the way out.
    pub what: String,
}

impl Deref for Error {
    type Target = Reason;

    fn deref(&self) -> &Reason {
        &self.0
    }
}

/// Result of an MPI operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `class`; `what` names the argument, its value and the way out.
    pub fn new(class: Class, what: impl Into<String>) -> Self {
        Self(Box::new(Reason { class, about: None, what: what.into() }))
    }

    /// The error for what went wrong with a message.
    #[cold]
    pub(crate) fn of_message(fault: &Fault) -> Self {
        match fault {
            Fault::Truncated { sent, room } => Self::new(
                Class::ERR_TRUNCATE,
                format!(
                    "the message has {sent} bytes, the receive buffer only {room}; receive with at least the sender's count"
                ),
            ),
            Fault::NoMemory { bytes } => {
                let what = format!("there is no memory for a copy of the message of {bytes} bytes");
                Self::new(Class::ERR_NO_MEM, what)
            }
            Fault::Device { what } => Self::other(what),
            Fault::Unsent { peer } => Self::other(format!(
                "rank {} of MPI_COMM_WORLD has not sent this message: its GPU does not give the bytes, as its own error says",
                peer.0
            )),
            Fault::PeerDown { peer, cause } => {
                let what = format!("rank {} of MPI_COMM_WORLD is gone: {cause}", peer.0);
                Self::new(Class::ERR_PROC_ABORTED, what)
            }
        }
    }

    /// An error that is a fault of this library.
    pub(crate) fn intern(what: impl Into<String>) -> Error {
        Error::new(Class::ERR_INTERN, what)
    }

    /// An error that no other class fits: `what` says what is wrong, and the way out.
    pub(crate) fn other(what: impl std::fmt::Display) -> Self {
        Self::new(Class::ERR_OTHER, what.to_string())
    }

    /// This error, for the error handler of the object with this handle, unless it is for another object already.
    pub fn on(mut self, handle: u32) -> Self {
        self.0.about = self.about.or(NonZeroU32::new(handle));
        self
    }

    /// What is said of it.
    pub fn into_reason(self) -> Reason {
        *self.0
    }
}

impl From<banyan_datatype::Error> for Error {
    fn from(error: banyan_datatype::Error) -> Self {
        use banyan_datatype::Error as E;
        let class = match &error {
            E::Count { .. } | E::Overflow(_) => Class::ERR_COUNT,
            E::Arg(_) => Class::ERR_ARG,
            E::Type(_) => Class::ERR_TYPE,
            E::Op { .. } => Class::ERR_OP,
            E::Conversion(_) => Class::ERR_CONVERSION,
            E::Space { .. } => Class::ERR_TRUNCATE,
        };
        Self::new(class, error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class.name(), self.what)
    }
}

impl std::error::Error for Error {}

/// Of a user's buffer that nobody can go to.
impl From<banyan_memory::DeviceFailure> for Error {
    fn from(failure: banyan_memory::DeviceFailure) -> Error {
        Error::new(Class::ERR_BUFFER, failure.what)
    }
}

/// Returns an [`Error`] of the class named (`ERR_RANK`) with a formatted message.
#[macro_export]
macro_rules! bail {
    ($class:ident, $($message:tt)*) => {
        return Err($crate::Error::new($crate::Class::$class, format!($($message)*)))
    };
}
