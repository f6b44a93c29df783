//! Sets of units, as ranges.

use crate::view::Range;

/// Some units: ranges in order that do not touch each other, as starts and ends.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds a range.
    pub(super) fn insert(&mut self, (at, len): Range) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (at, at + len);
        self.0.retain(|&(from, to)| {
            let apart = to < start || end < from;
            if !apart {
                (start, end) = (start.min(from), end.max(to));
            }
            apart
        });
        let place = self.0.partition_point(|range| range.0 < start);
        self.0.insert(place, (start, end));
    }

    /// Takes a range out.
    pub(super) fn remove(&mut self, (at, len): Range) {
        if len == 0 {
            return;
        }
        let (start, end) = (at, at + len);
        let rest = self.0.iter().flat_map(|&(from, to)| [(from, to.min(start)), (from.max(end), to)]);
        self.0 = rest.filter(|(from, to)| from < to).collect();
    }

    /// The parts of a range that are not there.
    pub(super) fn missing(&self, (at, len): Range) -> Vec<Range> {
        let (mut start, end, mut parts) = (at, at + len, vec![]);
        for &(from, to) in self.0.iter().filter(|&&(from, to)| from < end && at < to) {
            if start < from {
                parts.push((start, from - start));
            }
            start = to;
        }
        if start < end {
            parts.push((start, end - start));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_sets_that_they_stand_for() {
        let (mut ranges, mut set, mut state) = (Ranges::default(), [false; 40], 1u64);
        for step in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (at, len) = ((state >> 33) % 40, (state >> 50) % 12);
            let range = (at, len.min(40 - at));
            let units = range.0 as usize..(range.0 + range.1) as usize;
            match state >> 61 {
                0..=3 => {
                    ranges.insert(range);
                    set[units].fill(true);
                }
                4 | 5 => {
                    ranges.remove(range);
                    set[units].fill(false);
                }
                _ => {
                    let mut missing = vec![];
                    for (at, len) in ranges.missing(range) {
                        assert!(len > 0, "step {step}");
                        missing.extend(at as usize..(at + len) as usize);
                    }
                    let expected: Vec<usize> = units.filter(|&unit| !set[unit]).collect();
                    assert_eq!(missing, expected, "step {step}: {range:?} in {ranges:?}");
                }
            }
            let apart = ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0);
            assert!(apart && ranges.0.iter().all(|range| range.0 < range.1), "step {step}: {ranges:?}");
        }
    }
}
