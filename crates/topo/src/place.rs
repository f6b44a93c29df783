//! [`Place`]: where a device is on its host, as the path that leads to it in the tree of NUMA nodes and PCIe bridges; and the
//! [`Distance`] of two places, by the names that NCCL and `nvidia-smi topo` have for it.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::machine::text;

/// Most bytes of a part of a path.
const LONGEST_PART: usize = 32;
/// Most parts of a path: the deepest tree of PCIe has 256 buses.
const MOST_PARTS: usize = 256;

/// How far two devices of a host are apart, or a process and a device; nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Distance {
    /// By one PCIe switch at most.
    Pix,
    /// By several PCIe switches, below one root port.
    Pxb,
    /// By the host bridge (root complex) of both; of a process, by one of its NUMA node.
    Phb,
    /// By two host bridges of one NUMA node; of a process, by another NUMA node of its socket.
    Node,
    /// From one NUMA node to another; of a process, from one socket to another, or nothing is known.
    Sys,
}

impl Distance {
    /// All of them, the nearest first.
    pub const ALL: [Distance; 5] =
        [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys];
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distance::Pix => "PIX",
            Distance::Pxb => "PXB",
            Distance::Phb => "PHB",
            Distance::Node => "NODE",
            Distance::Sys => "SYS",
        })
    }
}

/// Where a device is on its host: such as `node0/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0`, a NUMA node, a
/// host bridge, a root port, both ports of a switch, and the device. Empty if it is nowhere on PCIe.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Place {
    /// The NUMA node, if the system knows it.
    pub numa: Option<u32>,
    /// From the host bridge to the device, each by the kernel's name.
    pub pci: Vec<String>,
}

impl Place {
    /// Of what the kernel shows at a link or folder below `root/sys`, which leads into its tree of devices.
    pub(crate) fn of(root: &Path, link: &Path) -> Place {
        let sys = |path: &Path| path.canonicalize().ok();
        let Some((root, full)) = sys(root).zip(sys(link)) else { return Place::default() };
        let within = full.strip_prefix(&root).unwrap_or(&full);
        let parts = within.iter().filter_map(|part| part.to_str());
        let pci: Vec<String> = parts.filter(|part| is_pci(part)).map(str::to_owned).collect();
        let Some(device) = pci.last().filter(|device| is_address(device)) else { return Place::default() };
        let numa = text(&folder(&root, device).join("numa_node"));
        Place { numa: numa.and_then(|numa| numa.trim().parse().ok()), pci }
    }

    /// The address of the device, such as `0000:18:00.0`.
    pub fn address(&self) -> Option<&str> {
        self.pci.last().map(String::as_str)
    }

    /// How far two devices are apart by PCIe alone; `None` if they have no host bridge in common.
    pub(crate) fn by_pcie(&self, other: &Place) -> Option<Distance> {
        let common = self.pci.iter().zip(&other.pci).take_while(|(one, other)| one == other).count();
        let below = self.pci.len().max(other.pci.len()) - common;
        match common {
            0 => None,
            1 => Some(Distance::Phb),
            // Below the port of a switch that faces the host there is one of its other ports, and the device.
            _ if below <= 2 => Some(Distance::Pix),
            _ => Some(Distance::Pxb),
        }
    }
}

/// The kernel's folder of a PCI device.
pub(crate) fn folder(root: &Path, address: &str) -> std::path::PathBuf {
    root.join("sys/bus/pci/devices").join(address)
}

/// True for a host bridge, such as `pci0000:15`, and an address.
fn is_pci(part: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bridge = part.strip_prefix("pci").and_then(|numbers| numbers.split_once(':'));
    bridge.is_some_and(|(domain, bus)| hex(domain) && hex(bus)) || is_address(part)
}

/// True for a device's address, such as `0000:18:00.0`.
fn is_address(part: &str) -> bool {
    let numbers: Vec<&str> = part.split([':', '.']).collect();
    let hex = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    numbers.len() == 4 && numbers.iter().all(hex) && part.contains('.')
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numa = self.numa.map(|numa| format!("node{numa}"));
        let parts: Vec<&str> =
            numa.as_deref().into_iter().chain(self.pci.iter().map(String::as_str)).collect();
        f.write_str(&parts.join("/"))
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(path: &str) -> Result<Place, String> {
        let mut parts = path.split('/').filter(|_| !path.is_empty()).peekable();
        let numa = parts.peek().and_then(|part| part.strip_prefix("node")?.parse().ok());
        let pci: Vec<String> = parts.skip(usize::from(numa.is_some())).map(str::to_owned).collect();
        let fits = |part: &String| part.len() <= LONGEST_PART && is_pci(part);
        match pci.len() <= MOST_PARTS && pci.iter().all(fits) {
            true => Ok(Place { numa, pci }),
            false => Err(format!(
                "\"{path}\" is no place of a device such as node0/pci0000:15/0000:15:01.0/0000:16:00.0"
            )),
        }
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(path: String) -> Result<Place, String> {
        path.parse()
    }
}

impl From<Place> for String {
    fn from(place: Place) -> String {
        place.to_string()
    }
}

/// A device's link to the bridge above it, written as `5 x16`: generation of PCIe, and lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PcieLink {
    /// From 1; each doubles the one before, more or less.
    pub generation: u8,
    /// Number of lanes.
    pub lanes: u8,
}

impl PcieLink {
    /// The best link that the device at this place can have.
    pub(crate) fn of(root: &Path, place: &Place) -> Option<PcieLink> {
        let read = |name: &str| text(&folder(root, place.address()?).join(name));
        let speed = read("max_link_speed")?;
        let lanes = read("max_link_width")?.trim().parse().ok().filter(|lanes| (1..=32).contains(lanes))?;
        let known = ["2.5", "5", "8", "16", "32", "64", "128"];
        let transfers = speed.split(' ').next()?.trim_end_matches(".0");
        let generation = known.iter().position(|known| *known == transfers)? as u8 + 1;
        Some(PcieLink { generation, lanes })
    }
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x{}", self.generation, self.lanes)
    }
}

impl TryFrom<String> for PcieLink {
    type Error = String;

    fn try_from(text: String) -> Result<PcieLink, String> {
        let numbers = text.split_once(" x").and_then(|(generation, lanes)| {
            Some(PcieLink { generation: generation.parse().ok()?, lanes: lanes.parse().ok()? })
        });
        numbers.ok_or_else(|| format!("\"{text}\" is no PCIe link such as 5 x16: generation and lanes"))
    }
}

impl From<PcieLink> for String {
    fn from(link: PcieLink) -> String {
        link.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(one: &str, other: &str) -> Option<Distance> {
        let [one, other] = [one, other].map(|path| path.parse::<Place>().unwrap());
        assert_eq!(one.by_pcie(&other), other.by_pcie(&one));
        one.by_pcie(&other)
    }

    #[test]
    fn distances_are_what_pcie_has_between() {
        // The ports of a switch: 16:00.0 faces the host, 17:00.0 and 17:01.0 lead to devices.
        let switch = "node0/pci0000:15/0000:15:01.0/0000:16:00.0";
        let gpu = format!("{switch}/0000:17:00.0/0000:18:00.0");
        assert_eq!(
            between(&gpu, &format!("{switch}/0000:17:00.0/0000:18:00.1")),
            Some(Distance::Pix),
            "functions"
        );
        assert_eq!(between(&gpu, &format!("{switch}/0000:17:01.0/0000:19:00.0")), Some(Distance::Pix));
        // Behind another switch below one of those ports.
        let far = format!("{switch}/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0");
        assert_eq!(between(&gpu, &far), Some(Distance::Pxb));
        assert_eq!(between(&gpu, "node0/pci0000:15/0000:15:02.0/0000:30:00.0"), Some(Distance::Phb));
        assert_eq!(between(&gpu, "pci0000:26/0000:26:01.0/0000:27:00.0"), None);
        assert_eq!(between(&gpu, ""), None);
    }

    #[test]
    fn places_are_paths() {
        for good in ["", "node3", "pci0000:00/0000:00:02.0", "node1/pci10000:e1/10000:e1:00.0"] {
            assert_eq!(good.parse::<Place>().unwrap().to_string(), good);
        }
        for bad in
            ["/", "node", "0000:00", "pci0000:00//0000:00:02.0", "pci0000:00/eth0", "node1/node2", "pcix:00"]
        {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
        assert_eq!(PcieLink::try_from("5 x16".to_owned()), Ok(PcieLink { generation: 5, lanes: 16 }));
        assert!(
            ["", "5", "5x16", "x", "256 x1"].iter().all(|bad| PcieLink::try_from((*bad).to_owned()).is_err())
        );
    }
}
