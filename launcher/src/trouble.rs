//! What mpirun says when something is refused, to it or by it.

/// Why no job was started: one line for the user and mpirun's status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// One line, without `mpirun:` in front.
    pub message: String,
    /// The status that mpirun ends with.
    pub status: u8,
}

impl Trouble {
    /// The system refuses something: status 1.
    pub fn new(message: impl Into<String>) -> Trouble {
        Trouble { message: message.into(), status: 1 }
    }

    /// Prints the message; gives mpirun's status.
    pub(crate) fn tell(&self) -> u8 {
        eprintln!("mpirun: {}", self.message);
        self.status
    }

    /// The command line is wrong: status 2.
    pub fn usage(message: impl Into<String>) -> Trouble {
        Trouble { message: message.into(), status: 2 }
    }
}

/// The text of an error without Rust's `(os error 2)`.
pub(crate) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or("").to_owned()
}

/// Names the system call that was refused: sandboxes refuse some that all other systems allow.
pub(crate) fn refused<E: Into<std::io::Error>>(call: &str) -> impl Fn(E) -> std::io::Error {
    move |why| {
        let why: std::io::Error = why.into();
        let filter = match why.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => " (by a seccomp filter or another sandbox?)",
            _ => "",
        };
        std::io::Error::other(format!("the system refuses {call}: {}{filter}", reason(&why)))
    }
}
