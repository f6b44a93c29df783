//! Where the built library and the project's files are, for the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the project, by its path from the root.
pub(crate) fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The folder with `libmpi_abi.so` that cargo built for this test, which also gets its SONAME as a name.
pub(crate) fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let folder = test.parent().expect("a folder").to_path_buf();
    let library = folder.join("libmpi_abi.so");
    assert!(library.exists(), "cargo did not build {}", library.display());
    let named = folder.join("libmpi_abi.so.1");
    let _ = std::os::unix::fs::symlink("libmpi_abi.so", named);
    folder
}

/// Runs a command and returns what it printed; panics with all of it if it fails.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}
