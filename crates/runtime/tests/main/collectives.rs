//! The rules of the arguments of collectives, on a communicator of one process, and what the calls then do.

use std::cell::Cell;

use banyan_datatype::op::Builtin;
use banyan_datatype::{Datatype, Span, TypeArc};
use banyan_memory::{Buffer, HeapBuffer};
use banyan_runtime::{Argument, Call, Class, Kind, Op, Operand, Result, Root, Runtime, Threads, UserMemory};

/// The code of MPI_INT in the MPI 5.0 ABI.
const INT: u16 = 0x209;
/// The code of MPI_DOUBLE.
const DOUBLE: u16 = 0x214;
const HERE: Root = Root::Rank(0);

fn builtin(code: u16) -> TypeArc {
    Datatype::builtin(code).unwrap().clone().into()
}

fn op(code: u16) -> Op {
    Op::Builtin(Builtin::from_code(code).unwrap())
}

fn sum() -> Op {
    op(0x21)
}

/// MPI_BAND, which is not defined on floating-point numbers.
fn bitwise_and() -> Op {
    op(0x28)
}

/// MPI_IN_PLACE, with arguments that nobody may look at.
struct InPlace;

impl UserMemory for InPlace {
    fn is_in_place(&self) -> bool {
        true
    }

    fn region(&self, _: Span) -> Result<Buffer> {
        Err(banyan_runtime::Error::new(Class::ERR_BUFFER, "in place"))
    }
}

impl Argument for InPlace {
    fn operand(&self, _: usize) -> Result<Operand> {
        Ok(Operand::uniform(1, builtin(INT)))
    }
}

/// An argument that counts how often it is asked what lies there.
struct Watched(Buffer, Operand, Cell<u32>);

impl UserMemory for Watched {
    fn is_in_place(&self) -> bool {
        false
    }

    fn region(&self, span: Span) -> Result<Buffer> {
        self.0.region(span)
    }
}

impl Argument for Watched {
    fn operand(&self, _: usize) -> Result<Operand> {
        self.2.set(self.2.get() + 1);
        Ok(self.1.clone())
    }
}

fn ints(values: &[i32]) -> Buffer {
    HeapBuffer::copy_of(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

fn values(buffer: &Buffer) -> Vec<i32> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes);
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn class(call: Result<Call>) -> Class {
    call.err().map_or(Class::SUCCESS, |error| error.class)
}

#[test]
fn arguments_are_checked_where_they_are_significant() {
    let rt = Runtime::open(Threads::Multiple, None).unwrap();
    let world = rt.world().unwrap();
    let (a, b, int) = (ints(&[1, 2]), ints(&[0, 0]), builtin(INT));
    let (some, other) = ((a.clone(), 2, int.clone()), (b.clone(), 2, int.clone()));
    for bad in [Root::Rank(1), Root::Rank(-7), Root::Here, Root::ProcNull] {
        assert_eq!(class(world.bcast(bad, &some)), Class::ERR_ROOT, "{bad:?}");
        assert_eq!(
            class(world.data_movement(Kind::Gather, Some(bad), &some, &other)),
            Class::ERR_ROOT,
            "{bad:?}"
        );
    }
    let error = world.bcast(Root::Here, &some).err().unwrap();
    assert!(error.what.contains("MPI_ROOT, which is for intercommunicators"), "{error}");

    let same = (a.clone(), 1, int.clone());
    assert_eq!(class(world.data_movement(Kind::Allgather, None, &some, &same)), Class::ERR_BUFFER);
    assert_eq!(class(world.allreduce(Kind::Scan, (&a, &a), (2, int.clone(), sum()))), Class::ERR_BUFFER);
    let too_many = (a.clone(), 3, int.clone());
    assert_eq!(class(world.data_movement(Kind::Alltoall, None, &too_many, &other)), Class::ERR_BUFFER);
    let beyond = (a.clone(), u64::MAX / 2, int.clone());
    assert_eq!(class(world.data_movement(Kind::Scatter, Some(HERE), &beyond, &other)), Class::ERR_COUNT);

    let vector = |counts, displs| Operand::Vector { base: Buffer::empty(), counts, displs, ty: int.clone() };
    for displs in [vec![i64::MAX], vec![i64::MIN / 2]] {
        let far = Watched(b.clone(), vector(vec![1], displs), Cell::new(0));
        assert_eq!(class(world.data_movement(Kind::Gatherv, Some(HERE), &some, &far)), Class::ERR_ARG);
    }
    let last = Watched(a.clone(), vector(vec![1], vec![1]), Cell::new(0));
    let first = (a.clone(), 1, int.clone());
    assert_eq!(class(world.data_movement(Kind::Scatterv, Some(HERE), &last, &first)), Class::SUCCESS);
    assert_eq!(last.2.get(), 1);
    let first = Watched(a.clone(), vector(vec![1], vec![0]), Cell::new(0));
    let same = (a.clone(), 1, int.clone());
    assert_eq!(class(world.data_movement(Kind::Scatterv, Some(HERE), &first, &same)), Class::ERR_BUFFER);

    let call = world.allreduce(Kind::Allreduce, (&a, &b), (1, builtin(DOUBLE), bitwise_and()));
    assert!(call.err().unwrap().what.contains("is not defined on MPI_DOUBLE"));
    let result = vector(vec![u64::MAX, 1], Vec::new());
    assert_eq!(class(world.reduce_scatter((&a, &b), (result, sum()))), Class::ERR_COUNT);
    rt.close(&world).unwrap();
}

#[test]
fn in_place_is_allowed_at_the_root_and_where_there_is_none() {
    let rt = Runtime::open(Threads::Multiple, None).unwrap();
    let world = rt.world().unwrap();
    let (data, int) = (ints(&[5, 6]), builtin(INT));
    let one = || (data.clone(), 2, int.clone());
    let calls = [
        world.data_movement(Kind::Gather, Some(HERE), &InPlace, &one()),
        world.data_movement(Kind::Scatter, Some(HERE), &one(), &InPlace),
        world.data_movement(Kind::Allgather, None, &InPlace, &one()),
        world.data_movement(Kind::Alltoall, None, &InPlace, &one()),
        world.reduce(HERE, (&InPlace, &data), || Ok((2, int.clone(), sum()))),
        world.allreduce(Kind::Exscan, (&InPlace, &data), (2, int.clone(), sum())),
        world.reduce_scatter((&InPlace, &data), (Operand::uniform(2, int.clone()), sum())),
    ];
    for call in calls {
        world.run(call.unwrap()).unwrap();
        assert_eq!(values(&data), [5, 6]);
    }
    // The received data of an allgather, and those of a broadcast, are never in place.
    assert_eq!(class(world.data_movement(Kind::Allgather, None, &one(), &InPlace)), Class::ERR_BUFFER);
    assert_eq!(class(world.bcast(HERE, &InPlace)), Class::ERR_BUFFER);
    assert_eq!(
        class(world.allreduce(Kind::Scan, (&data, &InPlace), (2, int.clone(), sum()))),
        Class::ERR_BUFFER
    );

    let copy = ints(&[0, 0]);
    world.run(world.allreduce(Kind::Allreduce, (&data, &copy), (2, int.clone(), sum())).unwrap()).unwrap();
    assert_eq!(values(&copy), [5, 6]);
    rt.close(&world).unwrap();
}
