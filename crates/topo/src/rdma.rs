//! The RDMA devices of this machine, and which port a process uses.
//!
//! [`RdmaPort::all`] reads `/sys`; what is chosen ([`rdma_ports`]) is pure.

use std::cmp::Reverse;
use std::fmt;
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::machine::{names, text};
use crate::map::{Holder, HostMap};
use crate::nics::{NicAddress, NicFilter, all_addresses, same_subnet};
use crate::place::Place;

/// What packets of a port travel on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum RdmaLink {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet, by RoCE.
    #[serde(rename = "RoCE")]
    Roce,
    /// Ethernet, by iWARP.
    #[serde(rename = "iWARP")]
    Iwarp,
}

impl fmt::Display for RdmaLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RdmaLink::InfiniBand => "InfiniBand",
            RdmaLink::Roce => "RoCE",
            RdmaLink::Iwarp => "iWARP",
        })
    }
}

/// A port of an RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RdmaPort {
    /// The device's name.
    pub device: String,
    /// The port's number, from 1.
    pub port: u8,
    /// As the kernel names it: `ACTIVE`, `DOWN`.
    pub state: String,
    /// What its packets travel on.
    pub link: RdmaLink,
    /// Mbit/s; 0 if the system does not know.
    pub rate: u32,
    /// The network interface of the same port, on Ethernet.
    pub nic: Option<String>,
    /// Where the device is.
    pub at: Place,
    /// Addresses in the networks that it is in, each with the length of the prefix, bits.
    pub networks: Vec<(IpAddr, u8)>,
    /// Why this process may not use the device, if so.
    pub barred: Option<String>,
}

impl fmt::Display for RdmaPort {
    /// Such as "mlx5_0:1 (RoCE, 100 Gbit/s, interface eth0)".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({}", self.device, self.port, self.link)?;
        if self.rate > 0 {
            write!(f, ", {} Gbit/s", f64::from(self.rate) / 1e3)?;
        }
        if let Some(nic) = &self.nic {
            write!(f, ", interface {nic}")?;
        }
        if !self.is_active() {
            write!(f, ", not active: {}", self.state)?;
        }
        f.write_str(")")
    }
}

/// Where the kernel shows RDMA devices.
const DEVICES: &str = "sys/class/infiniband";

impl RdmaPort {
    /// All ports of all devices here, by their names; each where `host` says that it is, else where the kernel does.
    pub fn all(host: &HostMap) -> Vec<RdmaPort> {
        let ports = Self::read(Path::new("/"));
        let addresses = if ports.is_empty() { Vec::new() } else { all_addresses().unwrap_or_default() };
        let placed = |port: RdmaPort| match host.nics.iter().find(|nic| nic.name == port.name()) {
            Some(nic) => RdmaPort { at: nic.at.clone(), ..port },
            None => port,
        };
        ports.into_iter().map(|port| placed(port).with_networks(&addresses)).collect()
    }

    /// The names of the devices here. Quick.
    pub fn devices() -> Vec<String> {
        names(&Path::new("/").join(DEVICES))
    }

    /// The ports below a folder that is `/`, or has files as they are there.
    pub fn read(root: &Path) -> Vec<RdmaPort> {
        let mut ports = Vec::new();
        for device in names(&root.join(DEVICES)) {
            let folder = root.join(DEVICES).join(&device);
            let mut numbers: Vec<u8> =
                names(&folder.join("ports")).iter().filter_map(|name| name.parse().ok()).collect();
            numbers.sort_unstable();
            let barred = barred(root, &device);
            let at = Place::of(root, &folder);
            let rnic = text(&folder.join("node_type")).is_some_and(|kind| kind.contains("RNIC"));
            ports.extend(numbers.into_iter().map(|port| {
                let of = |name: &str| text(&folder.join(format!("ports/{port}/{name}")));
                let ethernet = of("link_layer").is_some_and(|layer| layer.trim() == "Ethernet");
                let gid = of("gids/0").and_then(|gid| gid.trim().parse::<Ipv6Addr>().ok());
                RdmaPort {
                    device: device.clone(),
                    port,
                    state: of("state").map_or_else(String::new, |state| {
                        state.rsplit(": ").next().unwrap_or("").trim().into()
                    }),
                    link: match (rnic, ethernet) {
                        (true, _) => RdmaLink::Iwarp,
                        (_, true) => RdmaLink::Roce,
                        _ => RdmaLink::InfiniBand,
                    },
                    rate: of("rate")
                        .and_then(|rate| rate.split(' ').next()?.parse::<f64>().ok())
                        .unwrap_or(0.0)
                        .mul_add(1e3, 0.5) as u32,
                    nic: of("gid_attrs/ndevs/0")
                        .map(|nic| nic.trim().to_owned())
                        .filter(|_| ethernet || rnic),
                    at: at.clone(),
                    networks: gid
                        .filter(|_| !ethernet && !rnic)
                        .map(|gid| (gid.into(), 64))
                        .into_iter()
                        .collect(),
                    barred: barred.clone(),
                }
            }));
        }
        ports
    }

    fn with_networks(mut self, addresses: &[NicAddress]) -> RdmaPort {
        let of = addresses.iter().filter(|address| self.nic.as_ref() == Some(&address.nic));
        self.networks.extend(of.filter(|of| !is_local(of.ip)).map(|of| (of.ip, of.prefix)));
        self
    }

    /// True if its link is up.
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    /// Its name, as in `BANYAN_NIC`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.device, self.port)
    }

    /// True if both are in one network. Those that have no addresses but link-local ones are taken to be.
    fn shares_network(&self, other: &RdmaPort) -> bool {
        let both = |&(one, prefix): &(IpAddr, u8)| {
            other.networks.iter().any(|&(other, _)| same_subnet(one, other, prefix))
        };
        self.link == other.link
            && (self.networks.iter().any(both) || self.networks.is_empty() && other.networks.is_empty())
    }

    fn is_named(&self, filter: &NicFilter) -> bool {
        match filter {
            NicFilter::Port(device, port) => *device == self.device && *port == self.port,
            NicFilter::Name(name) => *name == self.device || Some(name) == self.nic.as_ref(),
            &NicFilter::Subnet(of, prefix) => {
                self.networks.iter().any(|&(ip, _)| same_subnet(of, ip, prefix))
            }
        }
    }
}

/// Who chooses among the ports of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// How many have chosen among the same ones before.
    pub before: usize,
    /// How many choose on this host at most.
    pub of: usize,
    /// How many ports it takes, if the user says so.
    pub wanted: Option<usize>,
    /// How many it takes at most otherwise.
    pub most: usize,
}

impl Turn {
    /// Which ones of so many ports: one in turn, and of those that nobody else takes some more; or as many as the user wants.
    fn takes(&self, ports: usize) -> Vec<usize> {
        let (number, step) = match self.wanted {
            Some(wanted) => (wanted, 1),
            None => {
                ((ports.saturating_sub(self.before)).div_ceil(self.of.max(1)).clamp(1, self.most), self.of)
            }
        };
        (0..number.min(ports)).map(|at| (self.before + at * step) % ports).collect()
    }
}

/// The ports that `holder` uses, the first one for all, further ones besides. The user's filters come first, then the quickest, then the
/// nearest. Those who choose among the same ones take turns in those that are as good and in one network with the best, as others may not
/// be reached from there.
///
/// # Errors
/// If there is none: a sentence that says why.
pub fn rdma_ports<'a>(
    all: &'a [RdmaPort],
    filters: &[NicFilter],
    (host, holder): (&HostMap, Holder<'_>),
    turn: Turn,
) -> Result<Vec<&'a RdmaPort>, String> {
    let rank = |port: &RdmaPort| match filters {
        [] => Some(0),
        _ => filters.iter().position(|filter| port.is_named(filter)),
    };
    let mut named: Vec<(usize, &RdmaPort)> =
        all.iter().filter_map(|port| Some((rank(port)?, port))).collect();
    let listed = |ports: &[(usize, &RdmaPort)]| {
        ports.iter().map(|(_, port)| port.to_string()).collect::<Vec<_>>().join(", ")
    };
    let every: Vec<_> = all.iter().map(|port| (0, port)).collect();
    if named.is_empty() {
        return Err(match all {
            [] => "this host has no RDMA device".to_owned(),
            _ => format!("BANYAN_NIC names none of this host's RDMA ports, {}", listed(&every)),
        });
    }
    let seen = listed(&named);
    named.retain(|(_, port)| port.is_active());
    named.sort_by_key(|(rank, port)| (*rank, Reverse(port.rate), port.link));
    let Some(&(first_rank, first)) = named.first() else {
        return Err(format!("no RDMA port is active: {seen}"));
    };
    let as_good = |&(rank, port): &(usize, &RdmaPort)| {
        rank == first_rank && port.rate == first.rate && port.shares_network(first)
    };
    let best: Vec<&RdmaPort> = named.iter().filter(|port| as_good(port)).map(|(_, port)| *port).collect();
    let nearest = host.nearest(holder, &best, |port| &port.at);
    Ok(turn.takes(nearest.len()).into_iter().map(|at| nearest[at]).collect())
}

fn is_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_loopback(),
    }
}

/// Why this process may not open a device, if so.
fn barred(root: &Path, device: &str) -> Option<String> {
    let verbs = root.join("sys/class/infiniband_verbs");
    let of = |name: &String| text(&verbs.join(name).join("ibdev")).is_some_and(|of| of.trim() == device);
    let Some(name) = names(&verbs).into_iter().find(of) else {
        return Some(format!(
            "the kernel gives programs no access to {device} (is the module ib_uverbs loaded?)"
        ));
    };
    let file: PathBuf = root.join("dev/infiniband").join(name);
    let opened = File::options().read(true).write(true).open(&file);
    opened.err().map(|error| format!("{device} cannot be opened by {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::CpuSet;
    use crate::map::NumaNode;

    /// Ports, each as "DEVICE PORT STATE LINK RATE PLACE NETWORK...".
    fn host(lines: &[&str]) -> Vec<RdmaPort> {
        let port = |line: &&str| {
            let words: Vec<&str> = line.split(' ').collect();
            let network = |text: &&str| {
                let (ip, prefix) = text.split_once('/').unwrap();
                (ip.parse().unwrap(), prefix.parse().unwrap())
            };
            let link = [RdmaLink::InfiniBand, RdmaLink::Roce, RdmaLink::Iwarp]
                .into_iter()
                .find(|link| link.to_string() == words[3]);
            RdmaPort {
                device: words[0].to_owned(),
                port: words[1].parse().unwrap(),
                state: words[2].to_owned(),
                link: link.unwrap(),
                rate: words[4].parse().unwrap(),
                nic: (words[3] != "InfiniBand").then(|| format!("eth-{}", words[0])),
                at: words[5].trim_matches('-').parse().unwrap(),
                networks: words[6..].iter().map(network).collect(),
                barred: None,
            }
        };
        lines.iter().map(port).collect()
    }

    /// The ports of the first three processes on the CPUs of a socket, or the error.
    fn chosen(all: &[RdmaPort], nics: &str, cpus: &str) -> Result<String, String> {
        let filters = if nics.is_empty() { Vec::new() } else { crate::nic_filters(nics).unwrap() };
        let cpus: CpuSet = cpus.parse().unwrap();
        let numa = |(node, cpus): (u32, &str)| NumaNode { node, socket: node, cpus: cpus.parse().unwrap() };
        let host = HostMap { numa: [(0, "0-7"), (1, "8-15")].map(numa).into(), ..HostMap::default() };
        let process = (&host, Holder::Process(&cpus));
        let turn = |before| Turn { before, of: 3, wanted: Some(1), most: 1 };
        let three = (0..3).map(|before| rdma_ports(all, &filters, process, turn(before)));
        let names =
            |ports: Vec<Vec<&RdmaPort>>| ports.concat().iter().map(|port| port.name()).collect::<Vec<_>>();
        three.collect::<Result<Vec<_>, _>>().map(|ports| names(ports).join(" "))
    }

    #[test]
    fn those_who_choose_leave_ports_to_each_other() {
        let takes = |ports, of: usize, wanted| -> Vec<Vec<usize>> {
            (0..of).map(|before| Turn { before, of, wanted, most: 2 }.takes(ports)).collect()
        };
        assert_eq!(takes(1, 1, None), [[0]]);
        assert_eq!(takes(8, 1, None), [[0, 1]], "so many at most");
        assert_eq!(takes(4, 2, None), [[0, 2], [1, 3]]);
        assert_eq!(takes(3, 2, None), [vec![0, 2], vec![1]], "what the other one does not take");
        assert_eq!(takes(2, 4, None), [[0], [1], [0], [1]], "in turn");
        assert_eq!(takes(2, 3, Some(2)), [[0, 1], [1, 0], [0, 1]], "as the user wants");
        assert_eq!(takes(1, 2, Some(2)), [[0], [0]], "and no port twice");
    }

    #[test]
    fn the_quickest_near_port_is_taken_in_turn_within_one_network() {
        let two_rails = host(&[
            "mlx5_0 1 ACTIVE InfiniBand 100000 node0 fec0:0:0:1::1/64",
            "mlx5_1 1 ACTIVE InfiniBand 100000 node1 fec0:0:0:1::2/64",
            "mlx5_2 1 ACTIVE InfiniBand 100000 node1 fec0:0:0:1::3/64",
            "mlx5_3 1 ACTIVE RoCE 25000 node0 10.0.0.1/24",
            "mlx5_4 1 DOWN InfiniBand 200000 node0 fec0:0:0:1::4/64",
        ]);
        assert_eq!(chosen(&two_rails, "", "0-7").unwrap(), "mlx5_0:1 mlx5_0:1 mlx5_0:1");
        assert_eq!(chosen(&two_rails, "", "8-9").unwrap(), "mlx5_1:1 mlx5_2:1 mlx5_1:1");
        assert_eq!(chosen(&two_rails, "", "0-15").unwrap(), "mlx5_0:1 mlx5_1:1 mlx5_2:1");
        assert_eq!(chosen(&two_rails, "", "99").unwrap(), "mlx5_0:1 mlx5_1:1 mlx5_2:1", "all are far");
        let apart = host(&["a 1 ACTIVE RoCE 25000 - 10.0.0.1/24", "b 1 ACTIVE RoCE 25000 - 10.0.1.1/24"]);
        assert_eq!(chosen(&apart, "", "0").unwrap(), "a:1 a:1 a:1", "the other one is in another network");
        let local = host(&["rxe0 1 ACTIVE RoCE 2500 -", "rxe1 1 ACTIVE RoCE 2500 -"]);
        assert_eq!(chosen(&local, "", "0").unwrap(), "rxe0:1 rxe1:1 rxe0:1");
    }

    #[test]
    fn what_the_user_names_comes_first() {
        let all = host(&[
            "a 1 ACTIVE RoCE 25000 - 10.0.0.1/24",
            "a 2 DOWN RoCE 25000 -",
            "b 1 ACTIVE RoCE 100000 - 10.0.1.1/24",
        ]);
        for nics in ["a", "a:1", "eth-a", "10.0.0.0/24", "a,b", "a:2,a:1"] {
            assert_eq!(chosen(&all, nics, "0").unwrap(), "a:1 a:1 a:1", "{nics}");
        }
        let error = |nics: &str| chosen(&all, nics, "0").unwrap_err();
        assert!(
            error("a:2")
                .contains("no RDMA port is active: a:2 (RoCE, 25 Gbit/s, interface eth-a, not active: DOWN)")
        );
        assert!(error("eth9").contains("BANYAN_NIC names none of this host's RDMA ports, a:1 (RoCE"));
        assert_eq!(chosen(&[], "", "0").unwrap_err(), "this host has no RDMA device");
    }

    #[test]
    fn ports_are_read_as_the_kernel_shows_them() {
        let root = std::env::temp_dir().join(format!("banyan-rdma-{}", std::process::id()));
        let port = root.join(DEVICES).join("mlx5_0/ports/1");
        let files = [
            ("state", "4: ACTIVE\n"),
            ("link_layer", "Ethernet\n"),
            ("rate", "100 Gb/sec (2X HDR)\n"),
            ("gids/0", "fe80:0000:0000:0000:9a03:9bff:fe9b:1a2c\n"),
            ("gid_attrs/ndevs/0", "eth3\n"),
            ("../../node_type", "1: CA\n"),
        ];
        for (name, text) in files {
            let file = port.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let read = RdmaPort::read(&root);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].to_string(), "mlx5_0:1 (RoCE, 100 Gbit/s, interface eth3)");
        assert_eq!(read[0].at, Place::default(), "it is on no bus");
        assert!(read[0].barred.as_ref().unwrap().contains("ib_uverbs"), "{:?}", read[0].barred);
    }
}
