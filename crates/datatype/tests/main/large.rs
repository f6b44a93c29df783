//! Types too big or too scattered for random tests: sizes past 2^31 and 2^40, and long lists.

use std::sync::Arc;

use banyan_datatype::{Combiner, Data, Datatype, Error, Order};
use banyan_memory::HeapBuffer;

fn int() -> &'static Arc<Datatype> {
    Datatype::builtin(0x209).unwrap()
}

#[test]
fn sizes_past_31_and_40_bits() {
    let big = Datatype::contiguous(1 << 40, int()).unwrap();
    assert_eq!((big.size(), big.extent()), (1 << 42, 1 << 42));
    assert_eq!(big.elements(1 << 41), Some(1 << 39));
    assert_eq!(big.element_count(), 1 << 40);
    assert!(big.is_dense());

    let rows = Datatype::vector(3 << 30, 2, 1 << 20, int()).unwrap();
    assert_eq!(rows.size(), 3 << 33);
    assert_eq!(rows.extent(), ((3 << 30) - 1) * (1 << 22) + 8);
    assert_eq!(rows.span(2).unwrap().bytes, 3 << 34);

    let far = Datatype::hindexed(&[1, 1], &[-(1 << 50), 1 << 50], int()).unwrap();
    assert_eq!((far.true_lb(), far.true_extent()), (-(1 << 50), (1 << 51) + 4));

    let part = Datatype::subarray(&[1 << 22, 1 << 22], &[1 << 21, 4], &[5, 7], Order::C, int()).unwrap();
    assert_eq!(part.extent(), 1 << 46);
    assert_eq!(part.size(), 1 << 25);
    assert_eq!(part.true_lb(), 4 * (5 * (1 << 22) + 7));
}

#[test]
fn what_does_not_fit_into_64_bits_is_refused() {
    let overflow = |made: Result<Arc<Datatype>, Error>| matches!(made, Err(Error::Overflow(_)));
    let big = Datatype::contiguous(1 << 60, int()).unwrap();
    assert!(overflow(Datatype::contiguous(2, &big)));
    assert!(overflow(Datatype::contiguous(i64::MAX, int())));
    assert!(overflow(Datatype::vector(2, 1, i64::MAX, int())));
    assert!(overflow(Datatype::hvector(i64::MAX, 1, i64::MAX, int())));
    assert!(overflow(Datatype::hindexed(&[1, 1], &[i64::MIN, i64::MAX - 8], int())));
    assert!(overflow(Datatype::hindexed(&[1], &[i64::MAX], int())));
    assert!(overflow(Datatype::indexed(&[1], &[i64::MAX], int())));
    assert!(overflow(Datatype::resized(int(), i64::MAX, i64::MAX)));
    assert!(overflow(Datatype::create_struct(&[1, 1], &[0, 8], &[big.clone(), big.clone()])));
    assert!(overflow(Datatype::subarray(&[1 << 40, 1 << 40], &[1, 1], &[0, 0], Order::C, int())));
    assert!(matches!(big.span(2), Err(Error::Overflow(_))));
    assert!(matches!(int().span(u64::MAX), Err(Error::Overflow(_))));
    // An empty block may be anywhere, and an address may be any number.
    assert_eq!(Datatype::indexed(&[0], &[i64::MAX], int()).unwrap().size(), 0);
    assert_eq!(Datatype::hindexed(&[1], &[0x7fff_ffff_f000], int()).unwrap().lb(), 0x7fff_ffff_f000);
}

#[test]
fn long_lists_of_loops_are_packed_like_their_parts() {
    let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let short = Datatype::builtin(0x208).unwrap();
    let column = Datatype::hvector(5000, 1, 6, int()).unwrap();
    let pieces = Datatype::indexed(&[1, 3, 2], &[0, 2, 9], short).unwrap();
    let rows = Datatype::hvector(2000, 1, 29, &pieces).unwrap();
    let ty =
        Datatype::create_struct(&[1, 2, 1], &[1, 30_011, 170_000], &[column, rows, short.clone()]).unwrap();

    let mut expected = vec![];
    (0..5000).for_each(|k| expected.extend(&bytes[1 + 6 * k..][..4]));
    for copy in 0..2 {
        let base = 30_011 + copy * (1999 * 29 + 22);
        for k in 0..2000 {
            let row = &bytes[base + 29 * k..];
            [(0, 2), (4, 6), (18, 4)].iter().for_each(|&(at, n)| expected.extend(&row[at..at + n]));
        }
    }
    expected.extend(&bytes[170_000..170_002]);

    let data = Data::typed(HeapBuffer::copy_of(&bytes), 1, &ty);
    assert_eq!(data.len(), expected.len() as u64);
    let mut cursor = data.cursor();
    for from in (0..expected.len()).step_by(7) {
        let mut part = [0; 7];
        let n = cursor.pack(&data, &mut part);
        assert_eq!(&part[..n], &expected[from..expected.len().min(from + 7)]);
    }
    for from in (0..expected.len()).rev().step_by(997) {
        let mut part = vec![0; expected.len()];
        cursor.seek(from as u64);
        assert_eq!(cursor.pack(&data, &mut part), expected.len() - from);
        assert_eq!(&part[..expected.len() - from], &expected[from..]);
    }
    let copy = Data::typed(HeapBuffer::zeroed(bytes.len()), 1, &ty);
    assert_eq!(copy.copy_from(&data), data.len());
    let mut again = vec![0; expected.len()];
    copy.cursor().pack(&copy, &mut again);
    assert_eq!(again, expected);
    let mut total = 0;
    copy.cursor().segments(&copy, usize::MAX, |piece| total += piece.len());
    assert_eq!(total, expected.len());
}

#[test]
fn deep_nests_neither_overflow_the_stack_nor_slow_down() {
    let mut ty = int().clone();
    for _ in 0..200_000 {
        ty = ty.dup();
    }
    assert_eq!(ty.size(), 4);
    assert_eq!(ty.envelope().combiner, Combiner::Dup);
    drop(ty);
    // Each level adds a run and two basic types, and none is like its neighbour.
    let double = Datatype::builtin(0x214).unwrap();
    let mut ty = Datatype::hvector(5000, 1, 6, int()).unwrap();
    for level in 0..1_000 {
        let members = [ty, double.clone(), int().clone()];
        ty = Datatype::create_struct(&[1, 1, 1], &[0, 40_000 + 24 * level, 40_012 + 24 * level], &members)
            .unwrap();
    }
    assert_eq!(ty.size(), 20_000 + 1_000 * 12);
    assert_eq!(ty.elements(ty.size() - 4), Some(5000 + 2_000 - 1));
    let bytes: Vec<u8> = (0..ty.ub() as u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let data = Data::typed(HeapBuffer::copy_of(&bytes), 1, &ty);
    let mut packed = vec![0; ty.size() as usize];
    assert_eq!(data.cursor().pack(&data, &mut packed), packed.len());
    for level in 0..1_000 {
        let (at, from) = (20_000 + 12 * level, 40_000 + 24 * level);
        assert_eq!(packed[at..at + 8], bytes[from..from + 8]);
        assert_eq!(packed[at + 8..at + 12], bytes[from + 12..from + 16]);
    }
}
