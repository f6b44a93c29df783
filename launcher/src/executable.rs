//! Reads the file of a program to explain why its job went wrong: an interpreter that is missing, or the library of another
//! MPI.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use banyan_pmi::FD_VARIABLE;
use goblin::elf::Elf;

use crate::default_variables::parts;

/// The folders that the loader searches last.
const SYSTEM: [&str; 8] = [
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Libraries that need no MPI, and so are not read.
const WITHOUT_MPI: [&str; 7] =
    ["libc.so", "libm.so", "libgcc_s.so", "libstdc++.so", "libpthread.so", "libdl.so", "ld-linux"];

/// The interpreter or loader that a program needs and that is missing, for which exec says that the program is; `None` if
/// none is missing.
pub(crate) fn missing_interpreter(program: &Path) -> Option<String> {
    let bytes = fs::read(program).ok()?;
    let (what, interpreter) = match bytes.strip_prefix(b"#!") {
        Some(rest) => {
            let line = rest.split(|&byte| byte == b'\n').next().unwrap_or(rest);
            let line = String::from_utf8_lossy(line).into_owned();
            let name = line.trim_matches([' ', '\t']).split([' ', '\t']).next().unwrap_or("").to_owned();
            ("the interpreter that its first line names", name)
        }
        None => ("the loader that it asks for", Elf::parse(&bytes).ok()?.interpreter?.to_owned()),
    };
    if Path::new(&interpreter).exists() {
        return None;
    }
    let hint = match interpreter.strip_suffix('\r') {
        Some(name) if Path::new(name).exists() => {
            ": the line ends as on Windows (remove the carriage returns, as with dos2unix)"
        }
        _ => "",
    };
    Some(format!("{what}, {}, is not there{hint}", interpreter.trim_end().escape_default()))
}

/// A library of another MPI that a program needs.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Foreign {
    /// Its name in the program's file.
    library: String,
    /// The MPI implementations that have a library of this name.
    owner: &'static str,
    /// Where the loader finds it, if it does.
    path: Option<PathBuf>,
}

impl Foreign {
    /// The first such library among those that a program needs and, one step further, among those that they need. `search`
    /// is the program's LD_LIBRARY_PATH.
    pub(crate) fn of(program: &Path, search: &OsStr) -> Option<Foreign> {
        let needs = Needs::of(program, search)?;
        let direct = needs.foreign();
        direct.or_else(|| {
            let others = needs
                .libraries
                .iter()
                .filter(|name| !WITHOUT_MPI.iter().any(|known| name.starts_with(known)));
            others.filter_map(|name| Needs::of(&needs.find(name)?, search)?.foreign()).next()
        })
    }

    /// True if the loader does not find the library.
    pub(crate) fn is_missing(&self) -> bool {
        self.path.is_none()
    }

    /// The message for the user.
    pub(crate) fn describe(&self, program: &str) -> String {
        let Foreign { library, owner, path } = self;
        let start = format!("program {program} is linked with {library} ({owner})");
        let way_out =
            "build it with the mpicc beside this mpirun, or start it with the mpirun of its own MPI";
        match path {
            Some(path) => format!(
                "{start}, found as {}: that library cannot join this job, so each rank was rank 0 of 1 in a job of \
                 its own; {way_out}",
                path.display()
            ),
            None => format!("{start}, which the loader does not find; {way_out}"),
        }
    }
}

/// The libraries that an ELF file needs, and the folders where the loader looks for them.
struct Needs {
    libraries: Vec<String>,
    folders: Vec<PathBuf>,
}

impl Needs {
    fn of(file: &Path, search: &OsStr) -> Option<Needs> {
        let bytes = fs::read(file).ok()?;
        let elf = Elf::parse(&bytes).ok()?;
        let origin = fs::canonicalize(file).ok()?.parent()?.to_string_lossy().into_owned();
        let expand = |paths: &[&str]| -> Vec<PathBuf> {
            let parts = paths.iter().flat_map(|path| path.split(':'));
            parts.map(|part| part.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin).into()).collect()
        };
        let mut folders = if elf.runpaths.is_empty() { expand(&elf.rpaths) } else { Vec::new() };
        folders.extend(parts(search).map(PathBuf::from));
        folders.extend(expand(&elf.runpaths));
        folders.extend(SYSTEM.map(PathBuf::from));
        Some(Needs { libraries: elf.libraries.iter().map(|&name| name.to_owned()).collect(), folders })
    }

    fn find(&self, library: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(library)).find(|path| path.exists())
    }

    fn foreign(&self) -> Option<Foreign> {
        let of_mpi = |library: &String| {
            let owner = owner(library)?;
            let path = self.find(library);
            let ours = path.as_ref().is_some_and(|path| is_ours(path));
            (!ours).then(|| Foreign { library: library.clone(), owner, path })
        };
        self.libraries.iter().find_map(of_mpi)
    }
}

/// The MPI implementations that have a library of this name; `None` if it is no MPI library.
fn owner(library: &str) -> Option<&'static str> {
    match library.split_once(".so")? {
        ("libmpi", ".12") | ("libmpich" | "libmpifort" | "libmpicxx" | "libmpichf90", _) => {
            Some("MPICH, Intel MPI or MVAPICH")
        }
        ("libmpi", ".40" | ".41" | ".20" | ".12.0") => Some("Open MPI"),
        ("libmpi_abi", _) => Some("the standard ABI"),
        ("libmpi", _) => Some("another MPI"),
        _ => None,
    }
}

/// True if this is our library: it contains the name of the variable that leads a rank to its agent.
fn is_ours(library: &Path) -> bool {
    let bytes = fs::read(library).unwrap_or_default();
    bytes.windows(FD_VARIABLE.len()).any(|part| part == FD_VARIABLE.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_mpi_are_known_by_name() {
        assert_eq!(owner("libmpi.so.40"), Some("Open MPI"));
        assert_eq!(owner("libmpi.so.12"), Some("MPICH, Intel MPI or MVAPICH"));
        assert_eq!(owner("libmpich.so.12"), Some("MPICH, Intel MPI or MVAPICH"));
        assert_eq!(owner("libmpi_abi.so.1"), Some("the standard ABI"));
        assert_eq!(owner("libmpfr.so.6"), None);
        assert_eq!(owner("libc.so.6"), None);
    }

    #[test]
    fn interpreters_that_are_missing_are_named() {
        let file = std::env::temp_dir().join(format!("banyan-interpreter-{}", std::process::id()));
        let says = |text: &str| {
            fs::write(&file, text).unwrap();
            missing_interpreter(&file)
        };
        let text = says("#! /no/such/python3 -u\nprint(1)\n").unwrap();
        assert_eq!(text, "the interpreter that its first line names, /no/such/python3, is not there");
        assert!(says("#!/bin/sh\r\necho\r\n").unwrap().contains("as on Windows"));
        assert_eq!(says("#!/bin/sh\necho\n"), None);
        assert_eq!(says("neither"), None);
        fs::remove_file(&file).unwrap();
    }
}
