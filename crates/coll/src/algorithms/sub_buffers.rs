//! Algorithms over shared memory for collectives where not all ranks know all sizes. A rank's cell has a
//! sub-buffer for each rank that it gives something. Of a block that does not fit into its sub-buffer, as much as fits
//! goes through the pair's area of the shared scratch, and the rest by message; one that is so long that a message is quicker
//! ([`Shape::longest_copied`]) goes as one. Where there are more ranks than cores either goes by single copy between the two ranks' memory
//! instead ([`Direct`]), which all do at a time. Both ends of a pair know the size of their block, so each pair decides for itself; a pair without
//! data does nothing.

use std::ops::Range;

use super::gather::{linear_cost, linear_rounds};
use super::{WINDOW, alltoall, own};
use crate::shape::PAGE;
use crate::{
    Algorithm, Blocks, Buf, Case, Chunks, Cost, Form, Kind, Needs, Round, Shape, Span, Step, SubBuffer,
};

pub(crate) const ROWS: &[&Algorithm] = &[&GATHERV, &SCATTERV, &ALLTOALLV, &ALLTOALLW];

pub(crate) const GATHERV: Algorithm = Algorithm {
    kind: Kind::Gatherv,
    name: "cico",
    about: "all publish, the root copies, of large blocks first from the shared scratch, then by message, or by single copy: one node",
    needs: Needs::SubBuffers,
    phases: |_| 1,
    chunks: |shape| match area(shape) {
        0 => Chunks::NONE,
        // Halves are taken with less ado, and nobody gets far ahead.
        _ if !shape.crowded => Chunks::halves(1).rooted(shape, shape.kind == Kind::Scatterv),
        area => {
            let scatters = shape.kind == Kind::Scatterv;
            Chunks::new(shape, 1, room(shape)).rooted_blocks(shape, scatters, area)
        }
    },
    rounds,
    round: rooted,
    cost: |case: &Case| rooted_cost(case, SubBuffer::new(case.cell_bytes as u64, 0, 1), case.p() - 1.0),
    ..Algorithm::MESSAGES
};

pub(crate) const SCATTERV: Algorithm = Algorithm {
    kind: Kind::Scatterv,
    about: "the root publishes all blocks, each copies its own, of large ones first from the shared scratch, then by message, \
            or by single copy: one node",
    cost: |case: &Case| rooted_cost(case, one_of_many(case), 1.0 + case.p() / 8.0),
    ..GATHERV
};

pub(crate) const ALLTOALLV: Algorithm = Algorithm {
    kind: Kind::Alltoallv,
    about: "all publish all blocks, each copies its own, of large ones first from the shared scratch, then by message, or by single \
            copy: one node",
    chunks: |shape| match pair_area(shape) {
        0 => Chunks::NONE,
        _ if Chunks::ranks_tell(shape) => Chunks::exchanged(shape, shape.half()),
        area => Chunks::all_to_all(shape, area, false).unwrap_or(Chunks::NONE),
    },
    round: alltoallv,
    cost: |case: &Case| match one_of_many(case).holds(case.bytes as u64)
        || case.ranks == 2 && case.bytes <= case.longest_copied.min(LONGEST_SWAPPED as f64)
    {
        true => Cost { copied: 2.0 * case.p() * case.bytes, ..poll_cost(case) },
        false => with_polls(case, (alltoall::SPREAD.cost)(case)),
    },
    ..GATHERV
};

pub(crate) const ALLTOALLW: Algorithm = Algorithm { kind: Kind::Alltoallw, ..ALLTOALLV };

/// The cost of a rooted collective: what neither a sub-buffer nor the shared scratch holds goes by message.
fn rooted_cost(case: &Case, sub_buffer: SubBuffer, transfers: f64) -> Cost {
    let area = ROOM_BYTES / (case.p() - 1.0);
    let rest = match case.bytes {
        bytes if sub_buffer.holds(bytes as u64) => 0.0,
        bytes if bytes > case.longest_copied => bytes,
        bytes => (bytes - area).max(0.0),
    };
    let messages = if rest > 0.0 { linear_cost(&Case { bytes: rest, ..*case }) } else { Cost::default() };
    Cost { transfers, copied: (case.p() + 1.0) * (case.bytes - rest), waits: 1.0, ..messages }
}

/// Cost of one look at the CICO buffer of each other rank.
fn poll_cost(case: &Case) -> Cost {
    Cost { transfers: case.p() - 1.0, waits: 1.0, ..Cost::default() }
}

/// Cost of messages, with one look at the CICO buffer of each other rank.
fn with_polls(case: &Case, messages: Cost) -> Cost {
    Cost { transfers: case.p() - 1.0, ..messages }
}

/// A sub-buffer of a cell that has one for each other rank.
fn one_of_many(case: &Case) -> SubBuffer {
    SubBuffer::new(case.cell_bytes as u64, 0, case.ranks - 1)
}

/// Rounds: wait for reuse, pack, publish; then copy the own block and unpack, copy from the shared scratch, acknowledge, and wait until what
/// was offered is taken, while messages go in windows.
fn rounds(shape: &Shape) -> u32 {
    3 + linear_rounds(shape).max(4)
}

/// How blocks go between two ranks' memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direct {
    /// The root offers where they belong, and the others put them there.
    Put,
    /// Who gives them offers them, and the others take them.
    Take,
}

impl Direct {
    /// How long blocks go, if they do not go by message. With a core for each rank a message learns the way that is best for it.
    fn of(shape: &Shape) -> Option<Direct> {
        let direct = if shape.kind == Kind::Gatherv { Direct::Put } else { Direct::Take };
        let may = shape.crowded && shape.single_copy && one_for_each(shape, 1).holds_offer();
        may.then_some(direct)
    }
}

/// The sub-buffer of a distance in a cell that has one for each.
pub(super) fn one_for_each(shape: &Shape, distance: u32) -> SubBuffer {
    SubBuffer::new(shape.cell_bytes, distance - 1, shape.ranks - 1)
}

/// Units of the shared scratch for each pair with the root.
fn area(shape: &Shape) -> u64 {
    shape.round_down((room(shape) / u64::from(shape.ranks - 1).max(1)).min(shape.longest_copied))
}

/// About the bytes of [`room`], for costs.
const ROOM_BYTES: f64 = (2 << 20) as f64;

/// The most bytes of a block that two ranks with a core each exchange over the shared scratch: with 32 KiB a Xeon (model 85) gains half, an
/// EPYC whose cores share no cache gains a third with 16 KiB and loses half with 64. Longer messages find the way that is best for them
/// (`p2p::ways`), which counts where one rank has more to give than the other, and so writes more than it has read.
const LONGEST_SWAPPED: u64 = 1 << 15;

/// Units of the shared scratch for each pair where all ranks exchange: an odd number of pages, as areas a power of two
/// apart would share few sets of a cache. With a core for each rank two ranks have a half each, and swap them from call to call; more
/// ranks have none: they send messages.
fn pair_area(shape: &Shape) -> u64 {
    if Chunks::ranks_tell(shape) {
        return shape.half();
    }
    let pairs = u64::from(shape.ranks) * u64::from(shape.ranks - 1);
    let area = shape.round_down(shape.half() / pairs.max(1));
    match shape.crowded {
        false => 0,
        true if area > PAGE && area.is_multiple_of(2 * PAGE) => area - PAGE,
        true => area,
    }
}

/// Sections of the shared scratch that a rooted collective takes.
const ROOM_SECTIONS: u64 = 32;

/// Units of the shared scratch for all pairs with the root: less than half of it, so that a root which waits for nobody
/// may be some calls ahead.
fn room(shape: &Shape) -> u64 {
    match ROOM_SECTIONS * shape.section() {
        0 => shape.half(),
        units => units,
    }
}

/// Blocks go to the root, or come from it in a scatterv.
fn rooted(shape: &Shape, index: u32, round: &mut Round) {
    let (me, root, scatters) = (shape.relative(), shape.root, shape.kind == Kind::Scatterv);
    let block = |buf: Buf, blocks: &Blocks, distance: u32| match (me, shape.after(root, distance)) {
        (0, other) => (other, Span::new(buf, blocks.block(other))),
        _ => (root, shape.whole(buf)),
    };
    let gives = |distance| ((me == 0) == scatters).then(|| block(Buf::Send, &shape.sends, distance));
    let gets = |distance| ((me == 0) != scatters).then(|| block(Buf::Recv, &shape.recvs, distance));
    let exchange = PairExchange {
        sub_buffers: if scatters { shape.ranks - 1 } else { 1 },
        direct: Direct::of(shape),
        area: area(shape),
        longest: shape.longest_copied,
        writer_stride: 0,
        by_reader: false,
        chunk: 0,
        distances: if me == 0 { 1..shape.ranks } else { me..me + 1 },
    };
    exchange.round(shape, index, (gives, gets), round);
}

fn alltoallv(shape: &Shape, index: u32, round: &mut Round) {
    let gives = |distance| {
        let to = shape.after(shape.rank, distance);
        Some((to, Span::new(Buf::Send, shape.sends.block(to))))
    };
    let gets = |distance| {
        let from = shape.before(shape.rank, distance);
        Some((from, Span::new(Buf::Recv, shape.recvs.block(from))))
    };
    let (area, others) = (pair_area(shape), shape.ranks - 1);
    let swaps = Chunks::ranks_tell(shape);
    // Both ranks know both blocks, so these go one way.
    let longer = gives(1).into_iter().chain(gets(1)).map(|(_, block)| block.len).max().unwrap_or(0);
    let by_message = swaps && longer > LONGEST_SWAPPED / shape.unit.max(1);
    let exchange = PairExchange {
        sub_buffers: others,
        direct: Direct::of(shape),
        area,
        longest: if by_message { 0 } else { shape.longest_copied },
        writer_stride: area * u64::from(if swaps { others } else { shape.ranks }),
        by_reader: !swaps,
        chunk: if swaps { shape.rank } else { 0 },
        distances: 1..shape.ranks,
    };
    exchange.round(shape, index, (gives, gets), round);
}

/// Blocks that go from rank to rank. Each is named by a distance: how far the receiver is behind the sender, or, in a
/// rooted collective, the other rank behind the root.
struct PairExchange {
    /// The number of sub-buffers of a cell.
    sub_buffers: u32,
    /// How blocks go that do not go over the shared scratch as a whole, if not by message.
    direct: Option<Direct>,
    /// Units of the shared scratch for each distance.
    area: u64,
    /// Units of the longest block that goes over it.
    longest: u64,
    /// Units from the areas of one writer to those of the next one; 0 where one rank of each pair is the root.
    writer_stride: u64,
    /// A writer's areas are in the order of their readers, and not of distances.
    by_reader: bool,
    /// The chunk that this rank writes in.
    chunk: u32,
    /// The distances that this rank gives or gets a block of.
    distances: Range<u32>,
}

impl PairExchange {
    fn round<E: Fn(u32) -> Option<(u32, Span)>, G: Fn(u32) -> Option<(u32, Span)>>(
        &self,
        shape: &Shape,
        index: u32,
        (gives, gets): (E, G),
        round: &mut Round,
    ) {
        let sub_buffer = |distance: u32| {
            SubBuffer::new(shape.cell_bytes, (distance - 1) % self.sub_buffers, self.sub_buffers)
        };
        let gives = |distance| gives(distance).filter(|(_, span)| span.len > 0);
        let gets = |distance| gets(distance).filter(|(_, span)| span.len > 0);
        let distances = self.distances.clone();
        match index {
            0 if distances
                .clone()
                .any(|distance| self.parts(gives(distance), sub_buffer(distance))[0].is_some()) =>
            {
                round.push(Step::WaitReuse { chunk: self.chunk });
            }
            0 => {}
            1 => {
                for distance in distances {
                    let offer = |range: Span, gives: bool, sub_buffer: SubBuffer| Step::Offer {
                        range,
                        gives,
                        phase: 0,
                        sub_buffer,
                    };
                    if let Some((_, into)) = self.directly(Direct::Put, gets(distance), sub_buffer(distance))
                    {
                        round.push(offer(into, false, one_for_each(shape, distance)));
                    }
                    if let Some((_, from)) =
                        self.directly(Direct::Take, gives(distance), sub_buffer(distance))
                    {
                        round.push(offer(from, true, sub_buffer(distance)));
                    }
                    let Some((_, from)) = gives(distance).filter(|&(_, from)| {
                        let sub_buffer = sub_buffer(distance);
                        !self.alone(from, sub_buffer) && !self.goes_directly(from, sub_buffer)
                    }) else {
                        continue;
                    };
                    round.push(Step::Pack { from, phase: 0, sub_buffer: sub_buffer(distance) });
                    if let Some((_, from)) = self.parts(gives(distance), sub_buffer(distance))[0] {
                        round.copy(from, self.on_scratch(shape, (shape.rank, distance), from.len));
                    }
                }
            }
            2 => {
                let blocks = || distances.clone().filter_map(|distance| Some((distance, gives(distance)?.1)));
                let alone = blocks().find(|&(distance, block)| self.alone(block, sub_buffer(distance)));
                let offers = distances
                    .clone()
                    .any(|at| self.directly(Direct::Put, gets(at), sub_buffer(at)).is_some());
                let nothing = Span::new(Buf::Send, (0, 0));
                let (from, form) = match alone {
                    Some((_, block)) => (block, Form::Inline),
                    None if blocks().next().is_some() || offers => (nothing, Form::Packed),
                    // Who puts a block finds that there is no place for it.
                    None => (nothing, Form::Inline),
                };
                // Who puts its block publishes when it is there, and looks whether the root has offered it a place.
                let puts = blocks().any(|(distance, block)| {
                    self.directly(Direct::Put, Some((0, block)), sub_buffer(distance)).is_some()
                });
                let is_root = self.direct == Some(Direct::Put) && shape.rank == shape.root;
                if is_root && shape.ranks > 1 || blocks().next().is_some() && !puts {
                    round.push(Step::Publish { from, phase: 0, form });
                }
            }
            _ => {
                let window = index - 3;
                for distance in distances.clone().filter(|distance| (distance - 1) / WINDOW == window) {
                    if let Some((from, into)) = self.parts(gets(distance), sub_buffer(distance))[1] {
                        round.recv(from, into);
                    }
                    if let Some((to, from)) = self.parts(gives(distance), sub_buffer(distance))[1] {
                        round.send(to, from);
                    }
                }
                if window == 0 {
                    // The other ends have all they need for their part meanwhile.
                    own(shape, round);
                }
                for distance in distances {
                    if let (0, Some((rank, from))) =
                        (window, self.directly(Direct::Put, gives(distance), sub_buffer(distance)))
                    {
                        let sub_buffer = one_for_each(shape, distance);
                        round.push(Step::Put { rank, phase: 0, sub_buffer, from });
                    }
                    if let (3, Some((rank, _))) =
                        (window, self.directly(Direct::Take, gives(distance), sub_buffer(distance)))
                    {
                        round.push(Step::WaitAck { rank, phase: 0 });
                    }
                    let (block, sub_buffer) = (gets(distance), sub_buffer(distance));
                    if let Some((rank, into)) =
                        block.filter(|&(_, block)| self.goes_directly(block, sub_buffer))
                    {
                        match self.direct {
                            _ if window > 0 => {}
                            Some(Direct::Put) => round.push(Step::AwaitPut { rank, phase: 0, into }),
                            _ => round.push(Step::Take { rank, phase: 0, sub_buffer, into }),
                        }
                        continue;
                    }
                    match (window, block, self.parts(block, sub_buffer)[0]) {
                        (0, Some((rank, into)), _) => {
                            let sub_buffer = (!self.alone(into, sub_buffer)).then_some(sub_buffer);
                            round.push(Step::Unpack { rank, phase: 0, sub_buffer, into });
                        }
                        (1, _, Some((rank, into))) => {
                            round.copy(self.on_scratch(shape, (rank, distance), into.len), into)
                        }
                        _ => {}
                    }
                }
                if window == 2 {
                    round.push(Step::Ack { phase: 0 });
                }
            }
        }
    }

    /// True if a block is all that its owner publishes, so that it needs no sub-buffer: who gives one block alone gives it as in
    /// a gather. A block that does not fit has a sub-buffer for its length.
    fn alone(&self, block: Span, sub_buffer: SubBuffer) -> bool {
        self.sub_buffers == 1 && sub_buffer.holds(block.len)
    }

    /// True if a block goes from one rank's memory to the other's: one that is not whole on the shared scratch.
    fn goes_directly(&self, block: Span, sub_buffer: SubBuffer) -> bool {
        self.direct.is_some() && !sub_buffer.holds(block.len) && block.len > self.longest.min(self.area)
    }

    /// The block, if it goes in this way.
    fn directly(
        &self,
        direct: Direct,
        end: Option<(u32, Span)>,
        sub_buffer: SubBuffer,
    ) -> Option<(u32, Span)> {
        let same = self.direct == Some(direct);
        end.filter(|&(_, block)| same && self.goes_directly(block, sub_buffer))
    }

    /// The parts of a block that does not fit into its sub-buffer: the one that goes over the shared scratch, and the
    /// one that goes by message.
    fn parts(&self, end: Option<(u32, Span)>, sub_buffer: SubBuffer) -> [Option<(u32, Span)>; 2] {
        let Some((rank, block)) =
            end.filter(|&(_, block)| !sub_buffer.holds(block.len) && !self.goes_directly(block, sub_buffer))
        else {
            return [None; 2];
        };
        let first = if block.len > self.longest { 0 } else { block.len.min(self.area) };
        let part = |at: u64, len: u64| (len > 0).then_some((rank, Span { at: block.at + at, len, ..block }));
        [part(0, first), part(first, block.len - first)]
    }

    /// The area of a writer's block of this distance.
    fn on_scratch(&self, shape: &Shape, (writer, distance): (u32, u32), len: u64) -> Span {
        let place = if self.by_reader { shape.after(writer, distance) } else { distance - 1 };
        let at = u64::from(writer) * self.writer_stride + u64::from(place) * self.area;
        Span::new(Buf::SharedScratch, (at, len))
    }
}
