//! [`Topology`] and [`Nodes`]: what all ranks of a communicator know of where they are.

use std::collections::HashMap;

/// What is known of a communicator's ranks. All of them must have the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Topology {
    /// How many they are.
    pub ranks: u32,
    /// On how many nodes they are.
    pub nodes: u32,
    /// The fewest cores that the ranks on a node have between them.
    pub cores: u32,
    /// The most ranks on one node.
    pub per_node: u32,
    /// Those of a node have shared buffers; where there are several nodes, as is assumed of them.
    pub shared: Option<SharedCaps>,
}

/// What all ranks know of their shared buffers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharedCaps {
    /// Bytes that a publication can carry inline.
    pub inline: u64,
    /// Every rank can get exposed ranges of every other.
    pub single_copy: bool,
    /// Bytes of the shared scratch.
    pub scratch: u64,
}

impl Topology {
    /// The topology that models and tests assume: `ranks` ranks on one node of `cores` cores, with CICO buffers about as the
    /// runtime makes them, or each on a node of its own.
    pub fn assumed(ranks: u32, one_node: bool, cores: u32) -> Topology {
        let shared = one_node.then_some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 });
        let (nodes, per_node) = if one_node { (1, ranks) } else { (ranks, 1) };
        Topology { ranks, nodes, cores, per_node, shared }
    }

    /// True if all ranks are on one node.
    pub fn one_node(&self) -> bool {
        self.nodes == 1
    }

    /// The ranks of the largest node.
    pub(crate) fn members(&self) -> Topology {
        Topology { ranks: self.per_node, nodes: 1, ..*self }
    }

    /// One rank of each node.
    pub(crate) fn leaders(&self) -> Topology {
        Topology { ranks: self.nodes, per_node: 1, shared: None, ..*self }
    }

    /// True if there are several nodes, and one of them has several ranks.
    pub(crate) fn has_levels(&self) -> bool {
        1 < self.nodes && self.nodes < self.ranks
    }
}

/// The ranks of a communicator, node by node. All ranks know it alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// By rank, the place of its node in `members`.
    node: Vec<u32>,
    /// The ranks of each node in their order; nodes are in the order of their first ranks.
    members: Vec<Vec<u32>>,
    /// By node, how many ranks those before it have.
    starts: Vec<u64>,
}

impl Nodes {
    /// From the node that each rank is on; nodes may have any numbers.
    pub fn new(of_rank: impl IntoIterator<Item = u32>) -> Nodes {
        let (mut node, mut members, mut known) = (vec![], Vec::<Vec<u32>>::new(), HashMap::new());
        for (rank, number) in (0..).zip(of_rank) {
            let place = *known.entry(number).or_insert(members.len());
            if place == members.len() {
                members.push(vec![]);
            }
            members[place].push(rank);
            node.push(place as u32);
        }
        let sizes = members.iter().map(|ranks| ranks.len() as u64);
        let starts = sizes.scan(0, |end, size| Some(std::mem::replace(end, *end + size))).collect();
        Nodes { node, members, starts }
    }

    /// How many nodes there are.
    pub fn number(&self) -> u32 {
        self.members.len() as u32
    }

    /// The ranks of the node that has most.
    pub fn largest(&self) -> u32 {
        self.members.iter().map(|ranks| ranks.len() as u32).max().unwrap_or(0)
    }

    /// The node of a rank, counted in the order of first ranks.
    pub(crate) fn of(&self, rank: u32) -> u32 {
        self.node[rank as usize]
    }

    /// The ranks of each node.
    pub(crate) fn members(&self) -> impl Iterator<Item = &[u32]> {
        self.members.iter().map(Vec::as_slice)
    }

    /// The ranks of a node.
    pub(crate) fn ranks(&self, node: u32) -> &[u32] {
        &self.members[node as usize]
    }

    /// The ranks of the nodes before this one.
    pub(crate) fn start(&self, node: u32) -> u64 {
        self.starts[node as usize]
    }

    /// How many ranks of its node come before a rank.
    pub(crate) fn index(&self, rank: u32) -> u32 {
        let found = self.ranks(self.of(rank)).binary_search(&rank);
        found.unwrap_or_else(|_| unreachable!("each rank is on its node")) as u32
    }

    /// How many ranks come before a rank in the order of nodes.
    pub(crate) fn position(&self, rank: u32) -> u64 {
        self.start(self.of(rank)) + u64::from(self.index(rank))
    }

    /// After how many ranks the nodes repeat: as many as each node has, if all have equally many ranks in a row; 1 if all ranks are
    /// on one node, or each on its own; else after all of them.
    pub(crate) fn period(&self) -> u32 {
        let size = self.members[0].len();
        match self.are_in_order() && self.members.iter().all(|ranks| ranks.len() == size) {
            true if self.number() == 1 => 1,
            true => size as u32,
            false => self.node.len() as u32,
        }
    }

    /// True if the order of nodes is that of ranks.
    pub(crate) fn are_in_order(&self) -> bool {
        self.node.is_sorted()
    }

    /// The leader of a node: the `root`, if that is there, else the first rank.
    pub(crate) fn leader(&self, node: u32, root: u32) -> u32 {
        if self.of(root) == node { root } else { self.members[node as usize][0] }
    }
}

/// The order that a rank brings blocks into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The blocks of all ranks, which are in the order of nodes, in that of ranks.
    Ranks,
    /// The blocks of all ranks, which are in the order of ranks, in that of nodes.
    Nodes,
    /// What the ranks of a node give to all ranks, which is rank by rank: by the node that gets it.
    Outgoing,
    /// What the ranks of a node get, which is by the node that gave it: rank by rank.
    Incoming,
}

impl Order {
    /// How many blocks they are on a node with `here` of all `ranks`.
    pub(crate) fn blocks(self, (ranks, here): (u32, u32)) -> u32 {
        match self {
            Order::Ranks | Order::Nodes => ranks,
            Order::Outgoing | Order::Incoming => ranks.saturating_mul(here),
        }
    }

    /// By block in this order, the number that it had before.
    pub(crate) fn of(self, nodes: &Nodes, (ranks, here): (u32, u32)) -> Vec<u64> {
        let by_rank = || (0..ranks).map(|rank| nodes.position(rank));
        let [all, mine] = [ranks, here].map(u64::from);
        match self {
            Order::Ranks => by_rank().collect(),
            Order::Nodes => nodes.members().flatten().map(|&rank| rank.into()).collect(),
            Order::Outgoing => {
                let from = |to: &[u32], from: u64| {
                    to.iter().map(|&to| from * all + u64::from(to)).collect::<Vec<_>>()
                };
                nodes.members().flat_map(|to| (0..mine).flat_map(move |giver| from(to, giver))).collect()
            }
            Order::Incoming => (0..mine).flat_map(|to| by_rank().map(move |from| from * mine + to)).collect(),
        }
    }
}
