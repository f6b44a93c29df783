//! Random datatypes.

use std::sync::Arc;

use banyan_datatype::{Data, Datatype, Order};

use crate::random::Random;

/// True if several packed bytes lie at one place.
pub(crate) fn overlaps(data: &Data) -> bool {
    let (mut runs, mut cursor) = (vec![], data.cursor());
    cursor.segments(data, usize::MAX, |run| runs.push((run.address(0), run.len())));
    runs.sort_unstable();
    runs.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
}

/// A datatype of a basic type under so many levels of constructors, at most.
pub(crate) fn datatype(random: &Random, levels: u32, odd: bool) -> Arc<Datatype> {
    if levels == 0 {
        let codes = [if odd { 0x247 } else { 0x216 }, 0x208, 0x209, 0x214, 0x214, 0x216, 0x220, 0x228, 0x22c];
        return Datatype::builtin(random.pick(&codes)).unwrap().clone();
    }
    let old = datatype(random, levels - 1, odd);
    let small = |random: &Random| 1 + random.below(4) as i64;
    // Mostly apart, so that there is something to unpack; sometimes backwards.
    let mut at = -(random.below(9) as i64);
    let mut displs = |random: &Random, n: u64, unit: i64| -> (Vec<i64>, Vec<i64>) {
        (0..n)
            .map(|_| {
                let len = 1 + random.below(3) as i64;
                at +=
                    (len + random.below(3) as i64) * unit + if odd { random.pick(&[0, 0, 0, -1]) } else { 0 };
                (len, at)
            })
            .unzip()
    };
    let extent = old.extent().abs().max(1);
    let made = match random.below(9) {
        0 => Datatype::contiguous(small(random), &old),
        1 => Datatype::vector(small(random), small(random), small(random) + 2, &old),
        2 => Datatype::hvector(
            small(random),
            1,
            extent * 2 + random.pick(&[0, 0, 16, if odd { 3 } else { 8 }, -4 * extent]),
            &old,
        ),
        3 => {
            let (lens, at) = displs(random, 3, 3);
            Datatype::indexed(&lens, &at, &old)
        }
        4 => {
            let n = random.pick(&[2, 5, 40]);
            let (_, at) = displs(random, n, 2 * extent);
            Datatype::hindexed_block(1 + random.below(2) as i64, &at, &old)
        }
        5 => {
            let n = random.pick(&[2, 5, 60]);
            let (lens, at) = displs(random, n, 3 * extent);
            Datatype::hindexed(&lens, &at, &old)
        }
        6 => {
            let other = datatype(random, levels - 1, odd);
            let second = old.true_extent().abs().max(old.extent().abs()) * 2 + other.true_extent().abs();
            Datatype::create_struct(&[1, 1], &[0, second], &[old, other])
        }
        7 => Datatype::resized(
            &old,
            old.lb() - 4 * random.below(3) as i64,
            old.extent() + random.pick(&[0, 8, 16, odd.into()]),
        ),
        _ => {
            let sizes = [3 + random.below(3) as i64, 2 + random.below(6) as i64];
            let inner = sizes.map(|size| 1 + random.below(size as u64) as i64);
            let starts = [sizes[0] - inner[0], sizes[1] - inner[1]];
            Datatype::subarray(&sizes, &inner, &starts, random.pick(&[Order::C, Order::Fortran]), &old)
        }
    };
    made.expect("small numbers")
}
