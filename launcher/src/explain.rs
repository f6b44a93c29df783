//! `--explain`: which algorithm a collective would take, which way a long message, or which RDMA device a rank, and why.

use banyan_coll::{Groups, Location, Model, Nodes, Overrides, SharedCaps, Topology, Tuning, parse_question};
use banyan_memory::nvlinks;
use banyan_pmi::settings::{
    COLL, ENCRYPT, FABRICS, GPU, GPU_GDRCOPY, GPU_IPC, MACHINE, MEASURED, NIC, P2P, RDMA, SHOW, TOPOLOGY,
    WAYS, bytes, default_of, gdrcopy, ipc_from, way, way_of,
};
use banyan_shm::Arena;
use banyan_topo::ways::class;
use banyan_topo::{
    DISTANCES, HardwareMap, HostMap, KnownWay, KnownWays, Machine, Profile, Way, bound, kept, share,
};

use crate::Trouble;
use crate::binding::default_parts;
use crate::environment::check;
use crate::explain_gpu_messages::{self, Told};
use crate::explain_gpus;
use crate::machine::{origin, shown};

/// The answer to `--explain`: about long messages, RDMA devices, or a collective.
///
/// # Errors
/// If `what` names neither, or no size, or a setting is wrong.
pub(crate) fn explain(what: &str, ranks: Option<u32>, per_host: Option<u32>) -> Result<String, Trouble> {
    check(|name| std::env::var_os(name))?;
    if what.trim() == "rdma" {
        return devices();
    }
    match what.split_once(':').unwrap_or((what, "256K")) {
        (name, size) if name.trim() == "p2p" => {
            let (size, on_gpus) = size.strip_suffix(":gpu").map_or((size, false), |size| (size, true));
            let bytes = bytes(size).map_err(|why| Trouble::usage(format!("--explain {what}: {why}")))?;
            if on_gpus {
                return Ok(explain_gpu_messages::message(bytes, &gpu_settings().map_err(Trouble::usage)?));
            }
            Ok(ways(bytes, ranks, per_host, &machine()?))
        }
        _ => collective(what, ranks, per_host),
    }
}

/// What the settings say of messages from and to memory of GPUs.
fn gpu_settings() -> Result<Told, String> {
    let setting = |name: &str| text(name).unwrap_or_else(|| default_of(name).to_owned());
    Ok(Told {
        cuda: ["auto", "cuda"].contains(&setting(GPU).as_str()),
        longest: gdrcopy(&setting(GPU_GDRCOPY))?,
        ipc_from: ipc_from(&setting(GPU_IPC))?,
        missing: explain_gpu_messages::missing(&text("LD_LIBRARY_PATH").unwrap_or_default()),
    })
}

/// Which RDMA devices this host has, and which ones ranks would use.
fn devices() -> Result<String, Trouble> {
    let host = banyan_topo::hostname();
    let topology = HardwareMap::setting(text(TOPOLOGY).as_deref());
    let topology = topology.map_err(|why| Trouble::usage(format!("{TOPOLOGY}: {why}")))?;
    let [nics, settings] = [NIC, RDMA].map(|name| text(name).unwrap_or_default());
    let chosen = banyan_rdma::explain(&nics, &settings, &topology).map_err(Trouble::usage)?;
    let mut out = format!("RDMA ports of {host}, for messages between hosts\n{chosen}");
    if !allows_rdma() {
        out += &format!("  not used: {FABRICS} does not allow rdma\n");
    }
    if text(ENCRYPT).is_some_and(|text| text == "1") {
        out += &format!("  not used: {ENCRYPT} asks for encryption, which it has not\n");
    }
    Ok(out)
}

/// A setting, if it is set.
fn text(name: &str) -> Option<String> {
    std::env::var_os(name).and_then(|value| value.into_string().ok()).filter(|text| !text.is_empty())
}

/// The profile that holds for a job, and what earlier jobs have found of ways.
fn machine() -> Result<(Profile, KnownWays), Trouble> {
    let text = kept::setting(text(MACHINE).as_deref());
    let read = text.and_then(|text| Ok((Profile::parse(&text)?.0, KnownWays::parse(&text))));
    read.map_err(|why| Trouble::usage(format!("{MACHINE}: {why}")))
}

fn shares_memory() -> bool {
    text(FABRICS).is_none_or(|text| text.split(',').any(|fabric| fabric.trim() == "shm"))
}

/// The ways of a message of `bytes` bytes between two ranks of one host: what can be taken here, and what is.
fn ways(
    bytes: u64,
    ranks: Option<u32>,
    per_host: Option<u32>,
    (profile, known): &(Profile, KnownWays),
) -> String {
    let cores = banyan_topo::usable_cores();
    let ranks = ranks.unwrap_or(cores.max(2));
    let per_node = per_host.unwrap_or(ranks).min(ranks);
    let mut out =
        format!("a message of {bytes} bytes between ranks of one host, {per_node} ranks on {cores} cores\n");
    if !shares_memory() {
        return out + &format!("no shared memory, by {FABRICS}: it goes by another fabric\n");
    }
    let single_copy = banyan_topo::single_copy();
    let near = DISTANCES.len() - 1;
    for (name, meaning) in WAYS {
        let way = name.parse::<Way>().ok();
        let time = way.map_or(String::new(), |way| shown("", profile.way(way, near, bytes as f64)));
        let refused = if single_copy || way.is_some_and(Way::in_frames) {
            ""
        } else {
            "; the system refuses that here"
        };
        out += &format!("  {name:11} {time:>12}  {meaning}{refused}\n");
    }
    out += &format!(
        "times: by what the profile says of cores that share a cache ({}); mpirun --machine=curves measures them now\n",
        profile.source()
    );
    out += &found(bytes, known);
    // What the setting says was checked before.
    let given = text(P2P).and_then(|text| way(&text).ok());
    let (chosen, why) = match way_of(given, per_node > cores).unwrap_or(MEASURED) {
        _ if class(bytes).is_none() => {
            ("ring", "messages of less than 16 KiB are sent eagerly, in one frame".to_owned())
        }
        _ if !single_copy => ("ring", "the system refuses ranks each other's memory".to_owned()),
        MEASURED => {
            let how = "each pair of ranks measures for itself, one way and both ways apart";
            (MEASURED, format!("{how}; {P2P}={SHOW} shows what it finds when the job ends"))
        }
        name if given == Some(name) => (name, format!("{P2P} says so")),
        name => (name, "with more ranks than cores, a turn on the core costs more than the way".to_owned()),
    };
    out + &format!("chosen: {chosen}: {why}\n")
}

/// What earlier jobs have found of messages of this length, a line for each distance and kind of traffic.
fn found(bytes: u64, known: &KnownWays) -> String {
    let rows = known.rows().iter().filter(|row| Some(row.class) == class(bytes));
    let line = |row: &KnownWay| {
        let times = Way::ALL.into_iter().zip(row.times);
        let times = times
            .filter_map(|(way, time)| Some(format!("{} {}", way.name(), shown("", time? * bytes as f64))));
        let times = times.collect::<Vec<_>>().join(", ");
        let (distance, traffic, way) = (DISTANCES[row.distance], row.traffic.name(), row.way.name());
        format!("measured by an earlier job ({distance}, {traffic}): {times}: begins with {way}\n")
    };
    rows.map(line).collect()
}

/// The candidates for `what` (such as `allreduce:64K`) on `ranks` ranks (`None`: as many as cores, but at least 2), all of them on
/// this host, or `per_host` on each of several like it, the choice and the reason; with the user's overrides.
///
/// # Errors
/// If `what` names no collective or size, or a setting is wrong.
fn collective(what: &str, ranks: Option<u32>, per_host: Option<u32>) -> Result<String, Trouble> {
    let usage = |why: String| Trouble::usage(format!("--explain {what}: {why}"));
    let on_gpus = what.strip_suffix(":gpu");
    let overrides = text(COLL).map_or_else(|| Ok(Overrides::default()), |text| Overrides::parse(&text));
    let overrides = overrides.map_err(|why| Trouble::usage(format!("{COLL}: {why}")))?;
    let by_shm = shares_memory();
    let cores = banyan_topo::usable_cores();
    let host = on_gpus.map(|_| gpu_host()).transpose()?;
    let usual = host.as_ref().map_or(cores, |host| host.gpus.len() as u32).max(2);
    let ranks = ranks.unwrap_or(usual);
    let per_node = per_host.unwrap_or(ranks).min(ranks);
    let (profile, _) = machine()?;
    let tuning = Tuning {
        overrides,
        model: Model::of(&profile, ranks.div_ceil(per_node)),
        gpu: profile.gpu,
        ..Tuning::default()
    };
    let shared = by_shm.then(|| {
        let (inline, scratch) = Arena::sizes(per_node);
        SharedCaps { inline: inline as u64, single_copy: banyan_topo::single_copy(), scratch: scratch as u64 }
    });
    if let (Some(what), Some(host)) = (on_gpus, host) {
        let ranks = (ranks, per_node);
        return explain_gpus::collective(
            what,
            (&host, allows_rdma()),
            ranks,
            (cores, shared),
            (&tuning, profile),
        )
        .map_err(usage);
    }
    let (kind, bytes) = parse_question(what).map_err(usage)?;
    let topology = topology(&Machine::read(), (ranks, per_node), (cores, shared));
    let explained = tuning.explain(kind, bytes, &topology).simulated(&tuning);
    Ok(format!("{explained}{}", costs(profile, &topology)))
}

/// True if messages may go by RDMA devices.
fn allows_rdma() -> bool {
    text(FABRICS).is_none_or(|text| text.split(',').any(|fabric| fabric.trim() == "rdma"))
}

/// This host with its GPUs, by the topology file or the system.
fn gpu_host() -> Result<HostMap, Trouble> {
    let text = HardwareMap::setting(text(TOPOLOGY).as_deref());
    text.and_then(|text| HostMap::told_with_links(Some(&text), nvlinks))
        .map_err(|why| Trouble::usage(format!("{TOPOLOGY}: {why}")))
}

/// How the ranks are apart, and what the profile says that things take between them, with what was measured and what is assumed.
fn costs(profile: Profile, topology: &Topology) -> String {
    let mut out = String::from("ranks: ");
    let levels = ["hosts", "sockets of a host", "last-level caches of a socket"];
    let apart = || levels.iter().zip(topology.levels).filter(|(_, groups)| groups.number > 1);
    for (name, groups) in apart() {
        out += &format!("on {} {name} with at most {} each; ", groups.number, groups.largest);
    }
    out += match apart().count() {
        0 => "no two are known to be apart: costs are those of cores that share a cache\n",
        _ => "costs are those of each level\n",
    };
    out += &format!("costs: {}\n", profile.source());
    let between = match topology {
        topology if !topology.one_node() => Some(("network", "two hosts")),
        Topology { shared: None, .. } => Some(("loopback", "two ranks by TCP")),
        _ => None,
    };
    let used = |&(distance, _): &(&str, &str)| {
        let level = DISTANCES.iter().position(|name| *name == distance);
        level.is_none_or(|at| topology.levels.get(at + 1).is_none_or(|groups| groups.number > 1))
    };
    let near =
        [("sockets", "two sockets"), ("caches", "two last-level caches"), ("near", "cores by one cache")];
    for (part, name) in between.into_iter().chain(near).filter(used) {
        out += &format!("  {name:22}{}\n", figures_of(profile, &format!("{part}.")));
    }
    out + &format!("  {:22}{}\n", "in one process", figures_of(profile, ""))
}

/// The figures whose names begin with this, with where they come from.
pub(crate) fn figures_of(profile: Profile, prefix: &str) -> String {
    let mut figures = profile;
    let own = figures.figures().into_iter().filter_map(|(name, seconds)| {
        let part = name.strip_prefix(prefix).filter(|part| !part.contains('.'))?;
        Some((part.to_owned(), shown(&name, *seconds), origin(profile.origin(&name))))
    });
    let own: Vec<(String, String, &str)> = own.collect();
    let runs = own.chunk_by(|one, next| one.2 == next.2).map(|run| {
        let figures: Vec<String> = run.iter().map(|(name, figure, _)| format!("{name} {figure}")).collect();
        format!("{} ({})", figures.join(", "), run[0].2)
    });
    runs.collect::<Vec<_>>().join("; ")
}

/// What ranks know of where they run: so many, with so many on each machine like this one, where they have so many cores and share
/// memory, or not. Ranks are bound as without an option. They are on their host even if they do not share its memory.
fn topology(
    machine: &Machine,
    (ranks, per_node): (u32, u32),
    (cores, shared): (u32, Option<SharedCaps>),
) -> Topology {
    let bound = bound(machine, &share(machine, per_node, default_parts(per_node < ranks)));
    let location = |rank: u32| {
        let at = bound.get((rank % per_node) as usize).copied().unwrap_or_default();
        Location([rank / per_node, at.socket, at.cache])
    };
    let levels = match shared {
        Some(_) => Nodes::new((0..ranks).map(location)).levels(),
        None => Groups::on_nodes(ranks, per_node),
    };
    Topology { ranks, cores, shared, levels }
}

#[cfg(test)]
mod tests {
    use banyan_coll::Kind;

    use super::*;
    use crate::machines::{MACHINES, machine};

    /// So many ranks on a machine that is not here, or by `per_node` on several.
    fn on(name: &str, ranks: u32, per_node: u32) -> Topology {
        let machine = machine(name);
        let (inline, scratch) = Arena::sizes(per_node);
        let shared = SharedCaps { inline: inline as u64, single_copy: true, scratch: scratch as u64 };
        topology(&machine, (ranks, per_node), (machine.cpus().len() as u32, Some(shared)))
    }

    fn tuning(profile: Profile, hosts: u32) -> Tuning {
        Tuning { model: Model::of(&profile, hosts), ..Tuning::default() }
    }

    #[test]
    fn levels_follow_from_the_machine() {
        let levels = |name, ranks, per_node| {
            on(name, ranks, per_node).levels.map(|Groups { number, largest }| (number, largest))
        };
        assert_eq!(levels("laptop", 14, 14), [(1, 14), (1, 14), (1, 14)]);
        assert_eq!(levels("epyc", 2, 2), [(1, 2), (1, 2), (2, 1)]);
        assert_eq!(levels("epyc", 64, 64), [(1, 64), (1, 64), (8, 8)]);
        assert_eq!(levels("xeon", 56, 56), [(1, 56), (2, 28), (1, 28)]);
        assert_eq!(levels("xeon", 3, 3), [(1, 3), (1, 3), (1, 3)]);
        assert_eq!(levels("arm", 32, 32), [(1, 32), (2, 16), (16, 1)]);
        assert_eq!(levels("board", 4, 4), [(1, 4), (1, 4), (1, 4)]);
        // More ranks than cores are not bound.
        assert_eq!(levels("epyc", 65, 65), [(1, 65), (1, 65), (1, 65)]);
        // On four hosts ranks have whole NUMA nodes, of which the EPYC has one.
        assert_eq!(levels("xeon", 224, 56), [(4, 56), (2, 28), (1, 28)]);
        assert_eq!(levels("epyc", 256, 64), [(4, 64), (1, 64), (1, 64)]);
    }

    const KINDS: [Kind; 5] = [Kind::Barrier, Kind::Bcast, Kind::Allreduce, Kind::Allgather, Kind::Alltoall];
    const SIZES: [u64; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

    /// What is chosen for these collectives and sizes where things take what the profile says, and how many times as long it takes by
    /// the simulator as the quickest candidate.
    fn choices(profile: Profile, topology: &Topology) -> Vec<(&'static str, f64)> {
        let tuning = tuning(profile, topology.levels[0].number);
        let choice = |(kind, bytes)| {
            let explained = tuning.explain(kind, bytes, topology).simulated(&tuning);
            let times =
                || explained.candidates.iter().filter_map(|row| Some((row.algorithm, row.simulated?)));
            let least = times().map(|row| row.1).fold(f64::INFINITY, f64::min);
            let own = times().find(|row| *row.0 == *explained.chosen).map_or(f64::NAN, |row| row.1);
            (explained.chosen.name, own / least)
        };
        KINDS.into_iter().flat_map(|kind| SIZES.map(|bytes| (kind, bytes))).map(choice).collect()
    }

    /// On each machine, with the profiles of unlike processors: the simulator agrees with the choices, and some change with the profile.
    #[test]
    fn choices_follow_from_machine_and_profile() {
        let (mut changed, mut all) = (0, 0);
        for (name, ranks) in MACHINES.iter().flat_map(|(name, _)| [2, 8, 16, 56].map(|ranks| (*name, ranks)))
        {
            let topology = on(name, ranks, ranks);
            if topology.cores < ranks {
                continue;
            }
            let [one, other] =
                ["epyc", "xeon"].map(|profile| choices(Profile::named(profile).unwrap(), &topology));
            println!("{name}, {ranks} ranks, {:?}: {one:?} {other:?}", topology.levels);
            let worst = one.iter().chain(&other).map(|row| row.1).fold(0.0, f64::max);
            assert!((1.0..2.0).contains(&worst), "{name}, {ranks} ranks: {worst}");
            changed += one.iter().zip(&other).filter(|(one, other)| one.0 != other.0).count();
            all += one.len();
        }
        println!("{changed} of {all} choices change");
        assert!(changed >= all / 20);
    }

    #[test]
    fn costs_are_named_with_where_they_come_from() {
        let profile = Profile::named("xeon").unwrap().with([("sockets.line", 3e-7), ("near.line", 1e-7)]);
        let told = |name, ranks, per_node| costs(profile, &on(name, ranks, per_node));
        let server = told("xeon", 56, 56);
        assert!(server.starts_with("ranks: on 2 sockets of a host with at most 28 each; "), "{server}");
        assert!(
            server.contains("two sockets           line 0.300 us (measured here); copy_byte 8.0 GB/s"),
            "{server}"
        );
        assert!(
            server.contains(" (assumed)\n  cores by one cache    line 0.100 us (measured here)"),
            "{server}"
        );
        assert!(!server.contains("two last-level caches") && !server.contains("two hosts"), "{server}");
        let laptop = told("laptop", 2, 2);
        assert!(
            laptop.starts_with("ranks: no two are known to be apart") && !laptop.contains("two sockets"),
            "{laptop}"
        );
        let hosts = told("epyc", 128, 64);
        assert!(
            hosts.contains("on 2 hosts with at most 64 each") && hosts.contains("\n  two hosts "),
            "{hosts}"
        );
    }

    /// Stages by socket are for machines whose sockets are far apart.
    #[test]
    fn ranks_that_are_far_apart_go_by_way_of_leaders() {
        let near = Profile::named("xeon").unwrap();
        let far = near.with([
            ("sockets.line", 3e-6),
            ("sockets.latency", 5e-6),
            ("sockets.overhead", 2e-6),
            ("sockets.byte", 1e-9),
        ]);
        let composed = |profile, name| {
            choices(profile, &on(name, 16, 16)).into_iter().filter(|row| row.0 == "nodes").count()
        };
        assert!(composed(far, "xeon") > composed(near, "xeon"));
        assert_eq!(
            [composed(far, "laptop"), composed(far, "epyc")],
            [composed(near, "laptop"), composed(near, "epyc")]
        );
    }
}
