//! A quick hash for small keys of integers, such as peers and contexts. It does not resist chosen collisions: keys come from peers of the
//! same job, which have cheaper ways to slow each other down.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with that hash.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

/// Multiplies, and folds the two halves of the product: every input bit reaches high and low output bits.
#[derive(Default)]
pub struct Fold(u64);

impl Fold {
    #[inline]
    fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word ^ 0x243f_6a88_85a3_08d3) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

impl Hasher for Fold {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }
    #[inline]
    fn write_u8(&mut self, v: u8) {
        self.mix(u64::from(v));
    }
    #[inline]
    fn write_u32(&mut self, v: u32) {
        self.mix(u64::from(v));
    }
    #[inline]
    fn write_u64(&mut self, v: u64) {
        self.mix(v);
    }
}
