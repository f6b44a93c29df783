//! The one place where algorithms are chosen: by a cost model, unless the user says otherwise.
//!
//! All ranks must choose alike, so a choice rests on nothing but what all of them know: the collective, its
//! bytes (unless a rank may lack them), whether the operation commutes, [`Topology`], the [`Tuning`] that
//! the job's ranks got at start, and what [looks](crate::looks) at calls before have told all of them.

use std::sync::Arc;

use banyan_topo::{GpuFigures, GpuLinks, Message};

use crate::{
    Algorithm, BETWEEN, Case, Kind, Model, Needs, Overrides, RingOrder, SubBuffer, Topology, of_kind,
};

/// What choices rest on besides the call and the communicator. All ranks of a job have the same.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// The cost model.
    pub model: Model,
    /// What things take on GPUs and between them.
    pub gpu: GpuFigures,
    /// The user's own choices.
    pub overrides: Overrides,
    /// Where buffers are memory of GPUs, so that `model` is that of messages between these: what goes over shared memory of the host.
    pub staged: Option<Staged>,
    /// In which order rings go over the ranks, if it is not that of their numbers.
    pub ring: Option<Arc<RingOrder>>,
}

/// What is done in the host's memory for buffers of GPUs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Staged {
    /// What it takes there.
    pub model: Model,
    /// A copy between a GPU and the host.
    pub copy: Message,
}

impl Staged {
    /// Seconds that it takes to bring what a rank gives to the host, and what it gets back.
    fn copies(&self, kind: Kind, case: &Case) -> f64 {
        if case.bytes == 0.0 {
            return 0.0;
        }
        let whole = case.bytes * if kind.has_blocks() && !kind.reduces() { case.p() } else { 1.0 };
        2.0 * (self.copy.latency + whole * self.copy.byte)
    }
}

impl Tuning {
    /// The same for a communicator whose buffers are memory of GPUs, which copy from each other by these links, and over whose ranks rings go in this
    /// order.
    #[must_use]
    pub fn on_gpus(&self, links: &GpuLinks, ring: Vec<u32>) -> Tuning {
        Tuning {
            model: self.model.on_gpus(&self.gpu, links),
            gpu: self.gpu,
            overrides: self.overrides.clone(),
            staged: Some(Staged { model: self.model, copy: self.gpu.to_host }),
            ring: RingOrder::new(ring),
        }
    }

    /// The algorithm for a collective. `case` is `None` if not all ranks know its bytes.
    pub fn choose(
        &self,
        kind: Kind,
        case: Option<Case>,
        commutative: bool,
        topology: &Topology,
    ) -> &'static Algorithm {
        self.choose_if(None, (kind, case, commutative), topology)
    }

    /// The same, but for this algorithm, which looks have found, if it fits. There are no looks where the user has chosen.
    pub(crate) fn choose_if(
        &self,
        wanted: Option<&'static Algorithm>,
        (kind, case, commutative): (Kind, Option<Case>, bool),
        topology: &Topology,
    ) -> &'static Algorithm {
        let wanted = wanted.or(self.overrides.of(kind));
        if let Some(row) = wanted.filter(|row| unfit(row, case, commutative, topology).is_none()) {
            return row;
        }
        let mut rows = fitting(kind, case, commutative, topology);
        let assumed = case.unwrap_or(assumed_case(topology));
        let best = match assumed.bytes == 0.0 && kind != Kind::Barrier {
            true => rows.next(),
            false => self.cheapest(rows, &assumed, topology),
        };
        best.expect("every collective has an algorithm that does for all cases")
    }

    /// The algorithms for a collective, each with the seconds that it takes; the best first. Empty where the user has chosen, where ranks are on
    /// several nodes, and where their buffers are memory of GPUs.
    pub(crate) fn ranked(
        &self,
        kind: Kind,
        case: Case,
        commutative: bool,
        topology: &Topology,
    ) -> Vec<(&'static Algorithm, f64)> {
        let open = self.overrides.allow_looks(kind) && self.staged.is_none() && topology.shared.is_some();
        if !open || !topology.one_node() {
            return vec![];
        }
        let rows = fitting(kind, Some(case), commutative, topology);
        let mut all: Vec<_> = rows.map(|row| (row, self.predict(row, &case, topology))).collect();
        all.sort_by(|one, other| one.1.total_cmp(&other.1));
        all
    }

    /// The algorithm for a collective between the two groups of an intercommunicator.
    pub fn choose_between(&self, kind: Kind, case: Option<Case>, topology: &Topology) -> &'static Algorithm {
        let rows = BETWEEN.iter().copied().filter(|row| row.kind == kind);
        let best = self.cheapest(rows, &case.unwrap_or(assumed_case(topology)), topology);
        best.expect("there are no scans between groups, and algorithms for all else")
    }

    /// The first of those that take the least time.
    fn cheapest(
        &self,
        mut rows: impl Iterator<Item = &'static Algorithm>,
        case: &Case,
        topology: &Topology,
    ) -> Option<&'static Algorithm> {
        let first = rows.next()?;
        let cheaper = |(best, least): (&'static Algorithm, f64), row: &'static Algorithm| {
            let time = self.predict(row, case, topology);
            if time < least { (row, time) } else { (best, least) }
        };
        Some(rows.fold((first, self.predict(first, case, topology)), cheaper).0)
    }

    /// Seconds that an algorithm takes by the model. In a CICO buffer more than [few bytes](CELL_LINE) are in other cache lines than the word
    /// that announces them ([`Model::apart`]); on the shared scratch all are, of which `transfers` tell. Data that no cache holds come from memory
    /// in any algorithm, which makes no difference to a choice.
    pub(crate) fn predict(&self, row: &Algorithm, case: &Case, topology: &Topology) -> f64 {
        if !row.stages.is_empty() {
            return self.pipelined(row, case, topology).0;
        }
        let in_a_cell = match row.needs {
            Needs::Inline => case.bytes,
            Needs::InlineBlocks => case.bytes * case.p(),
            _ => 0.0,
        };
        let apart = if in_a_cell > CELL_LINE { self.model.apart } else { 0.0 };
        // What messages carry the GPUs work on, of which each rank has one.
        let on_gpus;
        let (model, topology, copies) = match &self.staged {
            None => (&self.model, topology, 0.0),
            Some(staged) if row.needs != Needs::Messages => {
                (&staged.model, topology, staged.copies(row.kind, case))
            }
            Some(_) => {
                on_gpus = Topology { cores: topology.ranks, ..*topology };
                (&self.model, &on_gpus, 0.0)
            }
        };
        model.time(&(row.cost)(&case.on(topology, model, row.kind)), topology, row.kind) + apart + copies
    }
}

/// The case that is assumed where not all ranks know the sizes: few bytes, as large blocks go by message in any case.
pub(crate) fn assumed_case(topology: &Topology) -> Case {
    Case::plain(ASSUMED_BYTES as f64, topology.ranks)
}

/// Bytes that are in one cache line with the word that announces them.
const CELL_LINE: f64 = 48.0;

/// Bytes of the blocks in it. Sub-buffers that hold less are not used: most blocks would go by message all the same.
const ASSUMED_BYTES: u64 = 64;

/// No element that an operation of MPI's own combines has more bytes.
const LARGEST_ELEMENT: u64 = 64;

/// The algorithms of a collective that can be used.
fn fitting(
    kind: Kind,
    case: Option<Case>,
    commutative: bool,
    topology: &Topology,
) -> impl Iterator<Item = &'static Algorithm> {
    of_kind(kind).filter(move |row| unfit(row, case, commutative, topology).is_none())
}

/// Why an algorithm cannot be used; `None` if it can.
pub(crate) fn unfit(
    row: &Algorithm,
    case: Option<Case>,
    commutative: bool,
    topology: &Topology,
) -> Option<String> {
    if row.reorders && !commutative {
        return Some("the operation does not commute".into());
    }
    if !row.stages.is_empty() && !topology.has_levels() {
        return Some("it is not known that some ranks are nearer to each other than to others".into());
    }
    let shared = match (row.needs, topology.shared) {
        (Needs::Messages, _) => return None,
        (_, None) => return Some("the ranks have no shared buffers".into()),
        _ if !topology.one_node() => return Some("the ranks are on several nodes".into()),
        (_, Some(shared)) => shared,
    };
    match row.needs {
        Needs::Inline if case.is_none_or(|case| case.largest > shared.inline as f64) => {
            Some(format!("a cell of a CICO buffer holds {} bytes", shared.inline))
        }
        Needs::InlineBlocks if case.is_none_or(|case| case.bytes * case.p() > shared.inline as f64) => {
            Some(format!("a cell of a CICO buffer holds {} bytes", shared.inline))
        }
        Needs::SubBuffers if !SubBuffer::new(shared.inline, 0, topology.ranks - 1).holds(ASSUMED_BYTES) => {
            Some("a cell of a CICO buffer has no room for so many ranks".into())
        }
        Needs::SharedScratch if case.is_none_or(|case| !case.plain) => {
            Some("elements have holes, or the operation is the user's".into())
        }
        Needs::SharedScratch if shared.scratch < 2 * LARGEST_ELEMENT * u64::from(topology.ranks) => {
            Some("the ranks have no shared scratch".into())
        }
        Needs::SingleCopy | Needs::Offers if !shared.single_copy => {
            Some("single copy between the ranks is refused".into())
        }
        Needs::Offers if !SubBuffer::new(shared.inline, 0, topology.ranks - 1).holds_offer() => {
            Some("a cell of a CICO buffer has no room for so many ranks".into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use banyan_topo::Profile;

    use super::*;
    use crate::{Candidate, Cost, Groups};

    #[test]
    fn every_collective_has_an_algorithm_for_all_cases() {
        for (kind, name) in Kind::ALL {
            let always = |row: &&Algorithm| row.needs == Needs::Messages && !row.reorders;
            let first = of_kind(kind).next().unwrap_or_else(|| panic!("{name} has none"));
            assert!(always(&first), "{name}");
            assert_eq!((kind.name(), Kind::named(name)), (name, Some(kind)));
        }
    }

    #[test]
    fn between_groups_the_choice_depends_on_the_size() {
        let tuning = Tuning::default();
        let chosen = |kind, bytes: f64| {
            let topology = Topology::assumed(64, false, 1);
            tuning.choose_between(kind, Some(Case::plain(bytes, 64)), &topology).name
        };
        assert_eq!(chosen(Kind::Bcast, 8.0), "binomial");
        assert_eq!(chosen(Kind::Bcast, 1e7), "scatter_ring");
        assert_eq!(chosen(Kind::Allgatherv, 1e6), "scatter_ring");
        for kind in [Kind::Reduce, Kind::Allreduce, Kind::ReduceScatter, Kind::ReduceScatterBlock] {
            assert_eq!((chosen(kind, 8.0), chosen(kind, 1e7)), ("binomial", "rabenseifner"));
        }
    }

    #[test]
    fn the_choice_fits_and_a_larger_message_is_never_predicted_quicker() {
        let tuning = Tuning::default();
        for (kind, name) in Kind::ALL {
            for ranks in [1, 2, 3, 5, 8, 16, 17, 64, 127, 128, 129, 100_000] {
                for (one_node, cores) in [(true, 2), (true, 128), (false, 1)] {
                    let topology = Topology::assumed(ranks, one_node, cores);
                    let mut before = 0.0;
                    for bytes in (0..30).map(|i| 1u64 << i) {
                        let case = Some(Case::plain(bytes as f64, ranks));
                        for commutative in [true, false] {
                            let row = tuning.choose(kind, case, commutative, &topology);
                            assert_eq!(unfit(row, case, commutative, &topology), None);
                        }
                        let time = tuning.explain(kind, bytes, &topology).candidates[0].time;
                        assert!(
                            time.is_finite() && time >= before,
                            "{name} {bytes} bytes on {ranks}: {time}"
                        );
                        before = time;
                    }
                }
            }
        }
    }

    /// Twice the size takes at most three times as long plus a microsecond and three waits, also where the choice
    /// changes from CICO buffers to another algorithm.
    #[test]
    fn twice_the_size_is_no_cliff() {
        let tuning = Tuning::default();
        let mut wrong = vec![];
        for ((kind, name), ranks) in Kind::ALL.into_iter().flat_map(|row| (2..=64).map(move |n| (row, n))) {
            for (one_node, cores) in [(true, 2), (true, 16), (true, 128), (false, 1)] {
                let topology = Topology::assumed(ranks, one_node, cores);
                let time = |bytes| {
                    let Candidate { algorithm, time, .. } =
                        tuning.explain(kind, bytes, &topology).candidates[0];
                    (algorithm.name, 1e6 * time)
                };
                let waits = Cost { waits: 3.0, ..Cost::default() };
                let more = 1.0 + 1e6 * tuning.model.time(&waits, &topology, kind);
                for bytes in (0..30).map(|i| 1u64 << i) {
                    let (now, twice) = (time(bytes), time(2 * bytes));
                    if twice.1 < now.1 || twice.1 > 3.0 * now.1 + more {
                        wrong
                            .push(format!("{name} of {bytes} bytes, {topology:?}: {now:?} and {twice:?} us"));
                    }
                }
            }
        }
        let shown: Vec<_> = wrong.iter().take(20).map(String::as_str).collect();
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), shown.join("\n"));
    }

    #[test]
    fn a_barrier_has_no_size() {
        let topology = Topology::assumed(8, true, 8);
        let explained = Tuning::default().explain(Kind::Barrier, 1 << 20, &topology);
        assert_eq!((explained.bytes, explained.chosen.name), (0, "cico"));
    }

    #[test]
    fn one_more_rank_is_no_cliff() {
        let tuning = Tuning::default();
        for (kind, name) in Kind::ALL {
            for bytes in [0, 8, 4096, 1 << 20] {
                let time = |ranks| {
                    tuning.explain(kind, bytes, &Topology::assumed(ranks, false, 1)).candidates[0].time
                };
                for ranks in 2..300 {
                    let (now, next) = (time(ranks), time(ranks + 1));
                    assert!(next < 3.0 * now + 1e-6, "{name} {bytes}: {ranks} ranks {now}, one more {next}");
                }
            }
        }
    }

    #[test]
    fn small_and_large_get_what_suits_them() {
        let tuning = Tuning::default();
        let chosen = |kind, bytes, topology: &Topology| tuning.explain(kind, bytes, topology).chosen.name;
        let far = Topology::assumed(16, false, 1);
        assert_eq!(chosen(Kind::Allreduce, 8, &far), "doubling");
        assert_ne!(chosen(Kind::Allreduce, 1 << 24, &far), "doubling");
        assert_eq!(chosen(Kind::Bcast, 8, &far), "binomial");
        assert_ne!(chosen(Kind::Bcast, 1 << 24, &far), "binomial");
        let near = Topology::assumed(8, true, 8);
        assert_eq!(chosen(Kind::Allreduce, 8, &near), "cico");
        assert_eq!(chosen(Kind::Barrier, 0, &near), "cico");
        assert_ne!(chosen(Kind::Allreduce, 1 << 20, &near), "cico");
    }

    #[test]
    fn few_hosts_talk_at_once_and_leaders_stand_for_their_ranks() {
        let tuning = Tuning { model: Model::of(&Profile::default(), 3), ..Tuning::default() };
        let shared = Topology::assumed(2, true, 2).shared;
        let chosen = |kind, bytes, (hosts, each): (u32, u32)| {
            let topology =
                Topology { ranks: hosts * each, cores: 2, shared, levels: Groups::on_nodes(hosts, each) };
            tuning.explain(kind, bytes, &topology).chosen.name
        };
        for kind in [Kind::Barrier, Kind::Allgather, Kind::Allreduce] {
            assert_eq!((chosen(kind, 8, (3, 1)), chosen(kind, 8, (3, 2))), ("spread", "nodes"), "{kind:?}");
            assert_ne!(chosen(kind, 8, (64, 1)), "spread", "{kind:?}");
        }
        // The ranks of a host share its way to others: what goes there once for all of them is quicker.
        for kind in [Kind::Bcast, Kind::Allgather, Kind::Allreduce] {
            assert_eq!(chosen(kind, 1 << 20, (3, 2)), "nodes", "{kind:?}");
        }
        // In an alltoall nothing does.
        assert_eq!(chosen(Kind::Alltoall, 1 << 20, (3, 2)), "spread");
    }

    #[test]
    fn the_user_has_the_last_word_where_that_is_possible() {
        let overrides = Overrides::parse("allreduce=ring,bcast=cico").unwrap();
        let tuning = Tuning { overrides, ..Tuning::default() };
        let far = Topology::assumed(8, false, 1);
        let explained = tuning.explain(Kind::Allreduce, 8, &far);
        assert_eq!(
            (explained.chosen.name, explained.reason.as_str()),
            ("ring", "the user asked for it (BANYAN_COLL)")
        );
        let case = Some(Case::plain(8.0, 8));
        assert_ne!(tuning.choose(Kind::Allreduce, case, false, &far).name, "ring");
        let explained = tuning.explain(Kind::Bcast, 8, &far);
        assert_eq!(explained.chosen.name, "binomial");
        assert!(explained.reason.contains("asks for cico, but the ranks have no shared buffers"));
    }
}
