//! Sums of reals by vectors of 256 bits, where the processor has them. The compiler makes vectors of 128 bits of plain loops, as all
//! processors have these, and none at all in `mpirun`, which is made small and measures what a sum takes.

use super::Raw;

#[cfg(target_arch = "x86_64")]
macro_rules! sum {
    ($name:ident, $t:ty, $load:ident, $add:ident, $store:ident) => {
        /// # Safety
        /// The promise of [`Raw`], on a processor that has AVX.
        #[target_feature(enable = "avx")]
        unsafe fn $name(input: *const u8, inout: *mut u8, count: usize) {
            use std::arch::x86_64::{$add, $load, $store};
            const LANES: usize = 32 / size_of::<$t>();
            /// Vectors of one turn of the loop.
            const TURN: usize = 4;

            let (input, inout) = (input.cast::<$t>(), inout.cast::<$t>());
            let mut at = 0;
            while count - at >= TURN * LANES {
                for vector in 0..TURN {
                    let at = at + vector * LANES;
                    // SAFETY: so many elements are left, by the promise; loads and stores take any alignment.
                    unsafe {
                        let (a, b) = ($load(input.add(at)), $load(inout.add(at)));
                        $store(inout.add(at), $add(a, b));
                    }
                }
                at += TURN * LANES;
            }
            for at in at..count {
                // SAFETY: as above.
                unsafe {
                    let sum = input.add(at).read_unaligned() + inout.add(at).read_unaligned();
                    inout.add(at).write_unaligned(sum);
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
sum!(doubles, f64, _mm256_loadu_pd, _mm256_add_pd, _mm256_storeu_pd);
#[cfg(target_arch = "x86_64")]
sum!(floats, f32, _mm256_loadu_ps, _mm256_add_ps, _mm256_storeu_ps);

/// The loop for reals of so many bytes, if there is one for this processor.
#[cfg(target_arch = "x86_64")]
pub(super) fn widest(size: u8) -> Option<Raw> {
    let sum: Raw = match size {
        4 => floats,
        8 => doubles,
        _ => return None,
    };
    std::arch::is_x86_feature_detected!("avx").then_some(sum)
}

/// AVX is only on x86.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn widest(_: u8) -> Option<Raw> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At any length and alignment, and of a number to itself, exactly what one by one gives.
    fn check<T: Copy + PartialEq + std::fmt::Debug + std::ops::Add<Output = T>>(number: impl Fn(usize) -> T) {
        let Some(sum) = widest(size_of::<T>() as u8) else { return };
        let bytes = size_of::<T>();
        for count in (0..80).chain([1000]) {
            for shift in [0, 1, bytes / 2, 3] {
                let (a, b): (Vec<T>, Vec<T>) =
                    ((0..count).map(&number).collect(), (0..count).map(|i| number(7 * i + 3)).collect());
                let (mut input, mut inout) =
                    (vec![0xeeu8; count * bytes + 8], vec![0xeeu8; count * bytes + 8]);
                let (from, to) = (input[shift..].as_mut_ptr(), inout[shift..].as_mut_ptr());
                // SAFETY: both have room for that many elements behind the shift.
                let (sums, doubled, rest): (Vec<T>, Vec<T>, u8) = unsafe {
                    from.copy_from_nonoverlapping(a.as_ptr().cast(), count * bytes);
                    to.copy_from_nonoverlapping(b.as_ptr().cast(), count * bytes);
                    sum(from, to, count);
                    let read =
                        |at: *mut u8| (0..count).map(|i| at.cast::<T>().add(i).read_unaligned()).collect();
                    let sums = read(to);
                    sum(from, from, count);
                    (sums, read(from), to.add(count * bytes).read())
                };
                let expected: Vec<T> = a.iter().zip(&b).map(|(a, b)| *a + *b).collect();
                assert_eq!(sums, expected, "{count} elements, {shift} bytes on");
                assert_eq!(doubled, a.iter().map(|a| *a + *a).collect::<Vec<_>>(), "{count}, {shift}");
                assert_eq!(rest, 0xee, "{count} elements, {shift} bytes on");
            }
        }
    }

    #[test]
    fn sums_are_those_of_single_numbers() {
        check(|i| (i as f64).sqrt() * if i % 3 == 0 { -1.0 } else { 1e9 });
        check(|i| (i as f32).sqrt() * if i % 5 == 0 { -1.0 } else { 1e9 });
    }
}
