//! [`Topology`] and [`Nodes`]: what all ranks of a communicator know of where they are.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use banyan_topo::GpuLocation;

/// How many levels ranks can be apart at, outermost first: hosts, the sockets of a host, and the last-level caches of a socket.
pub const LEVELS: usize = 3;

/// Where a rank is: on which host, which of its sockets, and by which of that one's last-level caches. The numbers mean nothing
/// but that equal ones are one host, socket or cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Location(pub [u32; LEVELS]);

impl Location {
    /// That of a rank whose buffers are memory of a GPU: the GPU's.
    pub fn of_gpu(host: u32, gpu: &GpuLocation) -> Location {
        Location([host, gpu.group, gpu.switch])
    }
}

impl From<u32> for Location {
    /// On a host of which no more is known.
    fn from(host: u32) -> Location {
        Location([host, 0, 0])
    }
}

/// How ranks are grouped at a level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Groups {
    /// The most groups within one group of the level outside.
    pub number: u32,
    /// The most ranks in one group.
    pub largest: u32,
}

/// What is known of a communicator's ranks, or of those of one group. All of them must have the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Topology {
    /// How many they are.
    pub ranks: u32,
    /// The fewest cores that the ranks on a node have between them.
    pub cores: u32,
    /// Those of a node have shared buffers; where there are several nodes, as is assumed of them.
    pub shared: Option<SharedCaps>,
    /// By level, how they are grouped. The outermost ones are nodes.
    pub levels: [Groups; LEVELS],
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

impl Groups {
    /// By level, the groups of ranks of which nothing is known but that they are on so many nodes, with so many at most on each.
    pub const fn on_nodes(number: u32, largest: u32) -> [Groups; LEVELS] {
        let mut levels = [Groups { number: 1, largest }; LEVELS];
        levels[0].number = number;
        levels
    }
}

impl Topology {
    /// The topology that models and tests assume: `ranks` ranks on one node of `cores` cores, with CICO buffers about as the
    /// runtime makes them, or each on a node of its own.
    pub fn assumed(ranks: u32, one_node: bool, cores: u32) -> Topology {
        let shared = one_node.then_some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 });
        let (nodes, per_node) = if one_node { (1, ranks) } else { (ranks, 1) };
        Topology { ranks, cores, shared, levels: Groups::on_nodes(nodes, per_node) }
    }

    /// True if all ranks are on one node.
    pub fn one_node(&self) -> bool {
        self.levels[0].number == 1
    }

    /// The most ranks on one node.
    pub fn per_node(&self) -> u32 {
        self.levels[0].largest
    }

    /// True if a node has more ranks than cores.
    pub(crate) fn crowded(&self) -> bool {
        self.per_node() > self.cores
    }

    /// The outermost level at which the ranks are apart; [`LEVELS`] if there is none.
    pub(crate) fn span(&self) -> usize {
        self.levels.iter().position(|level| level.number > 1).unwrap_or(LEVELS)
    }

    /// The groups at the outermost level at which the ranks are apart.
    pub(crate) fn groups(&self) -> Groups {
        self.levels.get(self.span()).copied().unwrap_or(Groups { number: 1, largest: self.ranks })
    }

    /// The ranks of the largest group at that level.
    pub(crate) fn members(&self) -> Topology {
        let (span, ranks) = (self.span(), self.groups().largest);
        let mut levels = self.levels;
        levels.iter_mut().take(span + 1).for_each(|level| *level = Groups { number: 1, largest: ranks });
        self.group(ranks, levels)
    }

    /// The ranks of one of the groups at that level. Shared buffers are those of all ranks of a node, and cores as well: a
    /// smaller group has a share of these.
    fn group(&self, ranks: u32, levels: [Groups; LEVELS]) -> Topology {
        match self.one_node() {
            false => Topology { ranks, levels, ..*self },
            true => {
                let cores = u64::from(self.cores) * u64::from(ranks) / u64::from(self.ranks);
                Topology { ranks, levels, cores: (cores as u32).max(1), shared: None }
            }
        }
    }

    /// The ranks of this rank's group, where these are all `groups`.
    pub(crate) fn within(&self, groups: &Nodes, rank: u32) -> Topology {
        let ranks = groups.ranks(groups.of(rank)).count();
        self.group(ranks, groups.levels_of(groups.of(rank)))
    }

    /// One rank of each group at that level.
    pub(crate) fn leaders(&self) -> Topology {
        let (span, ranks) = (self.span(), self.groups().number);
        let levels = std::array::from_fn(|level| match level.cmp(&span) {
            Ordering::Less => Groups { number: 1, largest: ranks },
            Ordering::Equal => Groups { number: ranks, largest: 1 },
            Ordering::Greater => Groups { number: 1, largest: 1 },
        });
        Topology { ranks, shared: None, levels, ..*self }
    }

    /// True if there are several groups, and one of them has several ranks.
    pub(crate) fn has_levels(&self) -> bool {
        (2..self.ranks).contains(&self.groups().number)
    }
}

/// The ranks of a communicator, node by node; or those of a node, socket by socket, or those of a socket, cache by cache. All
/// ranks know it alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    /// What they are: nodes, sockets or caches.
    level: usize,
    /// How many ranks there are.
    size: u32,
    members: Members,
}

/// Which ranks each node has. Nodes are in the order of their first ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Members {
    /// The first `each` ranks are on the first of so many `nodes`, as many on the next one, and so on; then again from the first node
    /// on. Where the ranks of a node are apart, they are so alike on all nodes, which have as many then.
    Dealt { each: u32, nodes: u32, inner: Option<Arc<Nodes>> },
    Listed {
        /// By rank, the place of its node in `members`.
        node: Vec<u32>,
        /// The ranks of each node in their order.
        members: Vec<Vec<u32>>,
        /// By node, how many ranks those before it have.
        starts: Vec<u64>,
        /// By node, where its ranks are, which count by their order in it; `None` if they are not apart.
        inner: Vec<Option<Arc<Nodes>>>,
    },
}

/// The ranks of a node, in order.
#[derive(Clone, Copy, Debug)]
pub enum NodeRanks<'a> {
    /// These.
    Listed(&'a [u32]),
    /// Of the ranks from `first` to `end`, the first `each` of every `turn`.
    Dealt {
        /// The first of them.
        first: u32,
        /// A number above the last of them.
        end: u32,
        /// How many follow each other.
        each: u32,
        /// From the first of some that follow each other to the first of the next.
        turn: u32,
    },
}

impl<'a> NodeRanks<'a> {
    /// How many they are.
    pub fn count(self) -> u32 {
        match self {
            NodeRanks::Listed(list) => list.len() as u32,
            NodeRanks::Dealt { first, end, each, turn } => {
                let span = end.saturating_sub(first);
                span / turn * each + (span % turn).min(each)
            }
        }
    }

    /// The one that so many come before.
    pub fn at(self, index: u32) -> u32 {
        match self {
            NodeRanks::Listed(list) => list[index as usize],
            NodeRanks::Dealt { first, each, .. } if index < each => first + index,
            NodeRanks::Dealt { first, each, turn, .. } => first + index / each * turn + index % each,
        }
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        let (list, dealt) = match self {
            NodeRanks::Listed(list) => (list, None),
            NodeRanks::Dealt { first, end, each, turn } => (&[][..], Some((first, end, each, turn))),
        };
        let dealt = dealt.into_iter().flat_map(|(first, end, each, turn)| {
            let blocks = (first..end).step_by(turn as usize);
            blocks.flat_map(move |block| block..end.min(block.saturating_add(each)))
        });
        list.iter().copied().chain(dealt)
    }
}

impl Nodes {
    /// From where each rank is.
    pub fn new<L: Into<Location>>(of_rank: impl IntoIterator<Item = L, IntoIter: Clone>) -> Nodes {
        Nodes::at(0, of_rank.into_iter().map(L::into))
    }

    /// Of ranks of this topology, if those of each group follow each other and all groups but the last are full.
    pub(crate) fn in_a_row(topology: &Topology) -> Nodes {
        let sizes = topology.levels.map(|level| match level.number {
            1 => topology.ranks,
            number if number == topology.ranks => 1,
            _ => level.largest,
        });
        Nodes::new((0..topology.ranks).map(|rank| Location(sizes.map(|size| rank / size))))
    }

    fn at(level: usize, locations: impl Iterator<Item = Location> + Clone) -> Nodes {
        Nodes::dealt(level, locations.clone())
            .unwrap_or_else(|| Nodes::listed(level, &locations.collect::<Vec<_>>()))
    }

    /// Of ranks that were dealt out to nodes with rising numbers.
    fn dealt(level: usize, locations: impl Iterator<Item = Location> + Clone) -> Option<Nodes> {
        let number = |location: Location| location.0[level];
        let first = number(locations.clone().next()?);
        let each = locations.clone().take_while(|&location| number(location) == first).count();
        let mut numbers = vec![first];
        let others = locations.clone().skip(each).map(number).take_while(|&other| other != first);
        for other in others {
            match other.cmp(&numbers[numbers.len() - 1]) {
                Ordering::Greater => numbers.push(other),
                Ordering::Equal => {}
                Ordering::Less => return None,
            }
        }
        let members = Members::Dealt { each: each as u32, nodes: numbers.len() as u32, inner: None };
        let mut nodes = Nodes { level, size: 0, members };
        // Where the ranks of the first node are on it.
        let mut pattern = vec![];
        for (rank, location) in (0..).zip(locations) {
            let (node, index) = (nodes.of(rank) as usize, nodes.index(rank) as usize);
            let within = Location(std::array::from_fn(|at| if at > level { location.0[at] } else { 0 }));
            if node == 0 {
                pattern.push(within);
            }
            if numbers[node] != number(location) || pattern.get(index) != Some(&within) {
                return None;
            }
            nodes.size = rank + 1;
        }
        let whole = pattern.len() * numbers.len() == nodes.size as usize;
        let within = Nodes::within(level, &pattern);
        if let Members::Dealt { inner, .. } = &mut nodes.members {
            *inner = within;
            if inner.is_some() && !whole {
                return None;
            }
        }
        Some(nodes)
    }

    /// Where the ranks of a node at this level are; `None` if they are not apart.
    fn within(level: usize, locations: &[Location]) -> Option<Arc<Nodes>> {
        let apart = |level: &usize| locations.iter().any(|at| at.0[*level] != locations[0].0[*level]);
        let level = (level + 1..LEVELS).find(apart)?;
        Some(Arc::new(Nodes::at(level, locations.iter().copied())))
    }

    fn listed(level: usize, locations: &[Location]) -> Nodes {
        let (mut node, mut members, mut known) = (vec![], Vec::<Vec<u32>>::new(), HashMap::new());
        for (rank, location) in (0..).zip(locations) {
            let place = *known.entry(location.0[level]).or_insert(members.len());
            if place == members.len() {
                members.push(vec![]);
            }
            members[place].push(rank);
            node.push(place as u32);
        }
        let sizes = members.iter().map(|ranks| ranks.len() as u64);
        let starts = sizes.scan(0, |end, size| Some(std::mem::replace(end, *end + size))).collect();
        let inner = members.iter().map(|ranks| {
            let within: Vec<_> = ranks.iter().map(|&rank| locations[rank as usize]).collect();
            Nodes::within(level, &within)
        });
        let inner = inner.collect();
        let size = locations.len() as u32;
        Nodes { level, size, members: Members::Listed { node, members, starts, inner } }
    }

    /// By level, how the ranks are grouped.
    pub fn levels(&self) -> [Groups; LEVELS] {
        let mut levels = Groups::on_nodes(1, self.size);
        levels[self.level] = Groups { number: self.number(), largest: self.largest() };
        // Nodes that were dealt to are alike, the first one as large as any.
        let different = match &self.members {
            Members::Dealt { .. } => 1,
            Members::Listed { .. } => self.number(),
        };
        for (level, all) in levels.iter_mut().enumerate().skip(self.level + 1) {
            let inside = || (0..different).map(|node| self.levels_of(node)[level]);
            let most = |count: fn(Groups) -> u32| inside().map(count).max().unwrap_or(1);
            *all = Groups { number: most(|groups| groups.number), largest: most(|groups| groups.largest) };
        }
        levels
    }

    /// By level, how the ranks of a node are grouped.
    fn levels_of(&self, node: u32) -> [Groups; LEVELS] {
        match self.inner_of(node) {
            Some(inner) => inner.levels(),
            None => Groups::on_nodes(1, self.ranks(node).count()),
        }
    }

    fn inner_of(&self, node: u32) -> Option<&Arc<Nodes>> {
        match &self.members {
            Members::Dealt { inner, .. } => inner.as_ref(),
            Members::Listed { inner, .. } => inner[node as usize].as_ref(),
        }
    }

    /// Where the ranks of this rank's node are; `None` if they are not apart.
    pub(crate) fn inner(&self, rank: u32) -> Option<&Arc<Nodes>> {
        self.inner_of(self.of(rank))
    }

    /// At which level they are apart: at 0 they are nodes, whose ranks may share memory.
    pub(crate) fn level(&self) -> usize {
        self.level
    }

    /// At the outermost level at which the ranks are apart.
    pub(crate) fn apart(self: &Arc<Nodes>) -> Arc<Nodes> {
        match self.number() {
            1 => self.inner_of(0).unwrap_or(self).clone(),
            _ => self.clone(),
        }
    }

    /// The outermost level at which two ranks are apart; [`LEVELS`] if there is none.
    pub(crate) fn between(&self, one: u32, other: u32) -> usize {
        match self.inner(one) {
            _ if self.of(one) != self.of(other) => self.level,
            Some(inner) => inner.between(self.index(one), self.index(other)),
            None => LEVELS,
        }
    }

    /// How many nodes there are.
    pub fn number(&self) -> u32 {
        match &self.members {
            Members::Dealt { nodes, .. } => *nodes,
            Members::Listed { members, .. } => members.len() as u32,
        }
    }

    /// The ranks of the node that has most.
    pub fn largest(&self) -> u32 {
        match &self.members {
            Members::Dealt { .. } => self.ranks(0).count(),
            Members::Listed { .. } => self.members().map(NodeRanks::count).max().unwrap_or(0),
        }
    }

    /// The node of a rank, counted in the order of first ranks.
    pub(crate) fn of(&self, rank: u32) -> u32 {
        match &self.members {
            Members::Dealt { each, nodes, .. } => rank / each % nodes,
            Members::Listed { node, .. } => node[rank as usize],
        }
    }

    /// The ranks of each node.
    pub(crate) fn members(&self) -> impl Iterator<Item = NodeRanks<'_>> {
        (0..self.number()).map(|node| self.ranks(node))
    }

    /// The ranks of a node.
    pub(crate) fn ranks(&self, node: u32) -> NodeRanks<'_> {
        match &self.members {
            Members::Dealt { each, nodes, .. } => {
                NodeRanks::Dealt { first: node * each, end: self.size, each: *each, turn: each * nodes }
            }
            Members::Listed { members, .. } => NodeRanks::Listed(&members[node as usize]),
        }
    }

    /// The ranks of the nodes before this one.
    pub(crate) fn start(&self, node: u32) -> u64 {
        match &self.members {
            Members::Dealt { each, nodes, .. } => {
                let (turn, before) = (each * nodes, node * each);
                u64::from(self.size / turn * before + (self.size % turn).min(before))
            }
            Members::Listed { starts, .. } => starts[node as usize],
        }
    }

    /// How many ranks of its node come before a rank.
    pub(crate) fn index(&self, rank: u32) -> u32 {
        match &self.members {
            Members::Dealt { each, nodes, .. } => rank / (each * nodes) * each + rank % each,
            Members::Listed { node, members, .. } => {
                let found = members[node[rank as usize] as usize].binary_search(&rank);
                found.unwrap_or_else(|_| unreachable!("each rank is on its node")) as u32
            }
        }
    }

    /// How many ranks come before a rank in the order of nodes.
    pub(crate) fn position(&self, rank: u32) -> u64 {
        self.start(self.of(rank)) + u64::from(self.index(rank))
    }

    /// After how many ranks the nodes repeat: as many as each node has, if all have equally many ranks in a row; 1 if all ranks are
    /// on one node, or each on its own; else after all of them.
    pub(crate) fn period(&self) -> u32 {
        match &self.members {
            Members::Dealt { each, nodes, inner } if each * nodes == self.size => match nodes {
                1 => inner.as_ref().map_or(1, |inner| inner.period()),
                _ => *each,
            },
            _ => self.size,
        }
    }

    /// True if the order of nodes is that of ranks.
    pub(crate) fn are_in_order(&self) -> bool {
        match &self.members {
            Members::Dealt { each, nodes, .. } => each * nodes >= self.size,
            Members::Listed { node, .. } => node.is_sorted(),
        }
    }

    /// The leader of a node: the `root`, if that is there, else the first rank.
    pub(crate) fn leader(&self, node: u32, root: u32) -> u32 {
        if self.of(root) == node { root } else { self.ranks(node).at(0) }
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
            Order::Nodes => nodes.members().flat_map(NodeRanks::iter).map(u64::from).collect(),
            Order::Outgoing => {
                let from = |to: NodeRanks<'_>, from: u64| {
                    to.iter().map(|to| from * all + u64::from(to)).collect::<Vec<_>>()
                };
                nodes.members().flat_map(|to| (0..mine).flat_map(move |giver| from(to, giver))).collect()
            }
            Order::Incoming => (0..mine).flat_map(|to| by_rank().map(move |from| from * mine + to)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
