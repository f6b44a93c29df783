//! [`View`]: the memory behind a buffer that a schedule names, with a mapping from units to bytes.

use banyan_datatype::{Data, Datatype, TypeArc};
use banyan_memory::{Buffer, HeapBuffer};

/// Memory, counted in units: elements where a collective reduces, else packed bytes.
#[derive(Clone, Default, Debug)]
pub(crate) enum View {
    /// No memory.
    #[default]
    Nothing,
    /// Units are bytes in one piece.
    Bytes(Buffer),
    /// Units are elements of a type.
    Elements { base: Buffer, ty: TypeArc },
    /// Units are packed bytes of elements of a type.
    Packed { base: Buffer, ty: TypeArc, all: Data },
    /// Units are packed bytes of blocks, one after the other; `starts` has the first unit of each block, and the end of
    /// the last.
    Blocks { blocks: Vec<Data>, starts: Vec<u64> },
}

/// A range of units: start and length.
pub(crate) type Range = (u64, u64);

impl View {
    /// Units of packed bytes for `count` elements of `ty`.
    pub(crate) fn packed(base: &Buffer, count: u64, ty: &TypeArc) -> View {
        let all = Data::typed(base.clone(), count, ty);
        match all.contiguous() {
            Some(buffer) => View::Bytes(buffer),
            None => View::Packed { base: base.clone(), ty: ty.clone(), all },
        }
    }

    /// Units of packed bytes for blocks, one after the other.
    pub(crate) fn blocks(blocks: Vec<Data>) -> View {
        let mut starts = Vec::with_capacity(blocks.len() + 1);
        starts.push(0);
        starts.extend(blocks.iter().scan(0, |end, block| {
            *end += block.len();
            Some(*end)
        }));
        View::Blocks { blocks, starts }
    }

    /// Private memory for `units` units: elements of `ty`, if there is a type, else bytes.
    pub(crate) fn private(units: u64, ty: Option<&TypeArc>, spare: &mut Spare) -> View {
        match ty {
            _ if units == 0 => View::Nothing,
            None => View::Bytes(spare.take(units)),
            Some(ty) => View::Elements { base: elements(units, ty, spare), ty: ty.clone() },
        }
    }

    /// Units of the shared scratch: elements of `ty`, if there is a type, else bytes.
    pub(crate) fn shared(base: Buffer, ty: Option<&TypeArc>) -> View {
        match ty {
            None => View::Bytes(base),
            Some(ty) => View::Elements { base, ty: ty.clone() },
        }
    }

    /// The memory of a range, if a message can use it without packing.
    pub(crate) fn data(&self, (at, len): Range) -> Option<Data> {
        if len == 0 {
            return Some(Data::bytes(Buffer::empty()));
        }
        match self {
            View::Nothing => None,
            View::Bytes(buffer) => Some(Data::bytes(buffer.slice(buffer.lo() + at as isize, len as usize))),
            View::Elements { base, ty } => Some(Data::typed(element(base, ty, at), len, ty)),
            View::Packed { base, ty, all } => {
                if (at, len) == (0, all.len()) {
                    return Some(all.clone());
                }
                let whole = at % ty.size() == 0 && len % ty.size() == 0;
                whole.then(|| Data::typed(element(base, ty, at / ty.size()), len / ty.size(), ty))
            }
            View::Blocks { blocks, starts } => {
                let index = starts.partition_point(|&start| start <= at) - 1;
                let (block, at) = (&blocks[index], at - starts[index]);
                if (at, len) == (0, block.len()) {
                    return Some(block.clone());
                }
                let piece = block.contiguous().filter(|_| at + len <= block.len())?;
                Some(Data::bytes(piece.slice(piece.lo() + at as isize, len as usize)))
            }
        }
    }

    /// The elements from `at` on, with offset 0 at the address of element `at`.
    ///
    /// # Panics
    /// If units are not elements: only an algorithm that reduces in a collective without reduction asks for that.
    pub(crate) fn elements(&self, at: u64) -> Buffer {
        match self {
            View::Elements { base, ty } => element(base, ty, at),
            _ => unreachable!("only elements are reduced"),
        }
    }

    /// Copies the packed bytes of a range to the start of `out`.
    pub(crate) fn pack(&self, range: Range, out: &Buffer) {
        let out = Data::bytes(out.clone());
        self.parts(range, |data, skip, at, len| out.copy_part(at, data, skip, len));
    }

    /// Copies packed bytes from the start of `from` to a range.
    pub(crate) fn unpack(&self, range: Range, from: &Buffer) {
        let from = Data::bytes(from.clone());
        self.parts(range, |data, skip, at, len| data.copy_part(skip, &from, at, len));
    }

    /// Calls `f` for each of the data that a range is made of, with the packed bytes of them to skip, the packed bytes of the
    /// range before them, and those of the range in them.
    pub(crate) fn parts(&self, (at, len): Range, mut f: impl FnMut(&Data, u64, u64, u64)) {
        if let Some(data) = self.data((at, len)) {
            return f(&data, 0, 0, data.len());
        }
        match self {
            View::Packed { all, .. } => f(all, at, 0, len),
            View::Blocks { blocks, starts } => {
                let first = starts.partition_point(|&start| start <= at) - 1;
                let mut done = 0;
                for (block, start) in blocks[first..].iter().zip(&starts[first..]) {
                    if done == len {
                        break;
                    }
                    let skip = at + done - start;
                    let part = (block.len() - skip).min(len - done);
                    f(block, skip, done, part);
                    done += part;
                }
            }
            View::Nothing | View::Bytes(_) | View::Elements { .. } => {}
        }
    }

    /// Copies a range to a range of another view, or of this one; the two do not overlap.
    pub(crate) fn copy(&self, range: Range, into: &View, into_range: Range, spare: &mut Spare) {
        match (self.data(range), into.data(into_range)) {
            (Some(from), _) => {
                into.parts(into_range, |data, skip, at, len| data.copy_part(skip, &from, at, len))
            }
            (None, Some(into)) => {
                self.parts(range, |data, skip, at, len| into.copy_part(at, data, skip, len))
            }
            (None, None) => {
                let stage = spare.take(range.1);
                self.pack(range, &stage);
                into.unpack(into_range, &stage);
                spare.give(stage);
            }
        }
    }
}

/// The memory with offset 0 at the element `at` extents after the first.
fn element(base: &Buffer, ty: &Datatype, at: u64) -> Buffer {
    if at == 0 { base.clone() } else { base.rebased(at as isize * ty.extent() as isize) }
}

/// Memory for `count` elements, holes included (a user's function may treat them as whole structures), with offset 0 at
/// the address of the first one.
pub(crate) fn elements(count: u64, ty: &Datatype, spare: &mut Spare) -> Buffer {
    let span = ty.span(count).unwrap_or_else(|_| unreachable!("the user's own vector has the same span"));
    let steps = count.saturating_sub(1) as i64 * ty.extent();
    let lo = span.lo.min(ty.lb()).min(ty.lb() + steps);
    let hi = span.hi.max(ty.ub()).max(ty.ub() + steps);
    spare.take((hi - lo) as u64).rebased(-lo as isize)
}

/// Private memory that is kept to be used again: schedules need the same sizes over and over.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    kept: Vec<Buffer>,
    /// Collectives that have ended since one took a large buffer.
    unused: u32,
}

impl Spare {
    /// A buffer of more bytes is large: it is kept only while collectives of such vectors follow each other. To get such memory
    /// anew takes about as long as to copy it, since the system clears each page.
    const LARGE: usize = 1 << 19;
    /// A buffer of more bytes is never kept.
    const MOST: usize = 1 << 25;
    /// Collectives without a large buffer, until those that are kept are given back to the allocator.
    const PATIENCE: u32 = 64;
    /// The most buffers that are kept.
    const NUMBER: usize = 3;

    /// `len` bytes with any contents, offsets from 0.
    pub(crate) fn take(&mut self, len: u64) -> Buffer {
        let len = len as usize;
        if len > Self::LARGE {
            self.unused = 0;
        }
        let fit = self.kept.iter().position(|buffer| buffer.len() >= len);
        let buffer = match fit {
            Some(index) => self.kept.swap_remove(index),
            // Rounded up, so that a slightly larger request fits next time.
            None => HeapBuffer::zeroed(len.next_multiple_of(256)),
        };
        debug_assert_eq!(buffer.lo(), 0);
        buffer
    }

    /// Takes back memory of [`Spare::take`], possibly rebased since.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        if self.kept.len() < Self::NUMBER {
            self.kept.push(buffer.rebased(buffer.lo()));
        }
    }

    /// A collective has ended: frees the buffers that are too large to keep.
    pub(crate) fn trim(&mut self) {
        self.unused = self.unused.saturating_add(1);
        let most = if self.unused > Self::PATIENCE { Self::LARGE } else { Self::MOST };
        self.kept.retain(|buffer| buffer.len() <= most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_are_kept_while_collectives_use_them() {
        let mut spare = Spare::default();
        let mut collective = |lens: &[u64]| {
            let taken: Vec<_> = lens.iter().map(|len| spare.take(*len)).collect();
            taken.into_iter().for_each(|buffer| spare.give(buffer));
            spare.trim();
            spare.kept.iter().map(Buffer::len).collect::<Vec<_>>()
        };
        assert_eq!(collective(&[1 << 20, 1 << 10]), [1 << 20, 1 << 10]);
        for _ in 0..Spare::PATIENCE - 1 {
            assert_eq!(collective(&[]), [1 << 20, 1 << 10]);
        }
        assert_eq!(collective(&[1 << 20]).len(), 2);
        for _ in 0..Spare::PATIENCE {
            collective(&[]);
        }
        assert_eq!(collective(&[]), [1 << 10]);
        assert_eq!(collective(&[Spare::MOST as u64 + 1]), [1 << 10]);
    }
}
