//! [`CompiledPlan`]: all rounds of a schedule as one flat list of steps, on bytes where they lie in memory. It is kept for the
//! next call that has an equal plan key.

use crate::ledger::{About, Used};
use crate::sections::Cut;
use crate::{
    Algorithm, Blocks, Buf, Chunks, Form, Kind, Merge, Needs, Operand, Round, Shape, Side, Span, Step,
    SubBuffer, Topology,
};

/// All in which the shapes of two contiguous calls of one kind can differ at this rank, if all their blocks are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey {
    pub(super) root: u32,
    pub(super) commutative: bool,
    pub(super) unit: u64,
    pub(super) len: u64,
}

impl PlanKey {
    /// How many compiled plans of a kind are kept: programs alternate between some roots and sizes.
    pub(crate) const CACHED: usize = 16;

    /// The cache entry for its compiled plan, in which there may be the plan of another key.
    #[inline(always)]
    pub(crate) fn cache_index(&self) -> usize {
        (self.root as usize + self.len as usize) % Self::CACHED
    }

    /// Bytes of this rank's vector or block: the rank publishes no less.
    #[inline(always)]
    pub(crate) fn block(&self) -> u64 {
        self.unit * self.len
    }
}

/// Blocks that are not alike, on the send or the receive side: bytes of an element and, by rank, how many elements a block has
/// and how many elements from the address it starts. Without displacements the blocks follow each other.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Layout<'a> {
    unit: u64,
    counts: &'a [u64],
    displs: &'a [i64],
}

impl<'a> Layout<'a> {
    /// The layout of an operand; empty if its blocks are alike.
    #[inline]
    pub(super) fn of(memory: &'a Operand) -> Layout<'a> {
        match memory {
            Operand::Vector { counts, displs, ty, .. } => Layout { unit: ty.size(), counts, displs },
            _ => Layout::default(),
        }
    }

    /// True if both are equal. Compared by a loop: a masked load of no bytes at no address, as in `memcmp` of empty lists, takes
    /// 0.2 us.
    #[inline]
    fn equals(&self, other: &Layout<'_>) -> bool {
        self.unit == other.unit
            && (self.counts.len(), self.displs.len()) == (other.counts.len(), other.displs.len())
            && self.counts.iter().zip(other.counts).all(|(count, theirs)| count == theirs)
            && self.displs.iter().zip(other.displs).all(|(displ, theirs)| displ == theirs)
    }

    /// The bytes of a block.
    #[inline]
    pub(super) fn block(&self, rank: u32) -> Option<Piece> {
        let rank = rank as usize;
        let count = *self.counts.get(rank)?;
        let before = || i64::try_from(self.counts[..rank].iter().sum::<u64>()).ok();
        let displ = self.displs.get(rank).copied().or_else(before)?;
        let bytes = |elements: u64| u32::try_from(elements.checked_mul(self.unit)?).ok();
        let at = if count == 0 { 0 } else { bytes(u64::try_from(displ).ok()?)? };
        Some(Piece { at, len: bytes(count)? })
    }

    /// Bytes of the largest block.
    #[inline]
    pub(super) fn largest(&self) -> u64 {
        self.counts.iter().max().copied().unwrap_or(0).saturating_mul(self.unit)
    }

    fn blocks(&self) -> Blocks {
        Blocks::from_lens(self.counts.iter().map(|count| count * self.unit))
    }
}

/// A [`Layout`] that owns its lists.
#[derive(Debug)]
struct OwnedLayout {
    unit: u64,
    counts: Box<[u64]>,
    displs: Box<[i64]>,
}

impl OwnedLayout {
    fn new(Layout { unit, counts, displs }: Layout) -> OwnedLayout {
        OwnedLayout { unit, counts: counts.into(), displs: displs.into() }
    }

    #[inline]
    fn layout(&self) -> Layout<'_> {
        Layout { unit: self.unit, counts: &self.counts, displs: &self.displs }
    }
}

/// A [`Step`] on bytes of the send and the receive buffer; only those that schedules through CICO buffers or over the shared
/// scratch need.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlanStep {
    Publish { phase: u32, from: Piece },
    Pack { phase: u32, sub_buffer: Piece, from: Piece },
    PublishPacked { phase: u32 },
    Await { rank: u32, phase: u32 },
    Get { rank: u32, phase: u32, at: u32, into: Piece },
    Unpack { rank: u32, phase: u32, sub_buffer: Piece, into: Piece },
    GetReduce { rank: u32, phase: u32, at: u32, into: Piece },
    Copy { from: Spot, into: Spot },
    Reduce { from: Spot, into: Spot },
    Ack { phase: u32 },
    WaitAck { rank: u32, phase: u32 },
    WaitReuse { chunk: u32 },
}

/// Bytes of the send or the receive buffer; or a sub-buffer, whose room is `len`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: u32,
    pub(super) len: u32,
}

impl From<Piece> for SubBuffer {
    #[inline]
    fn from(Piece { at, len }: Piece) -> SubBuffer {
        SubBuffer { at: u64::from(at), room: u64::from(len) }
    }
}

/// Bytes of the send buffer, the receive buffer, or the shared scratch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) buf: Buf,
    pub(super) piece: Piece,
}

/// The steps of a whole schedule for one plan key.
#[derive(Debug)]
pub(crate) struct CompiledPlan {
    pub(crate) plan_key: PlanKey,
    /// Tells it from other plans that were in its cache entry before.
    pub(crate) generation: u64,
    /// The layouts of what the rank sends and receives, if blocks may differ.
    layouts: Option<Box<[OwnedLayout; 2]>>,
    /// The algorithm that was chosen.
    pub(crate) algorithm: &'static Algorithm,
    pub(crate) phases: u32,
    pub(crate) chunks: Chunks,
    /// What such calls are about, without the operation.
    pub(crate) about: About,
    /// What such calls use.
    pub(crate) used: Used,
    /// How the shared scratch is cut, in bytes.
    pub(super) cut: Cut,
    /// `None` if the schedule has steps that no [`PlanStep`] does, has none at all, or is too long.
    pub(super) steps: Option<Vec<PlanStep>>,
}

impl CompiledPlan {
    /// Plans are compiled for up to so many ranks, as their length grows with the ranks (256 ranks: some KiB each; without one a
    /// barrier of 256 ranks takes 4 ms, with it 0.9).
    pub(crate) const RANKS: u32 = 256;

    /// Plans are compiled of up to so many rounds: longer schedules take so long that making them anew hardly counts.
    const ROUNDS: u32 = 512;

    pub(super) fn new(
        (plan_key, layouts): (PlanKey, Option<[Layout<'_>; 2]>),
        algorithm: &'static Algorithm,
        shape: &Shape,
    ) -> CompiledPlan {
        let fits = matches!(
            algorithm.needs,
            Needs::Inline | Needs::InlineBlocks | Needs::SubBuffers | Needs::SharedScratch
        );
        let rounds = if fits { (algorithm.rounds)(shape) } else { 0 };
        let compiler = Compiler { shape, layouts: layouts.filter(|_| !algorithm.kind.reduces()) };
        let (mut round, mut steps) = (Round::default(), vec![]);
        for index in (0..rounds).filter(|_| rounds <= CompiledPlan::ROUNDS) {
            round.begin(index);
            (algorithm.round)(shape, index, &mut round);
            steps.extend(round.steps.iter().map(|step| compiler.plan_step(step)));
        }
        let steps: Option<Vec<PlanStep>> = steps.into_iter().collect();
        let (phases, chunks) = ((algorithm.phases)(shape), (algorithm.chunks)(shape));
        let Cut { half, section } = shape.cut();
        let cut = Cut { half: half * shape.unit, section: section * shape.unit };
        let layouts = layouts.map(|layouts| Box::new(layouts.map(OwnedLayout::new)));
        let steps = steps.filter(|steps| !steps.is_empty());
        let about = About::of(algorithm.kind, shape);
        let used = Used::of(about, phases, chunks.number);
        CompiledPlan { plan_key, generation: 0, layouts, algorithm, phases, chunks, about, used, cut, steps }
    }

    /// True if the plan is for calls of this plan key with blocks of these layouts.
    #[inline]
    pub(super) fn serves(&self, plan_key: &PlanKey, layouts: Option<[Layout<'_>; 2]>) -> bool {
        self.plan_key == *plan_key
            && match (&self.layouts, layouts) {
                (None, None) => true,
                (Some(kept), Some(layouts)) => {
                    kept[0].layout().equals(&layouts[0]) && kept[1].layout().equals(&layouts[1])
                }
                _ => false,
            }
    }
}

/// The shape of a contiguous call.
pub(super) fn shape(
    kind: Kind,
    plan_key: &PlanKey,
    layouts: Option<[Layout<'_>; 2]>,
    rank: u32,
    topology: &Topology,
) -> Shape {
    let PlanKey { root, unit, len, commutative } = *plan_key;
    let even = Blocks::Even(len);
    let blocks = |layout: Layout<'_>| if layout.counts.is_empty() { even.clone() } else { layout.blocks() };
    let (sends, recvs) = match layouts {
        None => (even.clone(), even.clone()),
        // The counts of a reduce_scatter say how its send buffer is cut, in elements.
        Some([_, got]) if kind.reduces() => (Blocks::from_lens(got.counts.iter().copied()), even),
        Some([given, got]) => (blocks(given), blocks(got)),
    };
    let ranks = topology.ranks;
    let mut shape = Shape { rank, ranks, root, unit, len, sends, recvs, commutative, ..Shape::NOTHING };
    shape.on(topology);
    shape
}

/// Translates steps of a schedule to plan steps.
struct Compiler<'a> {
    shape: &'a Shape,
    layouts: Option<[Layout<'a>; 2]>,
}

impl Compiler<'_> {
    /// The plan step for a step, if there is one.
    fn plan_step(&self, step: &Step) -> Option<PlanStep> {
        let bytes = |units: u64| u32::try_from(units * self.shape.unit).ok();
        let sub_buffer = |SubBuffer { at, room }| {
            Some(Piece { at: u32::try_from(at).ok()?, len: u32::try_from(room).ok()? })
        };
        Some(match *step {
            // The root of a bcast publishes what others receive: there, both are one.
            Step::Publish { from, phase, form: Form::Inline } => {
                PlanStep::Publish { phase, from: self.piece(from)? }
            }
            Step::Publish { phase, form: Form::Packed, .. } => PlanStep::PublishPacked { phase },
            Step::Pack { from, phase, sub_buffer: p } => {
                PlanStep::Pack { phase, sub_buffer: sub_buffer(p)?, from: self.piece(from)? }
            }
            Step::Await { rank, phase } => PlanStep::Await { rank, phase },
            Step::Get { rank, phase, at, into } if into.buf == Buf::Recv => {
                PlanStep::Get { rank, phase, at: bytes(at)?, into: self.piece(into)? }
            }
            Step::Unpack { rank, phase, sub_buffer: p, into } => {
                PlanStep::Unpack { rank, phase, sub_buffer: sub_buffer(p)?, into: self.piece(into)? }
            }
            Step::GetReduce { rank, phase, at, merge: Merge { with, into, side: Side::Left } }
                if with == into && into.buf == Buf::Recv =>
            {
                PlanStep::GetReduce { rank, phase, at: bytes(at)?, into: self.piece(into)? }
            }
            Step::Copy { from, into } => PlanStep::Copy { from: self.spot(from)?, into: self.spot(into)? },
            Step::Reduce { from, into } => {
                PlanStep::Reduce { from: self.spot(from)?, into: self.spot(into)? }
            }
            Step::Ack { phase } => PlanStep::Ack { phase },
            Step::WaitAck { rank, phase } => PlanStep::WaitAck { rank, phase },
            Step::WaitReuse { chunk } => PlanStep::WaitReuse { chunk },
            _ => return None,
        })
    }

    /// Where a span lies in memory, if it is in one piece and not in Temp.
    fn spot(&self, span: Span) -> Option<Spot> {
        (span.buf != Buf::Temp).then_some(Spot { buf: span.buf, piece: self.piece(span)? })
    }

    /// Which bytes of its buffer a span is, if they are in one piece.
    fn piece(&self, span: Span) -> Option<Piece> {
        let bytes = |units: u64| u32::try_from(units * self.shape.unit).ok();
        let len = bytes(span.len)?;
        let (layout, blocks) = match (&self.layouts, span.buf) {
            (Some([given, _]), Buf::Send) => (given, &self.shape.sends),
            (Some([_, got]), Buf::Recv) => (got, &self.shape.recvs),
            _ => return Some(Piece { at: bytes(span.at)?, len }),
        };
        if layout.counts.is_empty() {
            return Some(Piece { at: bytes(span.at)?, len });
        }
        let Blocks::Starts(starts) = blocks else { return None };
        // Of several blocks that start at one unit all but the last are empty.
        let index = starts.partition_point(|&start| start <= span.at) - 1;
        if span.len == 0 {
            return Some(Piece { at: 0, len });
        }
        let block = layout.block(index as u32)?;
        let skip = u32::try_from(span.at - starts[index]).ok()?;
        (skip.checked_add(len)? <= block.len).then_some(Piece { at: block.at.checked_add(skip)?, len })
    }
}
