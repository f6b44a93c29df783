//! Random datatypes, parts of whose packed bytes are packed and unpacked, at all alignments.

use std::sync::Arc;

use banyan_datatype::{Data, Datatype, Order};
use banyan_memory::{Buffer, HeapBuffer};

use crate::compiled::Compiled;
use crate::random::Random;

#[test]
fn kernels_pack_as_the_processor_does() {
    let Some(compiled) = Compiled::new() else { return };
    let random = Random::new("moves");
    let (mut long, mut words) = (0, [0; 17]);
    for round in 0..3000 {
        let (ty, count) = (datatype(&random, 3, random.below(4) == 0), 1 + random.below(4));
        let Ok(span) = ty.span(count) else { continue };
        if span.bytes == 0 || span.bytes > 1 << 14 || span.hi - span.lo > 1 << 17 {
            continue;
        }
        let memory = Memory::new(span.lo, span.hi, &random);
        let data = Data::typed(memory.buffer.clone(), count, &ty);
        // Halves, odd fragments, and all of it.
        let at = random.pick(&[0, 0, 0, span.bytes / 2, random.below(span.bytes)]);
        let len = random.pick(&[span.bytes - at, span.bytes - at, random.below(span.bytes - at + 1)]);
        let packed = HeapBuffer::copy_of(&vec![0x5a; len as usize + 32]);
        let start = random.pick(&[0, 0, 0, 16, 8, 4, random.below(16)]) as isize;
        let Some(moves) = data.moves(false, at, len, packed.address(start)) else { continue };
        let table = moves.table.map_or(0, |table| table.as_ptr() as usize);
        long += u32::from(moves.table.is_some());
        let bytes: usize = moves.run.kernel.to_str().unwrap().strip_prefix("pack_").unwrap().parse().unwrap();
        words[bytes] += 1;
        let what = || format!("round {round}, {len} bytes from {at} of {count} {ty:?}");
        // SAFETY: the table is there, and so is the memory of the datatype and of packed bytes.
        unsafe { compiled.run(&moves.run, [memory.first(), packed.address(start), table]) };
        let mut expected = vec![0x5a; packed.len()];
        let mut cursor = data.cursor();
        cursor.seek(at);
        cursor.pack(&data, &mut expected[start as usize..][..len as usize]);
        assert!(contents(&packed) == expected, "{}", what());

        if overlaps(&data) {
            continue;
        }
        let fresh = random.bytes(len as usize);
        packed.write(start, &fresh);
        let copy = HeapBuffer::copy_of(&contents(&memory.whole));
        let there = Data::typed(copy.rebased(memory.shift), count, &ty);
        let moves = there.moves(true, at, len, packed.address(start)).unwrap();
        // SAFETY: as above.
        unsafe {
            compiled
                .run(&moves.run, [there.buffer().address(there.buffer().lo()), packed.address(start), table])
        };
        let mut cursor = data.cursor();
        cursor.seek(at);
        cursor.unpack(&data, &fresh);
        assert!(contents(&copy) == contents(&memory.whole), "unpacking in {}", what());
    }
    assert!(
        long > 20 && [1, 2, 4, 8, 16].iter().all(|&bytes| words[bytes] > 20),
        "{long} long tables, words {words:?}"
    );
}

/// Memory that a datatype reaches over, and some beside it.
struct Memory {
    whole: Buffer,
    /// With the address that the program would pass as offset 0.
    buffer: Buffer,
    /// From the first byte to that address.
    shift: isize,
    margin: isize,
}

impl Memory {
    fn new(lo: i64, hi: i64, random: &Random) -> Memory {
        let margin = random.pick(&[16, 16, 16, 16, 16, 24, 20, 18, 17]) as isize;
        let whole = HeapBuffer::copy_of(&random.bytes((hi - lo) as usize + 48));
        let shift = margin - lo as isize;
        Memory { buffer: whole.slice(margin, (hi - lo) as usize).rebased(-lo as isize), whole, shift, margin }
    }

    /// The address of the first byte that the datatype may reach.
    fn first(&self) -> usize {
        self.whole.address(self.margin)
    }
}

fn contents(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.rebased(buffer.lo()).read(0, &mut out);
    out
}

/// True if several packed bytes lie at one place.
fn overlaps(data: &Data) -> bool {
    let (mut runs, mut cursor) = (vec![], data.cursor());
    cursor.segments(data, usize::MAX, |run| runs.push((run.address(0), run.len())));
    runs.sort_unstable();
    runs.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
}

/// A datatype of a basic type under so many levels of constructors, at most.
fn datatype(random: &Random, levels: u32, odd: bool) -> Arc<Datatype> {
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
