//! [`Draft`]: a typemap under construction, before it gets its recipe and becomes a datatype.

use std::sync::Arc;

use crate::basic::Basic;
use crate::bounds::Bounds;
use crate::layout::{Kind, Placed, RunList};
use crate::signature::Sequence;
use crate::{Datatype, Error};

/// A typemap: its bytes, bounds, alignment and basic types.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    pub(crate) size: u64,
    pub(crate) bounds: Bounds,
    pub(crate) align: u32,
    pub(crate) shape: Option<Placed>,
    pub(crate) sequence: Option<Arc<Sequence>>,
}

impl Draft {
    pub(crate) fn basic(basic: &'static Basic) -> Self {
        let bounds = Bounds::of_basic(basic.size, basic.extent);
        let (bounds, shape) = match basic.pair() {
            None => (bounds, Some(Placed::run(0, basic.size.into()))),
            Some((value, index, at)) => {
                let runs = [(0, value.size.into()), (i64::from(at), index.size.into())];
                let end = i128::from(at) + i128::from(index.size);
                (bounds.with_data_end(end), RunList::of(runs))
            }
        };
        let sequence = Some(Sequence::basic(basic));
        Self { size: basic.size.into(), bounds, align: basic.align.into(), shape, sequence }
    }

    /// Bytes from one copy to the next.
    pub(crate) fn extent(&self) -> Result<i64, Error> {
        self.bounds.fit().map(|extents| extents.ub - extents.lb)
    }

    /// `count` copies, `stride` bytes apart.
    pub(crate) fn repeat(&self, count: i64, stride: i64) -> Result<Self, Error> {
        if count == 0 {
            return Ok(Self::default());
        }
        let size = total(self.size, count)?;
        let bounds = self.bounds.repeat(count, stride);
        bounds.fit()?;
        Ok(Self {
            size,
            bounds,
            align: self.align,
            shape: self.shape.as_ref().map(|shape| shape.repeat(count as u64, stride)),
            sequence: self.sequence.as_ref().map(|of| Sequence::repeat(count as u64, of)),
        })
    }

    /// Copies side by side: `count` times the extent.
    pub(crate) fn contiguous(&self, count: i64) -> Result<Self, Error> {
        self.repeat(count, self.extent()?)
    }

    /// Blocks of `(byte displacement, count)` contiguous copies each.
    pub(crate) fn blocks(&self, blocks: &[(i64, i64)]) -> Result<Self, Error> {
        let extent = self.extent()?;
        let (mut bounds, mut copies) = (Bounds::default(), 0i64);
        for &(disp, count) in blocks {
            bounds = bounds.join(self.bounds.repeat(count, extent).shift(disp));
            copies = copies.checked_add(count).ok_or(Error::Overflow("the number of elements"))?;
        }
        bounds.fit()?;
        if copies == 0 {
            return Ok(Self::default());
        }
        Ok(Self {
            size: total(self.size, copies)?,
            bounds,
            align: self.align,
            shape: self.shape.as_ref().and_then(|shape| placed_blocks(shape, extent, blocks)),
            sequence: self.sequence.as_ref().map(|of| Sequence::repeat(copies as u64, of)),
        })
    }

    /// Typemaps one after the other, each moved by its displacement.
    pub(crate) fn join(parts: &[(i64, Draft)]) -> Result<Self, Error> {
        let (mut bounds, mut size, mut align) = (Bounds::default(), 0u64, 0);
        for (disp, part) in parts {
            bounds = bounds.join(part.bounds.shift(*disp));
            let sum = size.checked_add(part.size).filter(|&sum| sum <= i64::MAX as u64);
            size = sum.ok_or(Error::Overflow("the size of the datatype"))?;
            align = align.max(part.align);
        }
        bounds.fit()?;
        let moved = |(disp, part): &(i64, Draft)| Some(part.shape.as_ref()?.shift(*disp));
        let shapes: Vec<Placed> = parts.iter().filter_map(moved).collect();
        let sequences: Vec<_> = parts.iter().filter_map(|(_, part)| part.sequence.clone()).collect();
        let sequence = (!sequences.is_empty()).then(|| Sequence::list(sequences));
        Ok(Self { size, bounds, align, shape: Placed::sequence(&shapes), sequence })
    }
}

impl From<&Arc<Datatype>> for Draft {
    fn from(datatype: &Arc<Datatype>) -> Self {
        datatype.draft()
    }
}

fn placed_blocks(shape: &Placed, extent: i64, blocks: &[(i64, i64)]) -> Option<Placed> {
    let blocks = blocks.iter().filter(|block| block.1 > 0);
    if matches!(shape.node.kind, Kind::Run) && i64::try_from(shape.node.size) == Ok(extent) {
        let size = shape.node.size;
        return RunList::of(blocks.map(|&(disp, count)| (shape.disp + disp, size * count as u64)));
    }
    let copies = |&(disp, count): &(i64, i64)| shape.shift(disp).repeat(count as u64, extent);
    Placed::sequence(&blocks.map(copies).collect::<Vec<_>>())
}

fn total(size: u64, count: i64) -> Result<u64, Error> {
    let bytes = u128::from(size) * count.unsigned_abs() as u128;
    i64::try_from(bytes).map(|bytes| bytes as u64).map_err(|_| Error::Overflow("the size of the datatype"))
}
