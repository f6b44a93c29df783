//! [`Products`], and into how many segments data are cut that go through a pipeline.
//!
//! Data that pass through `stages` stages in `k` segments are over when `k + stages - 1` segments have been through one stage, each of which
//! takes the latency of the link and the time of its bytes. With `n` bytes that is least where
//! `k = sqrt((stages - 1) n byte / latency)`. So what counts of a link is its bandwidth-delay product alone: the bytes that it moves in one
//! latency. It follows from the [profile](banyan_topo::Profile) of the machine, which all ranks of a job have alike.

/// Bandwidth-delay products, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Products {
    /// Of a message between two of the ranks.
    pub message: u64,
    /// Of a piece on the shared scratch: what one core copies while the other one learns that a piece is there.
    pub scratch: u64,
}

impl Products {
    /// One segment, whatever is cut.
    pub const UNCUT: Products = Products { message: u64::MAX, scratch: u64::MAX };
}

/// What a link of this latency (seconds) and time of a byte moves in one latency, in bytes: 1 at least.
pub(crate) fn product(latency: f64, byte: f64) -> u64 {
    ((latency / byte) as u64).max(1)
}

/// Into how many segments so many bytes are cut that go through so many stages, at most `most` of them.
pub(crate) fn number(bytes: u64, product: u64, stages: u32, most: u32) -> u32 {
    let between = u128::from(stages.saturating_sub(1));
    // Twice the root, so that it is rounded to the nearest number and not down.
    let square = 4 * between * u128::from(bytes) / u128::from(product.max(1));
    let number = square.isqrt().div_ceil(2);
    number.clamp(1, u128::from(most.max(1))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_second_stage_is_not_cut() {
        assert_eq!(number(1 << 30, 1, 1, 100), 1);
        assert_eq!(number(1 << 30, 1, 0, 100), 1);
        assert_eq!(number(0, 0, 9, 100), 1);
        assert_eq!(number(u64::MAX, 1, u32::MAX, 100), 100);
        assert_eq!(number(u64::MAX, Products::UNCUT.message, 2, 100), 1);
    }

    #[test]
    fn twice_the_latency_makes_fewer_segments() {
        let of = |latency| number(1 << 20, product(latency, 1e-9), 8, 4096);
        assert_eq!([10e-6, 20e-6, 40e-6].map(of), [27, 19, 14]);
    }

    /// No other number is quicker by more than what rounding costs.
    #[test]
    fn no_other_number_is_much_quicker() {
        let every = |range: std::ops::Range<u32>, step: usize| range.step_by(step);
        for (bytes, stages) in
            every(0..30, 1).flat_map(|log| [2, 3, 8, 50].map(|stages| (1u64 << log, stages)))
        {
            for (latency, byte) in
                every(0..40, 1).map(|turn| (1e-8 * 1.4f64.powi(turn as i32), 1e-11 * f64::from(1 + turn % 7)))
            {
                let time = |number: u32| {
                    f64::from(number + stages - 1) * (latency + bytes as f64 / f64::from(number) * byte)
                };
                let chosen = time(number(bytes, product(latency, byte), stages, 4096));
                for other in (0..12).map(|log| 1 << log) {
                    let other = time(other);
                    assert!(chosen <= 1.05 * other, "{bytes} bytes, {stages} stages: {chosen}, {other}");
                }
            }
        }
    }
}
