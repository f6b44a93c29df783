//! TAP devices: network cards whose other end is a descriptor.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use rustix::ioctl::{Setter, ioctl};

/// `struct ifreq` of linux/if.h, as far as TUNSETIFF reads it.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
/// Ethernet frames (IFF_TAP), nothing in front of them (IFF_NO_PI).
const FLAGS: i16 = 0x0002 | 0x1000;
const _: () = assert!(size_of::<Request>() == 40);

/// Makes a device in this network namespace; each read of the file is a frame that leaves it, each write one that arrives.
/// Neither waits. The device goes when the file is closed.
#[allow(unsafe_code, reason = "TUNSETIFF has no safe face at hand")]
pub(super) fn open(name: &str) -> Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let path = "/dev/net/tun";
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).context(path)?;
    let mut request = Request { name: [0; 16], flags: FLAGS, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, whose 40 bytes `Request` has (asserted above), and keeps no pointer
    // to it; `name` ends with a zero, as the copy above would have panicked if it did not fit.
    let made = unsafe { ioctl(&file, Setter::<TUNSETIFF, Request>::new(request)) };
    made.with_context(|| format!("cannot make the network device {name}"))?;
    Ok(file)
}
