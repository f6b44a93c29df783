//! Kernels, compiled for the processor: what `BANYAN_TEST_CUDA_KERNELS` may name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The library of a text in C++, in this folder; it is compiled if that was not done before, which takes seconds, and says so.
///
/// # Errors
/// A sentence: there is no compiler, which is a reason to skip a test.
///
/// # Panics
/// If the compiler refuses the text, or the folder cannot be written.
pub fn library(text: &str, folder: &Path) -> Result<PathBuf, String> {
    let (source, library) = (folder.join("kernels.cpp"), folder.join("libkernels.so"));
    if library.exists() && std::fs::read_to_string(&source).is_ok_and(|last| last == text) {
        return Ok(library);
    }
    if let Err(error) = Command::new("g++").arg("--version").output() {
        return Err(format!("g++ does not start: {error}"));
    }
    // Others may do the same at this time: what is there is whole.
    let own = |name: &str| folder.join(format!("{}-{name}", std::process::id()));
    let (draft, made) = (own("kernels.cpp"), own("libkernels.so"));
    std::fs::create_dir_all(folder).expect("a folder for kernels");
    std::fs::write(&draft, text).expect("a text of kernels");
    let began = Instant::now();
    let done = Command::new("g++")
        .args([
            "-O1",
            "-std=c++14",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-fPIC",
            "-shared",
        ])
        // What NVRTC is told, too: products and sums stay apart. The kernels take memory as words of any type.
        .args(["-ffp-contract=off", "-fno-strict-aliasing", "-o"])
        .args([&made, &draft])
        .output()
        .expect("g++");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let _ = std::fs::remove_file(&source);
    std::fs::rename(&made, &library).expect("a library of kernels");
    std::fs::rename(&draft, &source).expect("a text of kernels");
    eprintln!("g++ took {:.1} s for the kernels", began.elapsed().as_secs_f64());
    Ok(library)
}
