//! Pseudo-terminals: what a rank writes to if mpirun's own stdout is a terminal, so that programs write line by line, in
//! colour and to the width of the window, as they do without mpirun. Bytes pass through unchanged.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

/// The window of a terminal that has none of its own.
const WINDOW: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// Whether ranks get a pseudo-terminal (`--pty`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    /// Pipes.
    Never,
    /// Terminals with this window; pipes where the system gives no terminal.
    IfPossible(Winsize),
    /// Terminals with this window.
    Always(Winsize),
}

impl Policy {
    /// What `--pty` asks for.
    pub(crate) fn of(option: &str) -> Policy {
        let window = || tcgetwinsize(io::stdout()).unwrap_or(WINDOW);
        match option {
            "never" => Policy::Never,
            "always" => Policy::Always(window()),
            _ if io::stdout().is_terminal() => Policy::IfPossible(window()),
            _ => Policy::Never,
        }
    }

    /// mpirun's end and the rank's end of a new terminal; `None` if it is to be a pipe.
    ///
    /// # Errors
    /// If there must be one and the system gives none.
    pub(crate) fn open(self) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
        match self {
            Policy::Never => Ok(None),
            Policy::IfPossible(window) => Ok(open(window).ok()),
            Policy::Always(window) => open(window).map(Some).map_err(|why| {
                io::Error::other(format!("no pseudo-terminal ({why}); --pty never does without"))
            }),
        }
    }
}

/// A terminal that changes no byte and echoes nothing.
fn open(window: Winsize) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    let mut modes = tcgetattr(&theirs)?;
    modes.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &modes)?;
    tcsetwinsize(&theirs, window)?;
    Ok((ours, theirs))
}
