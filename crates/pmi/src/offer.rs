//! [`Offer`]: how two processes that know each other only by way of others find out that they share a machine's memory.
//!
//! One makes a small memfd that begins with a random number, and says which descriptor of its process that is. The other opens it
//! by way of `/proc/PID/fd`. Process numbers may mean something else in another container or on another host; that the
//! number is there proves that they do not.
//!
//! The system allows this to processes of one user (also with the Yama security module at its default) which see each other's
//! process numbers.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open, readlink,
};
use rustix::io::{pread, pwrite};
use serde::{Deserialize, Serialize};

use crate::inherit::largest_file;

/// Bytes of the random number at the start.
pub(crate) const NONCE: usize = 32;

/// Where a process has a memfd, and the random number that it begins with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    pub(crate) pid: u32,
    pub(crate) fd: i32,
    pub(crate) nonce: [u8; NONCE],
}

impl Offer {
    /// Makes a memfd with room for so many bytes behind the random number. It is offered as long as it is open.
    ///
    /// # Errors
    /// What the system says.
    pub fn make(bytes: usize) -> io::Result<(OwnedFd, Offer)> {
        let bytes = (NONCE + bytes) as u64;
        // Going past a limit on file sizes (ulimit -f) raises SIGXFSZ.
        if largest_file() < bytes {
            return Err(rustix::io::Errno::FBIG.into());
        }
        let file = memfd_create("banyan-board", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let nonce = crate::random()?;
        pwrite(&file, &nonce, 0)?;
        let offer = Offer { pid: std::process::id(), fd: file.as_raw_fd(), nonce };
        Ok((file, offer))
    }

    /// Opens what is offered; `None` if this process cannot, or finds something else there.
    pub fn open(&self) -> Option<OwnedFd> {
        let file = open_memfd(self.pid, self.fd)?;
        let mut nonce = [0; NONCE];
        (pread(&file, &mut nonce, 0) == Ok(NONCE) && nonce == self.nonce).then_some(file)
    }

    /// The process that offers it, as that process knows itself.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

/// A text that is equal at processes which see each other's process numbers: a hint at who may be worth an [`Offer`].
pub fn whereabouts() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{} {} {name}", boot.trim(), processes.display())
}

/// Opens a memfd of ours that another process has under this number.
pub(crate) fn open_memfd(pid: u32, fd: i32) -> Option<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{fd}");
    // Only a memfd: to open something else, such as a device, might have effects.
    let target = readlink(&path, Vec::new()).ok()?;
    target.to_bytes().starts_with(b"/memfd:banyan").then_some(())?;
    open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_offered_is_opened() {
        let (_file, offer) = Offer::make(0).unwrap();
        assert!(offer.open().is_some(), "a process may open its own files");
        let other = memfd_create("banyan", MemfdFlags::CLOEXEC).unwrap();
        let stdin = std::fs::File::open("/dev/null").unwrap();
        for wrong in [
            Offer { nonce: [7; NONCE], ..offer.clone() },
            Offer { fd: other.as_raw_fd(), ..offer.clone() },
            Offer { fd: stdin.as_raw_fd(), ..offer.clone() },
            Offer { fd: -1, ..offer.clone() },
            Offer { pid: 1, ..offer.clone() },
            Offer { pid: u32::MAX, ..offer },
        ] {
            assert!(wrong.open().is_none(), "{wrong:?}");
        }
    }
}
