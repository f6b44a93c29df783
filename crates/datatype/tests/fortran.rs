//! What a Fortran program with `-i8 -r8` tells once, for the whole process: hence a test of its own.

use banyan_datatype::basic::Basic;
use banyan_datatype::fortran::{Sizes, set_booleans, set_sizes};
use banyan_datatype::op::{self, Builtin};
use banyan_datatype::{Data, Datatype, external32};
use banyan_memory::{Buffer, HeapBuffer};

fn words(values: &[i64]) -> Buffer {
    HeapBuffer::copy_of(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
}

fn read(buffer: &Buffer) -> Vec<i64> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes);
    bytes.chunks(8).map(|word| i64::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn default_kinds_take_the_sizes_and_truth_of_the_program() {
    let ty = |code| Datatype::builtin(code).unwrap();
    assert_eq!([0x219, 0x21b].map(|code| Basic::find(code).unwrap().size), [4, 8]);
    assert!(set_sizes(Sizes { logical: 8, integer: 3, real: 8, double_precision: 8 }).is_err());
    let wide = Sizes { logical: 8, integer: 8, real: 8, double_precision: 16 };
    set_sizes(wide).unwrap();
    assert!(set_sizes(wide).is_err(), "only once");

    let sizes: Vec<u64> = [0x218, 0x219, 0x21a, 0x21b, 0x21c, 0x21d, 0x21e, 0x230, 0x231, 0x232]
        .map(|code| ty(code).size())
        .to_vec();
    assert_eq!(sizes, [8, 8, 8, 16, 16, 32, 1, 16, 32, 16]);
    assert_eq!((ty(0x209).size(), ty(0x2d1).size()), (4, 4), "other types stay");
    assert_eq!((ty(0x219).code(), ty(0x219).name()), (Some(0x219), "MPI_INTEGER"));

    let inout = words(&[1 << 40, -5]);
    op::reduce(Builtin::Sum, ty(0x219), &words(&[1 << 41, 2]), &inout, 2).unwrap();
    assert_eq!(read(&inout), [3 << 40, -3]);
    let inout = words(&[1 << 40, 7, 3, 9]);
    op::reduce(Builtin::Maxloc, ty(0x232), &words(&[1 << 40, 6, 4, 8]), &inout, 2).unwrap();
    assert_eq!(read(&inout), [1 << 40, 6, 4, 8]);
    let mut out = [0; 8];
    external32::pack(&Data::bytes(words(&[-2])), ty(0x219), &mut out).unwrap();
    assert_eq!(out, (-2i64).to_be_bytes());

    // Before the values are known, 1 is written.
    let inout = words(&[-1, 0, 5]);
    op::reduce(Builtin::Land, ty(0x218), &words(&[-1, -1, 2]), &inout, 3).unwrap();
    assert_eq!(read(&inout), [1, 0, 1]);
    assert!(set_booleans(4, 1, 1).is_err());
    set_booleans(4, 0xffff_ffff, 0).unwrap();
    assert!(set_booleans(4, 1, 0).is_err(), "only once");
    let inout = words(&[-1, 0, -1]);
    op::reduce(Builtin::Land, ty(0x218), &words(&[-1, -1, 0]), &inout, 3).unwrap();
    assert_eq!(read(&inout), [-1, 0, 0]);
    let bools = HeapBuffer::copy_of(&[1, 0]);
    op::reduce(Builtin::Lor, ty(0x238), &HeapBuffer::copy_of(&[1, 0]), &bools, 2).unwrap();
    let mut out = [9; 2];
    bools.read(0, &mut out);
    assert_eq!(out, [1, 0], "C's bool is not Fortran's");
}
