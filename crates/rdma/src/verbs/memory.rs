//! Registered memory.

use std::sync::Arc;

use banyan_memory::{Buffer, HeapBuffer};
use rdma_sys::{ibv_access_flags, ibv_dereg_mr, ibv_mr, ibv_reg_mr};

use super::pair::Remote;
use super::{Device, Local, Object};

/// Who may do what with registered memory, besides this side's device, which may read it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nobody anything.
    None,
    /// This side's device may write to it.
    Local,
    /// Peers may read it.
    Read,
    /// Peers may read and write it, and do atomics.
    ReadWrite,
}

impl Access {
    fn flags(self) -> u32 {
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let write = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        match self {
            Access::None => 0,
            Access::Local => local.0,
            Access::Read => read.0,
            Access::ReadWrite => (local | read | write | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC).0,
        }
    }
}

/// A range of memory that the device may use while this is there.
pub(crate) struct Region {
    mr: Object<ibv_mr>,
    _memory: Buffer,
    _device: Arc<Device>,
}

impl Region {
    /// Registers all of a buffer of the host's, which is not empty.
    ///
    /// # Errors
    /// If the system or the device refuses: a sentence that says why.
    pub(crate) fn new(device: &Arc<Device>, memory: &Buffer, access: Access) -> Result<Region, String> {
        let start = memory.ptr(memory.lo(), memory.len());
        // SAFETY: the bounds of a buffer, whose maker promised that its memory is there until the operation that it was made for is
        // over: the fabric ends the region before it says so. Pinned pages do no harm should it be unmapped all the same.
        let mr =
            unsafe { ibv_reg_mr(device.domain(), start.cast(), memory.len(), access.flags().cast_signed()) };
        // SAFETY: it was just made here.
        let mr = unsafe { Object::new("registration of memory", mr, ibv_dereg_mr)? };
        Ok(Region { mr, _memory: memory.clone(), _device: device.clone() })
    }

    /// A part of it, for work that is posted here.
    pub(crate) fn local(&self, at: usize, len: u32) -> Local<'static> {
        // SAFETY: the object is there while this is.
        let (addr, lkey) = unsafe { ((*self.mr.get()).addr, (*self.mr.get()).lkey) };
        Local::Registered { addr: addr as u64 + at as u64, len, lkey }
    }

    /// Where peers find it.
    pub(crate) fn remote(&self) -> Remote {
        // SAFETY: as above.
        let (addr, rkey) = unsafe { ((*self.mr.get()).addr, (*self.mr.get()).rkey) };
        Remote { addr: addr as u64, rkey }
    }
}

/// Registered memory of our own, in slots of one length: what frames leave from and arrive in.
pub(crate) struct Slots {
    region: Region,
    memory: Buffer,
    length: usize,
}

impl Slots {
    /// So many slots of so many bytes.
    pub(crate) fn new(device: &Arc<Device>, number: usize, length: usize) -> Result<Slots, String> {
        let memory = HeapBuffer::zeroed(number * length);
        Ok(Slots { region: Region::new(device, &memory, Access::Local)?, memory, length })
    }

    /// The first `len` bytes of a slot, for work that is posted here.
    pub(crate) fn local(&self, slot: usize, len: usize) -> Local<'static> {
        assert!(len <= self.length);
        self.region.local(slot * self.length, len as u32)
    }

    /// All of a slot, for work that is posted here.
    pub(crate) fn whole(&self, slot: usize) -> Local<'static> {
        self.local(slot, self.length)
    }

    /// The first `len` bytes of a slot that is not posted.
    pub(crate) fn bytes(&self, slot: usize, len: usize) -> &[u8] {
        assert!(len <= self.length);
        let start = self.memory.ptr((slot * self.length) as isize, len);
        // SAFETY: memory of our own, filled with zeros first. The fabric looks at a slot only between a completion and the next
        // post of it, when the device does not write there, and nobody else does either.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// The same, to write to.
    pub(crate) fn bytes_mut(&mut self, slot: usize, len: usize) -> &mut [u8] {
        assert!(len <= self.length);
        let start = self.memory.ptr((slot * self.length) as isize, len);
        // SAFETY: as above; `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
