//! Random datatypes against the standard's definition: a list of basic types and displacements,
//! expanded from what the envelope says.

use std::sync::Arc;

use banyan_datatype::basic::Basic;
use banyan_datatype::{Combiner, Data, Datatype, Distribution, Order};
use banyan_memory::Buffer;
use proptest::prelude::*;

/// A typemap as MPI 5.0, 5.1 defines it.
#[derive(Clone, Default)]
struct Map {
    entries: Vec<(&'static Basic, i64)>,
    /// What the entries span, with the padding of pairs and structs.
    spans: Vec<(i64, i64)>,
    lower_markers: Vec<i64>,
    upper_markers: Vec<i64>,
    align: i64,
}

impl Map {
    fn of(ty: &Arc<Datatype>) -> Map {
        let e = ty.envelope();
        if e.combiner == Combiner::Named {
            return Map::basic(Basic::find(ty.code().unwrap()).unwrap());
        }
        let (i, a) = (&e.integers, &e.addresses);
        let old = e.datatypes.first().map(Map::of).unwrap_or_default();
        let extent = old.extent();
        let n = i.first().copied().unwrap_or(0) as usize;
        match e.combiner {
            Combiner::Dup => old,
            Combiner::Contiguous => old.block(i[0], 0),
            Combiner::Vector => Map::all((0..i[0]).map(|k| old.block(i[1], k * i[2] * extent))),
            Combiner::Hvector => Map::all((0..i[0]).map(|k| old.block(i[1], k * a[0]))),
            Combiner::Indexed => Map::all((0..n).map(|k| old.block(i[1 + k], i[1 + n + k] * extent))),
            Combiner::Hindexed => Map::all((0..n).map(|k| old.block(i[1 + k], a[k]))),
            Combiner::IndexedBlock => Map::all((0..n).map(|k| old.block(i[1], i[2 + k] * extent))),
            Combiner::HindexedBlock => Map::all((0..n).map(|k| old.block(i[1], a[k]))),
            Combiner::Struct => {
                let member = |k: usize| Map::of(&e.datatypes[k]).block(i[1 + k], a[k]);
                Map::all((0..n).map(member)).padded()
            }
            Combiner::Resized => Map { lower_markers: vec![a[0]], upper_markers: vec![a[0] + a[1]], ..old },
            Combiner::Subarray => {
                let (sizes, rest) = i[1..].split_at(n);
                let (subsizes, rest) = rest.split_at(n);
                let owned = |d: usize| (rest[d]..rest[d] + subsizes[d]).collect();
                old.grid(sizes, &(0..n).map(owned).collect::<Vec<_>>(), i[i.len() - 1])
            }
            Combiner::Darray => old.dealt(i),
            other => panic!("no expansion for {other:?}"),
        }
    }

    fn basic(basic: &'static Basic) -> Map {
        let entries = match basic.pair() {
            Some((value, index, at)) => vec![(value, 0), (index, at.into())],
            None => vec![(basic, 0)],
        };
        Map { entries, spans: vec![(0, basic.extent.into())], align: basic.align.into(), ..Map::default() }
    }

    fn lb(&self) -> i64 {
        let natural = self.spans.iter().map(|span| span.0).min();
        self.lower_markers.iter().copied().min().or(natural).unwrap_or(0)
    }

    fn ub(&self) -> i64 {
        let natural = self.spans.iter().map(|span| span.1).max();
        self.upper_markers.iter().copied().max().or(natural).unwrap_or(0)
    }

    fn extent(&self) -> i64 {
        self.ub() - self.lb()
    }

    fn shift(&self, by: i64) -> Map {
        let mut moved = self.clone();
        moved.entries.iter_mut().for_each(|entry| entry.1 += by);
        moved.spans.iter_mut().for_each(|span| *span = (span.0 + by, span.1 + by));
        moved.lower_markers.iter_mut().chain(&mut moved.upper_markers).for_each(|at| *at += by);
        moved
    }

    fn all(maps: impl IntoIterator<Item = Map>) -> Map {
        maps.into_iter().fold(Map::default(), |mut sum, map| {
            sum.entries.extend(map.entries);
            sum.spans.extend(map.spans);
            sum.lower_markers.extend(map.lower_markers);
            sum.upper_markers.extend(map.upper_markers);
            sum.align = sum.align.max(map.align);
            sum
        })
    }

    fn block(&self, count: i64, at: i64) -> Map {
        Map::all((0..count).map(|k| self.shift(at + k * self.extent())))
    }

    fn padded(mut self) -> Map {
        while self.upper_markers.is_empty() && self.align > 0 && self.extent() % self.align != 0 {
            let end = self.ub() + 1;
            self.spans.push((end, end));
        }
        self
    }

    /// The elements of an array whose index in each dimension is owned, in the array's order.
    fn grid(&self, sizes: &[i64], owned: &[Vec<i64>], order: i64) -> Map {
        let extent = self.extent();
        let mut dims: Vec<usize> = (0..sizes.len()).collect();
        if order == Order::C as i64 {
            dims.reverse();
        }
        let (mut offsets, mut stride) = (vec![0], extent);
        for dim in dims {
            let row = |index: &i64| offsets.iter().map(|at| at + index * stride).collect::<Vec<_>>();
            offsets = owned[dim].iter().flat_map(row).collect();
            stride *= sizes[dim];
        }
        let mut map = Map::all(offsets.iter().map(|&at| self.shift(at)));
        (map.lower_markers, map.upper_markers) = (vec![0], vec![stride]);
        map
    }

    fn dealt(&self, i: &[i64]) -> Map {
        let (rank, n) = (i[1], i[2] as usize);
        let list = |which: usize| &i[3 + which * n..3 + (which + 1) * n];
        let (gsizes, kinds, dargs, psizes) = (list(0), list(1), list(2), list(3));
        let owned = (0..n).map(|d| {
            let later: i64 = psizes[d + 1..].iter().product();
            let (place, grid) = (rank / later % psizes[d], psizes[d]);
            let owner = |index: i64| match (kinds[d], dargs[d]) {
                (16, _) => 0,
                (17, 19) => index / ((gsizes[d] + grid - 1) / grid),
                (17, block) => index / block,
                (_, 19) => index % grid,
                (_, block) => index / block % grid,
            };
            (0..gsizes[d]).filter(|&index| owner(index) == place).collect()
        });
        self.grid(gsizes, &owned.collect::<Vec<_>>(), i[i.len() - 1])
    }
}

fn basic() -> impl Strategy<Value = Arc<Datatype>> {
    let codes = vec![0x243, 0x208, 0x209, 0x214, 0x216, 0x220, 0x229, 0x22c, 0x2d3, 0x2eb, 0x247];
    prop::sample::select(codes).prop_map(|code| Datatype::builtin(code).unwrap().clone())
}

/// Mostly positive: a zero anywhere empties the type.
fn count(below: i64) -> impl Strategy<Value = i64> {
    prop_oneof![1 => Just(0), 12 => 1..below]
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::C), Just(Order::Fortran)]
}

/// Sizes, sub-sizes and starts of up to three dimensions.
fn part() -> impl Strategy<Value = Vec<(i64, i64, i64)>> {
    let dim = (1..5i64)
        .prop_flat_map(|size| (Just(size), 1..=size))
        .prop_flat_map(|(size, sub)| (Just(size), Just(sub), 0..=size - sub));
    prop::collection::vec(dim, 1..4)
}

fn share() -> impl Strategy<Value = Vec<(i64, Distribution, i64, i64)>> {
    let dim = (1..7i64, 1..4i64, 0..5i64).prop_flat_map(|(size, grid, darg)| {
        let cyclic = if darg == 0 { 19 } else { darg };
        let block = if darg == 0 { 19 } else { (size + grid - 1) / grid + darg - 1 };
        prop_oneof![
            Just((size, Distribution::None, 19, 1)),
            Just((size, Distribution::Block, block, grid)),
            Just((size, Distribution::Cyclic, cyclic, grid)),
        ]
    });
    prop::collection::vec(dim, 1..4)
}

fn blocks() -> impl Strategy<Value = Vec<(i64, i64)>> {
    prop::collection::vec((count(4), -6..9i64), 1..6)
}

fn derived(
    old: impl Strategy<Value = Arc<Datatype>> + Clone + 'static,
) -> impl Strategy<Value = Arc<Datatype>> {
    let o = move || old.clone();
    prop_oneof![
        (count(5), o()).prop_map(|(n, old)| Datatype::contiguous(n, &old).unwrap()),
        (count(5), count(4), -5..6i64, o())
            .prop_map(|(n, l, s, old)| Datatype::vector(n, l, s, &old).unwrap()),
        (count(5), count(4), -40..60i64, o())
            .prop_map(|(n, l, s, old)| Datatype::hvector(n, l, s, &old).unwrap()),
        (blocks(), o()).prop_map(|(b, old)| {
            let (l, d): (Vec<_>, Vec<_>) = b.into_iter().unzip();
            Datatype::indexed(&l, &d, &old).unwrap()
        }),
        (blocks(), o()).prop_map(|(b, old)| {
            let (l, d): (Vec<_>, Vec<_>) = b.into_iter().map(|(l, d)| (l, 5 * d)).unzip();
            Datatype::hindexed(&l, &d, &old).unwrap()
        }),
        (count(4), prop::collection::vec(-6..9i64, 1..6), o())
            .prop_map(|(l, d, old)| Datatype::indexed_block(l, &d, &old).unwrap()),
        (count(4), prop::collection::vec(-30..40i64, 1..6), o())
            .prop_map(|(l, d, old)| Datatype::hindexed_block(l, &d, &old).unwrap()),
        prop::collection::vec((count(4), -30..60i64, o()), 0..5).prop_map(|members| {
            let lengths: Vec<_> = members.iter().map(|m| m.0).collect();
            let displs: Vec<_> = members.iter().map(|m| m.1).collect();
            let types: Vec<_> = members.into_iter().map(|m| m.2).collect();
            Datatype::create_struct(&lengths, &displs, &types).unwrap()
        }),
        (-20..20i64, -10..60i64, o())
            .prop_map(|(lb, extent, old)| Datatype::resized(&old, lb, extent).unwrap()),
        o().prop_map(|old| old.dup()),
        (part(), order(), o()).prop_map(|(dims, order, old)| {
            let list = |f: fn(&(i64, i64, i64)) -> i64| dims.iter().map(f).collect::<Vec<_>>();
            Datatype::subarray(&list(|d| d.0), &list(|d| d.1), &list(|d| d.2), order, &old).unwrap()
        }),
        (share(), any::<prop::sample::Index>(), order(), o()).prop_map(|(dims, rank, order, old)| {
            let list = |f: fn(&(i64, Distribution, i64, i64)) -> i64| dims.iter().map(f).collect::<Vec<_>>();
            let grid = list(|d| d.3);
            let size: i64 = grid.iter().product();
            let kinds: Vec<_> = dims.iter().map(|d| d.1).collect();
            let rank = rank.index(size as usize) as i64;
            Datatype::darray(size, rank, &list(|d| d.0), &kinds, &list(|d| d.2), &grid, order, &old).unwrap()
        }),
    ]
}

/// Types nested up to four deep, and not too big to expand.
fn datatype() -> impl Strategy<Value = Arc<Datatype>> {
    basic()
        .prop_recursive(5, 32, 3, |inner| derived(inner.boxed()).boxed())
        .prop_filter("too big", |ty| ty.size() < 20_000 && ty.true_extent() < 1 << 20)
}

/// Memory allocated to the byte, so that AddressSanitizer sees every step outside.
struct Storage(*mut [u8]);

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw in `memory`, and dropped once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Memory for `count` elements, filled with a pattern, whose offset 0 is where the elements start: its bytes, the buffer
/// over it, its first offset, and what keeps it.
fn memory(ty: &Datatype, count: u64) -> (Vec<u8>, Buffer, i64, Storage) {
    let span = ty.span(count).unwrap();
    let bytes: Vec<u8> = (0..(span.hi - span.lo) as u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let storage = Storage(Box::into_raw(bytes.clone().into_boxed_slice()));
    let origin = storage.0.cast::<u8>().wrapping_offset(-span.lo as isize);
    // SAFETY: the storage covers the span exactly, and the tests keep it as long as the buffer.
    let buffer = unsafe { Buffer::with_bounds(origin, span.lo as isize, span.hi as isize) };
    (bytes, buffer, span.lo, storage)
}

fn naive_pack(map: &Map, count: u64, bytes: &[u8], lo: i64) -> Vec<u8> {
    let all = map.block(count as i64, 0);
    let at = |entry: &(&'static Basic, i64)| {
        let from = (entry.1 - lo) as usize;
        bytes[from..from + usize::from(entry.0.size)].to_vec()
    };
    all.entries.iter().flat_map(at).collect()
}

fn naive_unpack(map: &Map, count: u64, packed: &[u8], into: &mut [u8], lo: i64) {
    let mut packed = packed.iter();
    for (basic, at) in map.block(count as i64, 0).entries {
        for k in 0..i64::from(basic.size) {
            let Some(byte) = packed.next() else { return };
            into[(at - lo + k) as usize] = *byte;
        }
    }
}

fn contents(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(buffer.lo(), &mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bounds_are_those_of_the_typemap(ty in datatype()) {
        let map = Map::of(&ty);
        let size: u64 = map.entries.iter().map(|entry| u64::from(entry.0.size)).sum();
        prop_assert_eq!(ty.size(), size);
        prop_assert_eq!((ty.lb(), ty.ub(), ty.extent()), (map.lb(), map.ub(), map.extent()));
        let true_lb = map.entries.iter().map(|entry| entry.1).min().unwrap_or(0);
        let true_ub = map.entries.iter().map(|entry| entry.1 + i64::from(entry.0.size)).max().unwrap_or(0);
        prop_assert_eq!((ty.true_lb(), ty.true_extent()), (true_lb, true_ub - true_lb));
        prop_assert_eq!(ty.element_count(), map.entries.len() as u64);
    }

    #[test]
    fn basic_elements_are_counted(ty in datatype(), extra in 0..40u64) {
        let map = Map::of(&ty);
        let ends = map.entries.iter().scan(0, |end, entry| {
            *end += u64::from(entry.0.size);
            Some(*end)
        });
        let ends: Vec<u64> = std::iter::once(0).chain(ends).collect();
        for bytes in (0..ty.size()).step_by(1 + extra as usize) {
            let expected = ends.binary_search(&bytes).ok().map(|count| count as u64);
            prop_assert_eq!(ty.elements(bytes), expected);
            if let Some(count) = expected {
                prop_assert_eq!(ty.bytes_of(count), Some(bytes));
            }
        }
        prop_assert_eq!(ty.elements(3 * ty.size()), Some(3 * map.entries.len() as u64));
    }

    #[test]
    fn signatures_do_not_show_how_a_type_was_made(ty in datatype(), count in 0..4u64) {
        let map = Map::of(&ty).block(count as i64, 0);
        let mut seen = vec![];
        for _ in 0..count {
            ty.visit_basics(|basic, n| { seen.extend((0..n).map(|_| basic.code)); Ok::<(), ()>(()) }).unwrap();
        }
        let codes: Vec<u16> = map.entries.iter().map(|entry| entry.0.code).collect();
        prop_assert_eq!(&seen, &codes);
        let types: Vec<_> = codes.iter().map(|&code| Datatype::builtin(code).unwrap().clone()).collect();
        let flat = Datatype::create_struct(&vec![1; types.len()], &vec![0; types.len()], &types).unwrap();
        prop_assert_eq!(flat.signature_hash(1), ty.signature_hash(count));
    }

    #[test]
    fn packing_in_fragments_gives_the_typemap_s_bytes(
        ty in datatype(), count in 0..4u64, steps in prop::collection::vec(1..70usize, 1..6),
    ) {
        let (bytes, buffer, lo, _storage) = memory(&ty, count);
        let expected = naive_pack(&Map::of(&ty), count, &bytes, lo);
        let data = Data::typed(buffer, count, &ty);
        prop_assert_eq!(data.len(), expected.len() as u64);
        let (mut cursor, mut packed) = (data.cursor(), vec![]);
        for step in steps.iter().cycle() {
            let mut part = vec![0; *step];
            let n = cursor.pack(&data, &mut part);
            packed.extend_from_slice(&part[..n]);
            if n < *step { break }
        }
        prop_assert_eq!(&packed, &expected);
        prop_assert_eq!(cursor.position(), data.len());
        if let Some(piece) = data.contiguous() {
            prop_assert_eq!(contents(&piece), packed);
        }
    }

    #[test]
    fn a_cursor_goes_anywhere(ty in datatype(), count in 1..4u64, seeks in prop::collection::vec(any::<prop::sample::Index>(), 8)) {
        let (bytes, buffer, lo, _storage) = memory(&ty, count);
        let expected = naive_pack(&Map::of(&ty), count, &bytes, lo);
        let data = Data::typed(buffer, count, &ty);
        let mut cursor = data.cursor();
        for seek in seeks {
            let at = seek.index(expected.len() + 1);
            cursor.seek(at as u64);
            let mut part = [0; 23];
            let n = cursor.pack(&data, &mut part);
            prop_assert_eq!(&part[..n], &expected[at..expected.len().min(at + 23)]);
        }
        cursor.seek(u64::MAX);
        prop_assert_eq!(cursor.pack(&data, &mut [0; 4]), 0);
    }

    #[test]
    fn unpacking_in_fragments_writes_only_the_typemap_s_bytes(
        ty in datatype(), count in 0..4u64, steps in prop::collection::vec(1..70usize, 1..6),
    ) {
        let (mut expected, buffer, lo, _storage) = memory(&ty, count);
        let packed: Vec<u8> = (0..ty.size() * count).map(|i| (i * 31 + 5) as u8).collect();
        naive_unpack(&Map::of(&ty), count, &packed, &mut expected, lo);
        let data = Data::typed(buffer.clone(), count, &ty);
        let (mut cursor, mut rest) = (data.cursor(), &packed[..]);
        for step in steps.iter().cycle() {
            let (part, later) = rest.split_at(rest.len().min(*step));
            prop_assert_eq!(cursor.unpack(&data, part), part.len());
            rest = later;
            if rest.is_empty() { break }
        }
        prop_assert_eq!(contents(&buffer), expected);
    }

    #[test]
    fn segments_are_the_packed_bytes(ty in datatype(), count in 0..4u64, max in 1..5usize, skip in 0..30u64) {
        let (bytes, buffer, lo, _storage) = memory(&ty, count);
        let expected = naive_pack(&Map::of(&ty), count, &bytes, lo);
        let data = Data::typed(buffer, count, &ty);
        let skip = skip.min(data.len());
        let (mut cursor, mut seen) = (data.cursor(), vec![]);
        cursor.seek(skip);
        loop {
            let mut pieces = 0;
            cursor.segments(&data, max, |piece| { pieces += 1; seen.extend(contents(&piece)) });
            prop_assert!(pieces <= max);
            if pieces == 0 { break }
        }
        prop_assert_eq!(&seen[..], &expected[skip as usize..]);
    }

    #[test]
    fn copies_between_types_go_by_packed_bytes(
        (a, b) in (datatype(), datatype()), count in 0..4u64, more in 0..4u64,
    ) {
        let (bytes, from, lo, _storage) = memory(&a, count);
        let (mut expected, to, to_lo, _storage) = memory(&b, more);
        let mut packed = naive_pack(&Map::of(&a), count, &bytes, lo);
        packed.truncate((b.size() * more) as usize);
        naive_unpack(&Map::of(&b), more, &packed, &mut expected, to_lo);
        let source = Data::typed(from, count, &a);
        let target = Data::typed(to.clone(), more, &b);
        prop_assert_eq!(target.copy_from(&source), packed.len() as u64);
        prop_assert_eq!(contents(&to), expected);
    }

    #[test]
    fn the_large_form_lists_the_same_arguments(ty in datatype()) {
        let small = ty.envelope();
        let large = ty.clone().into_large();
        let large_form = large.envelope();
        prop_assert_eq!(large.extent(), ty.extent());
        prop_assert_eq!(small.combiner, large_form.combiner);
        let count = |e: &banyan_datatype::Envelope| e.integers.len() + e.addresses.len() + e.counts.len();
        prop_assert_eq!(count(&small), count(&large_form));
        prop_assert!(large_form.addresses.is_empty() || !large_form.large);
    }
}
