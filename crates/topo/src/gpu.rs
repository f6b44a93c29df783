//! [`Gpu`]: the accelerators of a host, as its PCI bus shows them; and by which path a NIC gets at their memory ([`GpuPath`]).

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::machine::{names, text};
use crate::place::{Distance, PcieLink, Place, folder};

/// Makers of GPUs that programs compute on, by their PCI numbers. Others make what servers show a console with.
const VENDORS: [(&str, &str); 3] = [("0x10de", "NVIDIA"), ("0x1002", "AMD"), ("0x8086", "Intel")];

/// Beginnings of the PCI classes of display controllers and of processing accelerators.
const CLASSES: [&str; 2] = ["0x03", "0x12"];

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Such as `GPU0`: numbered by address.
    pub name: String,
    /// Maker, and model where the driver tells it.
    pub model: String,
    /// Where it is.
    #[serde(default)]
    pub at: Place,
    /// Its link to the bridge above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// Number of NVLinks to the NVSwitches of the host, by which it reaches all GPUs that have such links. `/sys` does not show them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nvswitch_links: u8,
    /// The generation of its NVLinks; 0 if it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nvlink_generation: u8,
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

impl Gpu {
    /// The GPUs below a folder that is `/`, or has files as they are there.
    pub(crate) fn read(root: &Path) -> Vec<Gpu> {
        let bus = root.join("sys/bus/pci/devices");
        let of = |address: &str| {
            let class = text(&bus.join(address).join("class"))?;
            CLASSES.iter().any(|begin| class.starts_with(begin)).then_some(())?;
            let vendor = text(&folder(root, address).join("vendor"))?;
            let (_, vendor) = VENDORS.iter().find(|(number, _)| *number == vendor.trim())?;
            let at = Place::of(root, &bus.join(address));
            let model = model(root, address).unwrap_or_else(|| (*vendor).to_owned());
            let pcie = PcieLink::of(root, &at);
            Some(Gpu { name: String::new(), model, at, pcie, nvswitch_links: 0, nvlink_generation: 0 })
        };
        let mut gpus: Vec<Gpu> = names(&bus).iter().filter_map(|address| of(address)).collect();
        gpus.iter_mut().enumerate().for_each(|(number, gpu)| gpu.name = format!("GPU{number}"));
        gpus
    }
}

/// What NVIDIA's driver calls the GPU at an address.
fn model(root: &Path, address: &str) -> Option<String> {
    let told = text(&root.join("proc/driver/nvidia/gpus").join(address).join("information"))?;
    let line = told.lines().find_map(|line| line.strip_prefix("Model:"))?;
    Some(line.trim().to_owned()).filter(|model| !model.is_empty())
}

/// By which path a NIC sends from and receives to a GPU's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuPath {
    /// The NIC gets at it itself (GPUDirect RDMA), as memory that the GPU's driver exports as a dma-buf.
    DmaBuf,
    /// By memory of the host, to and from which the GPU copies.
    Staged,
}

impl GpuPath {
    /// The path between a GPU and an RDMA device that are so far apart. Beyond the switches both would go through the host bridge,
    /// which carries little of what passes from device to device.
    pub fn of(distance: Distance) -> GpuPath {
        if distance <= Distance::Pxb { GpuPath::DmaBuf } else { GpuPath::Staged }
    }
}

impl fmt::Display for GpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuPath::DmaBuf => "GPUDirect RDMA (dma-buf)",
            GpuPath::Staged => "staged through the host's memory",
        })
    }
}
