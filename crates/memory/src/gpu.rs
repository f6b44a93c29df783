//! Which devices users' pointers are looked for on.

use std::sync::{Mutex, PoisonError};

use crate::drivers::{self, Platform};

/// Which devices a program may pass memory of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpus {
    /// None: all memory counts as the host's. In a program that has loaded a driver by now, memory that the processor cannot touch is refused.
    Off,
    /// Those of one platform; its driver is loaded. Memory of another one's is refused as with [`Gpus::Off`].
    Only(Platform),
    /// Those of each driver that the program itself has loaded, or may still load.
    Auto,
}

/// Begins to look for memory of devices where users pass it. It may be called again: what was found stays found, and with
/// [`Gpus::Auto`] a driver is seen that was not there before. `setting` is what the user has said: messages name it.
///
/// # Errors
/// A sentence: what was asked for is not there.
pub fn look_for(gpus: Gpus, setting: &'static str) -> Result<(), String> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match gpus {
        Gpus::Off => Platform::ALL.into_iter().for_each(|platform| drivers::refuse(platform, setting)),
        Gpus::Only(platform) => {
            if !drivers::is_looking(platform) {
                drivers::load(platform)?;
            }
            let others = Platform::ALL.into_iter().filter(|other| *other != platform);
            others.for_each(|other| drivers::refuse(other, setting));
        }
        Gpus::Auto => {
            let new = Platform::ALL.into_iter().filter(|platform| !drivers::is_looking(*platform));
            new.for_each(drivers::look);
        }
    }
    Ok(())
}

/// The PCI address, such as `0000:18:00.0`, of the device of a platform that is current in this thread; `None` without one.
pub fn current_device(platform: Platform) -> Option<String> {
    drivers::current_device(platform)
}

/// True if memory of devices of a platform is known as such where users pass it.
pub fn sees(platform: Platform) -> bool {
    drivers::is_looking(platform)
}
