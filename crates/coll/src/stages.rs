//! Compositions: a collective on nodes of several ranks as [`Stage`]s, each a collective among a group of the ranks: those of a
//! node, or the leaders of all nodes. A [`Composition`] is what becomes of the stages at one rank, with an algorithm for each.
//! Groups that choose their algorithm on what they alone know (the shared buffers of their node) need not choose alike.
//!
//! Long data go in chunks. While a chunk is in one stage, the chunk after it is in the stage before: what a rank does among the
//! ranks of its node and what it does among the leaders are two *lanes*, each of which carries out one [`Part`] after the other.
//! A part waits for the other lane only until its chunk has been through the stages before there. Executor, verifier and
//! simulator carry out the rounds of both lanes side by side.

use std::sync::Arc;

use crate::algorithms::nodes::SPREAD;
use crate::lanes::Lanes;
use crate::sections::SharedUse;
use crate::{
    Algorithm, Blocks, Buf, Case, Groups, Kind, Needs, Nodes, Order, Round, Shape, Span, Topology, Tuning,
};

/// One collective of a composition.
#[derive(PartialEq, Eq, Debug)]
pub struct Stage {
    /// What the group does.
    pub kind: Kind,
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
    /// Each rank by itself, or the root alone if there is one: it brings the blocks of all ranks into this order.
    Alone(Order),
    /// Each leader by itself: it brings blocks into this order.
    Leader(Order),
}

/// A buffer of a composition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageBuf {
    /// What this rank gives.
    Send,
    /// What this rank gets.
    Recv,
    /// Memory of the composition's own for all data: a vector, or the blocks of all ranks in the order of nodes. A rank has the
    /// part of it that its stages touch.
    Held,
    /// The part of it with the blocks of this rank's node.
    HeldHere,
    /// Other memory of the composition's own.
    Aside,
}

/// A composition at one rank, with the algorithms that its groups have chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Composition {
    nodes: Arc<Nodes>,
    root: u32,
    /// The node of this rank.
    here: u32,
    /// Part by part as they begin; those of a lane one after the other.
    parts: Vec<Part>,
    /// Of both lanes.
    rounds: u32,
    /// By [`StageBuf`], where it begins; that is before the buffer if a rank has only a later part.
    bufs: [(Buf, u64); 5],
    temp: u64,
}

/// A chunk of a stage that this rank has a part in.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    stage: &'static Stage,
    /// The algorithm of the group.
    row: &'static Algorithm,
    /// The shape of this rank in it.
    shape: Shape,
    /// What tells its messages from those of other parts; alike in the whole group.
    number: u32,
    /// The round of its lane in which it begins, and how many it has.
    first: u32,
    rounds: u32,
    /// It begins when so many rounds of the other lane are over.
    after: u32,
    /// Which of the composition's uses of the shared buffers its own is, if there is one.
    window: u32,
    /// First unit of the chunk.
    at: u64,
    /// Where in Temp its own is.
    temp_at: u64,
}

impl StageGroup {
    /// Parts of one lane follow each other.
    pub(crate) fn lane(self) -> usize {
        usize::from(self == StageGroup::Leaders)
    }
}

impl Stage {
    /// What the stage moves in a collective of this kind: how many blocks of a rank (vectors, where it has no blocks) a member of
    /// the group gives or gets that stands for `members` ranks, on a node with `here` of all `ranks`.
    fn amount(&self, of: Kind, (ranks, here): (u32, u32), members: u32) -> u64 {
        let [ranks, here, members] = [ranks, here, members].map(u64::from);
        match (self.group, of) {
            _ if !of.has_blocks() => 1,
            _ if !self.kind.has_blocks() => ranks,
            (StageGroup::Alone(_) | StageGroup::Leader(_), _) => 1,
            // A rank has a block for each other one.
            (StageGroup::Node, Kind::Alltoall) => ranks,
            (StageGroup::Leaders, Kind::Alltoall) => members * here,
            (StageGroup::Node | StageGroup::Leaders, _) => members,
        }
    }

    /// What a rank does in it that has no other ranks to do it with.
    fn local(&self) -> Option<&'static Algorithm> {
        matches!(self.group, StageGroup::Alone(_) | StageGroup::Leader(_)).then_some(&SPREAD)
    }

    /// The shape of this rank in the stage, before what its topology says; `None` if it has no part.
    fn shape(&self, outer: &Shape, nodes: &Nodes) -> Option<Shape> {
        let size = |node: u32| nodes.ranks(node).count();
        let node = nodes.of(outer.rank);
        let (leader, here) = (nodes.leader(node, outer.root), (outer.ranks, size(node)));
        let units = |members: u32| self.amount(outer.kind, here, members) * outer.len;
        let (is_leader, is_root) = (leader == outer.rank, !outer.kind.rooted() || outer.rank == outer.root);
        let even = || [Blocks::Even(units(1)), Blocks::Even(units(1))];
        let by_itself = |order: Order| {
            let blocks = order.blocks(here);
            let from = order.of(nodes, here).into_iter().chain([blocks.into()]);
            let starts = from.map(|block| block * units(1)).collect();
            (0, blocks, 0, [Blocks::Starts(starts), Blocks::Even(units(1))])
        };
        let (rank, ranks, root, [sends, recvs]) = match self.group {
            StageGroup::Node => (nodes.index(outer.rank), here.1, nodes.index(leader), even()),
            StageGroup::Leaders if is_leader => {
                let each = Blocks::from_lens((0..nodes.number()).map(|node| units(size(node))));
                (node, nodes.number(), nodes.of(outer.root), [each.clone(), each])
            }
            StageGroup::Leader(order) if is_leader => by_itself(order),
            StageGroup::Alone(order) if is_root => by_itself(order),
            StageGroup::Leaders | StageGroup::Leader(_) | StageGroup::Alone(_) => return None,
        };
        let len = if self.kind.has_blocks() { recvs.block(rank).1 } else { units(1) };
        let ring = outer.ring.as_ref().and_then(|ring| match self.group {
            StageGroup::Node => ring.of(ranks, |of| (nodes.of(of) == node).then(|| nodes.index(of))),
            StageGroup::Leaders => ring.of(ranks, |of| Some(nodes.of(of))),
            StageGroup::Alone(_) | StageGroup::Leader(_) => None,
        });
        let (kind, &Shape { commutative, unit, .. }) = (self.kind, outer);
        Some(Shape { kind, rank, ranks, root, len, sends, recvs, commutative, unit, ring, ..Shape::NOTHING })
    }

    /// What it costs in the largest of its groups: the case there, and where its ranks are.
    pub(crate) fn part(&self, row: &Algorithm, case: &Case, topology: &Topology) -> (Case, Topology) {
        let (all, Groups { number: nodes, largest: per_node }) = (topology.ranks, topology.groups());
        let (ranks, members, inner) = match self.group {
            StageGroup::Node => (per_node, 1, topology.members()),
            // The largest block keeps all waiting that pass it on, or wait for its sum.
            StageGroup::Leaders if self.kind == Kind::Allgatherv || self.kind.scatters_result() => {
                (nodes, per_node, topology.leaders())
            }
            // The leader that has most to do is that of the largest node, with the blocks of all others.
            StageGroup::Leaders => (nodes, (all - per_node).div_ceil(nodes.max(2) - 1), topology.leaders()),
            StageGroup::Alone(order) | StageGroup::Leader(order) => {
                (order.blocks((all, per_node)), 1, topology.leaders())
            }
        };
        let block = if row.kind.scatters_result() { case.bytes / f64::from(all) } else { case.bytes };
        let bytes = block * self.amount(row.kind, (all, per_node), members) as f64;
        let bytes = if self.kind.scatters_result() { bytes * f64::from(nodes) } else { bytes };
        (Case { ranks, bytes, largest: bytes, ..*case }, inner)
    }
}

impl Part {
    fn shared_use(&self) -> SharedUse {
        SharedUse::of(self.row, &self.shape)
    }

    /// True if it has steps in this round of its lane.
    fn is_in(&self, lane: usize, round: u32) -> bool {
        self.stage.group.lane() == lane && (self.first..self.first + self.rounds).contains(&round)
    }
}

impl Composition {
    /// The composition of `row` at the rank of this shape, in so many chunks. For each stage that the rank has a part in `choose`
    /// completes the shape by what is known of the group, and chooses the algorithm for all chunks. If that is a composition
    /// again, `compose` makes what becomes of each chunk.
    pub(crate) fn new(
        row: &'static Algorithm,
        outer: &Shape,
        nodes: &Arc<Nodes>,
        chunks: u64,
        choose: &mut dyn FnMut(&Stage, &mut Shape) -> &'static Algorithm,
        compose: &dyn Fn(&'static Algorithm, &Shape) -> Option<Arc<Composition>>,
    ) -> Composition {
        let chosen = row.stages.iter().map(|stage| {
            let mut whole = stage.shape(outer, nodes)?;
            Some((stage.local().unwrap_or_else(|| choose(stage, &mut whole)), whole))
        });
        let chosen: Vec<_> = chosen.collect();
        // By lane, the rounds so far: of all parts, and of those that each chunk has been through.
        let (mut rounds, mut through) = ([0; 2], vec![[0; 2]; chunks as usize]);
        let mut parts = vec![];
        let cut = |chunk: u64| (u128::from(outer.len) * u128::from(chunk) / u128::from(chunks)) as u64;
        for slot in 0..chunks + row.stages.len() as u64 - 1 {
            for ((stage, chosen), index) in row.stages.iter().zip(&chosen).zip(0..) {
                let (Some((row, whole)), Some(chunk)) = (chosen, slot.checked_sub(index)) else { continue };
                if chunk >= chunks {
                    continue;
                }
                let (row, at): (&Algorithm, _) = (row, cut(chunk));
                let mut shape = whole.clone();
                if chunks > 1 {
                    shape.len = cut(chunk + 1) - at;
                }
                if !row.stages.is_empty() {
                    shape.composition = compose(row, &shape);
                }
                let (lane, through) = (stage.group.lane(), &mut through[chunk as usize]);
                let (first, after) = (rounds[lane], through[1 - lane]);
                let (number, own) = ((index * chunks + chunk) as u32, row.rounds(&shape));
                rounds[lane] += own;
                through[lane] = rounds[lane];
                parts.push(Part {
                    stage,
                    row,
                    number,
                    first,
                    rounds: own,
                    after,
                    window: 0,
                    at,
                    temp_at: 0,
                    shape,
                });
            }
        }
        let (nodes, here, rounds) = (nodes.clone(), nodes.of(outer.rank), rounds[0] + rounds[1]);
        let here_at = if row.kind.has_blocks() { nodes.start(here) * outer.len } else { 0 };
        let bufs = [(Buf::Send, 0), (Buf::Recv, 0), (Buf::Temp, 0), (Buf::Temp, here_at), (Buf::Temp, 0)];
        let mut made = Composition { nodes, root: outer.root, here, parts, rounds, bufs, temp: 0 };
        made.place();
        made
    }

    /// Gives the parts, and what the composition holds of its data, their places in Temp, and numbers the parts' uses of shared
    /// buffers.
    fn place(&mut self) {
        let (mut temps, mut windows) = ([0; 2], 0);
        for part in &mut self.parts {
            let temp = &mut temps[part.stage.group.lane()];
            *temp = part.row.temp(&part.shape).max(*temp);
            part.window = windows;
            windows += u32::from(part.row.needs != Needs::Messages);
        }
        for part in &mut self.parts {
            part.temp_at = if part.stage.group.lane() == 0 { 0 } else { temps[0] };
        }
        self.temp = temps[0] + temps[1];
        // Blocks in the order of nodes that is the order of ranks may as well be in the user's buffer.
        let in_order = self.nodes.are_in_order();
        let at_home = self.parts.iter().find_map(|part| match (part.stage.group, part.stage.bind) {
            (StageGroup::Alone(_), [StageBuf::Held, home] | [home, StageBuf::Held]) if in_order => Some(home),
            _ => None,
        });
        for held in [&[StageBuf::Held, StageBuf::HeldHere][..], &[StageBuf::Aside]] {
            let touched = self.parts.iter().flat_map(|part| {
                let spans = part.stage.bind.into_iter().zip(part.shape.extents());
                let spans = spans.filter(|(buf, units)| held.contains(buf) && *units > 0);
                spans.map(|(buf, units)| (self.bufs[buf as usize].1 + part.at, units))
            });
            let (first, end) =
                touched.fold((u64::MAX, 0), |(first, end), (at, units)| (first.min(at), end.max(at + units)));
            let (buf, at) = match at_home.filter(|_| held.contains(&StageBuf::Held)) {
                Some(home) => self.bufs[home as usize],
                None if end == 0 => continue,
                None => {
                    self.temp += end - first;
                    (Buf::Temp, self.temp.wrapping_sub(end))
                }
            };
            for &held in held {
                let place = &mut self.bufs[held as usize];
                *place = (buf, at.wrapping_add(place.1));
            }
        }
    }

    /// The lane that can begin its next round, and after how many rounds of the other lane that comes; `None` if there is none
    /// now, or, if nothing is under way, no more at all.
    pub(crate) fn next(&self, lanes: &Lanes) -> Option<(usize, u32)> {
        let next = |lane: usize| {
            let part = self.parts.iter().find(|part| part.is_in(lane, lanes.next(lane)))?;
            lanes.may_begin(lane, part.after).then_some((lane, part.after))
        };
        next(0).or_else(|| next(1))
    }

    /// Adds the steps of a lane's next round to those under way of the other one, and says which of the uses of shared buffers
    /// they belong to, if to any.
    pub(crate) fn begin(&self, lane: usize, lanes: &mut Lanes, round: &mut Round) -> Option<u32> {
        if lanes.are_idle() {
            round.steps.clear();
        }
        let (index, mut window) = (lanes.next(lane), None);
        for part in self.parts.iter().filter(|part| part.is_in(lane, index)) {
            self.add(part, index - part.first, KEY_BITS, round);
            if part.row.needs != Needs::Messages {
                window = Some(part.window);
            }
        }
        lanes.begin(lane, round.steps.len());
        window
    }

    /// Adds the steps of a part's round. Their messages' keys have so many lowest bits of the part's own.
    fn add(&self, part: &Part, index: u32, bits: u32, round: &mut Round) {
        let bound = |span: Span| {
            let (buf, at) = match span.buf {
                Buf::Send => self.bufs[part.stage.bind[0] as usize],
                Buf::Recv => self.bufs[part.stage.bind[1] as usize],
                Buf::Temp => return Span { at: part.temp_at + span.at, ..span },
                Buf::SharedScratch => return span,
            };
            Span { buf, at: at.wrapping_add(part.at + span.at), len: span.len }
        };
        let rank = |member: u32| match part.stage.group {
            StageGroup::Leaders => self.nodes.leader(member, self.root),
            StageGroup::Node | StageGroup::Alone(_) | StageGroup::Leader(_) => self.local(member),
        };
        round.add_inner((part.row, &part.shape), (index, part.number << bits), rank, bound);
    }

    /// Adds the steps of a round where it is one stage of another composition: its parts one after the other.
    fn add_in_turn(&self, mut index: u32, round: &mut Round) {
        for part in &self.parts {
            match index.checked_sub(part.rounds) {
                Some(later) => index = later,
                None => {
                    return self.add(part, index, KEY_BITS - self.nodes.level() as u32 * STAGE_BITS, round);
                }
            }
        }
    }

    /// The rank of the communicator that a rank of this node's shared buffers is.
    pub(crate) fn local(&self, index: u32) -> u32 {
        self.nodes.ranks(self.here).at(index)
    }

    /// True if one of its parts goes over the shared scratch.
    pub(crate) fn on_scratch(&self) -> bool {
        self.parts.iter().any(|part| part.row.needs == Needs::SharedScratch)
    }
}

/// Bits of the keys of messages that are a part's own.
const KEY_BITS: u32 = 24;
/// How many of them at each level tell the stages of a composition within a stage apart.
const STAGE_BITS: u32 = 3;

/// Bytes that a chunk of a composition has at least.
const LEAST_CHUNK: f64 = 8192.0;
/// Logarithm of the most chunks, and 1.
const MOST_CHUNKS: u32 = 7;

impl Tuning {
    /// Seconds that a composition takes, in the number of chunks in which it is the quickest, and that number. The first chunk goes
    /// through all stages; each of the others is over when the busier lane has done its stages of one more chunk.
    pub(crate) fn pipelined(&self, row: &Algorithm, case: &Case, topology: &Topology) -> (f64, u64) {
        let most = if row.kind.has_blocks() { 1 } else { (case.bytes / LEAST_CHUNK) as u64 };
        let time = |chunks: u64| {
            let (mut first, mut lanes) = (0.0, [0.0; 2]);
            for stage in row.stages {
                let (case, topology) = stage.part(row, case, topology);
                let known = (!stage.kind.size_unknown(topology.ranks)).then_some(case);
                let row = stage.local().unwrap_or_else(|| self.choose(stage.kind, known, true, &topology));
                let part = |share: f64| {
                    let share = share / chunks as f64;
                    let case = Case { bytes: case.bytes * share, largest: case.largest * share, ..case };
                    self.predict(row, &case, &topology)
                };
                first += part(1.0);
                // A broadcast by messages sends the next chunk after this one without waiting for it to arrive.
                let flows = row.needs == Needs::Messages && row.stages.is_empty() && row.kind == Kind::Bcast;
                let alpha = self.model.links[topology.span()].alpha;
                let more = if flows { part(2.0) - part(1.0) + alpha } else { part(1.0) };
                lanes[stage.group.lane()] += more;
                // Messages within the node and between nodes are in each other's way at the leader.
                if row.needs == Needs::Messages && stage.group == StageGroup::Node && topology.ranks > 1 {
                    lanes[StageGroup::Leaders.lane()] += more;
                }
            }
            (first + (chunks - 1) as f64 * lanes[0].max(lanes[1]), chunks)
        };
        let numbers =
            (0..MOST_CHUNKS).map(|log| 1 << log).take_while(|&chunks| chunks == 1 || chunks <= most);
        numbers
            .map(time)
            .reduce(|best, other| if other.0 < best.0 { other } else { best })
            .unwrap_or_default()
    }

    /// The number of chunks in which a composition is the quickest.
    pub(crate) fn chunks(&self, row: &Algorithm, case: Option<Case>, topology: &Topology) -> u64 {
        case.map_or(1, |case| self.pipelined(row, &case, topology).1)
    }

    /// The composition of `row` at the rank of this shape, in so many chunks. Each group chooses its algorithms on what its members
    /// know alike: what the ranks `here` share, or that the leaders are on as many nodes. A stage among the ranks of a node may be
    /// a composition, too, if they are apart in turn.
    pub(crate) fn compose(
        &self,
        (row, chunks): (&'static Algorithm, u64),
        shape: &Shape,
        plain: bool,
        (nodes, topology, here): (&Arc<Nodes>, &Topology, &Topology),
    ) -> Composition {
        let leaders = topology.leaders();
        let mut choose = |stage: &Stage, inner: &mut Shape| {
            let topology = if stage.group == StageGroup::Leaders { &leaders } else { here };
            inner.on(topology, &self.model);
            self.choose(stage.kind, inner.case(plain), shape.commutative, topology)
        };
        let compose = |row, inner: &Shape| {
            let nodes = nodes.inner(shape.rank)?;
            let levels = (nodes, here, &here.within(nodes, inner.rank));
            Some(Arc::new(self.compose((row, 1), inner, plain, levels)))
        };
        Composition::new(row, shape, nodes, chunks, &mut choose, &compose)
    }
}

impl Algorithm {
    /// Number of rounds: alike at all ranks, but in a composition.
    pub fn rounds(&self, shape: &Shape) -> u32 {
        shape.composition.as_ref().map_or_else(|| (self.rounds)(shape), |composition| composition.rounds)
    }

    /// True if all ranks do the same, but for a shift: in a composition all leaders, and so all ranks with the same place on their
    /// nodes, if these have equally many in a row.
    pub fn rotates(&self, shape: &Shape) -> bool {
        let among_leaders = |part: &&Part| part.stage.group == StageGroup::Leaders;
        shape.composition.as_ref().map_or_else(
            || (self.rotates)(shape),
            |composition| {
                composition.parts.iter().filter(among_leaders).all(|part| (part.row.rotates)(&part.shape))
            },
        )
    }

    /// Adds the steps of a round.
    pub(crate) fn add_round(&self, shape: &Shape, index: u32, round: &mut Round) {
        match &shape.composition {
            Some(composition) => composition.add_in_turn(index, round),
            None => (self.round)(shape, index, round),
        }
    }

    /// Units of Temp that this rank needs.
    pub fn temp(&self, shape: &Shape) -> u64 {
        shape.composition.as_ref().map_or_else(|| (self.temp)(shape), |composition| composition.temp)
    }

    /// What it uses of the shared buffers, one after the other.
    pub(crate) fn shared_uses(&self, shape: &Shape, mut each: impl FnMut(SharedUse)) {
        match &shape.composition {
            Some(composition) => {
                let parts = composition.parts.iter().filter(|part| part.row.needs != Needs::Messages);
                parts.for_each(|part| each(part.shared_use()));
            }
            None => each(SharedUse::of(self, shape)),
        }
    }
}
