//! Where things are: the repository, and the folders under target/ that tasks keep things in.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The repository and its build folder.
pub(crate) struct Project {
    root: PathBuf,
    target: PathBuf,
    /// How many programs to build or small tests to run at a time.
    pub(crate) jobs: usize,
}

impl Project {
    /// The project that this program was built from.
    pub(crate) fn find() -> Result<Project> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()
            .context("the repository that xtask was built from is gone")?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
        Ok(Project { root, target, jobs })
    }

    /// The repository's root folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's build folder.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// A file of the repository.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A folder under target/, made if it is missing.
    pub(crate) fn folder(&self, path: &str) -> Result<PathBuf> {
        let folder = self.target.join(path);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    /// Where the demo and the tests install Banyan.
    pub(crate) fn prefix(&self) -> PathBuf {
        self.target.join("banyan")
    }

    /// The text of a file of the repository.
    pub(crate) fn read(&self, path: &str) -> Result<String> {
        read(&self.file(path))
    }
}

/// The text of a file, with its name in the error.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, with its name in the error.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Files of a folder whose names end in `.ext`, sorted.
pub(crate) fn files_with(folder: &Path, ext: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == ext) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A file's name without folder and extension.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
