//! GDRCopy, NVIDIA's library by which the processor maps memory of CUDA devices, as PCIe shows it (their BAR1), and copies from and to it by itself.
//! It is looked for at run time, and not needed to build. Its functions and structures are those of its header `gdrapi.h`, versions 2.0 to 2.6.

use std::ffi::{c_int, c_ulong, c_void};
use std::ops::Range;

use super::api::{opened, symbol_in};
use crate::device::Direction;

/// What memory is mapped by: GPU pages, of 64 KiB.
pub(super) const PAGE: usize = 1 << 16;

/// A `gdr_t`.
type Open = *mut c_void;

/// A `gdr_mh_t`, which goes by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Pinned(c_ulong);

/// A `gdr_info_v2_t`. Newer versions have more behind the length.
#[repr(C)]
#[derive(Default)]
struct Info {
    start: u64,
    len: u64,
    rest: [u64; 16],
}

/// Declares a table of the library's functions, one a line: the name here, its symbol, its parameters and what it returns.
macro_rules! library {
    ($($name:ident = $symbol:literal ($($type:ty),*) -> $returns:ty;)+) => {
        struct Library {
            $($name: unsafe extern "C" fn($($type),*) -> $returns,)+
        }

        impl Library {
            /// The library, if the machine has it, with all these functions.
            fn find() -> Option<Library> {
                let library = opened(&[c"libgdrapi.so.2"], 0)?;
                Some(Library {
                    $($name: {
                        // SAFETY: the library is never closed.
                        let symbol = unsafe { symbol_in(library, concat!($symbol, "\0")) };
                        if symbol.is_null() {
                            return None;
                        }
                        // SAFETY: a function of this name has this type in every version 2 of the library.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $returns>(symbol) }
                    },)+
                })
            }
        }
    };
}

library! {
    open = "gdr_open" () -> Open;
    close = "gdr_close" (Open) -> c_int;
    pin = "gdr_pin_buffer" (Open, c_ulong, usize, u64, u32, *mut Pinned) -> c_int;
    unpin = "gdr_unpin_buffer" (Open, Pinned) -> c_int;
    map = "gdr_map" (Open, Pinned, *mut *mut c_void, usize) -> c_int;
    unmap = "gdr_unmap" (Open, Pinned, *mut c_void, usize) -> c_int;
    info = "gdr_get_info_v2" (Open, Pinned, *mut Info) -> c_int;
    copy_to = "gdr_copy_to_mapping" (Pinned, *mut c_void, *const c_void, usize) -> c_int;
    copy_from = "gdr_copy_from_mapping" (Pinned, *mut c_void, *const c_void, usize) -> c_int;
}

/// The library, open. It is not made for several threads: one uses it at a time.
pub(super) struct GdrCopy {
    library: Library,
    open: Open,
}

// SAFETY: what the library keeps is bound to the process, and to no thread.
unsafe impl Send for GdrCopy {}

/// Pages of a device's memory that the processor reaches.
#[derive(Debug)]
pub(super) struct Mapping {
    pinned: Pinned,
    /// Where the processor reaches the first page.
    address: *mut u8,
    pages: Range<usize>,
}

// SAFETY: an address that is reached by functions of the library alone.
unsafe impl Send for Mapping {}

impl GdrCopy {
    /// Finds and opens the library.
    ///
    /// # Errors
    /// A sentence: what is missing.
    pub(super) fn open() -> Result<GdrCopy, String> {
        let library = Library::find().ok_or(
            "GDRCopy's library (libgdrapi.so.2) is not there: install it, or name its folder in LD_LIBRARY_PATH",
        )?;
        // SAFETY: it takes nothing.
        let open = unsafe { (library.open)() };
        if open.is_null() {
            return Err(
                "GDRCopy does not start: load its kernel module (gdrdrv), or use a newer driver of CUDA's"
                    .to_owned(),
            );
        }
        Ok(GdrCopy { library, open })
    }

    /// Maps whole GPU pages, some of which are memory of one device.
    ///
    /// # Errors
    /// A sentence: what the library says.
    pub(super) fn map(&mut self, pages: Range<usize>) -> Result<Mapping, String> {
        let (mut pinned, len) = (Pinned(0), pages.len());
        // SAFETY: room for a handle; the driver checks the pages.
        let done =
            unsafe { (self.library.pin)(self.open, pages.start as c_ulong, len, 0, 0, &raw mut pinned) };
        outcome("gdr_pin_buffer", done)?;
        let mut address = std::ptr::null_mut();
        // SAFETY: room for an address; pages that were pinned.
        let done = unsafe { (self.library.map)(self.open, pinned, &raw mut address, len) };
        let mapped = outcome("gdr_map", done).and_then(|()| {
            let mut info = Info::default();
            // SAFETY: more room than the structure takes in any version.
            let told = unsafe { (self.library.info)(self.open, pinned, &raw mut info) };
            outcome("gdr_get_info", told).map(|()| info)
        });
        let address = address.cast::<u8>();
        match mapped {
            Ok(info) if info.start == pages.start as u64 && info.len >= len as u64 => {
                Ok(Mapping { pinned, address, pages })
            }
            refused => {
                if !address.is_null() {
                    // SAFETY: what was mapped above.
                    unsafe { (self.library.unmap)(self.open, pinned, address.cast(), len) };
                }
                // SAFETY: pages that were pinned, and that nobody has mapped any more.
                unsafe { (self.library.unpin)(self.open, pinned) };
                Err(refused
                    .err()
                    .unwrap_or_else(|| "gdr_map maps other pages than it was asked for".to_owned()))
            }
        }
    }

    /// Undoes [`GdrCopy::map`]. The memory may have been freed by now.
    pub(super) fn unmap(&mut self, mapping: Mapping) {
        let Mapping { pinned, address, pages } = mapping;
        // SAFETY: what `map` has mapped and pinned, and what nobody uses any more.
        unsafe {
            (self.library.unmap)(self.open, pinned, address.cast(), pages.len());
            (self.library.unpin)(self.open, pinned);
        }
    }

    /// Copies bytes between the device's memory at `there` and the host's at `here`; false: the library refuses.
    ///
    /// # Safety
    /// `there` lies with its bytes in the pages of the mapping and in memory that was not freed since; `here` is valid, for writes if it is read from the
    /// device.
    pub(super) unsafe fn copy(
        &self,
        mapping: &Mapping,
        direction: Direction,
        there: usize,
        here: *mut u8,
        len: usize,
    ) -> bool {
        debug_assert!(mapping.pages.contains(&there) && len <= mapping.pages.end - there);
        let mapped = mapping.address.wrapping_add(there - mapping.pages.start).cast::<c_void>();
        // SAFETY: as the caller promises.
        let done = unsafe {
            match direction {
                Direction::Read => (self.library.copy_from)(mapping.pinned, here.cast(), mapped, len),
                Direction::Write => (self.library.copy_to)(mapping.pinned, mapped, here.cast(), len),
            }
        };
        done == 0
    }
}

impl Drop for GdrCopy {
    fn drop(&mut self) {
        // SAFETY: what was opened, and nobody uses any more.
        unsafe { (self.library.close)(self.open) };
    }
}

/// What a function of the library has returned: 0, or the number of an error of the system's.
fn outcome(function: &str, returned: c_int) -> Result<(), String> {
    match returned {
        0 => Ok(()),
        error => Err(format!("{function} says: {}", std::io::Error::from_raw_os_error(error))),
    }
}
