//! Memory of other processes: a handle names the process, its descriptor of the memory, and what it is.

use std::ffi::c_int;
use std::os::fd::OwnedFd;

use crate::codes::{ALREADY_MAPPED, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use crate::memory::Kind;
use crate::world::World;

/// A `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

const MAGIC: u64 = 0x62616e79616e6375;

impl World {
    /// The handle of the allocation that has an address.
    pub(crate) fn ipc_handle(&self, address: usize) -> Result<IpcHandle, c_int> {
        if !self.settings.ipc {
            return Err(NOT_SUPPORTED);
        }
        let allocation = self.memory.at(address).filter(|a| a.imported.is_none()).ok_or(INVALID_VALUE)?;
        let descriptor = allocation.descriptor().ok_or(INVALID_VALUE)?;
        let numbers = [
            MAGIC,
            u64::from(std::process::id()),
            descriptor as u64,
            allocation.len as u64,
            allocation.device as u64,
            allocation.id,
        ];
        let mut handle = [0; 64];
        for (slot, number) in handle.chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&number.to_le_bytes());
        }
        Ok(IpcHandle(handle))
    }

    /// Maps the memory of a handle; its address.
    pub(crate) fn ipc_open(&mut self, handle: IpcHandle) -> Result<usize, c_int> {
        let (context, device) = self.current()?;
        let mut numbers =
            handle.0.chunks_exact(8).map(|slot| u64::from_le_bytes(slot.try_into().unwrap_or_default()));
        let mut next = || numbers.next().unwrap_or(0);
        let (magic, process, descriptor, len, owner) = (next(), next(), next(), next(), next());
        if !self.settings.ipc || magic != MAGIC {
            return Err(if self.settings.ipc { INVALID_VALUE } else { NOT_SUPPORTED });
        }
        if process == u64::from(std::process::id()) {
            return Err(INVALID_CONTEXT);
        }
        if self.memory.all().any(|a| a.imported == Some(handle.0) && a.context == context) {
            return Err(ALREADY_MAPPED);
        }
        if owner as usize != device && !self.settings.peers {
            return Err(NOT_SUPPORTED);
        }
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = std::fs::File::options().read(true).write(true).open(path).map_err(|_| INVALID_VALUE)?;
        if self.settings.says {
            eprintln!("memory of process {process} is mapped");
        }
        self.memory.map(
            Kind::Device,
            len as usize,
            (context, device),
            Some(OwnedFd::from(file)),
            Some(handle.0),
        )
    }
}
