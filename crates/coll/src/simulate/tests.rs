//! The simulator against the formulas of algorithms, and folded schedules against unfolded ones.

use banyan_topo::{GpuFigures, GpuLink, GpuLinks, GpuWay, Message, Profile};

use super::*;
use crate::Link;
use crate::{Groups, Kind, Location, RingOrder, SharedCaps, all};

/// Algorithms are chosen by the formulas, which must not be far from what the schedules really do.
#[test]
fn formulas_agree_with_schedules() {
    let models: Vec<Model> =
        Profile::names().filter_map(Profile::named).map(|profile| Model::of(&profile, 1)).collect();
    let mut wrong = vec![];
    let rows = || all().filter(|row| row.stages.is_empty());
    for (row, model) in rows().flat_map(|row| models.iter().map(move |model| (row, model))) {
        for ranks in [2, 3, 4, 7, 8, 13, 16, 33, 64] {
            for bytes in [64, 4096, 65536, 1 << 20] {
                let topology = Topology::assumed(ranks, true, ranks);
                let case = Case::plain(bytes as f64, ranks).on(&topology, model, row.kind);
                let formula = model.time(&(row.cost)(&case), &topology, row.kind);
                let simulated = simulate(row, bytes, (&topology, None), model)
                    .unwrap_or_else(|why| panic!("{row:?}, {ranks} ranks, {bytes} bytes: {why}"));
                // Where the root of two copies its own block while the only message comes, the formula has the sum of both, and the
                // schedule the longer one.
                let most = if row.name == "linear" && ranks == 2 { 2.0 } else { 1.8 };
                if !(0.55..most).contains(&(formula / simulated)) {
                    let (formula, simulated) = (formula * 1e6, simulated * 1e6);
                    wrong.push(format!(
                        "{row:?}, {ranks} ranks, {bytes} bytes: {formula:.2} us, simulated {simulated:.2}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_barrier_on_a_thousand_ranks_takes_ten_latencies() {
    let topology = Topology::assumed(1000, false, 1);
    let model = Model::default();
    let time = simulate(&crate::algorithms::barrier::DISSEMINATION, 0, (&topology, None), &model).unwrap();
    assert!((time / model.links[0].alpha - 10.0).abs() < 1e-6, "{time}");
}

/// One rank of each class stands for all of it: on nodes of equal sizes, on uneven ones, on one and on as many as ranks, with
/// vectors that can be cut into equal parts for all ranks and with others.
#[test]
fn ranks_that_are_alike_are_simulated_once() {
    let tuning = Tuning::default();
    let (mut wrong, mut folded) = (vec![], std::collections::BTreeSet::new());
    for ranks in 1..=64u32 {
        for size in (1..=ranks).filter(|&size| ranks % size == 0 || size % 5 == 3) {
            let topology = Topology {
                levels: Groups::on_nodes(ranks.div_ceil(size), size),
                shared: Some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 }),
                ..Topology::assumed(ranks, false, ranks)
            };
            for (row, bytes) in all().flat_map(|row| [8 * ranks, 4100].map(|bytes| (row, bytes))) {
                let simulation = Simulation::new(row, u64::from(bytes), (&topology, None), &tuning);
                let classes = simulation.classes();
                if classes == ranks || !row.stages.is_empty() && !topology.has_levels() {
                    continue;
                }
                let times = [classes, ranks].map(|classes| simulation.time(classes).unwrap());
                folded.insert(format!("{row:?}"));
                // Where messages of one round and of several ranks share ports, they may take turns in another order.
                let far = if row.name == "spread" && simulation.nodes.period() > 1 { 0.02 } else { 1e-9 };
                if (times[0] - times[1]).abs() > far * times[1] {
                    wrong.push(format!("{row:?}, {ranks} ranks, {size} on a node, {bytes} bytes: {times:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(folded.len() >= 10, "only these were folded: {folded:?}");
}

#[test]
fn a_ring_of_a_hundred_thousand_ranks_is_that_of_one() {
    let ranks = 100_000;
    let topology = Topology::assumed(ranks, false, 1);
    let model = Model::default();
    let ring = crate::of_kind(Kind::Allgather).find(|row| row.name == "ring").unwrap();
    let time = simulate(ring, 1000, (&topology, None), &model).unwrap();
    let formula = model.time(&(ring.cost)(&Case::plain(1000.0, ranks)), &topology, ring.kind);
    assert!((time / formula - 1.0).abs() < 1e-3, "{time}, by the formula {formula}");
}

/// The collectives that have a composition.
fn composed() -> impl Iterator<Item = Kind> {
    all().filter(|row| !row.stages.is_empty()).map(|row| row.kind)
}

/// Ranks on nodes of several sizes, block by block or dealt out in turn.
fn uneven(ranks: u32, nodes: u32, in_turn: bool) -> (Topology, Nodes) {
    let node = |rank: u32| if in_turn { rank % nodes } else { (rank * rank * nodes) / (ranks * ranks) };
    let nodes = Nodes::new((0..ranks).map(node));
    let shared = Some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 });
    (Topology { ranks, cores: ranks, shared, levels: nodes.levels() }, nodes)
}

#[test]
fn compositions_cost_about_what_their_stages_do_and_less_than_flat_ones() {
    let tuning = crate::Tuning::default();
    let mut wrong = vec![];
    for (ranks, nodes) in [(16, 2), (24, 3), (32, 4), (64, 8), (61, 5)] {
        for (bytes, in_turn) in [(8, true), (8, false), (4096, true), (65536, false), (1 << 20, false)] {
            let (topology, nodes) = uneven(ranks, nodes, in_turn);
            for kind in composed() {
                let time = |row| simulate(row, bytes, (&topology, Some(&nodes)), &tuning.model).unwrap();
                let rows = || crate::of_kind(kind).filter(|row| row.needs == crate::Needs::Messages);
                let best = |composed: bool, time: &dyn Fn(&'static Algorithm) -> f64| {
                    let rows = rows().filter(|row| row.stages.is_empty() != composed).map(time);
                    rows.fold(f64::INFINITY, f64::min) * 1e6
                };
                let (flat, composed) = (best(false, &time), best(true, &time));
                let case = Case::plain(bytes as f64, ranks);
                let formula = |row| tuning.predict(row, &case, &topology);
                let chosen = bytes == 8 || best(true, &formula) < best(false, &formula);
                // Long vectors are for what shares them out among the ranks of a node; a binomial tree over nodes that
                // have their ranks in a row is as good as one over their leaders.
                if bytes <= 4096 && chosen && composed > 1.05 * flat {
                    wrong.push(format!("{kind:?} {ranks} ranks {bytes} bytes: {composed} us, flat {flat}"));
                }
                for row in rows().filter(|row| !row.stages.is_empty()) {
                    let (formula, simulated) = (formula(row) * 1e6, time(row) * 1e6);
                    if !(0.55..1.8).contains(&(formula / simulated)) {
                        wrong.push(format!("{row:?} {ranks} {bytes}: {formula} us, simulated {simulated}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// On a host of several sockets, without shared buffers: where the formulas say that sockets pay they do, and for some of the
/// collectives that is so.
#[test]
fn sockets_are_levels_where_that_pays() {
    let tuning = crate::Tuning::default();
    let (mut wrong, mut chosen) = (vec![], vec![]);
    for (ranks, sockets, caches) in [(8, 2, 1), (16, 2, 2), (24, 3, 2), (32, 2, 4), (61, 4, 1)] {
        let location = |rank: u32| Location([0, rank % sockets, rank / sockets % caches]);
        let nodes = Nodes::new((0..ranks).map(location));
        let topology = Topology { ranks, cores: ranks, shared: None, levels: nodes.levels() };
        for (kind, bytes) in composed().flat_map(|kind| [(kind, 8), (kind, 4096), (kind, 1 << 18)]) {
            let time = |row| simulate(row, bytes, (&topology, Some(&nodes)), &tuning.model).unwrap() * 1e6;
            let row = tuning.explain(kind, bytes, &topology).chosen;
            if row.stages.is_empty() {
                continue;
            }
            chosen.push(kind);
            let flat = crate::of_kind(kind)
                .filter(|row| row.needs == crate::Needs::Messages && row.stages.is_empty());
            let (time, flat) = (time(row), flat.map(time).fold(f64::INFINITY, f64::min));
            if time > 1.1 * flat {
                wrong.push(format!("{kind:?} {ranks} ranks {bytes} bytes: {time} us, flat {flat}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    for kind in [Kind::Bcast, Kind::Reduce] {
        assert!(chosen.contains(&kind), "{kind:?}");
    }
}

/// While a chunk is between nodes, others are within them: over TCP, and over a network as quick as memory.
#[test]
fn levels_overlap_on_long_data() {
    let mut quick = Model::default();
    quick.links[0] = Link { alpha: 2e-6, overhead: 0.3e-6, beta: 1.0 / 12e9, ..quick.links[0] };
    let mut wrong = vec![];
    for (model, most) in [(Model::default(), 0.98), (quick, 0.9)] {
        let tuning = Tuning { model, ..Tuning::default() };
        let (topology, nodes) = uneven(30, 4, model != Model::default());
        for kind in [Kind::Bcast, Kind::Reduce, Kind::Allreduce] {
            let row = crate::of_kind(kind).find(|row| !row.stages.is_empty()).unwrap();
            for bytes in [1 << 20, 8 << 20] {
                let case = Case::plain(bytes as f64, topology.ranks);
                let chunks = tuning.chunks(row, Some(case), &topology);
                let simulation = Simulation::new(row, bytes, (&topology, Some(&nodes)), &tuning);
                let time = |chunks| Simulation { chunks, ..simulation.clone() }.time(topology.ranks);
                let [whole, chunked] = [1, chunks].map(|chunks| time(chunks).unwrap() * 1e6);
                let formula = tuning.predict(row, &case, &topology) * 1e6;
                // A broadcast among the leaders is a pipeline by itself.
                let most = if bytes == 1 << 20 { 1.04 } else { most + 0.04 * f64::from(kind == Kind::Bcast) };
                if chunks == 1 || chunked > most * whole || !(0.8..1.2).contains(&(formula / chunked)) {
                    wrong.push(format!(
                        "{kind:?} of {bytes}: {whole} us, in {chunks} chunks {chunked}, formula {formula}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ranks with a GPU each, on so many hosts: by NVSwitch on each, or below the PCIe switches of two sockets.
fn on_gpus(hosts: u32, nvswitch: bool) -> (Topology, Nodes, Tuning) {
    let location = |rank: u32| match nvswitch {
        true => Location([rank / 8, 0, 0]),
        false => Location([rank / 8, rank / 4 % 2, 0]),
    };
    let nodes = Nodes::new((0..8 * hosts).map(location));
    let near = match nvswitch {
        true => GpuWay { link: GpuLink::NvSwitch, width: 450 },
        false => GpuWay { link: GpuLink::Pcie, width: 0 },
    };
    let host = Tuning { model: Model::of(&Profile::default(), hosts), ..Tuning::default() };
    let figures = GpuFigures::ASSUMED;
    let [pcie, staged] = [GpuLink::Pcie, GpuLink::Staged].map(|link| figures.links[link as usize]);
    let near = figures.message(near);
    let (ring, span) = if nvswitch { (near, 3) } else { (staged, 1) };
    let links = GpuLinks { levels: [staged, staged, pcie, near], ring, span };
    let tuning = host.on_gpus(&links, (0..8 * hosts).collect());
    let topology = Topology { levels: nodes.levels(), ..Topology::assumed(8 * hosts, hosts == 1, 64) };
    (topology, nodes, tuning)
}

#[test]
fn over_gpus_long_vectors_take_messages_by_their_links_and_the_simulator_agrees() {
    let mut times = vec![];
    for (hosts, nvswitch, expected) in [
        (1, true, &["ring", "rabenseifner"][..]),
        (1, false, &["ring", "rabenseifner"]),
        (4, true, &["nodes"]),
    ] {
        let (topology, nodes, tuning) = on_gpus(hosts, nvswitch);
        let explained = tuning.explain(Kind::Allreduce, 1 << 26, &topology);
        assert!(expected.contains(&explained.chosen.name), "{hosts} hosts, {nvswitch}: {explained}");
        times.push(explained.candidates[0].time);
        for row in explained.candidates.iter().filter(|row| row.algorithm.needs == Needs::Messages) {
            if !row.algorithm.stages.is_empty() || hosts > 1 || !nvswitch {
                continue;
            }
            let simulated =
                simulate(row.algorithm, 1 << 26, (&topology, Some(&nodes)), &tuning.model).unwrap();
            let ratio = simulated / row.time;
            assert!(
                (0.6..1.5).contains(&ratio),
                "{}: {simulated} simulated, {} by formula",
                row.algorithm.name,
                row.time
            );
        }
        // What is short goes by shared memory of the host, with copies there and back.
        if hosts == 1 {
            let short = tuning.explain(Kind::Allreduce, 8, &topology);
            assert_eq!(short.chosen.name, "cico", "{short}");
        }
    }
    assert!(times[1] > 8.0 * times[0] && times[2] > 8.0 * times[0], "by NVSwitch, PCIe, network: {times:?}");
}

/// Over GPUs whose links are unlike the narrowest link of the ring counts, and the mean of all for what goes to any rank: as in a cube mesh of NVLinks.
#[test]
fn the_narrowest_link_of_a_ring_counts() {
    let figures = GpuFigures::ASSUMED;
    let link = |width: u16| figures.message(GpuWay { link: GpuLink::NvLink, width });
    let mean = Message { byte: 1.0 / 15e9, ..link(25) };
    let topology = Topology { levels: Groups::on_nodes(1, 8), ..Topology::assumed(8, true, 64) };
    let [wide, narrow] = [link(50), mean].map(|ring| {
        let links = GpuLinks { levels: [mean; 4], ring, span: 3 };
        let tuning = Tuning::default().on_gpus(&links, (0..8).collect());
        tuning.explain(Kind::Allreduce, 1 << 26, &topology)
    });
    let time = |explained: &Explanation, name: &str| {
        explained.candidates.iter().find(|row| row.algorithm.name == name).unwrap().time
    };
    assert_eq!(wide.chosen.name, "ring", "{wide}");
    assert!(time(&narrow, "ring") > 2.0 * time(&wide, "ring"), "{narrow}");
    assert_eq!(time(&narrow, "rabenseifner"), time(&wide, "rabenseifner"));
    // 14 parts of 8 MiB go by each link.
    let by_links = 14.0 * f64::from(1 << 23) * link(50).byte;
    assert!((1.0..1.2).contains(&(time(&wide, "ring") / by_links)), "{wide}");
}

/// Ranks that were dealt out to hosts in turn: around the ring in their order each message leaves its host, and all of a host share its way.
#[test]
fn a_ring_goes_host_by_host() {
    let (hosts, each) = (4, 8);
    let host = |rank: u32| rank % hosts;
    let nodes = Nodes::new((0..hosts * each).map(host));
    let topology = Topology { levels: nodes.levels(), ..Topology::assumed(hosts * each, false, 64) };
    let places: Vec<(u32, u32)> = (0..hosts * each).map(|rank| (host(rank), rank / hosts)).collect();
    let (_, _, tuning) = on_gpus(hosts, true);
    for kind in [Kind::Allreduce, Kind::Allgather, Kind::Bcast] {
        let row = crate::of_kind(kind).find(|row| ["ring", "chain"].contains(&row.name)).unwrap();
        let time = |order: Vec<u32>| {
            let tuning = Tuning { ring: RingOrder::new(order), ..tuning.clone() };
            let simulation = Simulation::new(row, 1 << 24, (&topology, Some(&nodes)), &tuning);
            simulation.time(simulation.classes()).unwrap()
        };
        let (by_rank, by_host) = (time((0..hosts * each).collect()), time(RingOrder::over_hosts(&places)));
        assert!(by_rank > 3.0 * by_host, "{kind:?}: {by_rank} in the order of ranks, host by host {by_host}");
        let formula = tuning.predict(row, &Case::plain(f64::from(1 << 24), hosts * each), &topology);
        assert!((0.7..1.4).contains(&(formula / by_host)), "{kind:?}: {formula} by formula, {by_host}");
    }
}
