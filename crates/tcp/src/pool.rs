//! Memory of connections for frames under way: [`Chunk`]s that each hold one largest frame, and the [`Pool`] of unused ones.

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

    /// Drops the first bytes in use.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.start += bytes;
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
