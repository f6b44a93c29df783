//! What the constructors refuse, report and promise beyond typemaps: errors, envelopes, markers, Fortran
//! kinds, commitment, absolute addresses.

use std::sync::Arc;

use banyan_datatype::{Combiner, DEFAULT_BLOCK, Data, Datatype, Distribution, Error, Order, basic};

fn builtin(code: u16) -> &'static Arc<Datatype> {
    Datatype::builtin(code).unwrap()
}

fn int() -> &'static Arc<Datatype> {
    builtin(0x209)
}

#[test]
fn predefined_types_are_those_of_the_table() {
    for row in basic::ALL {
        let ty = builtin(row.code);
        assert_eq!((ty.code(), ty.name()), (Some(row.code), row.name));
        assert_eq!(
            (ty.size(), ty.extent(), ty.lb()),
            (row.size.into(), row.extent.into(), 0),
            "{}",
            row.name
        );
        assert!(ty.is_committed() && ty.is_predefined());
        assert_eq!(ty.is_dense(), row.size == row.extent && row.code != 0x22c, "{}", row.name);
        assert_eq!(ty.envelope().combiner, Combiner::Named);
        assert_eq!(ty.elements(ty.size()), Some(if row.pair().is_some() { 2 } else { 1 }));
    }
    for none in [0, 0x20, 0x1ff, 0x200, 0x204, 0x2ff, 0x300, u16::MAX] {
        assert!(Datatype::builtin(none).is_none());
    }
}

#[test]
fn derived_types_start_uncommitted_and_duplicates_follow() {
    let ty = Datatype::contiguous(3, int()).unwrap();
    assert!(!ty.is_committed() && !ty.dup().is_committed() && !ty.is_predefined());
    assert_eq!((ty.code(), ty.name()), (None, ""));
    ty.commit();
    assert!(ty.is_committed() && ty.dup().is_committed());
}

#[test]
fn negative_counts_and_lengths_are_refused() {
    let count = |made: Result<_, Error>| assert!(matches!(made, Err(Error::Count { value: -1, .. })));
    let argument = |made: Result<Arc<Datatype>, Error>| assert!(matches!(made, Err(Error::Arg(_))));
    count(Datatype::contiguous(-1, int()));
    count(Datatype::vector(-1, 1, 1, int()));
    count(Datatype::hvector(-1, 1, 1, int()));
    argument(Datatype::vector(1, -1, 1, int()));
    argument(Datatype::indexed(&[1, -1], &[0, 1], int()));
    argument(Datatype::indexed(&[1, 1], &[0], int()));
    argument(Datatype::hindexed(&[-1], &[0], int()));
    argument(Datatype::indexed_block(-1, &[0], int()));
    argument(Datatype::hindexed_block(-1, &[0], int()));
    argument(Datatype::create_struct(&[-1], &[0], &[int().clone()]));
    argument(Datatype::create_struct(&[1], &[0], &[]));
}

#[test]
fn arrays_are_checked() {
    let bad = |made: Result<Arc<Datatype>, Error>| assert!(matches!(made, Err(Error::Arg(_))));
    bad(Datatype::subarray(&[], &[], &[], Order::C, int()));
    bad(Datatype::subarray(&[4, 4], &[2], &[0, 0], Order::C, int()));
    bad(Datatype::subarray(&[4], &[0], &[0], Order::C, int()));
    bad(Datatype::subarray(&[4], &[5], &[0], Order::C, int()));
    bad(Datatype::subarray(&[4], &[2], &[3], Order::C, int()));
    bad(Datatype::subarray(&[4], &[2], &[-1], Order::C, int()));
    bad(Datatype::subarray(&[4], &[i64::MAX], &[i64::MAX], Order::C, int()));
    use Distribution::*;
    let one = |size, rank, gsize, kind, darg, grid| {
        Datatype::darray(size, rank, &[gsize], &[kind], &[darg], &[grid], Order::C, int())
    };
    bad(one(4, 4, 10, Block, DEFAULT_BLOCK, 4));
    bad(one(4, -1, 10, Block, DEFAULT_BLOCK, 4));
    bad(one(4, 0, 10, Block, DEFAULT_BLOCK, 3));
    bad(one(4, 0, 10, Block, 2, 4));
    bad(one(4, 0, 10, Cyclic, 0, 4));
    bad(one(4, 0, 10, None, DEFAULT_BLOCK, 4));
    bad(one(4, 0, 0, Block, DEFAULT_BLOCK, 4));
    bad(one(0, 0, 10, Block, DEFAULT_BLOCK, 0));
    // The fourth of four processes gets the last element of ten in blocks of three.
    let last = one(4, 3, 10, Block, DEFAULT_BLOCK, 4).unwrap();
    assert_eq!((last.size(), last.true_lb(), last.extent()), (4, 36, 40));
    // With more processes than elements some get nothing.
    let nothing = one(4, 3, 3, Cyclic, DEFAULT_BLOCK, 4).unwrap();
    assert_eq!((nothing.size(), nothing.extent()), (0, 12));
    let huge = one(2, 1, 1 << 40, Cyclic, i64::MAX, 2).unwrap();
    assert_eq!(huge.size(), 0);
}

#[test]
fn envelopes_list_arguments_as_the_standard_does() {
    let lists = |ty: &Datatype| {
        let e = ty.envelope();
        (e.combiner as i32, e.integers, e.addresses, e.counts, e.datatypes.len())
    };
    let vector = Datatype::hvector(2, 3, 40, int()).unwrap();
    assert_eq!(lists(&vector), (105, vec![2, 3], vec![40], vec![], 1));
    assert_eq!(lists(&vector.into_large()), (105, vec![], vec![], vec![2, 3, 40], 1));
    let indexed = Datatype::indexed(&[1, 2], &[5, 9], int()).unwrap();
    assert_eq!(lists(&indexed), (106, vec![2, 1, 2, 5, 9], vec![], vec![], 1));
    let members = [int().clone(), builtin(0x214).clone()];
    let record = Datatype::create_struct(&[1, 2], &[0, 8], &members).unwrap();
    assert_eq!(lists(&record), (110, vec![2, 1, 2], vec![0, 8], vec![], 2));
    assert!(Arc::ptr_eq(&record.envelope().datatypes[1], builtin(0x214)));
    let part = Datatype::subarray(&[4, 5], &[2, 3], &[1, 0], Order::Fortran, int()).unwrap();
    assert_eq!(lists(&part), (111, vec![2, 4, 5, 2, 3, 1, 0, 15], vec![], vec![], 1));
    assert_eq!(lists(&part.into_large()), (111, vec![2, 15], vec![], vec![4, 5, 2, 3, 1, 0], 1));
    let kinds = [Distribution::Block, Distribution::None];
    let dealt = Datatype::darray(2, 1, &[6, 7], &kinds, &[19, 19], &[2, 1], Order::C, int()).unwrap();
    assert_eq!(lists(&dealt), (112, vec![2, 1, 2, 6, 7, 17, 16, 19, 19, 2, 1, 12], vec![], vec![], 1));
    assert_eq!(
        lists(&dealt.into_large()),
        (112, vec![2, 1, 2, 17, 16, 19, 19, 2, 1, 12], vec![], vec![6, 7], 1)
    );
    let resized = Datatype::resized(int(), -4, 16).unwrap();
    assert_eq!(lists(&resized), (116, vec![], vec![-4, 16], vec![], 1));
    assert_eq!(lists(&int().dup().into_large()), (102, vec![], vec![], vec![], 1));
}

#[test]
fn structs_are_padded_as_in_c_unless_resized() {
    let (char, double) = (builtin(0x243), builtin(0x214));
    let record = |types: &[Arc<Datatype>], displs: &[i64]| {
        Datatype::create_struct(&vec![1; types.len()], displs, types).unwrap()
    };
    let padded = record(&[double.clone(), char.clone()], &[0, 8]);
    assert_eq!((padded.size(), padded.extent(), padded.true_extent()), (9, 16, 9));
    // Markers stay with the type: inside a struct only they count.
    let marked = Datatype::resized(char, 0, 3).unwrap();
    let mixed = record(&[double.clone(), marked.clone()], &[0, 8]);
    assert_eq!((mixed.lb(), mixed.ub()), (8, 11));
    assert_eq!(Datatype::contiguous(4, &marked).unwrap().extent(), 12);
    // Negative extents put later elements lower.
    let back = Datatype::contiguous(3, &Datatype::resized(int(), 0, -4).unwrap()).unwrap();
    assert_eq!((back.lb(), back.ub(), back.true_lb(), back.true_extent()), (-8, -4, -8, 12));
    // An empty type has no say in the bounds; one with markers does.
    let nothing = Datatype::contiguous(0, int()).unwrap();
    assert_eq!((nothing.size(), nothing.lb(), nothing.extent()), (0, 0, 0));
    assert_eq!(record(&[nothing.clone(), int().clone()], &[100, 4]).ub(), 8);
    let span = Datatype::resized(&nothing, 0, 50).unwrap();
    assert_eq!(record(&[span, int().clone()], &[0, 4]).extent(), 50);
}

#[test]
fn fortran_kinds_are_cached_and_sizes_matched() {
    let size = |made: Result<Arc<Datatype>, Error>| made.map(|ty| ty.size()).ok();
    assert_eq!(size(Datatype::f90_real(6, 37)), Some(4));
    assert_eq!(size(Datatype::f90_real(7, -32766)), Some(8));
    assert_eq!(size(Datatype::f90_real(18, 308)), Some(16));
    assert_eq!(size(Datatype::f90_complex(-32766, 300)), Some(16));
    assert_eq!(size(Datatype::f90_complex(33, 4931)), Some(32));
    assert_eq!(size(Datatype::f90_real(34, 10)), None);
    assert_eq!(size(Datatype::f90_real(-32766, -32766)), None);
    assert_eq!(
        [2, 4, 9, 18, 38, 39].map(|r| size(Datatype::f90_integer(r))),
        [1, 2, 4, 8, 16, 0].map(|s| (s > 0).then_some(s))
    );
    let real = Datatype::f90_real(10, 100).unwrap();
    assert!(Arc::ptr_eq(&real, &Datatype::f90_real(10, 100).unwrap()));
    assert!(!Arc::ptr_eq(&real, &Datatype::f90_real(10, 101).unwrap()));
    assert!(real.is_predefined() && real.is_committed() && real.code().is_none());
    assert_eq!(real.envelope().integers, [10, 100]);
    assert_eq!(real.envelope().combiner, Combiner::F90Real);
    assert_eq!(Datatype::f90_integer(5).unwrap().envelope().integers, [5]);

    let name = |class, size| Datatype::match_size(class, size).map(|ty| ty.name()).unwrap_or("");
    assert_eq!(
        [(193, 4), (193, 16), (192, 8), (194, 32), (191, 1)].map(|(c, s)| name(c, s)),
        ["MPI_REAL4", "MPI_REAL16", "MPI_INTEGER8", "MPI_COMPLEX32", "MPI_LOGICAL1"]
    );
    assert_eq!([(193, 3), (193, 32), (194, 2), (190, 4), (192, -4)].map(|(c, s)| name(c, s)), [""; 5]);

    let pair = |value, index| Datatype::value_index(builtin(value), builtin(index)).map(|ty| ty.name());
    assert_eq!(pair(0x214, 0x209), Some("MPI_DOUBLE_INT"));
    assert_eq!(pair(0x219, 0x219), Some("MPI_2INTEGER"));
    assert_eq!(pair(0x214, 0x214), None);
}

#[test]
fn absolute_addresses_and_negative_offsets_work() {
    let (mut a, mut b) = ([1u8, 2, 3, 4], [5u8, 6, 7, 8]);
    let addresses = [a.as_mut_ptr() as i64, b.as_mut_ptr() as i64];
    let both = Datatype::hindexed(&[1, 1], &addresses, int()).unwrap();
    // SAFETY: the two displacements are the addresses of `a` and `b`, from address 0.
    let data = unsafe { Data::new(std::ptr::null_mut(), 1, &both) };
    let mut out = [0; 8];
    assert_eq!(data.cursor().pack(&data, &mut out), 8);
    assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(data.cursor().unpack(&data, &[9; 8]), 8);
    assert_eq!((a, b), ([9; 4], [9; 4]));

    let below = Datatype::hvector(2, 1, -2, builtin(0x247)).unwrap();
    let mut bytes = *b"abcde";
    // SAFETY: reaches 2 bytes below the third.
    let data = unsafe { Data::new(bytes.as_mut_ptr().add(2), 1, &below) };
    let mut out = [0; 2];
    data.cursor().pack(&data, &mut out);
    assert_eq!(&out, b"ca");
}

#[test]
fn one_piece_is_found_wherever_it_lies() {
    let piece = |ty: &Arc<Datatype>, count| {
        let span = ty.span(count).unwrap();
        let buffer = banyan_memory::HeapBuffer::zeroed(span.hi as usize);
        Data::typed(buffer, count, ty).contiguous().map(|piece| piece.len())
    };
    let record = Datatype::create_struct(&[1, 1], &[0, 8], &[builtin(0x214).clone(), int().clone()]).unwrap();
    assert_eq!((piece(&record, 1), piece(&record, 2)), (Some(12), None));
    let moved = Datatype::hindexed(&[3], &[16], int()).unwrap();
    assert_eq!((piece(&moved, 1), piece(&moved, 2)), (Some(12), Some(24)));
    let backwards = Datatype::hindexed(&[1, 1], &[4, 0], int()).unwrap();
    assert_eq!(piece(&backwards, 1), None);
    assert_eq!(piece(&backwards, 0), Some(0));
    let whole = Datatype::subarray(&[4, 6], &[4, 6], &[0, 0], Order::C, int()).unwrap();
    assert!(whole.is_dense());
    let rows = Datatype::subarray(&[4, 6], &[2, 6], &[1, 0], Order::C, int()).unwrap();
    assert_eq!(piece(&rows, 1), Some(48));
}
