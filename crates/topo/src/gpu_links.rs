//! What is between the GPUs of a host ([`GpuLink`]), where a GPU is among the others ([`GpuLocation`]), and what things take on GPUs and between
//! them ([`GpuFigures`]).

use crate::gpu::Gpu;
use crate::map::{Holder, HostMap, NvLink};
use crate::place::Distance;
use crate::profile::Message;

/// What a driver says of the NVLinks of a GPU: their generation, or 0; and what each of them leads to: the PCI address of a GPU, or none, an NVSwitch.
pub type NvLinks = (u8, Vec<Option<String>>);

/// By what two GPUs copy from each other, the quickest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum GpuLink {
    /// NVLinks to switches, which join all GPUs that have some.
    NvSwitch,
    /// NVLinks from one GPU to the other.
    NvLink,
    /// PCIe, below one socket.
    Pcie,
    /// By way of the host's memory.
    Staged,
}

impl GpuLink {
    /// All of them, in the order of [`GpuFigures::links`].
    pub const ALL: [GpuLink; 4] = [GpuLink::NvSwitch, GpuLink::NvLink, GpuLink::Pcie, GpuLink::Staged];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            GpuLink::NvSwitch => "NVSwitch",
            GpuLink::NvLink => "NVLink",
            GpuLink::Pcie => "PCIe",
            GpuLink::Staged => "the host's memory",
        }
    }
}

/// Where a GPU is among those of its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuLocation {
    /// GPUs with the same number are joined by NVLinks, or else are below one socket.
    pub group: u32,
    /// Of GPUs without NVLinks, those with the same number are below one PCIe switch or root port.
    pub switch: u32,
    /// By what it reaches those that have both numbers.
    pub link: GpuLink,
}

/// What things take on GPUs and between them, in seconds or seconds per byte.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GpuFigures {
    /// A message from one GPU's memory to another one's, by [link](GpuLink::ALL).
    pub links: [Message; 4],
    /// A copy between a GPU and the host, until it is seen to be over.
    pub to_host: Message,
    /// A byte copied within a GPU's memory.
    pub copy: f64,
    /// A byte of a sum in a GPU's memory.
    pub reduce: f64,
}

impl GpuFigures {
    /// Of servers with NVIDIA's GPUs. Nobody has measured them: bytes follow from what links carry by their data sheets (18 NVLinks of the fourth generation, 4 of the
    /// second, 16 lanes of PCIe 4), latencies from what an announcement, the start of a copy and a look at its event may take.
    pub const ASSUMED: GpuFigures = GpuFigures {
        links: [
            Message { latency: 15e-6, overhead: 5e-6, byte: 1.0 / 360e9 },
            Message { latency: 15e-6, overhead: 5e-6, byte: 1.0 / 80e9 },
            Message { latency: 17e-6, overhead: 5e-6, byte: 1.0 / 20e9 },
            Message { latency: 30e-6, overhead: 10e-6, byte: 1.0 / 10e9 },
        ],
        to_host: Message { latency: 8e-6, overhead: 4e-6, byte: 1.0 / 20e9 },
        copy: 1.0 / 1000e9,
        reduce: 1.0 / 600e9,
    };
}

impl HostMap {
    /// Adds the NVLinks that GPUs say they have, as for [`HostMap::told_with_links`].
    pub fn add_nvlinks(&mut self, ask: impl FnOnce(&[&str]) -> Vec<NvLinks>) {
        let located = |gpu: &&mut Gpu| gpu.at.address().is_some();
        let addresses: Vec<String> =
            self.gpus.iter().filter_map(|gpu| gpu.at.address().map(str::to_owned)).collect();
        let told = ask(&addresses.iter().map(String::as_str).collect::<Vec<_>>());
        let number = |ends: &[Option<String>], to: Option<&String>| {
            ends.iter().filter(|end| end.as_ref() == to).count().min(u8::MAX.into()) as u8
        };
        for (gpu, (generation, ends)) in self.gpus.iter_mut().filter(located).zip(&told) {
            (gpu.nvlink_generation, gpu.nvswitch_links) = (*generation, number(ends, None));
        }
        let names: Vec<&String> =
            self.gpus.iter().filter(|gpu| gpu.at.address().is_some()).map(|gpu| &gpu.name).collect();
        let all: Vec<_> = names.into_iter().zip(&addresses).zip(&told).collect();
        for (at, ((name, address), (_, ends))) in all.iter().enumerate() {
            for ((other, other_address), (_, back)) in &all[at + 1..] {
                // Both must say so.
                let links = number(ends, Some(other_address)).min(number(back, Some(address)));
                if links > 0 {
                    self.nvlinks.push(NvLink { gpus: [name.to_string(), other.to_string()], links });
                }
            }
        }
    }

    /// Where the GPU at a PCI address (such as `0000:18:00.0`) is among the others; `None` if the map has none there.
    pub fn gpu_location(&self, address: &str) -> Option<GpuLocation> {
        let own = self.gpus.iter().position(|gpu| gpu.at.address() == Some(address))?;
        let gpu = &self.gpus[own];
        let joined = self.joined(own);
        if joined.len() > 1 {
            let direct = |other: &usize| self.gpus[*other].nvswitch_links.min(gpu.nvswitch_links) == 0;
            let link = if joined.iter().any(|other| *other != own && direct(other)) {
                GpuLink::NvLink
            } else {
                GpuLink::NvSwitch
            };
            return Some(GpuLocation { group: joined[0] as u32, switch: 0, link });
        }
        let first = |near: &dyn Fn(&Gpu) -> bool| self.gpus.iter().position(near).unwrap_or(own) as u32;
        let within = |other: &Gpu, most| self.distance(Holder::Device(&gpu.at), &other.at) <= most;
        // Those that are joined by NVLinks are a group of their own.
        let alone = |other: &Gpu| {
            let at = self.gpus.iter().position(|of| of.name == other.name);
            at.is_some_and(|at| self.joined(at).len() == 1)
        };
        let group = first(&|other| alone(other) && within(other, Distance::Node));
        let switch = first(&|other| alone(other) && within(other, Distance::Pxb));
        Some(GpuLocation { group, switch, link: GpuLink::Pcie })
    }

    /// The GPUs that NVLinks lead to from this one, also by way of others, and it itself: their places in the list, rising.
    fn joined(&self, from: usize) -> Vec<usize> {
        let (mut all, mut next) = (vec![from], 0);
        while let Some(&at) = all.get(next) {
            let linked = |other: &usize| self.nvlinks(&self.gpus[at], &self.gpus[*other]) > 0;
            let new: Vec<usize> =
                (0..self.gpus.len()).filter(|other| !all.contains(other) && linked(other)).collect();
            all.extend(new);
            next += 1;
        }
        all.sort_unstable();
        all
    }
}

/// By what GPUs that are apart copy from each other: on two hosts, in two groups of one, below two switches of one group, and those that are not
/// apart.
pub fn gpu_links(locations: impl IntoIterator<Item = GpuLocation>) -> [GpuLink; 4] {
    let near = locations.into_iter().map(|location| location.link).max().unwrap_or(GpuLink::Staged);
    [GpuLink::Staged, GpuLink::Staged, near.max(GpuLink::Pcie), near]
}
