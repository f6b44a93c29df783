//! Pseudo-terminals: ranks write to them if mpirun's own stdout is a terminal, so that programs write line by line, in
//! colour and to the width of the window, as they do without mpirun. Bytes pass through unchanged.

use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

/// The window size where mpirun's stdout has none.
const WINDOW: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// Whether ranks get a pseudo-terminal (`--pty`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    /// Ranks get pipes.
    Never,
    /// Ranks get terminals with this window size, or pipes where the system gives no terminal.
    IfPossible(Winsize),
    /// Ranks get terminals with this window size.
    Always(Winsize),
}

impl Policy {
    /// The policy for a value of `--pty`.
    pub(crate) fn of(option: &str) -> Policy {
        let window = || tcgetwinsize(io::stdout()).unwrap_or(WINDOW);
        match option {
            "never" => Policy::Never,
            "always" => Policy::Always(window()),
            _ if io::stdout().is_terminal() => Policy::IfPossible(window()),
            _ => Policy::Never,
        }
    }

    /// Rows and columns of the terminals that ranks on other hosts get where the system gives one.
    pub(crate) fn size(self) -> Option<(u16, u16)> {
        match self {
            Policy::Never => None,
            Policy::IfPossible(window) | Policy::Always(window) => Some((window.ws_row, window.ws_col)),
        }
    }

    /// The policy on another host.
    pub(crate) fn with(size: Option<(u16, u16)>) -> Policy {
        let window = |(ws_row, ws_col)| Winsize { ws_row, ws_col, ..WINDOW };
        size.map_or(Policy::Never, |size| Policy::IfPossible(window(size)))
    }

    /// mpirun's end and the rank's end of a new terminal; `None` if the rank is to get a pipe.
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

/// Opens a terminal that changes no byte and echoes nothing; gives mpirun's end and the rank's end.
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
