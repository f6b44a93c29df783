//! The variables that mpirun adds to the environment of all ranks of a program, unless the user has set them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The name of the library for the loader.
pub(crate) const LIBRARY: &str = "libmpi_abi.so.1";

/// The variable with the folders that the loader searches before those of the system.
pub(crate) const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// Makes Python and Fortran show what a rank prints at once, though it goes into a pipe; C and C++ are told by the library.
const UNBUFFERED: [(&str, &str); 2] = [("PYTHONUNBUFFERED", "1"), ("GFORTRAN_UNBUFFERED_PRECONNECTED", "y")];

/// Folders that the loader searches anyway. Adding one would put it before the folders that a program itself names.
const STANDARD: [&str; 6] =
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];

/// Names and values.
pub(crate) type Variables = Vec<(OsString, OsString)>;

/// Adds the variables that are not set.
pub(crate) fn complete(environment: &mut Variables) {
    for (name, value) in UNBUFFERED {
        if !environment.iter().any(|(key, _)| key == name) {
            environment.push((name.into(), value.into()));
        }
    }
    if let Some(folder) = library_folder()
        && !STANDARD.iter().any(|standard| folder == Path::new(standard))
    {
        append(environment, &folder);
    }
}

/// The folder of the library that is installed with this mpirun.
fn library_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?.parent()?.join("lib");
    folder.join(LIBRARY).exists().then_some(folder)
}

/// Appends a folder to the search path. An empty value means no folder, but an empty part of a value means the working
/// directory: no empty part is made, and one that is there stays.
fn append(environment: &mut Variables, folder: &Path) {
    let Some((_, value)) = environment.iter_mut().find(|(name, _)| name == SEARCH_PATH) else {
        return environment.push((SEARCH_PATH.into(), folder.into()));
    };
    if value.is_empty() {
        *value = folder.into();
    } else if !parts(value).any(|part| part == folder) {
        value.push(":");
        value.push(folder);
    }
}

/// The folders of a search path.
pub(crate) fn parts(path: &OsStr) -> impl Iterator<Item = &Path> {
    path.as_bytes().split(|&byte| byte == b':').map(|part| Path::new(OsStr::from_bytes(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_last_and_no_part_is_empty_by_it() {
        let with = |value: Option<&str>| {
            let mut environment: Variables =
                value.map(|value| (SEARCH_PATH.into(), value.into())).into_iter().collect();
            append(&mut environment, Path::new("/opt/banyan/lib"));
            environment[0].1.clone().into_string().unwrap()
        };
        assert_eq!(with(None), "/opt/banyan/lib");
        assert_eq!(with(Some("")), "/opt/banyan/lib");
        assert_eq!(with(Some("/a:/b")), "/a:/b:/opt/banyan/lib");
        assert_eq!(with(Some("/opt/banyan/lib:/b")), "/opt/banyan/lib:/b");
        assert_eq!(with(Some("/a:")), "/a::/opt/banyan/lib", "the working directory stays where it was");
    }

    #[test]
    fn what_the_user_set_stays() {
        let mut environment: Variables = vec![("PYTHONUNBUFFERED".into(), "0".into())];
        complete(&mut environment);
        let python: Vec<_> = environment.iter().filter(|(name, _)| name == "PYTHONUNBUFFERED").collect();
        assert_eq!(python.len(), 1);
        assert_eq!(python[0].1, "0");
    }
}
