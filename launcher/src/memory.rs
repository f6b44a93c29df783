//! The host's shared memory: a memfd that ranks inherit, so that nothing is left behind and no small /dev/shm
//! is in the way.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const MIB: u64 = 1 << 20;

/// Largest memory asked for; only pages that are touched cost anything.
const MOST: u64 = 8 << 30;

/// Least that is of any use.
const LEAST: u64 = MIB;

/// Memory for `ranks` ranks: room for what each has and for what each pair has.
///
/// # Errors
/// Why none can be made.
pub(crate) fn create(ranks: u32) -> Result<OwnedFd, String> {
    let memfd = memfd_create("banyan", MemfdFlags::CLOEXEC).map_err(|why| why.to_string())?;
    let ranks = u64::from(ranks);
    let mut bytes = (64 * MIB + ranks * 2 * MIB + ranks * ranks * (MIB / 8)).min(MOST);
    // A limit on file sizes (ulimit -f) may refuse; going past it also raises SIGXFSZ, so ask first.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    bytes = bytes.min(limit.unwrap_or(u64::MAX));
    while bytes >= LEAST {
        match ftruncate(&memfd, bytes) {
            Ok(()) => return Ok(memfd),
            Err(_) => bytes /= 2,
        }
    }
    Err("the limit on file sizes (ulimit -f) is too low".to_owned())
}
