//! Datatypes that are derived: what of a value is sent, and that it arrives.

use std::fmt::Debug;

use crate::common::everywhere;
use mpi::traits::*;

/// A struct of which there is a value for each number, and how many bytes of it are sent.
trait Parts: Equivalence + Default + PartialEq + Debug {
    fn filled(seed: u8) -> Self;
    const BYTES: usize;
}

#[derive(Equivalence, Default, PartialEq, Debug, Clone, Copy)]
struct Inner {
    flag: bool,
    wide: u64,
    narrow: i16,
}

type Alias = [(u8, Inner); 3];

#[derive(Equivalence, Default, PartialEq, Debug)]
struct Outer {
    first: u8,
    nested: Alias,
    tuple: (f64, (i8, [u16; 2])),
    unit: Unit,
    none: [u64; 0],
}

#[derive(Equivalence, Default, PartialEq, Debug, Clone, Copy)]
struct Unit;

#[derive(Equivalence, Default, PartialEq, Debug)]
struct Pair<T, const N: usize>
where
    [T; N]: Default,
    T: PartialEq + Debug,
{
    head: u8,
    tail: [T; N],
}

#[derive(Equivalence, Default, PartialEq, Debug, Clone, Copy)]
#[repr(C, packed)]
struct Packed(u8, u32);

mod elsewhere {
    pub(super) mod path {
        pub(crate) use mpi as renamed;
    }
}

#[derive(Equivalence, Default, PartialEq, Debug)]
#[mpi(crate = "elsewhere::path::renamed")]
struct Renamed(u32);

fn inner(seed: u8) -> Inner {
    Inner { flag: seed % 2 == 1, wide: u64::MAX - u64::from(seed), narrow: -i16::from(seed) }
}

impl Parts for Outer {
    fn filled(seed: u8) -> Self {
        let nested = [0, 1, 2].map(|at| (seed + at, inner(seed + at)));
        let tuple = (f64::from(seed), (-1, [u16::from(seed), 9]));
        Outer { first: seed, nested, tuple, unit: Unit, none: [] }
    }

    const BYTES: usize = 1 + 3 * (1 + 11) + 8 + 5;
}

impl Parts for Pair<u64, 3> {
    fn filled(seed: u8) -> Self {
        Pair { head: seed, tail: [1 << seed, 2 << seed, 3] }
    }

    const BYTES: usize = 25;
}

impl Parts for Pair<u16, 2> {
    fn filled(seed: u8) -> Self {
        Pair { head: seed, tail: [seed.into(), 7] }
    }

    const BYTES: usize = 5;
}

impl Parts for Packed {
    fn filled(seed: u8) -> Self {
        Packed(seed, 0x0102_0304)
    }

    const BYTES: usize = 5;
}

impl Parts for Renamed {
    fn filled(seed: u8) -> Self {
        Renamed(seed.into())
    }

    const BYTES: usize = 4;
}

fn arrives<T: Parts>(world: &impl Communicator) {
    let (rank, size) = (world.rank(), world.size());
    assert_eq!(world.pack(&T::filled(3)).len(), T::BYTES, "{}", std::any::type_name::<T>());
    let target = world.process_at_rank((rank + 1) % size);
    let source = world.process_at_rank((rank + size - 1) % size);
    let of = |rank: i32| -> Vec<T> { (0..5).map(|at| T::filled(rank as u8 * 5 + at)).collect() };
    let mut one = if rank == 0 { T::filled(4) } else { T::default() };
    world.process_at_rank(0).broadcast_into(&mut one);
    assert_eq!(one, T::filled(4));
    let mine = of(rank);
    let got = mpi::request::scope(|scope| {
        let send = target.immediate_send(scope, &mine[..]);
        let got = source.receive_vec::<T>().0;
        send.wait();
        got
    });
    assert_eq!(got, of((rank + size - 1) % size));
}

#[test]
fn derived_values_arrive() {
    everywhere("main::derive::derived_values_arrive", &[1, 2, 3], |universe| {
        let world = universe.world();
        arrives::<Outer>(&world);
        arrives::<Pair<u64, 3>>(&world);
        arrives::<Pair<u16, 2>>(&world);
        arrives::<Packed>(&world);
        arrives::<Renamed>(&world);
        assert_eq!(world.pack(&[Unit, Unit]).len(), 0);
    });
}
