//! Ranks' output in files: `--output DIR`, `--outfile-pattern` and `--errfile-pattern`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use crate::Trouble;
use crate::options::Global;
use crate::output::StreamKind;
use crate::trouble::reason;

/// The name of a file, with placeholders for what differs between ranks: `%r` the rank, `%h` the host, and `%g` and `%p`,
/// Hydra's numbers of process group and proxy, which are 0. `%%` is a percent sign.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pattern(String);

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        if text.is_empty() {
            return Err("a file has to have a name".to_owned());
        }
        let mut letters = text.chars();
        while letters.by_ref().any(|letter| letter == '%') {
            match letters.next() {
                Some('r' | 'h' | 'g' | 'p' | '%') => {}
                Some(other) => {
                    return Err(format!("%{other} is not one of %r (rank), %h (host), %g, %p and %%"));
                }
                None => return Err("% at the end stands for nothing (%% is a percent sign)".to_owned()),
            }
        }
        Ok(Pattern(text.to_owned()))
    }
}

impl Pattern {
    /// The file's name for `rank` on `host`.
    fn path(&self, rank: u32, host: &str) -> PathBuf {
        let mut path = String::new();
        let mut letters = self.0.chars();
        while let Some(letter) = letters.next() {
            match (letter, if letter == '%' { letters.next() } else { None }) {
                ('%', Some('r')) => path += &rank.to_string(),
                ('%', Some('h')) => path += host,
                ('%', Some('g' | 'p')) => path.push('0'),
                (letter, _) => path.push(letter),
            }
        }
        path.into()
    }

    /// True if all ranks have the same file.
    fn is_shared(&self) -> bool {
        self.path(0, "") == self.path(1, "")
    }
}

/// The files for the output of a job's ranks.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Files {
    /// Files rank-N.out and rank-N.err in a folder.
    Folder(PathBuf),
    /// Patterns of the files for standard output and standard error; `None`: that output goes to no file.
    Named([Option<Pattern>; 2]),
}

impl Files {
    /// No output goes to files.
    pub(crate) fn none() -> Files {
        Files::Named([None, None])
    }

    /// The files that the options name. The folder is created; a file that all ranks share is emptied.
    ///
    /// # Errors
    /// If the folder or the shared file cannot be written to.
    pub(crate) fn new(global: &Global, host: &str) -> Result<Files, Trouble> {
        if let Some(folder) = &global.output {
            let files = Files::Folder(folder.clone());
            return files.prepare().map(|()| files);
        }
        let patterns = [&global.outfile_pattern, &global.errfile_pattern];
        for (pattern, option) in patterns.into_iter().zip(["--outfile-pattern", "--errfile-pattern"]) {
            if let Some(shared) = pattern.as_ref().filter(|pattern| pattern.is_shared()) {
                let path = shared.path(0, host);
                let made = File::create(&path);
                made.map_err(|why| Trouble::new(format!("{option} {}: {}", path.display(), reason(&why))))?;
            }
        }
        Ok(Files::Named(patterns.map(Clone::clone)))
    }

    /// Makes the folder, if there is one.
    ///
    /// # Errors
    /// If it cannot be written to.
    pub(crate) fn prepare(&self) -> Result<(), Trouble> {
        let Files::Folder(folder) = self else { return Ok(()) };
        let made = std::fs::create_dir_all(folder);
        made.map_err(|why| if folder.is_file() { rustix::io::Errno::NOTDIR.into() } else { why })
            .and_then(|()| Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?))
            .map_err(|why| Trouble::new(format!("--output {}: {}", folder.display(), reason(&why))))
    }

    /// How many of a rank's two outputs go to files.
    pub(crate) fn count(&self) -> u64 {
        match self {
            Files::Folder(_) => 2,
            Files::Named(patterns) => patterns.iter().flatten().count() as u64,
        }
    }

    /// Opens the file for the output `kind` of `rank`; `None` if that output goes to no file.
    ///
    /// # Errors
    /// If the file cannot be made, with its name.
    pub(crate) fn open(&self, kind: StreamKind, rank: u32, host: &str) -> io::Result<Option<OwnedFd>> {
        let mut options = OpenOptions::new();
        options.create(true);
        let path = match self {
            Files::Folder(folder) => {
                options.write(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
                folder.join(format!("rank-{rank}.{}", ["out", "err"][kind as usize]))
            }
            Files::Named(patterns) => {
                let Some(pattern) = &patterns[kind as usize] else { return Ok(None) };
                let path = pattern.path(rank, host);
                // Others may append to this file: this rank's other output, and, if it is shared, the other ranks.
                options.append(true);
                if !pattern.is_shared() {
                    options.custom_flags(libc::O_TRUNC | libc::O_NOFOLLOW);
                }
                path
            }
        };
        options.open(&path).map(|file| Some(file.into())).map_err(|why| named(&path, &why))
    }
}

/// An error that names the file. A file of one rank is not opened through a symbolic link, which somebody else may have
/// planted.
fn named(path: &std::path::Path, why: &io::Error) -> io::Error {
    let why = match why.raw_os_error() {
        Some(libc::ELOOP) => "is a symbolic link, which is not followed: remove it".to_owned(),
        _ => reason(why),
    };
    io::Error::other(format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_from_patterns() {
        let name = |text: &str| text.parse::<Pattern>().map(|pattern| pattern.path(12, "node1"));
        assert_eq!(name("out.%r@%h").unwrap(), PathBuf::from("out.12@node1"));
        assert_eq!(name("%g-%p-100%%-%%r").unwrap(), PathBuf::from("0-0-100%-%r"));
        assert_eq!(name("é%ré").unwrap(), PathBuf::from("é12é"));
        for bad in ["", "%", "a%x", "%r%"] {
            assert!(name(bad).is_err(), "{bad}");
        }
        let shared = |text: &str| text.parse::<Pattern>().unwrap().is_shared();
        assert!(shared("all-%h") && !shared("one-%r"));
    }
}
