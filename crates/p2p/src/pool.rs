//! [`Pool`]: where the payload of messages lies that came before their receive.

use crate::credit::UNIT;

/// Buffers of whole units of credit that are used again, so that steady traffic does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Kept buffers of 64, 128, 192, ... bytes.
    shelves: Vec<Vec<Vec<u8>>>,
    /// Bytes of them.
    kept: usize,
    /// Bytes in use.
    pub(crate) held: u64,
    /// The most that were ever in use.
    pub(crate) most: u64,
}

/// Longer buffers are not kept, bytes.
const LONGEST: usize = 4 << 10;
/// Bytes that are kept at most.
const KEPT: usize = 256 << 10;

impl Pool {
    /// A copy of `bytes`.
    #[inline]
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.count(bytes.len());
        let kept = self.shelves.get_mut(bytes.len().div_ceil(UNIT)).and_then(Vec::pop);
        self.kept -= kept.as_ref().map_or(0, Vec::capacity);
        let mut buffer = kept.unwrap_or_else(|| Vec::with_capacity(bytes.len().next_multiple_of(UNIT)));
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// So many bytes are kept, here or elsewhere.
    #[inline]
    pub(crate) fn count(&mut self, bytes: usize) {
        self.held += bytes as u64;
        self.most = self.most.max(self.held);
    }

    /// They are not any more.
    #[inline]
    pub(crate) fn discount(&mut self, bytes: usize) {
        self.held -= bytes as u64;
    }

    /// Takes a buffer back.
    #[inline]
    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        self.discount(buffer.len());
        let (shelf, size) = (buffer.len().div_ceil(UNIT), buffer.capacity());
        if size == 0 || size > LONGEST || self.kept + size > KEPT {
            return;
        }
        if shelf >= self.shelves.len() {
            self.shelves.resize_with(shelf + 1, Vec::new);
        }
        buffer.clear();
        self.kept += size;
        self.shelves[shelf].push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_bytes_are_counted() {
        let mut pool = Pool::default();
        for len in [0, 1, 63, 64, 65, 4095, 4096, 4097, 100_000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let (a, b) = (pool.copy_of(&bytes), pool.copy_of(&bytes));
            assert_eq!((&a, pool.held), (&bytes, 2 * len as u64));
            pool.give_back(a);
            pool.give_back(b);
            let again = pool.copy_of(&bytes);
            assert_eq!(again, bytes);
            pool.give_back(again);
        }
        assert_eq!((pool.held, pool.most), (0, 200_000));
    }
}
