//! [`Pool`]: where the payload of messages lies that came before their receive.

/// Buffers of a few sizes that are used again, so that steady traffic does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Kept buffers of 64, 128, ... bytes.
    shelves: [Vec<Vec<u8>>; SHELVES],
    /// Bytes in use.
    pub(crate) held: u64,
    /// The most that were ever in use.
    pub(crate) most: u64,
}

const SMALLEST: usize = 64;
const SHELVES: usize = 7;
/// Bytes that a shelf keeps.
const KEPT: usize = 64 << 10;

impl Pool {
    /// A copy of `bytes`.
    #[inline]
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held += bytes.len() as u64;
        self.most = self.most.max(self.held);
        if bytes.is_empty() {
            return Vec::new();
        }
        let shelf = shelf_for(bytes.len());
        let mut buffer = match self.shelves.get_mut(shelf) {
            Some(kept) => kept.pop().unwrap_or_else(|| Vec::with_capacity(SMALLEST << shelf)),
            None => Vec::with_capacity(bytes.len()),
        };
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes a buffer back.
    #[inline]
    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        self.held -= buffer.len() as u64;
        if buffer.is_empty() {
            return;
        }
        let shelf = shelf_for(buffer.len());
        let Some(kept) = self.shelves.get_mut(shelf) else { return };
        if kept.len() < KEPT / (SMALLEST << shelf) {
            buffer.clear();
            kept.push(buffer);
        }
    }
}

/// The shelf whose buffers hold `len` (at least 1) bytes; beyond the last, buffers are made to measure.
#[inline]
fn shelf_for(len: usize) -> usize {
    len.div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize
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
