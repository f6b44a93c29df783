//! A device for tests: the host cannot touch its memory at the addresses that stand for it, and its copies are over some time
//! after they were started, in any order. So are kernels, which a library has as code for the processor (what `banyan-cuda-double` says of
//! such a library holds here).

use std::ffi::{CString, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::Owner;
use crate::device::{self, Device, DeviceFailure, Finder, Found, MemoryClass};
use crate::kernel::{Launch, Value};
use crate::scratch::Spare;
use crate::{Buffer, HeapBuffer};

/// A simulated device with some memory.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    owner: Arc<Owner>,
    driver: Arc<Driver>,
}

/// The addresses of the memory (pages that nobody may touch) and where its bytes really are.
#[derive(Debug)]
struct Driver {
    addresses: usize,
    len: usize,
    bytes: Buffer,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that are given out.
    used: usize,
    random: u64,
    copies: u64,
    /// Kernels that were started.
    launched: u64,
    fails: bool,
    /// Ranges of the host's memory that are pinned.
    pinned: Vec<usize>,
    started: u64,
    under_way: Vec<UnderWay>,
    find: Option<Find>,
    /// Memory that was given back: addresses and lengths.
    spare: Spare,
}

#[derive(Debug)]
struct UnderWay {
    number: u64,
    work: Work,
    /// How often it is still asked for in vain.
    polls: u64,
}

#[derive(Debug)]
enum Work {
    Copy { to: usize, from: usize, len: usize },
    Kernel { kernel: &'static Kernel, grid: [c_uint; 3], block: [c_uint; 3], values: Vec<Vec<u8>> },
}

/// What a library says of a kernel.
#[repr(C)]
#[derive(Debug)]
struct Kernel {
    run: unsafe extern "C" fn(*const c_uint, *const c_uint, c_uint, *mut *mut c_void),
    parameters: c_uint,
    sizes: *const c_uint,
}

// SAFETY: a constant of a library that stays.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

type Find = unsafe extern "C" fn(*const c_char) -> *const Kernel;

/// The least memory that the library itself takes.
const LEAST_SCRATCH: usize = 1 << 10;

impl SimulatedDevice {
    /// A device with `len` bytes of memory; `seed` decides how long copies take.
    ///
    /// # Panics
    /// If the system has no room for it.
    pub fn new(len: usize, seed: u64) -> SimulatedDevice {
        // SAFETY: new pages anywhere, which nobody can touch.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len.max(1),
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(pages != libc::MAP_FAILED, "no room for {len} bytes of a simulated device");
        let state = State {
            used: 0,
            random: seed,
            copies: 0,
            launched: 0,
            fails: false,
            pinned: vec![],
            started: 0,
            under_way: vec![],
            find: None,
            spare: Spare::default(),
        };
        let bytes = HeapBuffer::zeroed(len);
        let driver = Arc::new(Driver { addresses: pages as usize, len, bytes, state: Mutex::new(state) });
        SimulatedDevice { owner: Arc::new(Owner::Device(Box::new(driver.clone()))), driver }
    }

    /// Makes users' pointers to its memory known as such, in this process and for good.
    pub fn announce(&self) {
        device::add(Arc::new(self.clone()));
    }

    /// `len` bytes of its memory.
    ///
    /// # Panics
    /// If it has no more.
    pub fn alloc(&self, len: usize) -> Buffer {
        let mut state = self.driver.lock();
        assert!(len <= self.driver.len - state.used, "the simulated device has no {len} bytes left");
        let at = state.used;
        state.used += len.next_multiple_of(64).min(self.driver.len - at);
        Buffer::of_device((self.driver.addresses + at) as *mut u8, 0, len as isize, self.owner.clone())
    }

    /// Copies that were started, and the copies and kernels that are under way.
    pub fn copies(&self) -> (u64, usize) {
        let state = self.driver.lock();
        (state.copies, state.under_way.len())
    }

    /// It runs the kernels that a library has, from now on.
    ///
    /// # Panics
    /// If there is no such library.
    pub fn run_kernels_of(&self, library: &Path) {
        let path = CString::new(library.as_os_str().as_bytes()).expect("a path has no NUL");
        // SAFETY: a library of a test's own, which stays.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "there is no library {path:?}");
        // SAFETY: the library is loaded.
        let find = unsafe { libc::dlsym(library, c"banyan_double_kernel".as_ptr()) };
        // SAFETY: a function of that name has that type; NULL is `None`.
        self.driver.lock().find = unsafe { std::mem::transmute::<*mut c_void, Option<Find>>(find) };
    }

    /// Copies fail from now on, those that are under way, too.
    pub fn fail(&self) {
        self.driver.lock().fails = true;
    }

    /// Ranges of the host's memory that are pinned for it now.
    pub fn pinned(&self) -> usize {
        self.driver.lock().pinned.len()
    }

    /// Kernels that were started.
    pub fn kernels(&self) -> u64 {
        self.driver.lock().launched
    }
}

impl State {
    /// Begins some work, and numbers it.
    fn start(&mut self, work: Work) -> u64 {
        self.started += 1;
        // An xorshift, of which the upper bits are good enough here.
        self.random = (self.random | 1) ^ (self.random << 13);
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.under_way.push(UnderWay { number: self.started, work, polls: (self.random >> 33) % 4 });
        self.started
    }
}

impl Driver {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the bytes behind an address are: those of the device lie elsewhere.
    fn real(&self, address: usize, len: usize) -> *mut u8 {
        match address.checked_sub(self.addresses).filter(|&at| at < self.len) {
            Some(at) => self.bytes.ptr(at as isize, len),
            None => address as *mut u8,
        }
    }
}

impl Finder for SimulatedDevice {
    fn find(&self, address: usize) -> Found {
        let is_ours = address.checked_sub(self.driver.addresses).is_some_and(|at| at < self.driver.len);
        Ok(is_ours.then(|| (MemoryClass::Device(0), Some(self.owner.clone()))))
    }
}

impl Device for Arc<Driver> {
    fn name(&self) -> &str {
        "a simulated device"
    }

    fn driver(&self) -> &'static str {
        "simulated"
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> Result<u64, DeviceFailure> {
        let mut state = self.lock();
        state.copies += 1;
        if state.fails && state.copies.is_multiple_of(2) {
            return Err(failed());
        }
        Ok(state.start(Work::Copy { to: to as usize, from: from as usize, len }))
    }

    unsafe fn launch(&self, launch: &Launch<'_>, values: &[Value<'_>]) -> Result<u64, DeviceFailure> {
        let mut state = self.lock();
        // SAFETY: the library takes a C string, and gives NULL or a constant of its own.
        let kernel = state.find.and_then(|find| unsafe { find(launch.name.as_ptr()).as_ref() });
        let Some(kernel) = kernel else {
            return Err(DeviceFailure { what: format!("{} has no kernel {:?}", self.name(), launch.name) });
        };
        let value = |value: &Value<'_>| match value {
            Value::Address(address) => (self.real(*address as usize, 0) as usize).to_ne_bytes().to_vec(),
            Value::Bytes(bytes) => bytes.to_vec(),
        };
        let values: Vec<Vec<u8>> = values.iter().map(value).collect();
        // SAFETY: as many sizes as there are parameters.
        let sizes = unsafe { std::slice::from_raw_parts(kernel.sizes, kernel.parameters as usize) };
        let lens: Vec<c_uint> = values.iter().map(|value| value.len() as c_uint).collect();
        assert_eq!(sizes, lens, "parameters of {:?}", launch.name);
        state.launched += 1;
        Ok(state.start(Work::Kernel { kernel, grid: launch.grid, block: launch.block, values }))
    }

    fn pin(&self, address: *mut u8, _len: usize) -> bool {
        let mut state = self.lock();
        if !state.fails {
            state.pinned.push(address as usize);
        }
        !state.fails
    }

    fn unpin(&self, address: *mut u8) {
        let mut state = self.lock();
        let at = state.pinned.iter().position(|&pinned| pinned == address as usize);
        state.pinned.swap_remove(at.expect("what is unpinned was pinned"));
    }

    fn allocate(&self, len: usize) -> Result<(*mut u8, usize), DeviceFailure> {
        let len = Spare::room(len, LEAST_SCRATCH);
        let mut state = self.lock();
        if let Some(address) = state.spare.take(len) {
            return Ok((address, len));
        }
        if len > self.len - state.used {
            return Err(DeviceFailure { what: format!("{} has no {len} bytes left", self.name()) });
        }
        let address = self.addresses + state.used;
        state.used += len;
        Ok((address as *mut u8, len))
    }

    unsafe fn free(&self, address: *mut u8, len: usize) {
        self.lock().spare.put(address, len);
    }

    fn is_over(&self, number: u64) -> Result<bool, DeviceFailure> {
        let mut state = self.lock();
        let Some(index) = state.under_way.iter().position(|entry| entry.number == number) else {
            return Ok(true);
        };
        let entry = &mut state.under_way[index];
        if entry.polls > 0 {
            entry.polls -= 1;
            return Ok(false);
        }
        let fails = state.fails;
        match state.under_way.swap_remove(index).work {
            Work::Copy { .. } if fails => return Err(failed()),
            Work::Copy { to, from, len } => {
                // SAFETY: who started the copy promised that both ranges are valid until it is over, which it is only now.
                unsafe { std::ptr::copy(self.real(from, len), self.real(to, len), len) };
            }
            Work::Kernel { kernel, grid, block, mut values } => {
                let mut parameters: Vec<*mut c_void> =
                    values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
                // SAFETY: who started it promised that the kernel has these parameters, and that its memory is valid until it is over.
                unsafe { (kernel.run)(grid.as_ptr(), block.as_ptr(), 0, parameters.as_mut_ptr()) };
            }
        }
        Ok(true)
    }
}

/// Every other copy of a device that fails is refused at once, the rest later.
fn failed() -> DeviceFailure {
    DeviceFailure { what: "a simulated device fails as it was told".to_owned() }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: the pages of `SimulatedDevice::new`; all buffers on them hold the owner, which holds this.
        unsafe { libc::munmap(self.addresses as *mut libc::c_void, self.len.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{SUITE_BYTES, suite, users_pointers_are_classified};

    #[test]
    fn it_passes_the_suite_of_devices() {
        let device = SimulatedDevice::new(SUITE_BYTES + 64, 3);
        users_pointers_are_classified(&device.alloc(64), Arc::new(device.clone()));
        suite(&|len| device.alloc(len));
        let (started, under_way) = device.copies();
        assert!(started > 10 && under_way == 0, "{started} copies, {under_way} under way");
    }

    #[test]
    fn a_copy_that_is_not_over_has_not_happened() {
        let (there, back) = (SimulatedDevice::new(64, 3).alloc(5), HeapBuffer::zeroed(5));
        there.write(0, b"56789");
        let mut out = [0; 5];
        let seen_pending = (0..20).any(|_| {
            back.write(0, &[0; 5]);
            let copying = back.start_copy_from(0, &there, 0, 5).expect("a device's copy");
            let pending = !copying.is_over();
            back.read(0, &mut out);
            assert!(!pending || out == [0; 5]);
            drop(copying);
            back.read(0, &mut out);
            assert_eq!(&out, b"56789");
            pending
        });
        assert!(seen_pending);
    }

    #[test]
    fn what_belongs_to_two_devices_is_copied_through_the_host() {
        let [one, other] = [1, 2].map(|seed| SimulatedDevice::new(64, seed).alloc(64));
        one.write(0, b"abcd");
        other.copy_from(60, &one, 0, 4);
        let mut out = [0; 4];
        other.read(60, &mut out);
        assert_eq!(&out, b"abcd");
    }
}
