//! What is between the GPUs of a host ([`GpuWay`]), what things take on GPUs and between them ([`GpuFigures`]), and what is known of those that have the
//! ranks of a communicator on a host ([`GpuGroup`]): where they are among each other, and in which order a ring goes over them.

use std::fmt;

use crate::gpu::{Gpu, GpuPath};
use crate::gpu_ring::ring;
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

    /// What people call it, and files.
    pub fn name(self) -> &'static str {
        match self {
            GpuLink::NvSwitch => "NVSwitch",
            GpuLink::NvLink => "NVLink",
            GpuLink::Pcie => "PCIe",
            GpuLink::Staged => "the host's memory",
        }
    }
}

/// By what two GPUs copy from each other, and how wide that is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuWay {
    /// Of which kind it is.
    pub link: GpuLink,
    /// What its NVLinks carry each way together by data sheets, in GB/s; 0 where there are none.
    pub width: u16,
}

impl fmt::Display for GpuWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.width {
            0 => f.write_str(self.link.name()),
            width => write!(f, "{} of {width} GB/s", self.link.name()),
        }
    }
}

/// What an NVLink carries each way, in GB/s, by its generation.
fn width_of_link(generation: u8) -> u32 {
    match generation {
        1 => 20,
        0 | 2..=4 => 25,
        5.. => 50,
    }
}

/// Where a GPU is among those of its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuLocation {
    /// GPUs with the same number are joined by NVLinks, or else are below one socket.
    pub group: u32,
    /// Of GPUs without NVLinks, those with the same number are below one PCIe switch or root port.
    pub switch: u32,
}

impl GpuLocation {
    /// At which level of [`GpuLinks::levels`] two GPUs are apart.
    fn apart(self, other: GpuLocation) -> usize {
        match () {
            () if self.group != other.group => 1,
            () if self.switch != other.switch => 2,
            () => 3,
        }
    }
}

/// What a host's map says of one of its GPUs beside the others: a row of the table of links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuRow {
    /// Its place among the host's GPUs.
    pub place: usize,
    /// Where it is.
    pub location: GpuLocation,
    /// An RDMA device reads and writes its memory by itself, where both their drivers can.
    pub is_near: bool,
    /// By what it and each of the host's GPUs copy from each other, itself included, and how far that one is.
    pub to: Vec<(GpuWay, Distance)>,
}

/// What is told of a GPU in so many bytes.
pub const GPU_ROW: usize = 12 + 4 * MOST_GPUS;

/// The most GPUs of a host whose rows are told.
const MOST_GPUS: usize = 16;

impl GpuRow {
    /// The row as bytes, which never are all 0; `None` if the host has more than 16 GPUs.
    pub fn encode(&self) -> Option<[u8; GPU_ROW]> {
        let mut bytes = [0; GPU_ROW];
        let mut at = 0;
        let mut put = |more: &[u8]| -> Option<()> {
            bytes.get_mut(at..at + more.len())?.copy_from_slice(more);
            at += more.len();
            Some(())
        };
        put(&[self.to.len() as u8, self.place as u8, self.is_near.into(), 0])?;
        put(&self.location.group.to_le_bytes())?;
        put(&self.location.switch.to_le_bytes())?;
        for (way, far) in &self.to {
            put(&[way.link as u8, *far as u8])?;
            put(&way.width.to_le_bytes())?;
        }
        Some(bytes)
    }

    /// The row that these bytes tell; `None` if they tell none.
    pub fn decode(bytes: &[u8; GPU_ROW]) -> Option<GpuRow> {
        let [number @ 1..=u8::MAX, place, near, 0, words @ ..] = bytes else { return None };
        let word = |at: usize| Some(u32::from_le_bytes(words.get(at..at + 4)?.try_into().ok()?));
        let to = |[link, far, low, high]: &[u8; 4]| {
            let link = *GpuLink::ALL.get(usize::from(*link))?;
            let far = *Distance::ALL.get(usize::from(*far))?;
            Some((GpuWay { link, width: u16::from_le_bytes([*low, *high]) }, far))
        };
        let ways = bytes[12..].as_chunks().0.get(..usize::from(*number))?;
        Some(GpuRow {
            place: usize::from(*place),
            location: GpuLocation { group: word(0)?, switch: word(4)? },
            is_near: *near != 0,
            to: ways.iter().map(to).collect::<Option<_>>()?,
        })
    }
}

/// What messages between GPUs take that ranks of a communicator have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GpuLinks {
    /// In the mean of those that are apart on two hosts, in two groups of one, below two switches of one group, and of those that are not
    /// apart. Between hosts the network comes on top.
    pub levels: [Message; 4],
    /// By the narrowest link of the ring over those of a host.
    pub ring: Message,
    /// At which of the levels that ring is apart.
    pub span: usize,
}

impl GpuLinks {
    /// Of two hosts: what takes longer.
    #[must_use]
    pub fn or_worse(&self, other: &GpuLinks) -> GpuLinks {
        let worse = |one: Message, other: Message| Message {
            latency: one.latency.max(other.latency),
            overhead: one.overhead.max(other.overhead),
            byte: one.byte.max(other.byte),
        };
        GpuLinks {
            levels: std::array::from_fn(|level| worse(self.levels[level], other.levels[level])),
            ring: worse(self.ring, other.ring),
            span: self.span.min(other.span),
        }
    }
}

/// Those of a host's GPUs that some ranks have, one each, in the order of ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuGroup {
    /// Where each is.
    pub locations: Vec<GpuLocation>,
    /// In which order a ring goes over them.
    pub ring: Vec<usize>,
    /// The narrowest link of that ring; `None` if it is all one GPU.
    pub narrowest: Option<GpuWay>,
    /// What messages take.
    pub links: GpuLinks,
}

impl GpuGroup {
    /// The GPUs that ranks of a host have, each with its row of the host's table, where the host is one of so many `hosts`, and RDMA devices between these may be
    /// `direct`: read and write memory of GPUs that they are near to; `None` if there are none, or the rows are not of one host.
    pub fn of(rows: &[&GpuRow], (hosts, direct): (u32, bool), figures: &GpuFigures) -> Option<GpuGroup> {
        if rows.iter().any(|row| rows.iter().any(|other| row.to.len() <= other.place)) {
            return None;
        }
        let locations: Vec<GpuLocation> = rows.iter().map(|row| row.location).collect();
        // Of ranks that have one GPU the first stands for all.
        let first = |at: usize| rows.iter().position(|row| row.place == rows[at].place);
        let firsts: Vec<usize> = (0..rows.len()).filter(|at| first(*at) == Some(*at)).collect();
        let to = |one: usize, other: usize| rows[one].to[rows[other].place];
        let way = |one: usize, other: usize| to(one, other).0;
        // Links of one kind are told apart by how far they lead.
        let width = |one: usize, other: usize| {
            let (way, far) = to(one, other);
            (1e-6 / figures.message(way).byte) as u64 * 8 + (Distance::Sys as u64 - far as u64)
        };
        let row = |one: &usize| firsts.iter().map(|other| width(*one, *other)).collect();
        let closed = hosts <= 1;
        let order = ring(&firsts.iter().map(row).collect::<Vec<_>>(), closed);
        let order: Vec<usize> = order.into_iter().map(|at| firsts[at]).collect();
        let back = (closed && order.len() > 2).then(|| (order[order.len() - 1], order[0]));
        let pairs = order.windows(2).map(|pair| (pair[0], pair[1])).chain(back);
        let byte = |way: &GpuWay| figures.message(*way).byte;
        let narrowest =
            pairs.map(|(one, other)| way(one, other)).max_by(|one, other| byte(one).total_cmp(&byte(other)));
        let all = order.iter().flat_map(|of| (0..rows.len()).filter(|at| first(*at) == Some(*of)));
        let ring = all.collect();
        let mut levels = levels(&firsts, &locations, way, figures);
        if direct && rows.iter().all(|row| row.is_near) {
            levels[0] = figures.direct;
        }
        let apart =
            firsts.iter().flat_map(|one| firsts.iter().map(|other| locations[*one].apart(locations[*other])));
        let links = GpuLinks {
            levels,
            ring: narrowest.map_or(levels[3], |way| figures.message(way)),
            span: apart.min()?,
        };
        Some(GpuGroup { locations, ring, narrowest, links })
    }
}

/// What things take on GPUs and between them, in seconds or seconds per byte.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GpuFigures {
    /// A message from one GPU's memory to another one's, by [link](GpuLink::ALL); where these are NVLinks, by 25 GB/s of such.
    pub links: [Message; 4],
    /// One to or from another host where RDMA devices read and write the memory of GPUs (GPUDirect RDMA), beside what the network takes.
    pub direct: Message,
    /// A copy between a GPU and the host, until it is seen to be over.
    pub to_host: Message,
    /// A byte copied within a GPU's memory.
    pub copy: f64,
    /// A byte of a sum in a GPU's memory.
    pub reduce: f64,
}

impl Default for GpuFigures {
    fn default() -> GpuFigures {
        GpuFigures::ASSUMED
    }
}

impl GpuFigures {
    /// Of servers with NVIDIA's GPUs. Nobody has measured them: bytes follow from what links carry by their data sheets (0.8 of an NVLink of the second to fourth generation,
    /// 16 lanes of PCIe 4), latencies from what an announcement, the start of a copy and a look at its event may take.
    pub const ASSUMED: GpuFigures = GpuFigures {
        links: [
            Message { latency: 15e-6, overhead: 5e-6, byte: 1.0 / 20e9 },
            Message { latency: 15e-6, overhead: 5e-6, byte: 1.0 / 20e9 },
            Message { latency: 17e-6, overhead: 5e-6, byte: 1.0 / 20e9 },
            Message { latency: 30e-6, overhead: 10e-6, byte: 1.0 / 10e9 },
        ],
        direct: Message { latency: 3e-6, overhead: 1e-6, byte: 1.0 / 20e9 },
        to_host: Message { latency: 8e-6, overhead: 4e-6, byte: 1.0 / 20e9 },
        copy: 1.0 / 1000e9,
        reduce: 1.0 / 600e9,
    };

    /// A message by this way.
    pub fn message(&self, way: GpuWay) -> Message {
        let message = self.links[way.link as usize];
        let narrower = if way.width == 0 { 1.0 } else { 25.0 / f64::from(way.width) };
        Message { byte: message.byte * narrower, ..message }
    }
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
            return Some(GpuLocation { group: joined[0] as u32, switch: 0 });
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
        Some(GpuLocation { group, switch })
    }

    /// By what two GPUs copy from each other.
    fn gpu_way(&self, one: &Gpu, other: &Gpu) -> GpuWay {
        let width =
            self.nvlinks(one, other) * width_of_link(one.nvlink_generation.min(other.nvlink_generation));
        let link = match () {
            () if width > 0 && one.nvswitch_links.min(other.nvswitch_links) > 0 => GpuLink::NvSwitch,
            () if width > 0 => GpuLink::NvLink,
            () if self.distance(Holder::Device(&one.at), &other.at) <= Distance::Node => GpuLink::Pcie,
            () => GpuLink::Staged,
        };
        GpuWay { link, width: width.min(u16::MAX.into()) as u16 }
    }

    /// What is known of the GPU at a PCI address beside the others; `None` if the map has none there.
    pub fn gpu_row(&self, address: &str) -> Option<GpuRow> {
        let place = self.gpus.iter().position(|gpu| gpu.at.address() == Some(address))?;
        let gpu = &self.gpus[place];
        let to = |other: &Gpu| (self.gpu_way(gpu, other), self.distance(Holder::Device(&gpu.at), &other.at));
        let location = self.gpu_location(address)?;
        let is_near = self.nic_of(gpu).is_some_and(|nic| self.gpu_path(gpu, nic) == GpuPath::DmaBuf);
        Some(GpuRow { place, location, is_near, to: self.gpus.iter().map(to).collect() })
    }

    /// The GPUs at these PCI addresses, which ranks of this host have, as of [`GpuGroup::of`]; `None` if the map lacks one of them, or there is none.
    pub fn gpu_group(
        &self,
        addresses: &[&str],
        between: (u32, bool),
        figures: &GpuFigures,
    ) -> Option<GpuGroup> {
        let rows: Vec<GpuRow> =
            addresses.iter().map(|address| self.gpu_row(address)).collect::<Option<_>>()?;
        GpuGroup::of(&rows.iter().collect::<Vec<_>>(), between, figures)
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

/// What messages take between `gpus` that are apart, in the mean by level as in [`GpuLinks::levels`].
fn levels(
    gpus: &[usize],
    locations: &[GpuLocation],
    way: impl Fn(usize, usize) -> GpuWay,
    figures: &GpuFigures,
) -> [Message; 4] {
    // Where no two are apart so.
    let usual = [GpuLink::Staged, GpuLink::Staged, GpuLink::Pcie, GpuLink::Pcie];
    let pairs =
        || gpus.iter().enumerate().flat_map(|(at, one)| gpus[..at].iter().map(move |other| (*one, *other)));
    std::array::from_fn(|level| {
        let apart = pairs().filter(|(one, other)| locations[*one].apart(locations[*other]) == level);
        let messages: Vec<Message> = apart.map(|(one, other)| figures.message(way(one, other))).collect();
        let mean = |part: fn(&Message) -> f64| messages.iter().map(part).sum::<f64>() / messages.len() as f64;
        match messages.is_empty() {
            true => figures.links[usual[level] as usize],
            false => Message {
                latency: mean(|message| message.latency),
                overhead: mean(|message| message.overhead),
                byte: mean(|message| message.byte),
            },
        }
    })
}
