//! [`Branch`]: the PCIe tree of a host as people draw it, made of the places of its devices: NUMA nodes, their host bridges, switches,
//! devices. Bridges that lead to one thing alone are left out.

use crate::gpu::Gpu;
use crate::map::{HostMap, Nic};
use crate::place::Place;

/// A device of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device<'a> {
    /// A NIC's port.
    Nic(&'a Nic),
    /// A GPU.
    Gpu(&'a Gpu),
}

impl<'a> Device<'a> {
    /// Its name.
    pub fn name(self) -> &'a str {
        match self {
            Device::Nic(nic) => &nic.name,
            Device::Gpu(gpu) => &gpu.name,
        }
    }

    /// Where it is.
    pub fn at(self) -> &'a Place {
        match self {
            Device::Nic(nic) => &nic.at,
            Device::Gpu(gpu) => &gpu.at,
        }
    }
}

/// A part of a host, and what is in it or below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Branch<'a> {
    /// A NUMA node, by its number.
    Numa(u32, Vec<Branch<'a>>),
    /// A host bridge, by its name.
    Bridge(&'a str, Vec<Branch<'a>>),
    /// A PCIe switch, or another bridge with several things below it, by its address.
    Switch(&'a str, Vec<Branch<'a>>),
    /// A device.
    Device(Device<'a>),
}

impl HostMap {
    /// GPUs and NICs, in this order.
    pub fn devices(&self) -> Vec<Device<'_>> {
        self.gpus.iter().map(Device::Gpu).chain(self.nics.iter().map(Device::Nic)).collect()
    }

    /// The tree: NUMA nodes with what is known to be there, then what is nowhere known.
    pub fn tree(&self) -> Vec<Branch<'_>> {
        let at = |numa: Option<u32>| {
            let mut devices = self.devices();
            devices.retain(|device| device.at().numa == numa);
            devices.sort_by_key(|device| device.at());
            devices
        };
        let mut numbers: Vec<u32> = self.numa.iter().map(|numa| numa.node).collect();
        numbers.extend(self.devices().iter().filter_map(|device| device.at().numa));
        numbers.sort_unstable();
        numbers.dedup();
        let nodes = numbers.into_iter().map(|node| Branch::Numa(node, below(&at(Some(node)), 0)));
        nodes.chain(below(&at(None), 0)).collect()
    }
}

/// What `devices`, sorted by their places, make below the first `depth` parts of their paths, which are the same.
fn below<'a>(devices: &[Device<'a>], depth: usize) -> Vec<Branch<'a>> {
    let part = |device: &Device<'a>| device.at().pci.get(depth).map(String::as_str);
    let groups = devices.chunk_by(|one, other| part(one).is_some() && part(one) == part(other));
    let branch = |group: &[Device<'a>]| match (group, part(&group[0])) {
        (_, Some(bridge)) if depth == 0 => vec![Branch::Bridge(bridge, below(group, 1))],
        ([device], _) => vec![Branch::Device(*device)],
        (_, Some(address)) if group.iter().all(|of| of.at().pci.len() > depth + 1) => {
            let inner = below(group, depth + 1);
            if inner.len() > 1 { vec![Branch::Switch(address, inner)] } else { inner }
        }
        // Several ports of one device.
        _ => group.iter().copied().map(Branch::Device).collect(),
    };
    groups.flat_map(branch).collect()
}
