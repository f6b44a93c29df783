//! Devices of CUDA and of HIP, by their drivers' own interfaces, which are loaded at run time: one code for both, on a table of functions that
//! each of them fills ([`mod@api`]). Users' pointers are classified by the driver, and its copies go on streams of our own, so that no stream of the
//! program waits for them, nor they for one.

mod api;
pub(crate) mod compiler;
mod device;
mod gdrcopy;
mod library;
pub(crate) mod mapped;
pub(crate) mod nvml;
mod platform;
pub(crate) mod stream;

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use self::api::{Api, Handle};
use self::device::DriverDevice;
use self::library::Failed;
pub use self::platform::Platform;
use crate::buffer::Owner;
use crate::device::{self as devices, DeviceFailure, Finder, Found, MemoryClass};

/// The program's driver of a platform: it is there, or is looked for whenever libraries were loaded since.
struct ProgramDriver {
    platform: Platform,
    driver: OnceLock<Driver>,
    /// How many libraries had been loaded when the driver was last looked for.
    looked: AtomicU64,
}

/// The driver once it is there.
struct Driver {
    api: &'static Api,
    /// Whose memory is copied in which context.
    devices: Mutex<HashMap<Handle, Arc<Owner>>>,
    /// What the allocations are that users have passed parts of, by the numbers that the driver gives them. An allocation that
    /// is freed never comes again under its number.
    known: RwLock<HashMap<u64, Known>>,
}

/// What is known of an allocation.
type Known = (MemoryClass, Option<Arc<Owner>>);

/// Allocations that are remembered; then all are forgotten, as those that were freed are among them.
const MOST_KNOWN: usize = 4096;

/// What the process knows of the driver of a platform.
struct Use {
    /// Its functions, once they are used.
    api: OnceLock<Api>,
    /// Users' pointers are looked at.
    looking: AtomicBool,
    /// Its memory is refused.
    refusing: AtomicBool,
}

fn in_use(platform: Platform) -> &'static Use {
    static USES: [Use; Platform::ALL.len()] = [const {
        Use { api: OnceLock::new(), looking: AtomicBool::new(false), refusing: AtomicBool::new(false) }
    }; Platform::ALL.len()];
    &USES[platform as usize]
}

/// Loads the driver, and begins to look at users' pointers.
///
/// # Errors
/// A sentence: why there is no driver.
pub(crate) fn load(platform: Platform) -> Result<(), String> {
    let api = Api::find(platform, true).ok_or_else(|| platform.missing().to_owned())?;
    // SAFETY: may be called any number of times.
    unsafe { api.init(0) }.map_err(|Failed { error, .. }| {
        format!("the {} driver does not start: {}", platform.name(), api.describe(error))
    })?;
    look_with(platform, OnceLock::from(Driver::new(api)));
    Ok(())
}

/// Begins to look at users' pointers if the driver is in the process already, or may still come into it: the machine has a device
/// then, and each pointer costs a look at how many libraries were loaded.
pub(crate) fn look(platform: Platform) {
    match loaded(platform) {
        Some(api) => look_with(platform, OnceLock::from(Driver::new(api))),
        None if platform.has_nodes() => look_with(platform, OnceLock::new()),
        None => {}
    }
}

/// The driver's functions, if its library is in the process. On a machine without such a device the names of the libraries that were loaded tell
/// that there is none: the linker would look for each of the driver's names in all its folders.
fn loaded(platform: Platform) -> Option<Api> {
    let may_be = platform.has_nodes() || any_loaded(|path| platform.may_be(path));
    may_be.then(|| Api::find(platform, false)).flatten()
}

/// True if a library of which this is so has been loaded: it is told of their paths.
fn any_loaded<F: FnMut(&CStr) -> bool>(mut so: F) -> bool {
    unsafe extern "C" fn ask<F: FnMut(&CStr) -> bool>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        so: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker's description of a library, whose name is a C string or NULL; and what is passed below.
        let (name, so) = unsafe { ((*info).dlpi_name, &mut *so.cast::<F>()) };
        // SAFETY: as above.
        (!name.is_null() && so(unsafe { CStr::from_ptr(name) })).into()
    }
    // SAFETY: the function takes what is passed, which is there until this returns.
    unsafe { libc::dl_iterate_phdr(Some(ask::<F>), (&raw mut so).cast()) != 0 }
}

/// The driver's functions, if users' pointers are looked at and the driver is there.
fn api(platform: Platform) -> Option<&'static Api> {
    if !is_looking(platform) {
        return None;
    }
    let known = &in_use(platform).api;
    known.get().or_else(|| Api::find(platform, false).map(|api| known.get_or_init(|| api)))
}

/// The PCI address, such as `0000:18:00.0`, of the device that is current in this thread; `None` without one.
pub(crate) fn current_device(platform: Platform) -> Option<String> {
    let api = api(platform)?;
    let (_, device) = api.current()?;
    api.pci_address(device)
}

/// From now on memory that only a device of this platform can go to is refused, if its driver is in the process; `setting` is why.
pub(crate) fn refuse(platform: Platform, setting: &'static str) {
    if !is_looking(platform)
        && let Some(api) = loaded(platform)
        && !in_use(platform).refusing.swap(true, Ordering::Relaxed)
    {
        devices::add(Arc::new(Refusing(Driver::new(api), setting)));
    }
}

/// A driver that is not to be used, and the setting that says so: what it says of memory keeps the processor from what it cannot touch.
struct Refusing(Driver, &'static str);

impl Finder for Refusing {
    fn find(&self, address: usize) -> Found {
        let Refusing(driver, setting) = self;
        Ok(match driver.find(address)? {
            Some((class, _)) if !class.is_host_accessible() => {
                return Err(DeviceFailure {
                    what: format!(
                        "the buffer at {address:#x} is memory of a {} device, and BANYAN_GPU is \"{setting}\": set it to \"auto\", or copy \
                         to memory of the host",
                        driver.api.platform().name()
                    ),
                });
            }
            found => found.map(|(class, _)| (class, None)),
        })
    }
}

fn look_with(platform: Platform, driver: OnceLock<Driver>) {
    devices::add(Arc::new(ProgramDriver { platform, driver, looked: AtomicU64::new(0) }));
    in_use(platform).looking.store(true, Ordering::Relaxed);
}

/// True once users' pointers are looked at.
pub(crate) fn is_looking(platform: Platform) -> bool {
    in_use(platform).looking.load(Ordering::Relaxed)
}

/// How many libraries the process has loaded since it began.
fn libraries_loaded() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _size: usize, count: *mut c_void) -> c_int {
        // SAFETY: the linker gives what it knows of a library, and `count` is the caller's number.
        unsafe { *count.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut count = 0u64;
    // SAFETY: the function fits, and ends at the first library.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}

impl Finder for ProgramDriver {
    fn find(&self, address: usize) -> Found {
        if let Some(driver) = self.driver.get() {
            return driver.find(address);
        }
        let loaded = libraries_loaded();
        if self.looked.swap(loaded, Ordering::Relaxed) == loaded {
            return Ok(None);
        }
        let Some(api) = Api::find(self.platform, false) else { return Ok(None) };
        self.driver.get_or_init(|| Driver::new(api)).find(address)
    }

    fn any(&self) -> Option<Arc<Owner>> {
        self.driver.get()?.any()
    }
}

impl Driver {
    fn new(api: Api) -> Driver {
        // Devices keep it, and are never gone.
        let api = in_use(api.platform()).api.get_or_init(|| api);
        Driver { api, devices: Mutex::default(), known: RwLock::default() }
    }

    fn find(&self, address: usize) -> Found {
        let id = match self.api.number(address) {
            Ok(id) => id,
            // Nobody has memory of a device yet, or any more.
            Err(Failed { error: api::NOT_INITIALIZED | api::DEINITIALIZED, .. }) => return Ok(None),
            Err(_) => return self.without_number(address),
        };
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let found = self.examine(address)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(id, found.clone());
        Ok(Some(found))
    }

    /// Memory that has no number: nothing that the driver knows, as a rule.
    fn without_number(&self, address: usize) -> Found {
        if self.api.knows_without_number(address) {
            return self.examine(address).map(Some);
        }
        if is_readable(address) {
            return Ok(None);
        }
        Err(DeviceFailure {
            what: format!(
                "the buffer at {address:#x} is no memory that the processor or the {} driver can go to: it may be a \
                 device's that was freed. Pass memory that is allocated until the operation is over",
                self.api.platform().name()
            ),
        })
    }

    /// What memory it is that the driver knows at an address.
    fn examine(&self, address: usize) -> Result<Known, DeviceFailure> {
        let managed = self.api.is_managed(address);
        if !managed && !self.api.is_of_device(address) {
            return Ok((MemoryClass::Pinned, None));
        }
        let ordinal = self.api.ordinal(address);
        let owner = self.owner(ordinal, if managed { 0 } else { self.api.context(address) })?;
        let class = if managed {
            MemoryClass::Managed { shared: self.api.shares_managed(ordinal) }
        } else {
            MemoryClass::Device(ordinal.max(0) as u32)
        };
        Ok((class, Some(owner)))
    }

    /// One of the devices that this process uses.
    fn any(&self) -> Option<Arc<Owner>> {
        let used = self.devices.lock().unwrap_or_else(PoisonError::into_inner).values().next().cloned();
        if used.is_some() {
            return used;
        }
        let (context, ordinal) = self.api.current()?;
        self.owner(ordinal, context).ok()
    }

    /// Who copies memory of this device that was allocated in this context; without one, or where the memory belongs to no context,
    /// in the device's primary context.
    fn owner(&self, ordinal: c_int, context: Handle) -> Result<Arc<Owner>, DeviceFailure> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = devices.get(&context).filter(|_| context != 0) {
            return Ok(owner.clone());
        }
        let context = match context {
            0 => self.api.primary(ordinal).map_err(|Failed { error, .. }| DeviceFailure {
                what: format!(
                    "{} device {ordinal} has no context for copies: {}",
                    self.api.platform().name(),
                    self.api.describe(error)
                ),
            })?,
            context => context,
        };
        let new = || Arc::new(Owner::Device(Box::new(DriverDevice::new(self.api, ordinal, context))));
        Ok(devices.entry(context).or_insert_with(new).clone())
    }
}

/// True if the processor can read the byte at an address. The kernel is asked by a call that fails in any case: for its first argument,
/// but before that for its second one, if that cannot be read.
fn is_readable(address: usize) -> bool {
    // No set of signals crosses a page then; NULL would be none.
    let aligned = (address & !7).max(8);
    // SAFETY: no valid `how`, so no mask changes; the kernel alone reads the set.
    let done = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, !0, aligned, 0usize, 8usize) };
    done == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

#[cfg(test)]
mod tests;
