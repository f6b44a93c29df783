//! Which devices users' pointers are looked for on.

use std::sync::{Mutex, PoisonError};

use crate::drivers;

/// Which devices a program may pass memory of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpus {
    /// None: all memory counts as the host's. In a program that has loaded a driver by now, memory that the processor cannot touch is refused.
    Off,
    /// Those of CUDA; its driver is loaded.
    Cuda,
    /// Those of each driver that the program itself has loaded, or may still load.
    Auto,
}

/// Begins to look for memory of devices where users pass it. It may be called again: what was found stays found, and with
/// [`Gpus::Auto`] a driver is seen that was not there before.
///
/// # Errors
/// A sentence: what was asked for is not there.
pub fn look_for(gpus: Gpus) -> Result<(), String> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match gpus {
        Gpus::Off => {
            drivers::refuse();
            Ok(())
        }
        _ if drivers::is_looking() => Ok(()),
        Gpus::Cuda => drivers::load(),
        Gpus::Auto => {
            drivers::look();
            Ok(())
        }
    }
}

/// The PCI address, such as `0000:18:00.0`, of the CUDA device that is current in this thread; `None` without one.
pub fn current_cuda_device() -> Option<String> {
    drivers::current_device()
}

/// True if memory of CUDA devices is known as such where users pass it.
pub fn sees_cuda() -> bool {
    drivers::is_looking()
}
