//! How the process ends when an error is fatal.

use crate::boundary::Target;
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::report;
use std::fmt;

/// MPI_ERRORS_ARE_FATAL: says what happened and ends the job.
pub(crate) fn abort_all(name: &str, target: Target, code: c_int) -> ! {
    abort(name, target, code, "MPI_ERRORS_ARE_FATAL")
}

/// MPI_ERRORS_ABORT: does what MPI_Abort on the communicator does; that ends the whole job, too.
pub(crate) fn abort_comm(name: &str, target: Target, code: c_int) -> ! {
    abort(name, target, code, "MPI_ERRORS_ABORT")
}

fn abort(name: &str, target: Target, code: c_int, handler: &str) -> ! {
    let text = report::fatal(name, target, code, handler);
    match INSTANCE.runtime() {
        // mpirun prints it, once however many ranks send it.
        Ok(runtime) if runtime.is_launched() => {}
        _ => {
            // SAFETY: flushes C's streams, which is allowed at any time.
            unsafe { libc::fflush(std::ptr::null_mut()) };
            say(&text);
        }
    }
    crate::init::abort(code, &text)
}

/// Writes a text to stderr at once.
pub(crate) fn say(text: &str) {
    // SAFETY: reads a text of ours.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// A text of at most `N` bytes that needs no memory from the allocator; the rest is cut off.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = N - self.len;
        let len = (0..=text.len().min(room)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        self.bytes[self.len..][..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
