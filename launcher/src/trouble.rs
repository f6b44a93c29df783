//! What mpirun says when something is refused, to it or by it.

use crate::verdict::{End, killed_by};

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

/// The first so many items of a list, with commas.
pub(crate) fn listed(items: impl ExactSizeIterator<Item = impl ToString>, most: usize) -> String {
    let more = if items.len() > most { ", ..." } else { "" };
    let first: Vec<String> = items.take(most).map(|item| item.to_string()).collect();
    first.join(", ") + more
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

/// What ssh says, and the way out.
const HINTS: [(&str, &str); 2] = [
    ("Permission denied", "; ssh to it has to work without a password: ssh-copy-id gives it a key"),
    ("Host key verification failed", "; ssh to it once by hand, to say that this is the host"),
];

/// Why an agent is gone, or never came: by the end of the command that ran it, and by what that has said.
pub(crate) fn no_agent(ssh: &str, status: Option<End>, said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let said = lines[lines.len().saturating_sub(3)..].join("; ");
    let said = said.trim_start_matches("mpirun: ");
    let ended = match status {
        Some(End::Code(code)) => format!("{ssh} ended with status {code}"),
        Some(End::Signal { number, .. }) => format!("{ssh} was {}", killed_by(number)),
        None => format!("the connection ({ssh}) is closed"),
    };
    let by_words = || HINTS.iter().find(|(words, _)| said.contains(words)).map_or("", |(_, hint)| hint);
    let hint = match status {
        Some(End::Code(126 | 127)) => "; is Banyan at this path there? --prefix says where it is",
        _ => by_words(),
    };
    if said.is_empty() { ended } else { format!("{said} ({ended}){hint}") }
}
