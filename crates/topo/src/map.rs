//! [`HardwareMap`]: hosts with their NUMA nodes, PCIe trees, NICs and GPUs, and the network above them; read from `/sys`, or from a
//! topology file. Which NIC is the one for a process or a GPU ([`HostMap::nearest`]) is pure.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cpus::CpuSet;
use crate::gpu::{Gpu, GpuPath};
use crate::gpu_links::NvLinks;
use crate::machine::{SYSTEM, names, numa_nodes, text};
use crate::place::{Distance, PcieLink, Place};
use crate::rdma::{RdmaLink, RdmaPort};

/// Most bytes of a topology file: every rank of a job gets it with the job.
const MOST_BYTES: usize = 64 << 10;

/// Most bytes of a name.
const LONGEST_NAME: usize = 100;

/// What a topology file holds.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareMap {
    /// Hosts; one for all that are alike.
    #[serde(default, rename = "host")]
    pub hosts: Vec<HostMap>,
    /// The switches of the network above hosts, if the file says what they are.
    #[serde(default, rename = "switch", skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<Switch>,
}

/// A host, or several that are alike.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostMap {
    /// Their names; none: any host.
    #[serde(default)]
    pub names: Vec<String>,
    /// NUMA nodes that have CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaNode>,
    /// Ports of network devices.
    #[serde(default, rename = "nic", skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// GPUs.
    #[serde(default, rename = "gpu", skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// NVLinks from GPU to GPU, with no NVSwitch between. `/sys` does not show them.
    #[serde(default, rename = "nvlink", skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvLink>,
}

/// A NUMA node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// The kernel's number.
    pub node: u32,
    /// The socket that it is part of.
    pub socket: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// A port of a network device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// That of an RDMA port, such as `mlx5_0:1`, or of a network interface.
    pub name: String,
    /// What packets of an RDMA port travel on; none: it is an Ethernet interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaLink>,
    /// The network interface of an RDMA port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Mbit/s; 0 if the system does not know.
    #[serde(default)]
    pub speed: u32,
    /// Where it is.
    #[serde(default)]
    pub at: Place,
    /// Its link to the bridge above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
}

/// NVLinks between two GPUs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLink {
    /// The names of both.
    pub gpus: [String; 2],
    /// How many.
    pub links: u8,
}

/// A switch of the network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// The switches above it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub up: Vec<String>,
    /// Mbit/s to each of these; 0 if the file does not say.
    #[serde(default)]
    pub speed: u32,
    /// The hosts on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// Who is to have a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder<'a> {
    /// A process that may run on these CPUs.
    Process(&'a CpuSet),
    /// A device at this place.
    Device(&'a Place),
}

impl HardwareMap {
    /// The text of the file that [`HardwareMap::parse`] reads.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("names, numbers and lists of them can be written")
    }

    /// Reads a topology file.
    ///
    /// # Errors
    /// A sentence that says what is wrong, and where.
    pub fn parse(text: &str) -> Result<HardwareMap, String> {
        if text.len() > MOST_BYTES {
            return Err(format!("it has more than {MOST_BYTES} bytes, which every rank would be told"));
        }
        let map: HardwareMap = toml::from_str(text).map_err(|error| one_line(text, &error))?;
        map.check()?;
        Ok(map)
    }

    /// What ranks are told for the path of a topology file that a user names: its text; empty for none.
    ///
    /// # Errors
    /// A sentence that names the file, and says what is wrong with it.
    pub fn setting(path: Option<&str>) -> Result<String, String> {
        let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(String::new()) };
        let mut text = String::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(MOST_BYTES as u64 + 1).read_to_string(&mut text))
            .map_err(|why| why.to_string());
        let parsed = read.and_then(|_| HardwareMap::parse(&text));
        parsed.map(|_| text).map_err(|why| format!("{path}: {why}"))
    }

    /// The host of this name: one that is named so, else one that stands for any; a map of one host is that of the one that reads it.
    ///
    /// # Errors
    /// A sentence that names the hosts that there are.
    pub fn host(&self, name: &str) -> Result<&HostMap, String> {
        let named = self.hosts.iter().find(|host| host.names.iter().any(|of| of == name));
        let any = || self.hosts.iter().find(|host| host.names.is_empty());
        let only = || self.hosts.first().filter(|_| self.hosts.len() == 1);
        named.or_else(any).or_else(only).ok_or_else(|| {
            let names: Vec<&str> =
                self.hosts.iter().flat_map(|host| &host.names).map(String::as_str).collect();
            match &names[..] {
                [] => "it describes no host".to_owned(),
                _ => format!("it describes {}, and not {name}", names.join(", ")),
            }
        })
    }

    /// Switches by their level: those that are above no other one first.
    pub fn levels(&self) -> Vec<Vec<&Switch>> {
        let mut levels: Vec<Vec<&Switch>> = vec![];
        let mut left: Vec<&Switch> = self.switches.iter().collect();
        while !left.is_empty() {
            let (above, level): (Vec<&Switch>, Vec<&Switch>) =
                left.iter().partition(|of| left.iter().any(|below| below.up.contains(&of.name)));
            if level.is_empty() {
                break;
            }
            levels.push(level);
            left = above;
        }
        levels
    }

    /// How many switches are between two hosts at least; `None` if no way is known.
    pub fn switches_between(&self, one: &str, other: &str) -> Option<usize> {
        let has = |switch: &Switch, host: &str| switch.hosts.iter().any(|name| name == host);
        let joined = |one: &Switch, other: &Switch| {
            one.name == other.name || one.up.contains(&other.name) || other.up.contains(&one.name)
        };
        let mut reached: Vec<&Switch> = self.switches.iter().filter(|of| has(of, one)).collect();
        for number in 1..=self.switches.len() {
            if reached.iter().any(|of| has(of, other)) {
                return Some(number);
            }
            reached = self.switches.iter().filter(|of| reached.iter().any(|near| joined(near, of))).collect();
        }
        None
    }

    fn check(&self) -> Result<(), String> {
        let hosts = self.hosts.iter().flat_map(|host| &host.names);
        unique("host", hosts.map(String::as_str))?;
        unique("switch", self.switches.iter().map(|of| &*of.name))?;
        let known: HashSet<&str> = self.switches.iter().map(|of| &*of.name).collect();
        for switch in &self.switches {
            switch.hosts.iter().try_for_each(|host| fit("host", host))?;
            if let Some(up) = switch.up.iter().find(|up| !known.contains(&***up)) {
                return Err(format!(
                    "switch {} leads up to {up}, which is no switch of the file",
                    switch.name
                ));
            }
        }
        if self.levels().iter().map(Vec::len).sum::<usize>() < self.switches.len() {
            return Err("switches lead up in a circle".to_owned());
        }
        self.hosts.iter().try_for_each(HostMap::check)
    }
}

/// What a parser of TOML says, in one line.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let why = error.message().replace('\n', " ");
    line.map_or(why.clone(), |line| format!("line {line}: {why}"))
}

fn fit(what: &str, name: &str) -> Result<(), String> {
    match (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(format!("{name:?} is no name of a {what}: it has 1 to {LONGEST_NAME} bytes")),
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        fit(what, name)?;
        if !seen.insert(name) {
            return Err(format!("there are two {what}s {name}"));
        }
    }
    Ok(())
}

impl HostMap {
    /// This host, as its kernel shows it.
    pub fn here() -> HostMap {
        HostMap { names: vec![crate::hostname()], ..HostMap::read(Path::new("/")) }
    }

    /// The host below a folder that is `/`, or has files as they are there.
    pub fn read(root: &Path) -> HostMap {
        let numa = NumaNode::read(root);
        let ports = RdmaPort::read(root);
        HostMap { names: vec![], numa, nics: Nic::read(root, &ports), gpus: Gpu::read(root), nvlinks: vec![] }
    }

    /// This host, by what the text of a topology file says of it, or, without a text, as its kernel shows it.
    ///
    /// # Errors
    /// If the file is wrong, or describes other hosts: a sentence that says so.
    pub fn told(topology: Option<&str>) -> Result<HostMap, String> {
        match topology.filter(|text| !text.is_empty()) {
            Some(text) => HardwareMap::parse(text)?.host(&crate::hostname()).cloned(),
            None => Ok(HostMap::here()),
        }
    }

    /// The same with what is between GPUs, which no kernel shows: where there is no file, `ask` is told their PCI addresses, and says what
    /// NVLinks each has.
    ///
    /// # Errors
    /// As of [`HostMap::told`].
    pub fn told_with_links(
        topology: Option<&str>,
        ask: impl FnOnce(&[&str]) -> Vec<NvLinks>,
    ) -> Result<HostMap, String> {
        let mut host = HostMap::told(topology)?;
        if topology.is_none_or(str::is_empty) && !host.gpus.is_empty() {
            host.add_nvlinks(ask);
        }
        Ok(host)
    }

    /// What a process has to know of this host to choose an RDMA port: all that the text of a topology file says of it, else its NUMA
    /// nodes.
    ///
    /// # Errors
    /// If the file is wrong, or describes other hosts: a sentence that says so.
    pub fn for_ports(topology: Option<&str>) -> Result<HostMap, String> {
        match topology {
            Some(_) => HostMap::told(topology),
            None => Ok(HostMap { numa: NumaNode::read(Path::new("/")), ..HostMap::default() }),
        }
    }

    fn numa_of(&self, place: &Place) -> Option<u32> {
        let only = || self.numa.first().filter(|_| self.numa.len() == 1).map(|numa| numa.node);
        place.numa.or_else(only)
    }

    /// How far a device is from who is to use it.
    pub fn distance(&self, holder: Holder<'_>, place: &Place) -> Distance {
        let numa = self.numa_of(place);
        match holder {
            Holder::Device(device) => device.by_pcie(place).unwrap_or_else(|| {
                let same = numa.is_some() && numa == self.numa_of(device);
                if same { Distance::Node } else { Distance::Sys }
            }),
            Holder::Process(cpus) => {
                let Some(home) = self.numa.iter().find(|of| Some(of.node) == numa) else {
                    return Distance::Sys;
                };
                let runs_on = |of: &&NumaNode| of.cpus.iter().any(|cpu| cpus.contains(cpu));
                let nodes = || self.numa.iter().filter(runs_on);
                if nodes().any(|of| of.node == home.node) {
                    Distance::Phb
                } else if nodes().any(|of| of.socket == home.socket) {
                    Distance::Node
                } else {
                    Distance::Sys
                }
            }
        }
    }

    /// Those of `all`, each at its place, that are nearest to `holder`, in the same order.
    pub fn nearest<'a, T>(
        &self,
        holder: Holder<'_>,
        all: &[&'a T],
        place: impl Fn(&'a T) -> &'a Place,
    ) -> Vec<&'a T> {
        let apart = |one: &&'a T| self.distance(holder, place(one));
        let least = all.iter().map(apart).min();
        all.iter().copied().filter(|one| Some(apart(one)) == least).collect()
    }

    /// The NICs that are best for `holder`, who has one of them in turn with others: the quickest, RDMA ports before others; of
    /// these, the nearest.
    pub fn nics_for(&self, holder: Holder<'_>) -> Vec<&Nic> {
        let rank = |nic: &Nic| (nic.rdma.is_some(), nic.speed);
        let best = self.nics.iter().map(rank).max();
        let best: Vec<&Nic> = self.nics.iter().filter(|nic| Some(rank(nic)) == best).collect();
        self.nearest(holder, &best, |nic| &nic.at)
    }

    /// The NIC of a GPU: GPUs that have the same ones nearby take turns in them.
    pub fn nic_of(&self, gpu: &Gpu) -> Option<&Nic> {
        let nics = |gpu: &Gpu| self.nics_for(Holder::Device(&gpu.at));
        let own = nics(gpu);
        let before = self.gpus.iter().take_while(|of| of.name != gpu.name).filter(|of| nics(of) == own);
        own.get(before.count() % own.len().max(1)).copied()
    }

    /// By which path a NIC gets at a GPU's memory.
    pub fn gpu_path(&self, gpu: &Gpu, nic: &Nic) -> GpuPath {
        match nic.rdma {
            Some(_) => GpuPath::of(self.distance(Holder::Device(&gpu.at), &nic.at)),
            None => GpuPath::Staged,
        }
    }

    /// How far a device is from the GPU at a PCI address (such as `0000:18:00.0`); `None` if the map has none there.
    pub fn gpu_distance(&self, address: &str, place: &Place) -> Option<Distance> {
        let gpu = self.gpus.iter().find(|gpu| gpu.at.address() == Some(address))?;
        Some(self.distance(Holder::Device(&gpu.at), place))
    }

    /// How many NVLinks two GPUs have to each other, with NVSwitches between or without.
    pub fn nvlinks(&self, one: &Gpu, other: &Gpu) -> u32 {
        let joins = |of: &&NvLink| of.gpus.contains(&one.name) && of.gpus.contains(&other.name);
        let direct: u32 = self.nvlinks.iter().filter(joins).map(|of| u32::from(of.links)).sum();
        direct + u32::from(one.nvswitch_links.min(other.nvswitch_links))
    }

    fn check(&self) -> Result<(), String> {
        let devices = self.nics.iter().map(|nic| &*nic.name).chain(self.gpus.iter().map(|gpu| &*gpu.name));
        unique("device", devices)?;
        let texts = self.nics.iter().filter_map(|nic| nic.interface.as_deref());
        texts.chain(self.gpus.iter().map(|gpu| &*gpu.model)).try_for_each(|text| fit("device", text))?;
        let mut homes = HashMap::new();
        for numa in &self.numa {
            for cpu in numa.cpus.iter() {
                if let Some(other) = homes.insert(cpu, numa.node) {
                    return Err(format!("CPU {cpu} is in NUMA nodes {other} and {}", numa.node));
                }
            }
            if numa.cpus.is_empty() {
                return Err(format!("NUMA node {} has no CPU", numa.node));
            }
        }
        let is_gpu = |name: &String| self.gpus.iter().any(|gpu| gpu.name == *name);
        for link in &self.nvlinks {
            if let Some(name) = link.gpus.iter().find(|name| !is_gpu(name)) {
                return Err(format!("an NVLink leads to {name}, which is no GPU of its host"));
            }
            if link.gpus[0] == link.gpus[1] {
                return Err(format!("an NVLink leads from {} to itself", link.gpus[0]));
            }
        }
        let mut nodes: Vec<u32> = self.numa.iter().map(|numa| numa.node).collect();
        nodes.sort_unstable();
        match nodes.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("there are two NUMA nodes {}", pair[0])),
            None => Ok(()),
        }
    }
}

impl NumaNode {
    /// The NUMA nodes that have CPUs, below a folder that is `/`, or has files as they are there.
    fn read(root: &Path) -> Vec<NumaNode> {
        let system = root.join(SYSTEM.trim_start_matches('/'));
        let socket = |cpu: Option<u32>| {
            let file = system.join(format!("cpu/cpu{}/topology/physical_package_id", cpu?));
            text(&file)?.trim().parse().ok()
        };
        let with_cpus = numa_nodes(text, &system).into_iter().filter(|(_, cpus)| !cpus.is_empty());
        let node = |(node, cpus): (u32, CpuSet)| {
            let socket = socket(cpus.iter().next()).unwrap_or(0);
            NumaNode { node, socket, cpus }
        };
        with_cpus.map(node).collect()
    }
}

impl Nic {
    /// The RDMA ports, and the Ethernet interfaces of real devices that are none, below a folder that is `/`, or has files as they are
    /// there.
    fn read(root: &Path, ports: &[RdmaPort]) -> Vec<Nic> {
        let pcie = |at: &Place| PcieLink::of(root, at);
        let of_port = |port: &RdmaPort| Nic {
            name: port.name(),
            rdma: Some(port.link),
            interface: port.nic.clone(),
            speed: port.rate,
            at: port.at.clone(),
            pcie: pcie(&port.at),
        };
        let folder = root.join("sys/class/net");
        let plain = |name: String| {
            let read = |file: &str| text(&folder.join(&name).join(file));
            let is_port = ports.iter().any(|port| port.nic.as_ref() == Some(&name));
            let is_ethernet = read("type").is_some_and(|kind| kind.trim() == ETHERNET);
            if is_port || !is_ethernet || !folder.join(&name).join("device").exists() {
                return None;
            }
            let at = Place::of(root, &folder.join(&name));
            let speed = read("speed").and_then(|speed| speed.trim().parse().ok()).unwrap_or(0);
            let pcie = pcie(&at);
            Some(Nic { name, rdma: None, interface: None, speed, at, pcie })
        };
        ports.iter().map(of_port).chain(names(&folder).into_iter().filter_map(plain)).collect()
    }
}

/// The kernel's number of the kind of interface.
const ETHERNET: &str = "1";
