//! GDRCopy on the stand-in: `libgdrapi.so.2` is this library under one more name. A mapping is a second view of the file that a device's memory lies
//! in, as far as there is any in the pages that are asked for; what is freed can be touched there no more.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::codes::NOT_INITIALIZED;
use crate::exported::{Done, driver, put};
use crate::memory::{Allocation, Kind, Memory, PAGE};
use crate::world::World;

/// What memory is pinned by.
const GPU_PAGE: usize = 1 << 16;

/// What a call of `gdr_open` gives.
const OPEN: usize = 0x6d72;

/// Pages that were pinned, and where they are mapped.
pub(crate) struct Pinned {
    handle: usize,
    start: usize,
    len: usize,
    /// The first address; 0: they are not mapped.
    mapped: usize,
}

impl Pinned {
    /// Makes a part of the mapping what a mapping of a file is, or nothing.
    fn show(&self, memory: &Allocation, there: bool) {
        let (start, end) = (memory.start, memory.start + memory.len.next_multiple_of(PAGE));
        let (first, last) = (start.max(self.start), end.min(self.start + self.len));
        if self.mapped == 0 || first >= last {
            return;
        }
        let at = (self.mapped + (first - self.start)) as *mut c_void;
        let (len, within) = (last - first, (first - start) as libc::off_t);
        let file = memory.descriptor().filter(|_| there);
        let (access, how) = match file {
            Some(_) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
            None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
        };
        // SAFETY: pages of ours, inside the mapping.
        unsafe { libc::mmap(at, len, access, how | libc::MAP_FIXED, file.unwrap_or(-1), within) };
    }

    fn unmap(&mut self) {
        if self.mapped != 0 {
            // SAFETY: pages that `gdr_map` has made.
            unsafe { libc::munmap(self.mapped as *mut c_void, self.len) };
            self.mapped = 0;
        }
    }
}

impl Memory {
    /// An allocation is freed: nobody reaches it by a mapping any more.
    pub(crate) fn hide(&self, gone: &Allocation) {
        if gone.kind == Kind::Device {
            self.pinned.iter().for_each(|pinned| pinned.show(gone, false));
        }
    }

    fn pinned(&mut self, handle: usize) -> Result<&mut Pinned, c_int> {
        self.pinned.iter_mut().find(|pinned| pinned.handle == handle).ok_or(libc::EINVAL)
    }
}

/// The processor's copy to or from a mapping, all of which must lie in it.
fn copy(world: &mut World, handle: usize, mapped: usize, (to, from): (usize, usize), len: usize) -> Done {
    let pinned = world.memory.pinned(handle)?;
    let inside = pinned.mapped != 0 && mapped >= pinned.mapped && mapped + len <= pinned.mapped + pinned.len;
    if !inside {
        return Err(libc::EINVAL);
    }
    // SAFETY: one is in the mapping, the other one the program names as its own.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
    Ok(())
}

/// It works where the driver does.
fn open(world: &mut World, _function: &str) -> Done {
    if world.initialized { Ok(()) } else { Err(NOT_INITIALIZED) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn gdr_open() -> *mut c_void {
    let mut world = World::enter();
    let asked = world.settings.called("gdr_open");
    if asked == 0 { OPEN as *mut c_void } else { null_mut() }
}

driver! {
    open, std::convert::identity;
    fn gdr_close = "gdr_close" (world, gdr: usize) {
        world.memory.pinned.iter_mut().for_each(Pinned::unmap);
        world.memory.pinned.clear();
        Ok(())
    }
    // Whole pages are pinned, as others could not be mapped, and some of it must be memory of a device.
    fn gdr_pin_buffer = "gdr_pin_buffer" (
        world, gdr: usize, address: usize, len: usize, token: u64, space: u32, handle: *mut usize
    ) {
        let own = |a: &Allocation| a.kind == Kind::Device && a.imported.is_none();
        let inside = |a: &Allocation| a.start < address + len && a.start + a.len > address;
        let whole = len > 0 && (address | len).is_multiple_of(GPU_PAGE);
        let right = gdr == OPEN && token == 0 && space == 0;
        if !right || !whole || !world.memory.all().any(|a| own(a) && inside(a)) {
            return Err(libc::EINVAL);
        }
        let shown: usize = world.memory.pinned.iter().map(|pinned| pinned.len).sum();
        if shown + len > world.settings.bar {
            return Err(libc::ENOMEM);
        }
        let new = world.handle();
        world.memory.pinned.push(Pinned { handle: new, start: address, len, mapped: 0 });
        put(handle, new)
    }
    fn gdr_unpin_buffer = "gdr_unpin_buffer" (world, gdr: usize, handle: usize) {
        world.memory.pinned(handle)?.unmap();
        world.memory.pinned.retain(|pinned| pinned.handle != handle);
        Ok(())
    }
    fn gdr_map = "gdr_map" (world, gdr: usize, handle: usize, address: *mut usize, len: usize) {
        let pinned = world.memory.pinned(handle)?;
        if pinned.mapped != 0 || len != pinned.len {
            return Err(libc::EINVAL);
        }
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new pages anywhere.
        let new = unsafe { libc::mmap(null_mut(), len, libc::PROT_NONE, how, -1, 0) };
        if new == libc::MAP_FAILED {
            return Err(libc::ENOMEM);
        }
        pinned.mapped = new as usize;
        let pinned = world.memory.pinned.iter().find(|pinned| pinned.handle == handle).ok_or(libc::EINVAL)?;
        world.memory.all().filter(|a| a.kind == Kind::Device).for_each(|a| pinned.show(a, true));
        put(address, pinned.mapped)
    }
    fn gdr_unmap = "gdr_unmap" (world, gdr: usize, handle: usize, address: usize, len: usize) {
        let pinned = world.memory.pinned(handle)?;
        if pinned.mapped != address || pinned.len != len {
            return Err(libc::EINVAL);
        }
        pinned.unmap();
        Ok(())
    }
    fn gdr_get_info = "gdr_get_info_v2" (world, gdr: usize, handle: usize, info: *mut [u64; 2]) {
        let pinned = world.memory.pinned(handle)?;
        put(info, [pinned.start as u64, pinned.len as u64])
    }
    fn gdr_copy_to_mapping = "gdr_copy_to_mapping" (world, handle: usize, to: usize, from: usize, len: usize) {
        copy(world, handle, to, (to, from), len)
    }
    fn gdr_copy_from_mapping = "gdr_copy_from_mapping" (world, handle: usize, to: usize, from: usize, len: usize) {
        copy(world, handle, from, (to, from), len)
    }
}
