//! [`Line`]: all rounds of a schedule as one flat list of steps, on bytes where they lie in memory; kept for the next
//! call of the same outline.

use crate::ledger::{About, Used};
use crate::sections::Cut;
use crate::{
    Algorithm, Blocks, Buf, Chunks, Facts, Form, Kind, Memory, Merge, Needs, Pocket, Round, Shape, Side,
    Span, Step,
};

/// All that can differ between the shapes of two calls of one kind here, where all blocks are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outline {
    pub(super) root: u32,
    pub(super) commutative: bool,
    pub(super) unit: u64,
    pub(super) len: u64,
}

impl Outline {
    /// How many lines of a kind are kept: programs go around some roots and sizes.
    pub(crate) const PLACES: usize = 16;

    /// Where its line is kept, unless another has taken the place.
    #[inline(always)]
    pub(crate) fn place(&self) -> usize {
        (self.root as usize + self.len as usize) % Self::PLACES
    }

    /// Bytes of this rank's vector or block: it publishes no less.
    #[inline(always)]
    pub(crate) fn block(&self) -> u64 {
        self.unit * self.len
    }
}

/// Blocks of a side that are not alike: bytes of an element, and by rank how many, and how many elements from the
/// address. Without displacements they follow each other.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Layout<'a> {
    unit: u64,
    counts: &'a [u64],
    displs: &'a [i64],
}

impl<'a> Layout<'a> {
    /// Of memory that has such blocks; else that of none.
    #[inline]
    pub(super) fn of(memory: &'a Memory) -> Layout<'a> {
        match memory {
            Memory::Vector { counts, displs, ty, .. } => Layout { unit: ty.size(), counts, displs },
            _ => Layout::default(),
        }
    }

    /// Compared by a loop: a masked load of no bytes at no address, as in `memcmp` of empty lists, takes 0.2 us.
    #[inline]
    fn is(&self, other: &Layout<'_>) -> bool {
        self.unit == other.unit
            && (self.counts.len(), self.displs.len()) == (other.counts.len(), other.displs.len())
            && self.counts.iter().zip(other.counts).all(|(count, theirs)| count == theirs)
            && self.displs.iter().zip(other.displs).all(|(displ, theirs)| displ == theirs)
    }

    /// Bytes of a block, and where it starts.
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

/// A [`Layout`] that is kept.
#[derive(Debug)]
struct Kept {
    unit: u64,
    counts: Box<[u64]>,
    displs: Box<[i64]>,
}

impl Kept {
    fn new(Layout { unit, counts, displs }: Layout) -> Kept {
        Kept { unit, counts: counts.into(), displs: displs.into() }
    }

    #[inline]
    fn layout(&self) -> Layout<'_> {
        Layout { unit: self.unit, counts: &self.counts, displs: &self.displs }
    }
}

/// A step on bytes of what is given and what is got, where schedules that fit into slots or go over the board need it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hop {
    Publish { phase: u32, from: Piece },
    Lay { phase: u32, pocket: Piece, from: Piece },
    PublishLaid { phase: u32 },
    Await { rank: u32, phase: u32 },
    Pull { rank: u32, phase: u32, at: u32, into: Piece },
    Fetch { rank: u32, phase: u32, pocket: Piece, into: Piece },
    Reduce { rank: u32, phase: u32, at: u32, into: Piece },
    Copy { from: Spot, into: Spot },
    Combine { from: Spot, into: Spot },
    Release { phase: u32 },
    Drain { rank: u32, phase: u32 },
    Settle { chunk: u32 },
}

/// Bytes of a side, or of a pocket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: u32,
    pub(super) len: u32,
}

impl From<Piece> for Pocket {
    #[inline]
    fn from(Piece { at, len }: Piece) -> Pocket {
        Pocket { at: u64::from(at), room: u64::from(len) }
    }
}

/// Bytes of a side, or of the board.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) buf: Buf,
    pub(super) piece: Piece,
}

/// The steps of a whole schedule, by rank and phase.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) outline: Outline,
    /// Tells it from others that were kept in its place.
    pub(crate) number: u64,
    /// Of what is given and got, if blocks may differ.
    layouts: Option<Box<[Kept; 2]>>,
    /// What was chosen.
    pub(crate) algorithm: &'static Algorithm,
    pub(crate) phases: u32,
    pub(crate) chunks: Chunks,
    /// What such calls are about, but for the operation.
    pub(crate) about: About,
    /// What they do to those after them.
    pub(crate) used: Used,
    /// The board, in bytes.
    pub(super) cut: Cut,
    /// `None` if that needs more than what can be done here.
    pub(super) hops: Option<Vec<Hop>>,
}

impl Line {
    /// Ranks up to which lines are kept: they are as long as there are ranks (256: some KiB each; without one a barrier of
    /// 256 takes 4 ms, with it 0.9).
    pub(crate) const RANKS: u32 = 256;

    /// Rounds up to which lines are kept: longer schedules have more to do than to make them.
    const ROUNDS: u32 = 512;

    pub(super) fn new(
        (outline, layouts): (Outline, Option<[Layout<'_>; 2]>),
        algorithm: &'static Algorithm,
        shape: &Shape,
    ) -> Line {
        let fits =
            matches!(algorithm.needs, Needs::Inline | Needs::InlineBlocks | Needs::Pockets | Needs::Board);
        let rounds = if fits { (algorithm.rounds)(shape) } else { 0 };
        let drawing = Drawing { shape, layouts: layouts.filter(|_| !algorithm.kind.reduces()) };
        let (mut round, mut hops) = (Round::default(), vec![]);
        for index in (0..rounds).filter(|_| rounds <= Line::ROUNDS) {
            round.begin(index);
            (algorithm.round)(shape, index, &mut round);
            hops.extend(round.steps.iter().map(|step| drawing.hop(step)));
        }
        let hops: Option<Vec<Hop>> = hops.into_iter().collect();
        let (phases, chunks) = ((algorithm.phases)(shape), (algorithm.chunks)(shape));
        let Cut { half, section } = shape.cut();
        let cut = Cut { half: half * shape.unit, section: section * shape.unit };
        let layouts = layouts.map(|layouts| Box::new(layouts.map(Kept::new)));
        let hops = hops.filter(|hops| !hops.is_empty());
        let about = About::of(algorithm.kind, shape);
        let used = Used::of(about, phases, chunks.number);
        Line { outline, number: 0, layouts, algorithm, phases, chunks, about, used, cut, hops }
    }

    /// True if it is for calls of this outline, with blocks that lie as these do.
    #[inline]
    pub(super) fn is_of(&self, outline: &Outline, layouts: Option<[Layout<'_>; 2]>) -> bool {
        self.outline == *outline
            && match (&self.layouts, layouts) {
                (None, None) => true,
                (Some(kept), Some(layouts)) => {
                    kept[0].layout().is(&layouts[0]) && kept[1].layout().is(&layouts[1])
                }
                _ => false,
            }
    }
}

/// The shape of a call that is here.
pub(super) fn shape(
    kind: Kind,
    outline: &Outline,
    layouts: Option<[Layout<'_>; 2]>,
    rank: u32,
    facts: &Facts,
) -> Shape {
    let Outline { root, unit, len, commutative } = *outline;
    let even = Blocks::Even(len);
    let blocks = |layout: Layout<'_>| if layout.counts.is_empty() { even.clone() } else { layout.blocks() };
    let (sends, recvs) = match layouts {
        None => (even.clone(), even.clone()),
        // Its blocks are of what is given, in elements.
        Some([_, got]) if kind.reduces() => (Blocks::from_lens(got.counts.iter().copied()), even),
        Some([given, got]) => (blocks(given), blocks(got)),
    };
    let ranks = facts.ranks;
    let mut shape = Shape { rank, ranks, root, unit, len, sends, recvs, commutative, ..Shape::NOTHING };
    shape.on(facts);
    shape
}

/// From steps to hops.
struct Drawing<'a> {
    shape: &'a Shape,
    layouts: Option<[Layout<'a>; 2]>,
}

impl Drawing<'_> {
    /// The short form of a step, if it has one.
    fn hop(&self, step: &Step) -> Option<Hop> {
        let bytes = |units: u64| u32::try_from(units * self.shape.unit).ok();
        let pocket =
            |Pocket { at, room }| Some(Piece { at: u32::try_from(at).ok()?, len: u32::try_from(room).ok()? });
        Some(match *step {
            // The root of a bcast publishes what others receive: there, both are one.
            Step::Publish { from, phase, form: Form::Inline } => {
                Hop::Publish { phase, from: self.piece(from)? }
            }
            Step::Publish { phase, form: Form::Laid, .. } => Hop::PublishLaid { phase },
            Step::Lay { from, phase, pocket: p } => {
                Hop::Lay { phase, pocket: pocket(p)?, from: self.piece(from)? }
            }
            Step::Await { rank, phase } => Hop::Await { rank, phase },
            Step::Pull { rank, phase, at, into } if into.buf == Buf::Recv => {
                Hop::Pull { rank, phase, at: bytes(at)?, into: self.piece(into)? }
            }
            Step::Fetch { rank, phase, pocket: p, into } => {
                Hop::Fetch { rank, phase, pocket: pocket(p)?, into: self.piece(into)? }
            }
            Step::PullReduce { rank, phase, at, merge: Merge { with, into, side: Side::Left } }
                if with == into && into.buf == Buf::Recv =>
            {
                Hop::Reduce { rank, phase, at: bytes(at)?, into: self.piece(into)? }
            }
            Step::Copy { from, into } => Hop::Copy { from: self.spot(from)?, into: self.spot(into)? },
            Step::Reduce { from, into } => Hop::Combine { from: self.spot(from)?, into: self.spot(into)? },
            Step::Release { phase } => Hop::Release { phase },
            Step::Drain { rank, phase } => Hop::Drain { rank, phase },
            Step::Settle { chunk } => Hop::Settle { chunk },
            _ => return None,
        })
    }

    /// The same, of a side or of the board.
    fn spot(&self, span: Span) -> Option<Spot> {
        (span.buf != Buf::Temp).then_some(Spot { buf: span.buf, piece: self.piece(span)? })
    }

    /// Where a span lies in memory, if that is in one piece.
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
        // Of blocks that start there all but the last are empty.
        let index = starts.partition_point(|&start| start <= span.at) - 1;
        if span.len == 0 {
            return Some(Piece { at: 0, len });
        }
        let block = layout.block(index as u32)?;
        let skip = u32::try_from(span.at - starts[index]).ok()?;
        (skip.checked_add(len)? <= block.len).then_some(Piece { at: block.at.checked_add(skip)?, len })
    }
}
