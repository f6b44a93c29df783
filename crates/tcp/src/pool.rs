//! Memory of connections for frames under way: [`Chunk`]s that each hold one largest frame, the [`Pool`] of unused ones,
//! and the [`Queue`] of bytes that a socket has not written yet.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use crate::frame::MAX_FRAME;

/// Room for one largest frame, partly used.
pub(crate) struct Chunk {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Chunk {
    /// The bytes in use.
    pub(crate) fn used(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Number of bytes that still fit after those in use.
    pub(crate) fn room(&self) -> usize {
        self.bytes.len() - self.end
    }

    /// Appends `len` bytes, for the caller to write.
    pub(crate) fn add(&mut self, len: usize) -> &mut [u8] {
        self.end += len;
        &mut self.bytes[self.end - len..self.end]
    }

    /// The room for `len` more bytes, which are not in use until [`Chunk::add`].
    pub(crate) fn room_for(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.end..self.end + len]
    }

    /// Adds a copy of `bytes`.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.add(bytes.len()).copy_from_slice(bytes);
    }
}

/// Chunks that no connection uses now.
#[derive(Default)]
pub(crate) struct Pool {
    spare: Vec<Chunk>,
}

impl Pool {
    /// Most unused chunks that are kept; others are freed.
    const KEPT: usize = 8;

    /// An empty chunk.
    pub(crate) fn take(&mut self) -> Chunk {
        let mut chunk = self.spare.pop().unwrap_or_else(|| Chunk {
            bytes: vec![0; MAX_FRAME].into_boxed_slice(),
            start: 0,
            end: 0,
        });
        (chunk.start, chunk.end) = (0, 0);
        chunk
    }

    /// Takes a chunk back.
    pub(crate) fn give(&mut self, chunk: Chunk) {
        if self.spare.len() < Self::KEPT {
            self.spare.push(chunk);
        }
    }
}

/// Bytes accepted for sending that the socket has not written yet, in order.
#[derive(Default)]
pub(crate) struct Queue {
    chunks: VecDeque<Chunk>,
    len: usize,
}

impl Queue {
    /// Number of bytes in the queue.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// True if no bytes are in the queue.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `len` bytes (at most one largest frame) in one piece, to be written by the caller.
    pub(crate) fn add(&mut self, len: usize, pool: &mut Pool) -> &mut [u8] {
        self.len += len;
        if self.chunks.back().is_none_or(|last| last.room() < len) {
            self.chunks.push_back(pool.take());
        }
        self.chunks.back_mut().expect("there is one now").add(len)
    }

    /// Adds a copy of `bytes` (at most one largest frame).
    pub(crate) fn append(&mut self, bytes: &[u8], pool: &mut Pool) {
        self.add(bytes.len(), pool).copy_from_slice(bytes);
    }

    /// Hands the first bytes to `write` once, and drops those that it writes.
    pub(crate) fn write(
        &mut self,
        pool: &mut Pool,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut pieces = [IoSlice::new(&[]); 8];
        let mut count = 0;
        for (piece, chunk) in pieces.iter_mut().zip(&self.chunks) {
            *piece = IoSlice::new(chunk.used());
            count += 1;
        }
        let written = write(&pieces[..count])?;
        self.drop_front(written, pool);
        Ok(written)
    }

    /// Drops all bytes.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        self.drop_front(self.len, pool);
    }

    fn drop_front(&mut self, mut written: usize, pool: &mut Pool) {
        self.len -= written;
        while let Some(first) = self.chunks.front_mut() {
            let step = written.min(first.used().len());
            first.start += step;
            written -= step;
            if !first.used().is_empty() {
                return;
            }
            pool.give(self.chunks.pop_front().expect("looked at just now"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_leave_in_the_order_they_came(steps in proptest::collection::vec((0usize..90_000, 0usize..200_000), 1..40)) {
            let (mut queue, mut pool) = (Queue::default(), Pool::default());
            let (mut next_in, mut next_out) = (0u64, 0u64);
            for (add, take) in steps {
                for byte in queue.add(add, &mut pool) {
                    *byte = (next_in % 251) as u8;
                    next_in += 1;
                }
                queue.write(&mut pool, |pieces| {
                    let bytes = pieces.iter().flat_map(|piece| piece.iter());
                    let written = bytes.take(take).map(|&byte| {
                        assert_eq!(byte, (next_out % 251) as u8);
                        next_out += 1;
                    });
                    Ok(written.count())
                }).unwrap();
                prop_assert_eq!(queue.len() as u64, next_in - next_out);
                prop_assert_eq!(queue.is_empty(), queue.chunks.is_empty());
            }
            queue.clear(&mut pool);
            prop_assert!(queue.is_empty() && pool.spare.len() <= Pool::KEPT);
        }
    }
}
