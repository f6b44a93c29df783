//! [`Library`]: which library a fabric is in, and how that is found.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use banyan_transport::{Joining, NotStarted};

use crate::table::{Edition, Table};

/// The name of a library's one symbol: see [`export!`](crate::export!).
const ENTRY: &CStr = c"banyan_fabric";

/// A library with a fabric.
pub trait Library {
    /// Its file's name.
    const FILE: &'static str;
    /// How a user comes by it.
    const REMEDY: &'static str;

    /// The network interfaces that the fabric is to use ([`Joining::nics`] on its side): asked before the library is loaded. `None`: the
    /// job has no use for it.
    ///
    /// # Errors
    /// If it should start and cannot.
    fn nics(joining: &Joining<'_>) -> Result<Option<String>, NotStarted>;
}

/// Where a library is, if it was installed with this code: beside the library or program that this is part of, or in `lib` beside
/// that one's folder.
pub fn find<L: Library>() -> Option<PathBuf> {
    let folder = here().or_else(|| std::env::current_exe().ok())?.parent()?.to_owned();
    let places = [folder.join(L::FILE), folder.with_file_name("lib").join(L::FILE)];
    places.into_iter().find(|file| file.exists())
}

/// Loads a library, for good, and gives its table. One that was not installed with this code is looked for where the loader does.
///
/// # Errors
/// If it is not there, lacks what it needs itself, or is of another release: a sentence that names it.
pub(crate) fn load<L: Library>() -> Result<&'static Table, String> {
    let found = find::<L>();
    let remedy = if found.is_some() { String::new() } else { format!(" ({})", L::REMEDY) };
    let file = found.unwrap_or_else(|| L::FILE.into());
    let name =
        CString::new(file.as_os_str().as_bytes()).map_err(|_| format!("{}: a bad name", file.display()))?;
    // SAFETY: runs the initialization of the library that was installed with this one, and of what it needs.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(format!("its library cannot be loaded: {}{remedy}", last_error()));
    }
    // SAFETY: the library is loaded, and the name is a C string.
    let entry = unsafe { libc::dlsym(library, ENTRY.as_ptr()) };
    if entry.is_null() {
        return Err(format!("{} has no fabric: {}", file.display(), last_error()));
    }
    // SAFETY: the symbol of `export!`, which has this type in all versions. The library is never unloaded.
    let table = unsafe {
        let entry = std::mem::transmute::<*mut c_void, extern "C" fn() -> *const Table>(entry);
        entry()
    };
    // SAFETY: a static, which begins with its edition in all versions.
    if unsafe { *table.cast::<Edition>() } != Edition::OURS {
        return Err(format!("{} is of another release: install both together", file.display()));
    }
    // SAFETY: a static of this type, as its edition is ours.
    Ok(unsafe { &*table })
}

/// The file of the library, or of the program, that this code is in.
fn here() -> Option<PathBuf> {
    // SAFETY: a struct of pointers, which may be null.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    let code: fn() -> Option<PathBuf> = here;
    // SAFETY: any address may be asked for, and the struct is there to be filled.
    let known = unsafe { libc::dladdr(code as *const c_void, &mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string of the loader's, which lives as long as this code is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()
}

/// What the loader says of its last failure.
fn last_error() -> String {
    // SAFETY: gives null, or a string that lives until the next call of the loader in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: as above; copied at once.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
