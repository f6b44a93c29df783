//! [`Data`] and [`Cursor`]: datatypes in memory, and moving their bytes to and from packed fragments.

use std::sync::Arc;

use banyan_memory::{Buffer, Copying, HeapBuffer};

use crate::device::{Copies, Table};
use crate::walk::{Copier, Sink, locate, walk_loop};
use crate::{Datatype, Error, Span};

/// What a message is read from or written to: `count` elements of a datatype at an address.
#[derive(Debug, Clone)]
pub struct Data {
    buffer: Buffer,
    /// Packed bytes.
    len: u64,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    /// Data whose packed bytes lie in one piece, from this offset on.
    Piece(i64),
    /// Elements of a type with data, all of them within the buffer's bounds.
    Elements(Arc<Datatype>),
}

impl Data {
    /// All bytes of a buffer.
    #[inline(always)]
    pub fn bytes(buffer: Buffer) -> Data {
        let (at, len) = (buffer.lo() as i64, buffer.len() as u64);
        Data { buffer, len, form: Form::Piece(at) }
    }

    /// `count` elements of `ty`; offset 0 of the buffer is the address that the user passed.
    ///
    /// # Panics
    /// If they are not inside the buffer's bounds, or past 64 bits: check with [`Datatype::span`].
    pub fn typed(buffer: Buffer, count: u64, ty: &Arc<Datatype>) -> Data {
        let span = checked_span(count, ty);
        let inside = buffer.lo() as i64 <= span.lo && span.hi <= buffer.hi() as i64;
        assert!(inside || span.bytes == 0, "{span:?} is outside {buffer:?}");
        Self::within(buffer, count, ty, span)
    }

    /// `count` elements of `ty` at `ptr`. Without an allocation, and if the data lies in one piece,
    /// without touching the type's reference count.
    ///
    /// # Safety
    /// The bytes of these elements must stay valid for reads (and for writes, if written to) for as long
    /// as this value, or anything made from it, is used.
    ///
    /// # Panics
    /// If their span does not fit into 64 bits: check with [`Datatype::span`].
    #[inline]
    pub unsafe fn new(ptr: *mut u8, count: u64, ty: &Arc<Datatype>) -> Data {
        // SAFETY: what the caller says.
        unsafe { Self::at(ptr, count, ty, checked_span(count, ty)) }
    }

    /// As [`Data::new`].
    ///
    /// # Safety
    /// As for [`Data::new`].
    ///
    /// # Errors
    /// If their span does not fit into 64 bits.
    #[inline]
    pub unsafe fn try_new(ptr: *mut u8, count: u64, ty: &Arc<Datatype>) -> Result<Data, Error> {
        let span = ty.span(count)?;
        // SAFETY: what the caller says.
        Ok(unsafe { Self::at(ptr, count, ty, span) })
    }

    /// Elements with this span.
    ///
    /// # Safety
    /// As for [`Data::new`].
    #[inline]
    unsafe fn at(ptr: *mut u8, count: u64, ty: &Arc<Datatype>, span: Span) -> Data {
        // SAFETY: the span covers the elements' data and nothing beyond its ends.
        let buffer = unsafe { Buffer::with_bounds(ptr, span.lo as isize, span.hi as isize) };
        Self::within(buffer, count, ty, span)
    }

    #[inline]
    fn within(buffer: Buffer, count: u64, ty: &Arc<Datatype>, span: Span) -> Data {
        let form = if span.bytes == 0 || ty.is_dense() {
            Form::Piece(0)
        } else if ty.is_one_piece(count) {
            Form::Piece(span.lo)
        } else {
            Form::Elements(ty.clone())
        };
        Data { buffer, len: span.bytes, form }
    }

    /// Packed bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory, if it holds the packed bytes in one piece.
    #[inline]
    pub fn contiguous(&self) -> Option<Buffer> {
        match self.form {
            Form::Piece(_) if self.len == 0 => Some(Buffer::empty()),
            Form::Piece(at) => Some(self.buffer.slice(at as isize, self.len as usize)),
            Form::Elements(_) => None,
        }
    }

    /// The memory, and the offset in it where the packed bytes lie in one piece, if they do.
    #[inline(always)]
    pub fn piece(&self) -> Option<(&Buffer, isize)> {
        match self.form {
            Form::Piece(at) => Some((&self.buffer, at as isize)),
            Form::Elements(_) => None,
        }
    }

    /// The memory and its bounds.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// A cursor at the first byte.
    #[inline]
    pub fn cursor(&self) -> Cursor {
        Cursor { position: 0 }
    }

    /// Copies the bytes of `from` here, as many as fit; returns their number. Pieces may overlap; the
    /// elements of other types must not.
    pub fn copy_from(&self, from: &Data) -> u64 {
        let len = self.len.min(from.len);
        self.part_from(0, from, 0, len);
        len
    }

    /// Copies packed bytes: `len` of them, from byte `from_at` of `from` to byte `at` here.
    ///
    /// # Panics
    /// If there are not so many bytes.
    pub fn copy_part(&self, at: u64, from: &Data, from_at: u64, len: u64) {
        let fits = |data: &Data, at: u64| at.checked_add(len).is_some_and(|end| end <= data.len);
        assert!(
            fits(self, at) && fits(from, from_at),
            "{len} bytes from {from_at} of {from:?} to {at} of {self:?}"
        );
        self.part_from(at, from, from_at, len);
    }

    /// [`Data::copy_part`] of bytes that are there.
    fn part_from(&self, at: u64, from: &Data, from_at: u64, len: u64) {
        let (to, source) = (Cursor { position: at }, Cursor { position: from_at });
        let n = len as usize;
        match (&from.form, &self.form) {
            (Form::Piece(first), Form::Piece(start)) => {
                let (to, source) = ((*start + at as i64) as isize, (*first + from_at as i64) as isize);
                self.buffer.copy_from(to, &from.buffer, source, n);
            }
            _ if self.is_on_device() || from.is_on_device() => self.start_copy(at, from, from_at, len).wait(),
            (Form::Elements(ty), Form::Piece(start)) => {
                let to = self.buffer.ptr((*start + at as i64) as isize, n);
                // SAFETY: `to` is valid for `n` bytes by the buffer's bounds, and `from` has as many from the cursor on.
                unsafe { source.pack_into(from, ty, to, n) };
            }
            (Form::Piece(first), Form::Elements(ty)) => {
                let bytes = from.buffer.ptr((*first + from_at as i64) as isize, n);
                // SAFETY: as above.
                unsafe { to.unpack_from(self, ty, bytes, n) };
            }
            (Form::Elements(_), Form::Elements(_)) => self.copy_staged(to, from, source, at + len),
        }
    }

    /// Starts to copy packed bytes: `len` of them, from byte `from_at` of `from` to byte `at` here. What is not over yet is
    /// returned, as it is where memory of a device has to do with it.
    ///
    /// # Panics
    /// If there are not so many bytes.
    pub fn start_copy(&self, at: u64, from: &Data, from_at: u64, len: u64) -> Copies {
        Copies::begin(self, at, from, from_at, len)
    }

    /// Starts a copy for each run of packed bytes that lies in one piece on both sides.
    pub(crate) fn start_runs(&self, at: u64, from: &Data, from_at: u64, len: u64) -> Vec<Copying> {
        let (mut to, mut source) = (Cursor { position: at }, Cursor { position: from_at });
        let (end, mut copies) = (at + len, vec![]);
        while to.position < end {
            let runs = to.run(self).zip(source.run(from));
            let ((at, room), (from_at, there)) = runs.expect("the caller has checked the lengths");
            let n = room.min(there).min(end - to.position);
            let (at, from_at) = (at as isize, from_at as isize);
            copies.extend(self.buffer.start_copy_from(at, &from.buffer, from_at, n as usize));
            (to.position, source.position) = (to.position + n, source.position + n);
        }
        copies
    }

    /// Its layout as kernels take it, unless its packed bytes lie in one piece.
    pub(crate) fn table(&self) -> Option<&Table> {
        match &self.form {
            Form::Piece(_) => None,
            Form::Elements(ty) => ty.table(),
        }
    }

    /// True if so many of its packed bytes are so many runs that they are worth a kernel.
    pub(crate) fn has_many_runs(&self, len: u64) -> bool {
        let Form::Elements(ty) = &self.form else { return false };
        let (runs, size) = (ty.runs(), ty.size());
        size / runs < LONG_RUN && len / (size / runs).max(1) >= MANY_RUNS
    }

    pub(crate) fn is_on_device(&self) -> bool {
        !self.buffer.kind().is_host_accessible()
    }

    fn copy_staged(&self, mut writer: Cursor, from: &Data, mut reader: Cursor, end: u64) {
        let mut stage = [0; 8192];
        while writer.position < end {
            let room = stage.len().min((end - writer.position) as usize);
            let got = reader.pack(from, &mut stage[..room]);
            writer.unpack(self, &stage[..got]);
        }
    }
}

/// So many runs are worth a kernel, if they are shorter than this, in bytes.
const MANY_RUNS: u64 = 8;
const LONG_RUN: u64 = 1 << 16;

fn checked_span(count: u64, ty: &Datatype) -> Span {
    ty.span(count).expect("the caller checked that the message fits into memory")
}

/// A position in the packed bytes of a [`Data`]; it can be put at any byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    position: u64,
}

impl Cursor {
    /// Packed bytes before the cursor.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Goes to byte `position`; past the end means at the end.
    #[inline]
    pub fn seek(&mut self, position: u64) {
        self.position = position;
    }

    /// Copies bytes out of `data` until `out` is full or the data is over; returns their number.
    #[inline]
    pub fn pack(&mut self, data: &Data, out: &mut [u8]) -> usize {
        let n = self.room(data, out.len());
        match &data.form {
            Form::Piece(at) => data.buffer.read((*at + self.position as i64) as isize, &mut out[..n]),
            Form::Elements(_) if data.is_on_device() => {
                let stage = HeapBuffer::zeroed(n);
                Data::bytes(stage.slice(0, n)).start_copy(0, data, self.position, n as u64).wait();
                stage.read(0, &mut out[..n]);
            }
            // SAFETY: `n` is at most the length of `out`.
            Form::Elements(ty) => unsafe { self.pack_into(data, ty, out.as_mut_ptr(), n) },
        }
        self.position += n as u64;
        n
    }

    /// Copies `bytes` into `data` until they or the room in it are used up; returns their number.
    #[inline]
    pub fn unpack(&mut self, data: &Data, bytes: &[u8]) -> usize {
        let n = self.room(data, bytes.len());
        match &data.form {
            Form::Piece(at) => data.buffer.write((*at + self.position as i64) as isize, &bytes[..n]),
            Form::Elements(_) if data.is_on_device() => {
                let bytes = Data::bytes(HeapBuffer::copy_of(&bytes[..n]));
                data.start_copy(self.position, &bytes, 0, n as u64).wait();
            }
            // SAFETY: `n` is at most the length of `bytes`.
            Form::Elements(ty) => unsafe { self.unpack_from(data, ty, bytes.as_ptr(), n) },
        }
        self.position += n as u64;
        n
    }

    /// Hands the next pieces of memory to `f`, at most `max` of them; neighbours come as one. The
    /// cursor moves past them.
    pub fn segments(&mut self, data: &Data, max: usize, mut f: impl FnMut(Buffer)) {
        let ty = match &data.form {
            Form::Piece(at) => {
                let n = self.room(data, usize::MAX);
                if n > 0 && max > 0 {
                    f(data.buffer.slice((*at + self.position as i64) as isize, n));
                    self.position += n as u64;
                }
                return;
            }
            Form::Elements(ty) => ty,
        };
        for _ in 0..max {
            let Some((disp, mut len)) = self.piece(data, ty) else { return };
            self.position += len;
            while let Some((next, more)) = self.piece(data, ty).filter(|piece| piece.0 == disp + len as i64) {
                debug_assert!(next > disp);
                (self.position, len) = (self.position + more, len + more);
            }
            f(data.buffer.slice(disp as isize, len as usize));
        }
    }

    /// Where the next bytes lie in the buffer, and how many follow them there; `None` at the end.
    fn run(&self, data: &Data) -> Option<(i64, u64)> {
        match &data.form {
            Form::Piece(at) => Some((at + self.position as i64, data.len.checked_sub(self.position)?)),
            Form::Elements(ty) => self.piece(data, ty),
        }
    }

    /// The run under the cursor.
    fn piece(&self, data: &Data, ty: &Datatype) -> Option<(i64, u64)> {
        if self.position >= data.len {
            return None;
        }
        let shape = ty.shape()?;
        let (index, at) = (self.position / shape.node.size, self.position % shape.node.size);
        Some(locate(&shape.node, shape.disp + index as i64 * ty.extent(), at))
    }

    /// # Safety
    /// `n` bytes, no more than are left in `data`, fit at `out`.
    unsafe fn pack_into(&self, data: &Data, ty: &Datatype, out: *mut u8, n: usize) {
        // SAFETY: `Data` keeps all of the type's runs inside the buffer's bounds, and the walk hands over
        // exactly `n` bytes of them.
        let mut sink = unsafe { Copier::pack(data.buffer.ptr(0, 0), out) };
        self.walk(ty, n, &mut sink);
    }

    /// # Safety
    /// `n` bytes, no more than there is room for in `data`, lie at `bytes`.
    unsafe fn unpack_from(&self, data: &Data, ty: &Datatype, bytes: *const u8, n: usize) {
        // SAFETY: as in `pack_into`.
        let mut sink = unsafe { Copier::unpack(data.buffer.ptr(0, 0), bytes) };
        self.walk(ty, n, &mut sink);
    }

    fn room(&self, data: &Data, wanted: usize) -> usize {
        let left = data.len.saturating_sub(self.position);
        usize::try_from(left).unwrap_or(usize::MAX).min(wanted)
    }

    fn walk(&self, ty: &Datatype, n: usize, sink: &mut impl Sink) {
        if let (Some(shape), true) = (ty.shape(), n > 0) {
            walk_loop(&shape.node, ty.extent(), shape.disp, self.position, n as u64, sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_memory::SimulatedDevice;

    #[test]
    fn a_column_is_packed_and_unpacked_in_odd_fragments() {
        let int = Datatype::builtin(0x209).unwrap();
        let column = Datatype::vector(4, 1, 3, int).unwrap();
        let bytes: Vec<u8> = (0..48).collect();
        let data = Data::typed(HeapBuffer::copy_of(&bytes), 1, &column);
        let mut packed = vec![];
        let (mut cursor, mut part) = (data.cursor(), [0; 3]);
        loop {
            match cursor.pack(&data, &mut part) {
                0 => break,
                n => packed.extend_from_slice(&part[..n]),
            }
        }
        assert_eq!(packed, [0, 1, 2, 3, 12, 13, 14, 15, 24, 25, 26, 27, 36, 37, 38, 39]);
        let copy = Data::typed(HeapBuffer::zeroed(48), 1, &column);
        let mut cursor = copy.cursor();
        packed.chunks(5).for_each(|part| assert_eq!(cursor.unpack(&copy, part), part.len()));
        let mut again = [0; 16];
        copy.cursor().pack(&copy, &mut again);
        assert_eq!(packed, again);
    }
    #[test]
    fn a_column_on_a_device_is_moved_run_by_run() {
        let column = Datatype::vector(4, 1, 3, Datatype::builtin(0x209).unwrap()).unwrap();
        let bytes: Vec<u8> = (0..48).collect();
        let here = Data::typed(HeapBuffer::copy_of(&bytes), 1, &column);
        let memory = SimulatedDevice::new(4096, 9).alloc(48);
        memory.write(0, &[0xee; 48]);
        let there = Data::typed(memory.clone(), 1, &column);
        let (packed, mut got) = (pack(&here), [0; 48]);
        let is_there = |what: &str| assert_eq!(pack(&there), packed, "{what}");

        assert_eq!(there.copy_from(&here), 16);
        is_there("from a column of the host's");
        memory.read(0, &mut got);
        let expected: Vec<u8> = (0..48).map(|i| if i / 4 % 3 == 0 && i < 40 { i } else { 0xee }).collect();
        assert_eq!(got[..], expected, "and no byte beside it");
        memory.write(0, &[0xee; 48]);
        there.copy_from(&Data::bytes(HeapBuffer::copy_of(&packed)));
        is_there("from packed bytes");
        let back = Data::bytes(HeapBuffer::zeroed(16));
        back.copy_from(&there);
        assert_eq!(pack(&back), packed);
        memory.write(0, &[0xee; 48]);
        let mut cursor = there.cursor();
        packed.chunks(5).for_each(|part| assert_eq!(cursor.unpack(&there, part), part.len()));
        is_there("in odd fragments");
        assert_eq!(back.start_runs(3, &there, 2, 7).len(), 3, "parts of three runs");
        back.start_copy(3, &there, 2, 7).wait();
        assert_eq!(pack(&back)[3..10], packed[2..9]);
    }

    fn pack(data: &Data) -> Vec<u8> {
        let mut bytes = vec![0; data.len() as usize];
        data.cursor().pack(data, &mut bytes);
        bytes
    }
}
