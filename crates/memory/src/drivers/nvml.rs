//! [`nvlinks`]: the NVLinks of GPUs, by NVML, the management library that comes with NVIDIA's driver. It is loaded when it is asked. What it
//! does not say, or where it is not, there are no links.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use super::Platform;
use super::api::{opened, symbol_in};
use super::library::functions;

/// The NVLinks of a GPU: their generation, from 1 on, or 0 if it is not known; and what each of those leads to that are up: the PCI address of a GPU,
/// such as `0000:18:00.0`, or none: an NVSwitch.
pub type NvLinks = (u8, Vec<Option<String>>);

/// The NVLinks of the GPUs at these PCI addresses, in their order.
pub fn nvlinks(addresses: &[&str]) -> Vec<NvLinks> {
    // Without such a device the library is not there, or has nothing to say.
    let nvml = if Platform::Cuda.has_nodes() { Nvml::open(c"libnvidia-ml.so.1") } else { None };
    of_all(nvml, addresses)
}

fn of_all(nvml: Option<Nvml>, addresses: &[&str]) -> Vec<NvLinks> {
    let of =
        |address: &&str| nvml.as_ref().and_then(|nvml| nvml.links(address, addresses)).unwrap_or_default();
    addresses.iter().map(of).collect()
}

/// A device, as NVML names it.
type Handle = usize;

/// NVML's description of a device on PCI (`nvmlPciInfo_t`).
#[repr(C)]
#[derive(Default)]
pub(super) struct PciInfo {
    legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: [c_uint; 2],
    text: [u8; 32],
}

functions! {
    /// The functions of NVML that are used here.
    Nvml;
    init = "nvmlInit_v2" | "" ();
    shutdown = "nvmlShutdown" | "" ();
    by_address = "nvmlDeviceGetHandleByPciBusId_v2" | "" (address: *const c_char, device: *mut Handle);
    state = "nvmlDeviceGetNvLinkState" | "" (device: Handle, link: c_uint, active: *mut c_uint);
    version = "nvmlDeviceGetNvLinkVersion" | "" (device: Handle, link: c_uint, version: *mut c_uint);
    capability = "nvmlDeviceGetNvLinkCapability" | "" (device: Handle, link: c_uint, capability: c_int, has: *mut c_uint);
    remote = "nvmlDeviceGetNvLinkRemotePciInfo_v2" | "" (device: Handle, link: c_uint, info: *mut PciInfo);
    /// Drivers before 470 lack it.
    remote_kind = "nvmlDeviceGetNvLinkRemoteDeviceType" | "" (device: Handle, link: c_uint, kind: *mut c_int);
}

/// Links that a GPU is asked about: those of today's have up to 18.
const MOST_LINKS: c_uint = 32;
/// The capability of a link to let a device read and write memory of the other one.
const PEER_TO_PEER: c_int = 0;
/// What a link leads to (`nvmlIntNvLinkDeviceType_t`).
const GPU: c_int = 0;
const SWITCH: c_int = 2;

impl Nvml {
    /// The library of this name or path, if it is there and starts.
    fn open(name: &CStr) -> Option<Nvml> {
        let library = opened(&[name], libc::RTLD_LOCAL)?;
        // SAFETY: the library is never closed.
        let nvml = Nvml::of(Platform::Cuda, &|name| unsafe { symbol_in(library, name) });
        // SAFETY: it takes nothing. What was started is shut down again.
        unsafe { nvml.init() }.ok().map(|()| nvml)
    }

    fn failed(&self) {}

    /// The links of the GPU at a PCI address; `gpus` are those of all.
    fn links(&self, address: &str, gpus: &[&str]) -> Option<NvLinks> {
        let text = CString::new(address).ok()?;
        let mut device = 0;
        // SAFETY: a C string, and room for a device.
        unsafe { self.by_address(text.as_ptr(), &raw mut device) }.ok()?;
        let end = |link: c_uint| Some((link, self.end(device, link, gpus)?));
        let ends: Vec<_> = (0..MOST_LINKS).filter_map(end).collect();
        let mut generation = 0;
        if let Some((link, _)) = ends.first() {
            // SAFETY: room for a number.
            let _ = unsafe { self.version(device, *link, &raw mut generation) };
        }
        let generation = u8::try_from(generation).unwrap_or(0);
        Some((generation, ends.into_iter().map(|(_, end)| end).collect()))
    }

    /// What a link leads to, if it is up and memory is reached by it, as in [`NvLinks`].
    fn end(&self, device: Handle, link: c_uint, gpus: &[&str]) -> Option<Option<String>> {
        let (mut active, mut reaches, mut kind, mut info) = (0, 0, 0, PciInfo::default());
        // SAFETY: room for a number.
        unsafe { self.state(device, link, &raw mut active) }.ok()?;
        // SAFETY: as above.
        unsafe { self.capability(device, link, PEER_TO_PEER, &raw mut reaches) }.ok()?;
        if active == 0 || reaches == 0 {
            return None;
        }
        // SAFETY: as above.
        let told = unsafe { self.remote_kind(device, link, &raw mut kind) }.is_ok();
        // SAFETY: room for the description.
        let placed = unsafe { self.remote(device, link, &raw mut info) }.is_ok();
        let address = format!("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device);
        match kind {
            SWITCH if told => Some(None),
            GPU if told && placed => Some(Some(address)),
            _ if told || !placed => None,
            // An old driver: what is no GPU is a switch.
            _ => Some(Some(address).filter(|address| gpus.contains(&&**address))),
        }
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was started.
        let _ = unsafe { self.shutdown() };
    }
}

#[cfg(test)]
mod tests;
