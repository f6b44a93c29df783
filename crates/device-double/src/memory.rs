//! Memory of devices, managed memory and pinned memory.

use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

use crate::codes::{Handle, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::gdrcopy::Pinned;

/// What an allocation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Device,
    Managed,
    Pinned,
}

pub(crate) struct Allocation {
    pub(crate) id: u64,
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    pub(crate) context: Handle,
    /// Where its bytes can be reached: elsewhere, if it is a device's.
    real: usize,
    /// The memfd of a device's memory.
    file: Option<OwnedFd>,
    /// The handle that it was imported by, from another process.
    pub(crate) imported: Option<[u8; 64]>,
    /// It is the program's own memory, which it had pinned.
    registered: bool,
}

pub(crate) struct Memory {
    by_start: BTreeMap<usize, Allocation>,
    allocated: u64,
    used: Vec<usize>,
    most: usize,
    /// What the processor has been given of devices' memory.
    pub(crate) pinned: Vec<Pinned>,
}

pub(crate) const PAGE: usize = 4096;

/// New pages; of a file, if there is one.
fn pages(len: usize, access: c_int, file: Option<RawFd>) -> Result<usize, c_int> {
    let how = if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
    // SAFETY: new pages anywhere.
    let start = unsafe { libc::mmap(null_mut(), len, access, how, file.unwrap_or(-1), 0) };
    if start == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(start as usize) }
}

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

impl Memory {
    pub(crate) fn new(devices: usize, most: usize) -> Memory {
        Memory { by_start: BTreeMap::new(), allocated: 0, used: vec![0; devices], most, pinned: vec![] }
    }

    /// New memory; a device's has bytes that nobody has cleared.
    pub(crate) fn allocate(
        &mut self,
        kind: Kind,
        len: usize,
        (context, device): (Handle, usize),
    ) -> Result<usize, c_int> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let bytes = len.next_multiple_of(PAGE);
        if kind == Kind::Device && self.used[device] + bytes > self.most {
            return Err(OUT_OF_MEMORY);
        }
        let file = match kind {
            Kind::Device => Some(file_of(bytes)?),
            Kind::Managed | Kind::Pinned => None,
        };
        let start = self.map(kind, len, (context, device), file, None)?;
        if kind == Kind::Device {
            self.used[device] += bytes;
            let real = self.by_start[&start].real as *mut u8;
            // SAFETY: pages of ours of that length.
            unsafe { std::ptr::write_bytes(real, 0xd5, len) };
        }
        Ok(start)
    }

    /// Puts memory into the program's view.
    pub(crate) fn map(
        &mut self,
        kind: Kind,
        len: usize,
        (context, device): (Handle, usize),
        file: Option<OwnedFd>,
        imported: Option<[u8; 64]>,
    ) -> Result<usize, c_int> {
        let bytes = len.next_multiple_of(PAGE);
        let (start, real) = match &file {
            Some(file) => {
                let real = pages(bytes, READ_WRITE, Some(file.as_raw_fd()))?;
                (pages(bytes, libc::PROT_NONE, Some(file.as_raw_fd()))?, real)
            }
            None => {
                let start = pages(bytes, READ_WRITE, None)?;
                (start, start)
            }
        };
        self.add(Allocation {
            id: 0,
            start,
            len,
            kind,
            device,
            context,
            real,
            file,
            imported,
            registered: false,
        });
        Ok(start)
    }

    fn add(&mut self, mut allocation: Allocation) {
        self.allocated += 1;
        allocation.id = self.allocated;
        self.by_start.insert(allocation.start, allocation);
    }

    /// Pins the program's own memory.
    pub(crate) fn register(
        &mut self,
        start: usize,
        len: usize,
        (context, device): (Handle, usize),
    ) -> Result<(), c_int> {
        if len == 0 || self.at(start).is_some() {
            return Err(INVALID_VALUE);
        }
        let (kind, real) = (Kind::Pinned, start);
        self.add(Allocation {
            id: 0,
            start,
            len,
            kind,
            device,
            context,
            real,
            file: None,
            imported: None,
            registered: true,
        });
        Ok(())
    }

    /// Takes an allocation back that begins there, if it is one that `right` accepts.
    pub(crate) fn free(&mut self, start: usize, right: impl Fn(&Allocation) -> bool) -> Result<(), c_int> {
        self.by_start.get(&start).filter(|allocation| right(allocation)).ok_or(INVALID_VALUE)?;
        let gone = self.by_start.remove(&start).ok_or(INVALID_VALUE)?;
        self.unmap(&gone);
        Ok(())
    }

    fn unmap(&mut self, gone: &Allocation) {
        self.hide(gone);
        let bytes = gone.len.next_multiple_of(PAGE);
        if gone.kind == Kind::Device && gone.imported.is_none() {
            self.used[gone.device] -= bytes;
        }
        for start in [gone.start, gone.real] {
            if !gone.registered {
                // SAFETY: pages that `map` made; a program that frees memory does not use it any more.
                unsafe { libc::munmap(start as *mut c_void, bytes) };
            }
        }
    }

    /// All memory of a context goes.
    pub(crate) fn forget(&mut self, context: Handle) {
        let of = |allocation: &Allocation| allocation.context == context;
        let starts: Vec<usize> = self.by_start.values().filter(|a| of(a)).map(|a| a.start).collect();
        for start in starts {
            if let Some(gone) = self.by_start.remove(&start) {
                self.unmap(&gone);
            }
        }
    }

    /// The allocation that has the byte at an address.
    pub(crate) fn at(&self, address: usize) -> Option<&Allocation> {
        let (_, last) = self.by_start.range(..=address).next_back()?;
        (address - last.start < last.len).then_some(last)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Allocation> {
        self.by_start.values()
    }

    /// Where these bytes can be reached.
    pub(crate) fn real(&self, address: usize, len: usize) -> Result<*mut u8, c_int> {
        match self.at(address) {
            Some(allocation) if len <= allocation.len - (address - allocation.start) => {
                Ok((allocation.real + (address - allocation.start)) as *mut u8)
            }
            Some(_) => Err(INVALID_VALUE),
            // It may run into memory that is not the program's own.
            None if self.by_start.range(address..address + len.max(1)).next().is_some() => Err(INVALID_VALUE),
            None if !is_mapped(address) => Err(INVALID_VALUE),
            None => Ok(address as *mut u8),
        }
    }

    /// A new descriptor of the file of a device's memory, which stands at the first of these whole pages.
    pub(crate) fn file_at(&self, start: usize, len: usize) -> Result<RawFd, c_int> {
        let memory = self.at(start).filter(|memory| memory.kind == Kind::Device).ok_or(INVALID_VALUE)?;
        let (from, room) = (start - memory.start, memory.len.next_multiple_of(PAGE));
        if len > room - from {
            return Err(INVALID_VALUE);
        }
        let file = memory.descriptor().ok_or(NOT_SUPPORTED)?;
        // Opened anew, so that the place is its own.
        let path = CString::new(format!("/proc/self/fd/{file}")).map_err(|_| INVALID_VALUE)?;
        // SAFETY: a C string.
        let new = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        // SAFETY: a descriptor of ours.
        let stands = new >= 0 && unsafe { libc::lseek(new, from as libc::off_t, libc::SEEK_SET) } >= 0;
        if stands { Ok(new) } else { Err(NOT_SUPPORTED) }
    }

    pub(crate) fn copy(&self, to: usize, from: usize, len: usize) -> Result<(), c_int> {
        let (to, from) = (self.real(to, len)?, self.real(from, len)?);
        // SAFETY: memory of ours inside its bounds, or what the program names as its own.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    /// While `work` runs the memory of these contexts can be touched where the program sees it, as kernels do.
    pub(crate) fn opened(&self, contexts: &[Handle], work: impl FnOnce()) {
        let access = |how: c_int| {
            for memory in self.all().filter(|a| a.kind == Kind::Device && contexts.contains(&a.context)) {
                let bytes = memory.len.next_multiple_of(PAGE);
                // SAFETY: pages that `map` made.
                unsafe { libc::mprotect(memory.start as *mut c_void, bytes, how) };
            }
        };
        access(READ_WRITE);
        work();
        access(libc::PROT_NONE);
    }
}

impl Allocation {
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(OwnedFd::as_raw_fd)
    }
}

fn file_of(bytes: usize) -> Result<OwnedFd, c_int> {
    // SAFETY: a C string.
    let file = unsafe { libc::memfd_create(c"cuda-double".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: a descriptor that was just opened.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // SAFETY: a file of ours.
    match unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } {
        0 => Ok(file),
        _ => Err(OUT_OF_MEMORY),
    }
}

/// True if there is memory that the processor can read.
fn is_mapped(address: usize) -> bool {
    // SAFETY: no valid `how`: the kernel reads the set, and then refuses the call.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, !0, (address & !7).max(8), 0usize, 8usize) };
    std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}
