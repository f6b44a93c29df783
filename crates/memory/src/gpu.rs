//! Which devices users' pointers are looked for on.

use std::sync::OnceLock;

use crate::cuda;

/// Which devices a program may pass memory of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpus {
    /// None: all memory counts as the host's.
    Off,
    /// Those of CUDA; its driver is loaded.
    Cuda,
    /// Those of each driver that the program itself has loaded, or may still load.
    Auto,
}

/// Begins to look for memory of devices where users pass it, once in the life of the process.
///
/// # Errors
/// A sentence: what was asked for is not there.
pub fn look_for(gpus: Gpus) -> Result<(), String> {
    static DONE: OnceLock<Result<(), String>> = OnceLock::new();
    match gpus {
        Gpus::Off => Ok(()),
        Gpus::Cuda => DONE.get_or_init(cuda::load).clone(),
        Gpus::Auto => DONE
            .get_or_init(|| {
                cuda::look();
                Ok(())
            })
            .clone(),
    }
}
