//! Processes of tests in which the dynamic linker finds the stand-in under the names of CUDA's libraries.

use std::path::Path;
use std::process::{Command, Output};

/// Set in a process of [`again`].
const AGAIN: &str = "BANYAN_TEST_FINDS_CUDA";

/// True in a process of [`again`].
pub fn is_again() -> bool {
    std::env::var_os(AGAIN).is_some()
}

/// Runs one test of this program in a new process that finds the stand-in under these names (`libnvrtc.so`), in an environment with
/// these variables too. The link lies in a folder of that name in `folder`.
///
/// # Panics
/// If the folder cannot be written, or the test fails or is not there.
pub fn again(test: &str, folder: &Path, names: &[&str], variables: &[(&str, &str)]) {
    let program = std::env::current_exe().expect("a path");
    let double = program.with_file_name("libcuda_double.so");
    let folder = folder.join(format!("cuda-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for links");
    for name in names {
        std::os::unix::fs::symlink(&double, folder.join(name)).expect("a link to the stand-in");
    }
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture"]).env(AGAIN, "1").env("LD_LIBRARY_PATH", &folder);
    let done = command.envs(variables.iter().copied()).output();
    let _ = std::fs::remove_dir_all(&folder);
    let Output { status, stdout, stderr } = done.expect("this program starts");
    let said = String::from_utf8_lossy(&stderr) + String::from_utf8_lossy(&stdout);
    assert!(status.success() && said.contains("1 passed"), "{test}: {said}");
}
