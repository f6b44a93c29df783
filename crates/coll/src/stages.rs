//! Compositions: a collective on nodes of several ranks as [`Stage`]s, each an algorithm on a group of the ranks. A stage begins
//! at a rank when its stage before is over there. Executor, verifier and simulator read the rounds that are made here, like those of
//! any algorithm; the tuner prices stage by stage, each by the link of its group.

use crate::{Algorithm, Blocks, Buf, Case, Kind, Nodes, Round, Shape, Span, Topology};

/// One algorithm of a composition.
pub struct Stage {
    /// What the group does. It needs messages alone.
    pub row: &'static Algorithm,
    /// Among whom.
    pub group: StageGroup,
    /// What its Send and its Recv are in the composition.
    pub bind: [StageBuf; 2],
}

/// The ranks that a stage is among.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageGroup {
    /// All ranks of this rank's node, rooted at its leader: the root of the collective, if it is there, else its first rank.
    Node,
    /// The leaders of all nodes, rooted at the root of the collective, if it has one, else at the first.
    Leaders,
}

/// A buffer of a composition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageBuf {
    /// What this rank gives.
    Send,
    /// What this rank gets.
    Recv,
    /// A vector of the composition's own, behind what the stages need for themselves.
    Held,
}

/// A group, as a rank sees it.
struct Members<'a> {
    nodes: &'a Nodes,
    root: u32,
    /// The node whose ranks it has; `None`: it has the leaders.
    node: Option<u32>,
}

impl Members<'_> {
    fn size(&self) -> u32 {
        self.node.map_or(self.nodes.number(), |node| self.nodes.ranks(node).len() as u32)
    }

    /// The rank of a member.
    fn rank(&self, member: u32) -> u32 {
        match self.node {
            Some(node) => self.nodes.ranks(node)[member as usize],
            None => self.nodes.leader(member, self.root),
        }
    }

    /// The member that a rank is; `None` if it is none.
    fn member(&self, rank: u32) -> Option<u32> {
        let node = self.nodes.of(rank);
        match self.node {
            Some(node) => self.nodes.ranks(node).binary_search(&rank).ok().map(|at| at as u32),
            None => (self.nodes.leader(node, self.root) == rank).then_some(node),
        }
    }

    /// The member that the stage is rooted at.
    fn first(&self) -> u32 {
        match self.node {
            Some(node) => self.member(self.nodes.leader(node, self.root)).unwrap_or(0),
            None => self.nodes.of(self.root),
        }
    }

    /// The shape of a member in the stage.
    fn shape(&self, kind: Kind, outer: &Shape, member: u32) -> Shape {
        let blocks = Blocks::Even(outer.len);
        let (sends, recvs) = (blocks.clone(), blocks);
        let root = self.first();
        Shape { kind, rank: member, ranks: self.size(), root, sends, recvs, nodes: None, ..outer.clone() }
    }
}

impl Stage {
    fn members<'a>(&self, nodes: &'a Nodes, shape: &Shape, rank: u32) -> Members<'a> {
        let node = (self.group == StageGroup::Node).then(|| nodes.of(rank));
        Members { nodes, root: shape.root, node }
    }

    /// The shape of this rank in the stage; `None` if it has no part in it.
    fn shape(&self, nodes: &Nodes, shape: &Shape) -> Option<Shape> {
        let members = self.members(nodes, shape, shape.rank);
        Some(members.shape(self.row.kind, shape, members.member(shape.rank)?))
    }

    /// Rounds of the stage: as many as the largest of its groups needs.
    fn rounds(&self, nodes: &Nodes, shape: &Shape) -> u32 {
        let rounds = |node: u32| {
            let members = self.members(nodes, shape, nodes.ranks(node)[0]);
            (self.row.rounds)(&members.shape(self.row.kind, shape, 0))
        };
        (0..nodes.number()).map(rounds).max().unwrap_or(0)
    }

    /// Units of Temp that it needs for itself.
    fn temp(&self, nodes: &Nodes, shape: &Shape) -> u64 {
        self.shape(nodes, shape).map_or(0, |inner| (self.row.temp)(&inner))
    }

    /// Adds its round `index` to those steps that there are.
    fn round(&self, nodes: &Nodes, shape: &Shape, index: u32, held: u64, round: &mut Round) {
        let members = self.members(nodes, shape, shape.rank);
        let Some(inner) = self.shape(nodes, shape).filter(|inner| index < (self.row.rounds)(inner)) else {
            return;
        };
        let bound = |span: Span| {
            let place = match span.buf {
                Buf::Send => self.bind[0],
                Buf::Recv => self.bind[1],
                _ => return span,
            };
            match place {
                StageBuf::Send => Span { buf: Buf::Send, ..span },
                StageBuf::Recv => Span { buf: Buf::Recv, ..span },
                StageBuf::Held => Span { buf: Buf::Temp, at: held + span.at, ..span },
            }
        };
        round.add_inner((self.row, &inner), index, |member| members.rank(member), bound);
    }

    /// What it costs in the largest of its groups: the case there, and where its ranks are.
    fn part(&self, case: &Case, topology: &Topology) -> (Case, Topology) {
        let (ranks, nodes) = match self.group {
            StageGroup::Node => (topology.per_node, 1),
            StageGroup::Leaders => (topology.nodes, topology.nodes),
        };
        let per_node = ranks.div_ceil(nodes);
        let inner = Topology { ranks, nodes, per_node, cores: topology.cores, shared: None };
        (Case { ranks, ..*case }, inner)
    }
}

impl Algorithm {
    /// Number of rounds, alike at all ranks.
    pub fn rounds(&self, shape: &Shape) -> u32 {
        match &shape.nodes {
            Some(nodes) if !self.stages.is_empty() => {
                self.stages.iter().map(|stage| stage.rounds(nodes, shape)).sum()
            }
            _ => (self.rounds)(shape),
        }
    }

    /// Units of Temp that this rank needs.
    pub fn temp(&self, shape: &Shape) -> u64 {
        match &shape.nodes {
            Some(nodes) if !self.stages.is_empty() => {
                let holds = self.stages.iter().any(|stage| stage.bind.contains(&StageBuf::Held));
                self.held(nodes, shape) + if holds { shape.len } else { 0 }
            }
            _ => (self.temp)(shape),
        }
    }

    /// Makes one round, by its number.
    pub fn round(&self, shape: &Shape, index: u32, round: &mut Round) {
        let Some(nodes) = shape.nodes.as_deref().filter(|_| !self.stages.is_empty()) else {
            return (self.round)(shape, index, round);
        };
        let mut left = index;
        for stage in self.stages {
            let rounds = stage.rounds(nodes, shape);
            if left < rounds {
                return stage.round(nodes, shape, left, self.held(nodes, shape), round);
            }
            left -= rounds;
        }
    }

    /// Where in Temp the vector of the composition's own is.
    fn held(&self, nodes: &Nodes, shape: &Shape) -> u64 {
        self.stages.iter().map(|stage| stage.temp(nodes, shape)).max().unwrap_or(0)
    }

    /// The stages with the case and the topology of each.
    pub(crate) fn parts(
        &self,
        case: &Case,
        topology: &Topology,
    ) -> impl Iterator<Item = (&'static Algorithm, Case, Topology)> {
        self.stages.iter().map(|stage| {
            let (case, topology) = stage.part(case, topology);
            (stage.row, case, topology)
        })
    }
}
