//! `--explain allreduce:64M:gpu`: which algorithm a collective would take on buffers of GPUs, one for each rank, and why.

use std::fmt::Write;

use banyan_coll::{Location, Nodes, SharedCaps, Topology, Tuning, parse_question};
use banyan_topo::{GpuFigures, GpuLink, GpuLocation, HostMap, gpu_links};

/// The GPU of each rank, where so many are on each host and take its GPUs in turn; `None` without one.
fn gpus(host: &HostMap, (ranks, per_host): (u32, u32)) -> Option<Vec<(u32, GpuLocation)>> {
    let located = host.gpus.iter().filter_map(|gpu| host.gpu_location(gpu.at.pci.last()?));
    let located: Vec<GpuLocation> = located.collect();
    let of = |rank: u32| {
        let gpu = located.get((rank % per_host) as usize % located.len().max(1))?;
        Some((rank / per_host, *gpu))
    };
    (0..ranks).map(of).collect()
}

/// The answer for ranks on hosts like this one, where they have so many cores and share memory, or not; `tuning` is that for the host's memory.
///
/// # Errors
/// A sentence: the host has no GPUs, or what is asked is no collective.
pub(crate) fn collective(
    what: &str,
    host: &HostMap,
    (ranks, per_host): (u32, u32),
    (cores, shared): (u32, Option<SharedCaps>),
    tuning: &Tuning,
) -> Result<String, String> {
    let (kind, bytes) = parse_question(what)?;
    let Some(gpus) = gpus(host, (ranks, per_host)) else {
        return Err("the system shows no GPUs here: describe some in a file, and name it in BANYAN_TOPOLOGY"
            .to_owned());
    };
    let location = |(host, gpu): &(u32, GpuLocation)| Location::of_gpu(*host, gpu);
    let levels = Nodes::new(gpus.iter().map(location)).levels();
    let topology = Topology { ranks, cores, shared, levels };
    let (figures, links) = (GpuFigures::ASSUMED, gpu_links(gpus.iter().map(|(_, gpu)| *gpu)));
    let tuning = tuning.on_gpus(&figures, links);
    let explained = tuning.explain(kind, bytes, &topology).simulated(&tuning);
    let mut out = format!(
        "{explained}for communicators whose hints say that all buffers are GPUs' (mpi_assert_memory_alloc_kinds)\n"
    );
    let names = ["hosts", "groups of a host", "PCIe switches of a group"];
    for ((name, groups), link) in
        names.iter().zip(levels).zip(links).filter(|((_, groups), _)| groups.number > 1)
    {
        let _ = writeln!(
            out,
            "GPUs: on {} {name} with at most {} each, by {}",
            groups.number,
            groups.largest,
            link.name()
        );
    }
    let _ = writeln!(out, "GPUs: those of one group by {}", links[3].name());
    out += "costs (assumed, nobody has measured them):\n";
    for (link, message) in GpuLink::ALL.iter().zip(figures.links) {
        let (name, latency, rate) = (link.name(), message.latency * 1e6, 1e-9 / message.byte);
        let _ = writeln!(out, "  {name:20} latency {latency:.1} us, byte {rate:.0} GB/s");
    }
    let (copy, sum, to_host) = (1e-9 / figures.copy, 1e-9 / figures.reduce, figures.to_host);
    let _ = writeln!(out, "  {:20} copy_byte {copy:.0} GB/s, reduce_byte {sum:.0} GB/s", "in one GPU");
    let (latency, rate) = (to_host.latency * 1e6, 1e-9 / to_host.byte);
    let _ = writeln!(
        out,
        "  {:20} latency {latency:.1} us, byte {rate:.0} GB/s, there and back",
        "copies to the host"
    );
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_topo::HardwareMap;

    const HGX: &str = include_str!("../../crates/topo/tests/hosts/hgx.toml");

    fn asked(what: &str, host: &HostMap, ranks: (u32, u32)) -> Result<String, String> {
        let shared = Some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 });
        collective(what, host, ranks, (64, shared), &Tuning::default())
    }

    #[test]
    fn on_eight_gpus_by_nvswitch_long_vectors_go_from_gpu_to_gpu_and_short_ones_by_the_host() {
        let map = HardwareMap::parse(HGX).unwrap();
        let long = asked("allreduce:64M", &map.hosts[0], (8, 8)).unwrap();
        assert!(
            long.contains("GPUs: those of one group by NVSwitch\n")
                && long.contains("NVSwitch             latency"),
            "{long}"
        );
        assert!(long.contains("chosen: ring") || long.contains("chosen: rabenseifner"), "{long}");
        assert!(asked("allreduce:8", &map.hosts[0], (8, 8)).unwrap().contains("chosen: cico"), "{long}");
        let hosts = asked("allreduce:64M", &map.hosts[0], (16, 8)).unwrap();
        assert!(
            hosts.contains("GPUs: on 2 hosts with at most 8 each") && hosts.contains("chosen: nodes"),
            "{hosts}"
        );
    }

    #[test]
    fn without_gpus_it_is_said_what_to_do() {
        let why = asked("bcast:1M", &HostMap::default(), (2, 2)).unwrap_err();
        assert!(why.contains("BANYAN_TOPOLOGY"), "{why}");
    }
}
