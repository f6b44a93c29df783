//! [`Pool`]: memory for the payload of unexpected messages.

use crate::credit::UNIT;

/// Buffers of whole units of credit that are reused, so that steady traffic does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Free buffers of 64, 128, 192, ... bytes.
    free: Vec<Vec<Vec<u8>>>,
    /// Bytes of the free buffers.
    free_bytes: usize,
    /// Bytes of unexpected payload, here or in [`crate::request::Message`].
    pub(crate) in_use: u64,
    /// The most that were ever in use, bytes.
    pub(crate) most_in_use: u64,
}

/// Longer buffers are not reused, bytes.
const LONGEST: usize = 4 << 10;
/// Bytes of free buffers that are kept at most.
const MOST_FREE: usize = 256 << 10;

impl Pool {
    /// A copy of `bytes`.
    #[inline]
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.count(bytes.len());
        let reused = self.free.get_mut(bytes.len().div_ceil(UNIT)).and_then(Vec::pop);
        self.free_bytes -= reused.as_ref().map_or(0, Vec::capacity);
        let mut buffer = reused.unwrap_or_else(|| Vec::with_capacity(bytes.len().next_multiple_of(UNIT)));
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// So many bytes of unexpected payload are kept, here or in their message.
    #[inline]
    pub(crate) fn count(&mut self, bytes: usize) {
        self.in_use += bytes as u64;
        self.most_in_use = self.most_in_use.max(self.in_use);
    }

    /// So many bytes are kept no longer.
    #[inline]
    pub(crate) fn discount(&mut self, bytes: usize) {
        self.in_use -= bytes as u64;
    }

    /// Takes a buffer back, for reuse.
    #[inline]
    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        self.discount(buffer.len());
        let (units, size) = (buffer.len().div_ceil(UNIT), buffer.capacity());
        if size == 0 || size > LONGEST || self.free_bytes + size > MOST_FREE {
            return;
        }
        if units >= self.free.len() {
            self.free.resize_with(units + 1, Vec::new);
        }
        buffer.clear();
        self.free_bytes += size;
        self.free[units].push(buffer);
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
            assert_eq!((&a, pool.in_use), (&bytes, 2 * len as u64));
            pool.give_back(a);
            pool.give_back(b);
            let again = pool.copy_of(&bytes);
            assert_eq!(again, bytes);
            pool.give_back(again);
        }
        assert_eq!((pool.in_use, pool.most_in_use), (0, 200_000));
    }
}
