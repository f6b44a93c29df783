//! The fabric as all processes have it: in a library of its own, which is loaded where there is a device that the job has a use for; and
//! the choice of that device's port. Pure, but for what `topo` reads.

use std::net::IpAddr;

use banyan_plugin::Library;
use banyan_topo::{
    CpuSet, GpuPath, Holder, HostMap, NicFilter, RdmaLink, RdmaPort, Turn, nic_filters, rdma_ports,
};
use banyan_transport::{Joining, NotStarted};

use crate::gid;
use crate::settings::{RAILS, Settings};

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
        let said =
            Settings::read(joining.rdma).map_err(|why| format!("BANYAN_RDMA={}: {why}", joining.rdma))?;
        let host = host(joining.topology).map_err(NotStarted::Fatal)?;
        let all = RdmaPort::all(&host);
        let turn = turn(&said, joining.turn as usize, joining.node.len());
        let ports = choose(&all, joining.nics, (&host, &CpuSet::allowed()), turn)?;
        // The subnets that the user names are those that the ports' addresses are to be of.
        let subnets = subnets(joining.nics).into_iter().map(|(ip, prefix)| format!("{ip}/{prefix}"));
        let named: Vec<String> = ports.into_iter().map(RdmaPort::name).chain(subnets).collect();
        Ok(Some(named.join(",")))
    }
}

/// Whose turn it is to choose after so many others, where there are so many.
fn turn(said: &Settings, before: usize, of: usize) -> Turn {
    Turn { before, of, wanted: said.rails.map(usize::from), most: RAILS }
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

/// The ports that a process on these CPUs uses, when it is its turn.
fn choose<'a>(
    all: &'a [RdmaPort],
    nics: &str,
    (host, cpus): (&HostMap, &CpuSet),
    turn: Turn,
) -> Result<Vec<&'a RdmaPort>, NotStarted> {
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
    let mut ports =
        rdma_ports(all, &filters, (host, Holder::Process(cpus)), turn).map_err(NotStarted::Absent)?;
    if let Some(why) = &ports[0].barred {
        return Err(NotStarted::Broken(why.clone()));
    }
    // There are no rails of iWARP.
    let rails = if ports[0].link == RdmaLink::Iwarp { 1 } else { RAILS };
    ports.retain(|port| port.barred.is_none());
    ports.truncate(rails);
    Ok(ports)
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
    let text = Some(topology).filter(|text| !text.is_empty());
    let host = HostMap::told(text).map_err(|why| format!("BANYAN_TOPOLOGY: {why}"))?;
    let cpus = CpuSet::allowed();
    let all = RdmaPort::all(&host);
    let mut out = String::new();
    for port in &all {
        let at = match port.at.address() {
            Some(_) => format!(", at {}: {}", port.at, host.distance(Holder::Process(&cpus), &port.at)),
            None => String::new(),
        };
        out += &format!("  {port}{at}\n");
    }
    let said = of("")?;
    out += &gpus(&host, &all, said.gpudirect);
    let choose = |turn| choose(&all, nics, (&host, &cpus), turn);
    let one = |before| choose(Turn { before, of: 1, wanted: Some(1), most: 1 }).map(|ports| ports[0]);
    match (one(0), choose(turn(&said, 0, 1))) {
        (Ok(port), Ok(rails)) => {
            out += &format!("  chosen: {}", port.name());
            let others: Vec<String> = (1..all.len())
                .filter_map(|before| one(before).ok())
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
            if rails.len() > 1 {
                let rails: Vec<String> = rails.iter().map(|port| port.name()).collect();
                out +=
                    &format!("  long transfers of a rank that is alone here: by {}\n", rails.join(" and "));
            }
            out += &connections(port, nics, &of(&port.name())?)?;
            out += &match banyan_plugin::find::<InLibrary>() {
                Some(file) => format!("  by {}\n", file.display()),
                None => {
                    format!("  but not used: {} was not installed ({})\n", InLibrary::FILE, InLibrary::REMEDY)
                }
            };
        }
        (Err(why), _) | (_, Err(why)) => match why {
            NotStarted::Absent(why) | NotStarted::Broken(why) => out += &format!("  not used: {why}\n"),
            NotStarted::Fatal(why) => return Err(why),
        },
    }
    Ok(out)
}

/// For people: by which ports memory of each GPU goes by itself, and why not by the others.
fn gpus(host: &HostMap, ports: &[RdmaPort], gpudirect: Option<bool>) -> String {
    let mut out = String::new();
    for gpu in host.gpus.iter().filter(|_| !ports.is_empty()) {
        out += &format!("  memory of {} ({}):", gpu.name, gpu.model);
        if gpudirect == Some(false) {
            out += &format!(" {}, as BANYAN_RDMA says gpudirect=0\n", GpuPath::Staged);
            continue;
        }
        let apart = |port: &RdmaPort| host.distance(Holder::Device(&gpu.at), &port.at);
        let by = |path: GpuPath| {
            let there = ports.iter().filter(|port| GpuPath::of(apart(port)) == path);
            there.map(|port| format!("{} ({})", port.name(), apart(port))).collect::<Vec<_>>().join(", ")
        };
        let (near, far) = (by(GpuPath::DmaBuf), by(GpuPath::Staged));
        if !near.is_empty() {
            out += &format!(" {} by {near}, if driver and device take it", GpuPath::DmaBuf);
        }
        if !far.is_empty() {
            let and = if near.is_empty() { "" } else { ";" };
            out += &format!("{and} {} by {far}, too far", GpuPath::Staged);
        }
        out.push('\n');
    }
    out
}

/// For people: at which addresses peers reach a port, and how connections there are to be.
fn connections(port: &RdmaPort, nics: &str, said: &Settings) -> Result<String, String> {
    let mut out = String::new();
    if port.link == RdmaLink::Roce {
        let table = gid::table((&port.device, port.port));
        let offered = said.gids(&table, gid::offered(&table, true, &subnets(nics)))?;
        let offered: Vec<String> = offered.iter().map(|entry| entry.address.to_string()).collect();
        out += &format!("  reached at: {}\n", offered.join(", "));
    }
    if *said != Settings::default() {
        out += &format!("  connections: {said}\n");
    }
    Ok(out)
}
