//! The fabric as all processes have it: in a library of its own, which is loaded where there is a device that the job has a use for; and
//! the choice of that device's port. Pure, but for what `topo` reads.

use std::net::IpAddr;

use banyan_plugin::Library;
use banyan_topo::{CpuSet, Holder, HostMap, NicFilter, RdmaLink, RdmaPort, nic_filters, rdma_port};
use banyan_transport::{Joining, NotStarted};

use crate::gid;
use crate::settings::Settings;

/// The fabric of the library.
pub type Loaded = banyan_plugin::Loaded<InLibrary>;

/// Says where the fabric is, and which port it uses.
#[derive(Debug)]
pub struct InLibrary;

impl Library for InLibrary {
    const FILE: &str = "libbanyan_rdma.so";
    const REMEDY: &str = "where Banyan MPI is installed, rdma-core's headers and libclang have to be there";

    fn nics(joining: &Joining<'_>) -> Result<Option<String>, NotStarted> {
        if joining.reached || joining.size < 2 {
            return Ok(None);
        }
        if joining.encrypt {
            return Err(NotStarted::Absent(
                "BANYAN_ENCRYPT asks for encryption, which it has not".to_owned(),
            ));
        }
        Settings::read(joining.rdma).map_err(|why| format!("BANYAN_RDMA={}: {why}", joining.rdma))?;
        let host = host(joining.topology).map_err(NotStarted::Fatal)?;
        let all = RdmaPort::all(&host);
        let port = choose(&all, joining.nics, (&host, &CpuSet::allowed()), joining.turn as usize)?;
        Ok(Some(with_subnets(port.name(), joining.nics)))
    }
}

/// A port, and the subnets that the user names: those that its addresses are to be of.
fn with_subnets(port: String, nics: &str) -> String {
    let subnets = subnets(nics).into_iter().map(|(ip, prefix)| format!("{ip}/{prefix}"));
    std::iter::once(port).chain(subnets).collect::<Vec<_>>().join(",")
}

/// The subnets that the user names, each by one of its addresses and the length of the prefix.
fn subnets(nics: &str) -> Vec<(IpAddr, u8)> {
    let subnet = |filter| match filter {
        NicFilter::Subnet(ip, prefix) => Some((ip, prefix)),
        _ => None,
    };
    nic_filters(nics).unwrap_or_default().into_iter().filter_map(subnet).collect()
}

/// What the text of a topology file says of this host, if there is one.
fn host(topology: &str) -> Result<HostMap, String> {
    let text = Some(topology).filter(|text| !text.is_empty());
    HostMap::for_ports(text).map_err(|why| format!("BANYAN_TOPOLOGY: {why}"))
}

/// The port that a process on these CPUs uses, when it is its turn after so many others.
fn choose<'a>(
    all: &'a [RdmaPort],
    nics: &str,
    (host, cpus): (&HostMap, &CpuSet),
    turn: usize,
) -> Result<&'a RdmaPort, NotStarted> {
    let filters = match nics {
        "" => Vec::new(),
        _ => nic_filters(nics).map_err(|why| NotStarted::Fatal(format!("BANYAN_NIC={nics}: {why}")))?,
    };
    if let Some((device, port)) = missing_port(all, &filters) {
        let has: Vec<String> = all.iter().map(RdmaPort::to_string).collect();
        return Err(NotStarted::Fatal(format!(
            "BANYAN_NIC={nics}: device {device} has no port {port}; this host has {}",
            has.join(", ")
        )));
    }
    let port = rdma_port(all, &filters, (host, Holder::Process(cpus)), turn).map_err(NotStarted::Absent)?;
    match &port.barred {
        None => Ok(port),
        Some(why) => Err(NotStarted::Broken(why.clone())),
    }
}

/// A port that is named, of a device that is there and has none of this number.
fn missing_port<'a>(all: &[RdmaPort], filters: &'a [NicFilter]) -> Option<(&'a str, u8)> {
    filters.iter().find_map(|filter| match filter {
        NicFilter::Port(device, port) => {
            let mut ports = all.iter().filter(|of| of.device == *device).peekable();
            let missing = ports.peek().is_some() && ports.all(|of| of.port != *port);
            missing.then_some((&**device, *port))
        }
        _ => None,
    })
}

/// For people: which port the processes of this host would use, by the setting of network interfaces and the text of a topology file,
/// and why, or why none; and how connections are to be.
///
/// # Errors
/// If a setting or the file is wrong.
pub fn explain(nics: &str, settings: &str, topology: &str) -> Result<String, String> {
    let of =
        |port: &str| Settings::of(settings, port).map_err(|why| format!("BANYAN_RDMA={settings}: {why}"));
    of("")?;
    let (host, cpus) = (host(topology)?, CpuSet::allowed());
    let all = RdmaPort::all(&host);
    let mut out = String::new();
    for port in &all {
        let at = match port.at.address() {
            Some(_) => format!(", at {}: {}", port.at, host.distance(Holder::Process(&cpus), &port.at)),
            None => String::new(),
        };
        out += &format!("  {port}{at}\n");
    }
    match choose(&all, nics, (&host, &cpus), 0) {
        Ok(port) => {
            out += &format!("  chosen: {}", port.name());
            let others: Vec<String> = (1..all.len())
                .filter_map(|turn| choose(&all, nics, (&host, &cpus), turn).ok())
                .map(RdmaPort::name)
                .take_while(|name| *name != port.name())
                .collect();
            match &others[..] {
                [] => out += " for all ranks of this host\n",
                _ => {
                    out += &format!(
                        " for the first rank of this host, then {}, and so on in turn\n",
                        others.join(", ")
                    )
                }
            }
            let said = of(&port.name())?;
            if port.link == RdmaLink::Roce {
                let table = gid::table((&port.device, port.port));
                let offered = said.gids(&table, gid::offered(&table, true, &subnets(nics)))?;
                let offered: Vec<String> = offered.iter().map(|entry| entry.address.to_string()).collect();
                out += &format!("  reached at: {}\n", offered.join(", "));
            }
            if said != Settings::default() {
                out += &format!("  connections: {said}\n");
            }
            out += &match banyan_plugin::find::<InLibrary>() {
                Some(file) => format!("  by {}\n", file.display()),
                None => {
                    format!("  but not used: {} was not installed ({})\n", InLibrary::FILE, InLibrary::REMEDY)
                }
            };
        }
        Err(NotStarted::Absent(why) | NotStarted::Broken(why)) => out += &format!("  not used: {why}\n"),
        Err(NotStarted::Fatal(why)) => return Err(why),
    }
    Ok(out)
}
