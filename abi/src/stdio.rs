//! The C streams of a rank: its output appears line by line, as at a terminal.
//!
//! A rank's stdout is a pipe to mpirun. The C library would keep up to 4 KiB of what goes into a pipe, and a rank that hangs or
//! is killed would take it along. So, when this library is loaded into a rank, before `main`, stdout becomes line
//! buffered. stdin does too, because the C library writes out a line-buffered stdout (a prompt without a line end) before
//! it reads from a stream that is not fully buffered. What a program sets with `setvbuf` itself stays in force.

use std::ptr::null_mut;

use banyan_runtime::FD_NAME;

unsafe extern "C" {
    static stdin: *mut libc::FILE;
    static stdout: *mut libc::FILE;
}

/// Run by the loader when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = buffer_by_lines;

extern "C" fn buffer_by_lines() {
    // SAFETY: the C library is initialized before the libraries that need it. No other thread runs yet that could change
    // the environment, or use the streams, when a program and its libraries are loaded; a program that loads this library
    // later (Python) still only finds its streams' mode changed, under their locks. No buffer is given, none is replaced.
    unsafe {
        if libc::getenv(FD_NAME.as_ptr()).is_null() {
            return;
        }
        libc::setvbuf(stdout, null_mut(), libc::_IOLBF, 0);
        libc::setvbuf(stdin, null_mut(), libc::_IOLBF, 0);
    }
}
