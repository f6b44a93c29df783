//! [`Places`]: on which node each rank of a job is, and where on it. However many ranks there are, it takes a few runs if they were
//! dealt out by a rule: node by node, in turn, or in turn by several.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Where a rank is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// Number of the node.
    pub node: u32,
    /// How many ranks of the node come before this one.
    pub index: u32,
    /// Cores of the node that the job may use (affinity and CPU quota), at least 1.
    pub cores: u32,
    /// The socket, in any numbers; equal at ranks of a node that may come to use the same one.
    pub socket: u32,
    /// The last-level cache, in any numbers; equal at ranks of a node that may come to use the same one.
    pub cache: u32,
}

/// What is known of a node. Nodes are mostly alike, and then it is said once.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeKind {
    cores: u32,
    /// From the rank with this index on, the ranks of the node are on this socket and by this cache.
    parts: Vec<(u32, u32, u32)>,
}

impl NodeKind {
    /// A node of so many cores, whose ranks are on these sockets and by these caches in turn; of ranks beyond these nothing is
    /// known.
    pub fn new(cores: u32, bound: impl IntoIterator<Item = (u32, u32)>) -> NodeKind {
        let parts = (0..).zip(bound).map(|(index, (socket, cache))| (index, socket, cache));
        let mut parts: Vec<_> = parts.collect();
        parts.dedup_by_key(|&mut (_, socket, cache)| (socket, cache));
        if parts.is_empty() {
            parts.push((0, 0, 0));
        }
        NodeKind { cores: cores.max(1), parts }
    }

    fn is_sound(&self) -> bool {
        self.cores >= 1
            && self.parts.first().is_some_and(|part| part.0 == 0)
            && self.parts.windows(2).all(|pair| pair[0].0 < pair[1].0)
    }
}

/// Ranks from `first` up to the next run: `each` are on `node`, as many on the node after it, and so on for so many `nodes`, then
/// again from `node` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Run {
    first: u32,
    node: u32,
    nodes: u32,
    each: u32,
    /// Ranks that each of the nodes has before this run.
    before: u32,
    /// Index of the nodes' kind.
    kind: u32,
}

impl Run {
    /// The longest run that `blocks`, ranks in a row on one node each, begin with, and how many of them it takes.
    fn of(blocks: &[Run]) -> (Run, usize) {
        let first = blocks[0];
        let follows = |at: usize, nodes: usize| {
            let wanted = (first.node + (at % nodes) as u32, first.before + (at / nodes) as u32 * first.each);
            // The last block may be a shorter one.
            blocks[at - 1].each == first.each
                && blocks[at].each <= first.each
                && (blocks[at].node, blocks[at].before) == wanted
                && blocks[at].kind == first.kind
        };
        let until = |from: usize, nodes: usize| {
            (from..blocks.len()).find(|&at| !follows(at, nodes)).unwrap_or(blocks.len())
        };
        let nodes = until(1, blocks.len());
        (Run { nodes: nodes as u32, ..first }, until(nodes, nodes))
    }

    fn is_sound(&self, kinds: usize) -> bool {
        let fits = self.node.checked_add(self.nodes).is_some();
        self.nodes >= 1 && self.each >= 1 && fits && (self.kind as usize) < kinds
    }
}

/// Where all ranks of a job are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Places {
    /// The first one begins at rank 0.
    runs: Vec<Run>,
    kinds: Vec<NodeKind>,
}

impl Default for Places {
    /// All ranks are on node 0, and no more is known.
    fn default() -> Places {
        Places::on_one_node(1)
    }
}

impl Places {
    /// All ranks are on node 0, which has so many cores, and it is not known where.
    pub fn on_one_node(cores: u32) -> Places {
        Places::new([0], |_| NodeKind::new(cores, []))
    }

    /// From the node of each rank, and the kind of each node. Of no ranks at all: as of one on node 0.
    pub fn new(nodes: impl IntoIterator<Item = u32>, mut kind: impl FnMut(u32) -> NodeKind) -> Places {
        let (mut numbers, mut known) = (HashMap::<NodeKind, u32>::new(), HashMap::<u32, (u32, u32)>::new());
        let mut blocks: Vec<Run> = Vec::new();
        for (first, node) in (0..).zip(nodes) {
            let (before, kind) = known.entry(node).or_insert_with(|| {
                let next = numbers.len() as u32;
                (0, *numbers.entry(kind(node)).or_insert(next))
            });
            match blocks.last_mut().filter(|last| last.node == node) {
                Some(last) => last.each += 1,
                None => blocks.push(Run { first, node, nodes: 1, each: 1, before: *before, kind: *kind }),
            }
            *before += 1;
        }
        let (mut runs, mut rest) = (Vec::new(), blocks.as_slice());
        while !rest.is_empty() {
            let (run, taken) = Run::of(rest);
            runs.push(run);
            rest = &rest[taken..];
        }
        if runs.is_empty() {
            return Places::default();
        }
        let mut kinds: Vec<(NodeKind, u32)> = numbers.into_iter().collect();
        kinds.sort_by_key(|&(_, number)| number);
        Places { runs, kinds: kinds.into_iter().map(|(kind, _)| kind).collect() }
    }

    /// Where a rank is.
    pub fn home(&self, rank: u32) -> Home {
        let run = &self.runs[self.runs.partition_point(|run| run.first <= rank).saturating_sub(1)];
        let at = rank - run.first;
        let block = at / run.each;
        let (node, index) =
            (run.node + block % run.nodes, run.before + block / run.nodes * run.each + at % run.each);
        let NodeKind { cores, parts } = &self.kinds[run.kind as usize];
        let (_, socket, cache) = parts[parts.partition_point(|part| part.0 <= index).saturating_sub(1)];
        Home { node, index, cores: *cores, socket, cache }
    }

    /// The ranks on a node, in order, where there are `size` in all.
    pub fn ranks_on(&self, node: u32, size: u32) -> impl Iterator<Item = u32> {
        let ends = self.runs.iter().skip(1).map(|run| run.first).chain([size]);
        let runs = self.runs.iter().zip(ends);
        let here = runs.filter(move |(run, _)| (run.node..run.node + run.nodes).contains(&node));
        here.flat_map(move |(run, end)| {
            let first = run.first.saturating_add((node - run.node).saturating_mul(run.each));
            let blocks = (first..end).step_by(run.nodes.saturating_mul(run.each) as usize);
            blocks.flat_map(move |block| block..end.min(block.saturating_add(run.each)))
        })
    }

    /// A number above those of all nodes.
    pub fn nodes(&self) -> u32 {
        self.runs.iter().map(|run| run.node + run.nodes).max().unwrap_or(0)
    }

    /// Bytes of memory that this takes.
    pub fn bytes(&self) -> usize {
        let parts = self.kinds.iter().map(|kind| size_of_val(kind) + size_of_val(kind.parts.as_slice()));
        size_of::<Places>() + size_of_val(self.runs.as_slice()) + parts.sum::<usize>()
    }

    /// True if each rank below `size` has a place.
    pub(crate) fn is_sound(&self, size: u32) -> bool {
        let last = self.runs.last().is_some_and(|run| run.first < size);
        last && self.runs[0].first == 0
            && self.runs.windows(2).all(|pair| pair[0].first < pair[1].first)
            && self.runs.iter().all(|run| run.is_sound(self.kinds.len()))
            && self.kinds.iter().all(NodeKind::is_sound)
            // No index of a rank on its node is beyond the numbers.
            && self.runs.iter().all(|run| run.before.checked_add(size).is_some())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_rule_deals_out_is_one_run() {
        type Rule = fn(u32) -> u32;
        let cases: [(Rule, usize); 4] = [
            (|rank| rank / 64, 1),
            (|rank| rank % 1_000, 1),
            (|rank| rank / 8 % 1_500, 1),
            // mpirun's own host is agent 0, wherever it is among the hosts.
            (|rank| if rank / 64 == 7 { 0 } else { rank / 64 + 1 - u32::from(rank / 64 > 7) }, 3),
        ];
        for (node, runs) in cases {
            let places = Places::new((0..100_000).map(node), |_| NodeKind::new(4, []));
            assert_eq!(places.runs.len(), runs, "{:?}", &places.runs[..3.min(places.runs.len())]);
            assert!(postcard::to_allocvec(&places).unwrap().len() < 100);
            assert!((0..100_000).all(|rank| places.home(rank).node == node(rank)));
        }
    }

    #[test]
    fn sockets_and_caches_are_said_once_for_all_nodes() {
        let bound: Vec<(u32, u32)> = (0..64).map(|index| (index / 32, index / 8)).collect();
        let places = Places::new((0..6_400).map(|rank| rank / 64), |_| NodeKind::new(64, bound.clone()));
        assert_eq!((places.runs.len(), places.kinds.len(), places.kinds[0].parts.len()), (1, 1, 8));
        let home = places.home(64 * 50 + 40);
        assert_eq!(home, Home { node: 50, index: 40, cores: 64, socket: 1, cache: 5 });
        assert_eq!(places.nodes(), 100);
    }

    proptest! {
        #[test]
        fn each_rank_is_where_it_was_put(
            nodes in prop_oneof![
                prop::collection::vec(0u32..4, 1..40),
                (1u32..5, 1u32..4, 1u32..60).prop_map(|(nodes, each, size)| {
                    (0..size).map(|rank| rank / each % nodes).collect::<Vec<u32>>()
                }),
            ],
            cores in prop::collection::vec(1u32..3, 4),
        ) {
            let bound = |node: u32| (0..8).map(move |index| (index % 4 / (1 + node % 2), index));
            let kind = |node: u32| NodeKind::new(cores[node as usize % 4], bound(node));
            let places = Places::new(nodes.iter().copied(), kind);
            prop_assert!(places.is_sound(nodes.len() as u32));
            let mut before = HashMap::<u32, u32>::new();
            for (rank, &node) in (0..).zip(&nodes) {
                let index = before.entry(node).or_insert(0);
                let (socket, cache) = bound(node).nth(7.min(*index as usize)).unwrap();
                let wanted = Home { node, index: *index, cores: cores[node as usize % 4], socket, cache };
                prop_assert_eq!(places.home(rank), wanted);
                *index += 1;
            }
            for node in 0..=*nodes.iter().max().unwrap() + 1 {
                let here = (0..).zip(&nodes).filter(|(_, other)| **other == node).map(|(rank, _)| rank);
                let told = places.ranks_on(node, nodes.len() as u32);
                prop_assert_eq!(told.collect::<Vec<u32>>(), here.collect::<Vec<u32>>());
            }
            let bytes = postcard::to_allocvec(&places).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Places>(&bytes).unwrap(), places);
        }

        #[test]
        fn no_bytes_lead_out_of_the_tables(bytes: Vec<u8>, size in 1u32..1_000) {
            let Ok(places) = postcard::from_bytes::<Places>(&bytes) else { return Ok(()) };
            if places.is_sound(size) {
                (0..size).for_each(|rank| { places.home(rank); });
                prop_assert_eq!(places.ranks_on(places.home(0).node, size).next(), Some(0));
            }
        }
    }
}
