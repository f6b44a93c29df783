//! What there is of NVML, the management library of NVIDIA's driver: the NVLinks of the devices that a test describes
//! ([`banyan_double_nvlinks`]). Its functions can be told to fail as all others.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};

use crate::exported::{Done, driver, put};
use crate::world::World;

const UNINITIALIZED: c_int = 1;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;

/// What tests have described, and whether the library was started.
#[derive(Default)]
pub(crate) struct Nvml {
    started: bool,
    gpus: Vec<Gpu>,
}

/// A device with NVLinks.
struct Gpu {
    address: String,
    generation: c_uint,
    ends: Vec<End>,
}

/// What a link leads to.
#[derive(Clone)]
enum End {
    /// The device at this address.
    Device(String),
    Switch,
    /// A processor of the host's.
    Processor,
    /// Nothing: the link is down.
    Down,
    /// A device that the link does not let read memory.
    Barred,
}

impl Gpu {
    /// From a text such as `0000:06:00.0 2 0000:07:00.0*2 switch`.
    fn parse(text: &str) -> Gpu {
        let mut words = text.split_whitespace();
        let mut word = || words.next().expect("a device is an address, a generation, and what links lead to");
        let (address, generation) = (word().to_owned(), word().parse().expect("a generation is a number"));
        let ends = words.flat_map(|word| {
            let (end, number) = word.split_once('*').unwrap_or((word, "1"));
            let end = match end {
                "switch" => End::Switch,
                "processor" => End::Processor,
                "down" => End::Down,
                "barred" => End::Barred,
                address => End::Device(address.to_owned()),
            };
            vec![end; number.parse().expect("a number of links")]
        });
        Gpu { address, generation, ends: ends.collect() }
    }
}

/// NVML's description of a device on PCI.
#[repr(C)]
pub(crate) struct PciInfo {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: [c_uint; 2],
    text: [c_char; 32],
}

impl PciInfo {
    fn of(address: &str) -> PciInfo {
        let part = |at: usize| {
            address.split([':', '.']).nth(at).and_then(|part| c_uint::from_str_radix(part, 16).ok())
        };
        let [domain, bus, device] = [0, 1, 2].map(|at| part(at).expect("an address as in 0000:06:00.0"));
        let mut text = [0; 32];
        let long = format!("{domain:08X}:{bus:02X}:{device:02X}.0");
        text.iter_mut().zip(long.bytes()).for_each(|(to, byte)| *to = byte as c_char);
        PciInfo { legacy: [0; 16], domain, bus, device, ids: [0; 2], text }
    }
}

impl World {
    fn gpu(&self, device: usize) -> Result<&Gpu, c_int> {
        self.nvml.gpus.get(device.wrapping_sub(1)).ok_or(INVALID_ARGUMENT)
    }

    fn end(&self, device: usize, link: c_uint) -> Result<&End, c_int> {
        self.gpu(device)?.ends.get(link as usize).ok_or(NOT_SUPPORTED)
    }
}

fn started(world: &mut World, function: &str) -> Done {
    if world.nvml.started || function == "nvmlInit" { Ok(()) } else { Err(UNINITIALIZED) }
}

driver! {
    started, std::convert::identity;
    fn nvmlInit = "nvmlInit_v2" (world) {
        world.nvml.started = true;
        Ok(())
    }
    fn nvmlShutdown = "nvmlShutdown" (world) {
        world.nvml.started = false;
        Ok(())
    }
    fn nvmlDeviceGetHandleByPciBusId = "nvmlDeviceGetHandleByPciBusId_v2" (world, address: *const c_char, device: *mut usize) {
        // SAFETY: a C string of the program's.
        let address = unsafe { CStr::from_ptr(address) }.to_string_lossy();
        let found = world.nvml.gpus.iter().position(|gpu| gpu.address == address);
        put(device, found.ok_or(NOT_FOUND)? + 1)
    }
    fn nvmlDeviceGetNvLinkState = "nvmlDeviceGetNvLinkState" (world, device: usize, link: c_uint, active: *mut c_uint) {
        let up = !matches!(world.end(device, link)?, End::Down);
        put(active, c_uint::from(up))
    }
    fn nvmlDeviceGetNvLinkVersion = "nvmlDeviceGetNvLinkVersion" (world, device: usize, link: c_uint, version: *mut c_uint) {
        world.end(device, link)?;
        put(version, world.gpu(device)?.generation)
    }
    fn nvmlDeviceGetNvLinkCapability = "nvmlDeviceGetNvLinkCapability" (
        world, device: usize, link: c_uint, capability: c_int, has: *mut c_uint
    ) {
        let reads = !matches!(world.end(device, link)?, End::Barred);
        put(has, c_uint::from(capability == 0 && reads))
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo = "nvmlDeviceGetNvLinkRemotePciInfo_v2" (
        world, device: usize, link: c_uint, info: *mut PciInfo
    ) {
        put(info, PciInfo::of(match world.end(device, link)? {
            End::Device(address) => address,
            End::Switch => "0000:e0:00.0",
            End::Processor | End::Barred => "0004:04:00.0",
            End::Down => return Err(NOT_SUPPORTED),
        }))
    }
    fn nvmlDeviceGetNvLinkRemoteDeviceType = "nvmlDeviceGetNvLinkRemoteDeviceType" (
        world, device: usize, link: c_uint, kind: *mut c_int
    ) {
        put(kind, match world.end(device, link)? {
            End::Device(_) | End::Barred => 0,
            End::Processor => 1,
            End::Switch => 2,
            End::Down => return Err(NOT_SUPPORTED),
        })
    }
}

/// From now on these are the devices that NVML knows, one a line: its PCI address, the generation of its NVLinks, and what each of these leads to: the
/// address of a device, `switch`, `processor`, `down` (nothing) or `barred` (a device whose memory it does not reach); `*4` behind it stands for four
/// such links. No driver has this: a test asks. It returns how many devices there are.
///
/// # Safety
/// The text is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn banyan_double_nvlinks(text: *const c_char) -> c_ulonglong {
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let world = &mut World::enter();
    world.nvml.gpus = text.lines().filter(|line| !line.trim().is_empty()).map(Gpu::parse).collect();
    world.nvml.gpus.len() as c_ulonglong
}
