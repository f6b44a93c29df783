//! Registered memory.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use banyan_memory::{Buffer, HeapBuffer};
use rdma_sys::{ibv_access_flags, ibv_dereg_mr, ibv_mr, ibv_reg_dmabuf_mr, ibv_reg_mr};

use super::{Device, Local, Object, Remote};
use crate::cache::{Access, PAGE, Span};
use crate::greeting::Wire;
use crate::locked;

/// What verbs call the ways of access. On iWARP what this side reads is written by the peer's device, by name.
fn flags(device: &Device, access: Access) -> u32 {
    use ibv_access_flags as Flag;
    let none = ibv_access_flags(0);
    let atomic = if device.atomics { Flag::IBV_ACCESS_REMOTE_ATOMIC } else { none };
    let sink = if device.wire == Wire::Iwarp { Flag::IBV_ACCESS_REMOTE_WRITE } else { none };
    let flags = [
        (Access::LOCAL, Flag::IBV_ACCESS_LOCAL_WRITE | sink),
        (Access::READ, Flag::IBV_ACCESS_REMOTE_READ),
        (Access::READ_WRITE, Flag::IBV_ACCESS_REMOTE_WRITE | atomic),
    ];
    let allowed = flags.into_iter().filter(|&(needed, _)| access.includes(needed));
    allowed.fold(0, |all, (_, flag)| all | flag.0)
}

/// A part of a dma-buf.
pub(crate) struct DmaBuf<'a> {
    /// The descriptor that its driver has exported.
    pub(crate) fd: BorrowedFd<'a>,
    /// Where in it the memory begins.
    pub(crate) offset: u64,
    /// Bytes of the memory.
    pub(crate) len: usize,
    /// The memory's address, by which work names it.
    pub(crate) address: u64,
}

/// A range of memory that the device may use while this is there.
pub(crate) struct Region {
    mr: Object<ibv_mr>,
    _device: Arc<Device>,
}

impl Region {
    /// Registers a range of memory that is mapped and not empty.
    ///
    /// # Errors
    /// If the system or the device refuses: a sentence that says why.
    pub(crate) fn new(device: &Arc<Device>, span: &Span, access: Access) -> Result<Region, String> {
        let (start, flags) =
            (std::ptr::with_exposed_provenance_mut(span.start), flags(device, access).cast_signed());
        // SAFETY: the device uses the memory only as far as work says, ours or a peer's that was told of it: for operations whose
        // buffers their maker promised to be there until the fabric says that they are over. The pages are pinned: should they be
        // unmapped before the region ends, the device still has those, and nobody else.
        let mr = unsafe { ibv_reg_mr(device.domain(), start, span.len(), flags) };
        // SAFETY: it was just made here.
        let mr = unsafe { Object::new("registration of memory", mr, ibv_dereg_mr)? };
        Ok(Region { mr, _device: device.clone() })
    }

    /// Registers a part of a dma-buf, whose exporter keeps the memory as long as the device does.
    ///
    /// # Errors
    /// If the device takes no such memory, or this one not: a sentence that says why.
    pub(crate) fn of_dmabuf(
        device: &Arc<Device>,
        part: &DmaBuf<'_>,
        access: Access,
    ) -> Result<Region, String> {
        let (fd, flags) = (part.fd.as_raw_fd(), flags(device, access).cast_signed());
        // SAFETY: no memory of this process is behind it: the kernel asks the exporter for the device's addresses, and checks descriptor,
        // offset and length by it.
        let mr =
            unsafe { ibv_reg_dmabuf_mr(device.domain(), part.offset, part.len, part.address, fd, flags) };
        // SAFETY: it was just made here.
        let mr = unsafe { Object::new("registration of a dma-buf", mr, ibv_dereg_mr)? };
        Ok(Region { mr, _device: device.clone() })
    }

    /// A part of it, by its address, for work that is posted here.
    #[inline(always)]
    pub(crate) fn local(&self, addr: usize, len: u32) -> Local<'static> {
        Local::Registered { addr: addr as u64, len, lkey: self.lkey() }
    }

    /// The key by which this side's device reaches it.
    #[inline(always)]
    fn lkey(&self) -> u32 {
        // SAFETY: the object is there while this is.
        unsafe { (*self.mr.get()).lkey }
    }

    /// The key by which peers reach it.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr.get()).rkey }
    }
}

/// Registered memory of our own, in slots of one length: what frames leave from and arrive in.
pub(crate) struct Slots {
    region: Region,
    _memory: Buffer,
    /// Address of the first one.
    start: usize,
    number: usize,
    length: usize,
}

impl Slots {
    /// So many slots of so many bytes.
    pub(crate) fn new(device: &Arc<Device>, number: usize, length: usize) -> Result<Slots, String> {
        Slots::reached(device, number, length, Access::LOCAL)
    }

    /// The same, which others may reach, too.
    pub(crate) fn reached(
        device: &Arc<Device>,
        number: usize,
        length: usize,
        access: Access,
    ) -> Result<Slots, String> {
        // On pages of their own: what else lies on registered pages a child of fork may miss (`ibv_fork_init`), and malloc's own records
        // are everywhere.
        let (bytes, page) = (number * length, PAGE);
        let pages = HeapBuffer::zeroed(bytes.next_multiple_of(page) + page);
        let start = pages.address(0).next_multiple_of(page);
        let _memory = pages.slice((start - pages.address(0)) as isize, bytes);
        let region =
            Region::new(device, &(start..start + bytes), access).map_err(|why| limited(why, bytes))?;
        Ok(Slots { region, _memory, start, number, length })
    }

    /// The address of a slot, of which so many bytes are to be used.
    #[inline(always)]
    fn address(&self, slot: usize, len: usize) -> usize {
        assert!((slot < self.number) & (len <= self.length));
        self.start + slot * self.length
    }

    /// The first `len` bytes of a slot, for work that is posted here.
    #[inline(always)]
    pub(crate) fn local(&self, slot: usize, len: usize) -> Local<'static> {
        self.region.local(self.address(slot, len), len as u32)
    }

    /// The key of the slots' memory, for work that is posted here.
    #[inline(always)]
    pub(crate) fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// A slot, for peers.
    pub(crate) fn remote(&self, slot: usize) -> Remote {
        Remote { addr: self.address(slot, self.length) as u64, rkey: self.region.rkey() }
    }

    /// All of a slot, for work that is posted here.
    pub(crate) fn whole(&self, slot: usize) -> Local<'static> {
        self.local(slot, self.length)
    }

    /// The first `len` bytes of a slot that is not posted.
    #[inline(always)]
    pub(crate) fn bytes(&self, slot: usize, len: usize) -> &[u8] {
        let start = std::ptr::with_exposed_provenance(self.address(slot, len));
        // SAFETY: memory of our own, filled with zeros first, and a slot in it. The fabric looks at a slot only between a completion
        // and the next post of it, when the device does not write there, and nobody else does either.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// The same, to write to.
    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self, slot: usize, len: usize) -> &mut [u8] {
        let start = std::ptr::with_exposed_provenance_mut(self.address(slot, len));
        // SAFETY: as above; `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

/// Why the fabric's own memory cannot be registered, with the limit that may be behind it.
fn limited(why: String, bytes: usize) -> String {
    let limit = locked::limit().map_or_else(String::new, |limit| format!(": {}", locked::may_lock(limit)));
    format!("{why}, for {bytes} bytes{limit}")
}
