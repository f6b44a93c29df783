//! [`copy`]: moving many bytes at the speed of the machine.

/// A cache line.
const LINE: usize = 64;
/// Below this length a first step to a line's edge costs as much as it gains.
const LONG: usize = 4096;

/// Copies `len` bytes; the two stretches may overlap.
///
/// Long copies go by whole lines of the destination: processors have a fast way to fill lines that lie in
/// another core's cache (`rep movsb` of the C library) and leave it when stores are off by 16 or 32 bytes,
/// which is how allocators return large blocks. Between two cores that is a fifth of the speed.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let head = to.align_offset(LINE);
    // A stretch that moves up onto itself must not be copied from its start.
    let moves_up = (to as usize).wrapping_sub(from as usize) < len;
    if len < LONG || head == 0 || moves_up {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy(from, to, len) };
    }
    // SAFETY: `head < LINE <= len`. What the first copy overwrites of the source, if anything, lies before
    // what the second one reads, because the stretch moves down.
    unsafe {
        std::ptr::copy(from, to, head);
        std::ptr::copy(from.add(head), to.add(head), len - head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `len` bytes from offset `from` to offset `to` of the same memory, against a plain copy.
    fn check(memory: &mut [u8], from: usize, to: usize, len: usize) {
        memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((i * 131) >> 3) as u8);
        let mut expected = memory.to_vec();
        expected.copy_within(from..from + len, to);
        assert!(from + len <= memory.len() && to + len <= memory.len());
        // SAFETY: both inside `memory`, just checked.
        unsafe { copy(memory.as_ptr().add(from), memory.as_mut_ptr().add(to), len) };
        assert!(memory == expected, "{len} bytes from {from} to {to}");
    }

    #[test]
    fn all_alignments_and_lengths_give_what_a_plain_copy_gives() {
        let mut memory = vec![0; 4 * LONG];
        for (from, to) in (0..70).flat_map(|from| (0..70).map(move |to| (from, to))) {
            for len in [0, 1, 63, LONG - 1, LONG, LONG + 1 + (from * 7 + to) % 131] {
                check(&mut memory, from, 2 * LONG + to, len);
            }
        }
    }

    #[test]
    fn overlapping_stretches_survive() {
        let mut memory = vec![0; 3 * LONG];
        for distance in [0, 1, 15, 16, 33, 63, 64, 65, 1000, LONG - 1, LONG] {
            for at in [0, 1, 16, 60] {
                check(&mut memory, at, at + distance, LONG + 100);
                check(&mut memory, at + distance, at, LONG + 100);
            }
        }
    }
}
