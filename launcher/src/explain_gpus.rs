//! `--explain allreduce:64M:gpu`: which algorithm a collective would take on buffers of GPUs, one for each rank, and why.

use std::fmt::Write;

use banyan_coll::{Location, Nodes, RingOrder, SharedCaps, Topology, Tuning, parse_question};
use banyan_topo::{GPU_MESSAGES, GpuFigures, GpuGroup, HostMap, Profile};

use crate::explain::figures_of;

/// The GPUs of the ranks of each host, where so many are on each and take its GPUs in turn; `None` without one.
fn groups(
    (host, direct): (&HostMap, bool),
    (ranks, per_host): (u32, u32),
    figures: &GpuFigures,
) -> Option<Vec<GpuGroup>> {
    let addresses: Vec<&str> = host.gpus.iter().filter_map(|gpu| gpu.at.address()).collect();
    let hosts = ranks.div_ceil(per_host);
    let of = |ranks: u32| {
        let gpus: Vec<&str> = addresses.iter().cycle().take(ranks as usize).copied().collect();
        host.gpu_group(&gpus, (hosts, direct), figures)
    };
    // All but the last host have the same.
    let last = of(ranks - (hosts - 1) * per_host)?;
    let full = if hosts > 1 { vec![of(per_host)?; hosts as usize - 1] } else { vec![] };
    Some(full.into_iter().chain([last]).collect())
}

/// In which order a ring goes over the GPUs of a host, by their names, and what is between them.
fn ring(host: &HostMap, group: &GpuGroup) -> String {
    let names: Vec<&str> =
        host.gpus.iter().filter(|gpu| gpu.at.address().is_some()).map(|gpu| &*gpu.name).collect();
    let order: Vec<&str> = group.ring.iter().map(|rank| names[rank % names.len()]).collect();
    let narrowest = group.narrowest.map_or_else(String::new, |way| format!("; its narrowest link is {way}"));
    format!("ring: {}{narrowest}\n", order.join(", "))
}

/// The answer for ranks on hosts like this one, where they have so many cores and share memory, or not; `tuning` is that for the host's memory.
///
/// # Errors
/// A sentence: the host has no GPUs, or what is asked is no collective.
pub(crate) fn collective(
    what: &str,
    (host, direct): (&HostMap, bool),
    (ranks, per_host): (u32, u32),
    (cores, shared): (u32, Option<SharedCaps>),
    (tuning, profile): (&Tuning, Profile),
) -> Result<String, String> {
    let (kind, bytes) = parse_question(what)?;
    let none = "the system shows no GPUs here: describe some in a file, and name it in BANYAN_TOPOLOGY";
    let groups = groups((host, direct), (ranks, per_host), &tuning.gpu).ok_or(none)?;
    let places = (0..).zip(&groups).flat_map(|(host, group)| {
        (0..group.ring.len()).map(move |rank| {
            let place = group.ring.iter().position(|of| *of == rank).unwrap_or(rank);
            (Location::of_gpu(host, &group.locations[rank]), (host, place as u32))
        })
    });
    let (locations, places): (Vec<Location>, Vec<(u32, u32)>) = places.unzip();
    let links =
        groups.iter().map(|group| group.links).reduce(|one, other| one.or_worse(&other)).ok_or(none)?;
    let levels = Nodes::new(locations).levels();
    let topology = Topology { ranks, cores, shared, levels };
    let tuning = tuning.on_gpus(&links, RingOrder::over_hosts(&places));
    let explained = tuning.explain(kind, bytes, &topology).simulated(&tuning);
    let mut out = format!(
        "{explained}for communicators whose hints say that all buffers are GPUs' (mpi_assert_memory_alloc_kinds)\n"
    );
    let rate = |level: usize| 1e-9 / links.levels[level].byte;
    let names = ["hosts", "groups of a host", "PCIe switches of a group"];
    for (level, (name, groups)) in
        names.iter().zip(levels).enumerate().filter(|(_, (_, groups))| groups.number > 1)
    {
        let between = match level {
            0 if links.levels[0] == tuning.gpu.direct => "GPUDirect RDMA".to_owned(),
            0 => "staged in the host's memory".to_owned(),
            _ => format!("{:.0} GB/s between two", rate(level)),
        };
        let _ = writeln!(
            out,
            "GPUs: on {} {name} with at most {} each, {between}",
            groups.number, groups.largest
        );
    }
    let _ = writeln!(out, "GPUs: those of one group {:.0} GB/s between two, in the mean", rate(3));
    out += &ring(host, &groups[0]);
    out += &costs(profile);
    Ok(out)
}

/// What things take on GPUs and between them.
fn costs(profile: Profile) -> String {
    let names = ["NVSwitch", "NVLink", "PCIe", "the host's memory", "GPUDirect RDMA", "copies to the host"];
    let mut out =
        "costs (of NVLinks by 25 GB/s of their data sheets; to other hosts beside the network):\n".to_owned();
    for (name, part) in names.iter().zip(GPU_MESSAGES).chain([(&"in one GPU", "gpu")]) {
        let _ = writeln!(out, "  {name:20}{}", figures_of(profile, &format!("{part}.")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_topo::HardwareMap;

    const HGX: &str = include_str!("../../crates/topo/tests/hosts/hgx.toml");
    const MESH: &str = include_str!("../../crates/topo/tests/hosts/mesh.toml");

    fn asked(what: &str, host: &HostMap, ranks: (u32, u32)) -> Result<String, String> {
        let shared = Some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 });
        collective(what, (host, true), ranks, (64, shared), (&Tuning::default(), Profile::default()))
    }

    #[test]
    fn on_eight_gpus_by_nvswitch_long_vectors_go_from_gpu_to_gpu_and_short_ones_by_the_host() {
        let map = HardwareMap::parse(HGX).unwrap();
        let long = asked("allreduce:64M", &map.hosts[0], (8, 8)).unwrap();
        assert!(
            long.contains("GPUs: those of one group 360 GB/s between two, in the mean\n")
                && long.contains("ring: GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6, GPU7; its narrowest link is NVSwitch of 450 GB/s\n")
                && long.contains("NVSwitch            latency 15.000 us"),
            "{long}"
        );
        assert!(long.contains("chosen: ring") || long.contains("chosen: rabenseifner"), "{long}");
        assert!(asked("allreduce:8", &map.hosts[0], (8, 8)).unwrap().contains("chosen: cico"), "{long}");
        let hosts = asked("allreduce:64M", &map.hosts[0], (16, 8)).unwrap();
        assert!(
            hosts.contains("GPUs: on 2 hosts with at most 8 each, GPUDirect RDMA\n")
                && hosts.contains("chosen: nodes"),
            "{hosts}"
        );
    }

    #[test]
    fn over_a_cube_mesh_the_ring_goes_by_pairs_of_links() {
        let map = HardwareMap::parse(MESH).unwrap();
        let long = asked("allreduce:64M", &map.hosts[0], (8, 8)).unwrap();
        assert!(
            long.contains("chosen: ring") && long.contains("GPUs: those of one group 16 GB/s between two"),
            "{long}"
        );
        let ring =
            "ring: GPU0, GPU3, GPU2, GPU1, GPU5, GPU6, GPU7, GPU4; its narrowest link is NVLink of 50 GB/s\n";
        assert!(long.contains(ring), "{long}");
        // Two ranks for each GPU, and a host that is not full.
        let more = asked("bcast:1M", &map.hosts[0], (20, 16)).unwrap();
        assert!(
            more.contains("ring: GPU0, GPU0, GPU3, GPU3,")
                && more.contains("GPUs: on 2 hosts with at most 16"),
            "{more}"
        );
    }

    #[test]
    fn without_gpus_it_is_said_what_to_do() {
        let why = asked("bcast:1M", &HostMap::default(), (2, 2)).unwrap_err();
        assert!(why.contains("BANYAN_TOPOLOGY"), "{why}");
    }
}
