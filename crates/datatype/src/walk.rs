//! Walking a layout from any byte: which runs a stretch of packed bytes consists of, and copying them.

use crate::layout::{Kind, Node};

/// What runs, in packed order, are handed to. Loops over runs are part of it, so that each sink can do them fast.
pub(crate) trait Sink {
    /// `len` bytes at `disp`.
    fn run(&mut self, disp: i64, len: u64);

    /// `count` runs of `len` bytes, `stride` bytes apart.
    fn strided(&mut self, disp: i64, count: u64, stride: i64, len: u64);

    /// Runs of `len` bytes each.
    fn blocks(&mut self, base: i64, disps: &[i64], len: u64);
}

/// `count` copies of `body`, the first at `base`, `stride` bytes apart: hands `take` of their packed
/// bytes to `sink`, from byte `skip` on.
pub(crate) fn walk_loop(body: &Node, stride: i64, base: i64, skip: u64, take: u64, sink: &mut impl Sink) {
    let (index, offset) = (skip / body.size, skip % body.size);
    let mut at = base + index as i64 * stride;
    let mut take = take;
    if offset > 0 {
        let part = take.min(body.size - offset);
        walk(body, at, offset, part, sink);
        take -= part;
        at = at.wrapping_add(stride);
    }
    let (whole, rest) = (take / body.size, take % body.size);
    whole_loop(body, at, whole, stride, sink);
    if rest > 0 {
        walk(body, at + whole as i64 * stride, 0, rest, sink);
    }
}

/// Hands `take` bytes of `node` at `base` to `sink`, from byte `skip` on.
pub(crate) fn walk(node: &Node, base: i64, skip: u64, take: u64, sink: &mut impl Sink) {
    if take == 0 {
        return;
    }
    match &node.kind {
        Kind::Run => sink.run(base + skip as i64, take),
        Kind::Loop { stride, body, .. } => walk_loop(body, *stride, base, skip, take, sink),
        Kind::Blocks { len, disps } => walk_blocks(*len, disps, base, skip, take, sink),
        Kind::Pieces(pieces) => {
            let first = pieces.partition_point(|piece| piece.at + piece.len <= skip);
            let (mut skip, mut take) = (skip - pieces[first].at, take);
            for piece in &pieces[first..] {
                let part = take.min(piece.len - skip);
                sink.run(base + piece.disp + skip as i64, part);
                (skip, take) = (0, take - part);
                if take == 0 {
                    break;
                }
            }
        }
        Kind::Parts(parts) => {
            let first = parts.partition_point(|part| part.at + part.node.size <= skip);
            let (mut skip, mut take) = (skip - parts[first].at, take);
            for part in &parts[first..] {
                let piece = take.min(part.node.size - skip);
                walk(&part.node, base + part.disp, skip, piece, sink);
                (skip, take) = (0, take - piece);
                if take == 0 {
                    break;
                }
            }
        }
    }
}

fn walk_blocks(len: u64, disps: &[i64], base: i64, skip: u64, take: u64, sink: &mut impl Sink) {
    let (mut index, offset) = ((skip / len) as usize, skip % len);
    let mut take = take;
    if offset > 0 {
        let part = take.min(len - offset);
        sink.run(base + disps[index] + offset as i64, part);
        (index, take) = (index + 1, take - part);
    }
    let end = index + (take / len) as usize;
    sink.blocks(base, &disps[index..end], len);
    let rest = take % len;
    if rest > 0 {
        sink.run(base + disps[end], rest);
    }
}

fn whole_loop(body: &Node, base: i64, count: u64, stride: i64, sink: &mut impl Sink) {
    if let Kind::Run = body.kind {
        return sink.strided(base, count, stride, body.size);
    }
    let places = (0..count as i64).map(|i| base + i * stride);
    match &body.kind {
        Kind::Blocks { len, disps } => places.for_each(|at| sink.blocks(at, disps, *len)),
        Kind::Pieces(pieces) => {
            places.for_each(|at| pieces.iter().for_each(|piece| sink.run(at + piece.disp, piece.len)));
        }
        _ => places.for_each(|at| walk(body, at, 0, body.size, sink)),
    }
}

/// The run that packed byte `at` lies in: its displacement and the bytes from there to its end.
pub(crate) fn locate(node: &Node, base: i64, at: u64) -> (i64, u64) {
    match &node.kind {
        Kind::Run => (base + at as i64, node.size - at),
        Kind::Loop { stride, body, .. } => {
            locate(body, base + (at / body.size) as i64 * stride, at % body.size)
        }
        Kind::Blocks { len, disps } => {
            (base + disps[(at / len) as usize] + (at % len) as i64, len - at % len)
        }
        Kind::Pieces(pieces) => {
            let piece = &pieces[pieces.partition_point(|piece| piece.at + piece.len <= at)];
            let offset = at - piece.at;
            (base + piece.disp + offset as i64, piece.len - offset)
        }
        Kind::Parts(parts) => {
            let part = &parts[parts.partition_point(|part| part.at + part.node.size <= at)];
            locate(&part.node, base + part.disp, at - part.at)
        }
    }
}

/// Copies between the runs and a stretch of packed bytes.
pub(crate) struct Copier<const PACK: bool> {
    /// The address that displacements count from.
    memory: *mut u8,
    /// The next packed byte; written only if `PACK`.
    packed: *mut u8,
}

impl Copier<true> {
    /// From memory into `packed`.
    ///
    /// # Safety
    /// All runs that the copier is handed are readable, and `packed` has room for them.
    pub(crate) unsafe fn pack(memory: *mut u8, packed: *mut u8) -> Self {
        Self { memory, packed }
    }
}

impl Copier<false> {
    /// From `packed` into memory.
    ///
    /// # Safety
    /// All runs that the copier is handed are writable, and `packed` has bytes for them.
    pub(crate) unsafe fn unpack(memory: *mut u8, packed: *const u8) -> Self {
        Self { memory, packed: packed.cast_mut() }
    }
}

impl<const PACK: bool> Copier<PACK> {
    #[inline(always)]
    fn step(&mut self, disp: i64, len: usize) {
        let memory = self.memory.wrapping_offset(disp as isize);
        let (from, to) = if PACK { (memory, self.packed) } else { (self.packed, memory) };
        // SAFETY: promised by the maker for every run handed in, and for as many packed bytes.
        unsafe { copy(from, to, len) };
        self.packed = self.packed.wrapping_add(len);
    }

    #[inline(always)]
    fn strided_of(&mut self, disp: i64, count: u64, stride: i64, len: usize) {
        let mut at = disp;
        for _ in 0..count {
            self.step(at, len);
            at = at.wrapping_add(stride);
        }
    }

    #[inline(always)]
    fn blocks_of(&mut self, base: i64, disps: &[i64], len: usize) {
        disps.iter().for_each(|disp| self.step(base + disp, len));
    }
}

impl<const PACK: bool> Sink for Copier<PACK> {
    #[inline]
    fn run(&mut self, disp: i64, len: u64) {
        self.step(disp, len as usize);
    }

    // The lengths of MPI's basic types and small groups of them get loops of their own, in which the
    // copy is a load and a store.
    #[inline]
    fn strided(&mut self, disp: i64, count: u64, stride: i64, len: u64) {
        match len {
            1 => self.strided_of(disp, count, stride, 1),
            2 => self.strided_of(disp, count, stride, 2),
            4 => self.strided_of(disp, count, stride, 4),
            8 => self.strided_of(disp, count, stride, 8),
            12 => self.strided_of(disp, count, stride, 12),
            16 => self.strided_of(disp, count, stride, 16),
            24 => self.strided_of(disp, count, stride, 24),
            32 => self.strided_of(disp, count, stride, 32),
            _ => self.strided_of(disp, count, stride, len as usize),
        }
    }

    #[inline]
    fn blocks(&mut self, base: i64, disps: &[i64], len: u64) {
        match len {
            1 => self.blocks_of(base, disps, 1),
            2 => self.blocks_of(base, disps, 2),
            4 => self.blocks_of(base, disps, 4),
            8 => self.blocks_of(base, disps, 8),
            12 => self.blocks_of(base, disps, 12),
            16 => self.blocks_of(base, disps, 16),
            24 => self.blocks_of(base, disps, 24),
            32 => self.blocks_of(base, disps, 32),
            _ => self.blocks_of(base, disps, len as usize),
        }
    }
}

/// Copies `len` bytes; the two stretches may overlap. Short ones by two loads that may share bytes.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    type Two<T> = (T, T);
    // SAFETY: every access lies within the first or the last bytes of `len`.
    unsafe {
        match len {
            1 => *to = *from,
            2 => to.cast::<u16>().write_unaligned(from.cast::<u16>().read_unaligned()),
            4..=8 => {
                let both: Two<u32> =
                    (from.cast::<u32>().read_unaligned(), from.add(len - 4).cast::<u32>().read_unaligned());
                to.cast::<u32>().write_unaligned(both.0);
                to.add(len - 4).cast::<u32>().write_unaligned(both.1);
            }
            9..=16 => {
                let both: Two<u64> =
                    (from.cast::<u64>().read_unaligned(), from.add(len - 8).cast::<u64>().read_unaligned());
                to.cast::<u64>().write_unaligned(both.0);
                to.add(len - 8).cast::<u64>().write_unaligned(both.1);
            }
            17..=32 => {
                let both: Two<u128> = (
                    from.cast::<u128>().read_unaligned(),
                    from.add(len - 16).cast::<u128>().read_unaligned(),
                );
                to.cast::<u128>().write_unaligned(both.0);
                to.add(len - 16).cast::<u128>().write_unaligned(both.1);
            }
            _ => banyan_memory::copy(from, to, len),
        }
    }
}
