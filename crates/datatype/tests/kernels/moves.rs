//! Random datatypes, parts of whose packed bytes are packed and unpacked, at all alignments.

use banyan_datatype::Data;
use banyan_memory::{Buffer, HeapBuffer};

use crate::compiled::Compiled;
use crate::random::Random;
use crate::types::{datatype, overlaps};

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
