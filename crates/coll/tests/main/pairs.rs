//! Predefined operations on types with holes: MPI_MAXLOC on MPI_DOUBLE_INT, by every algorithm.

use crate::world::{Net, run};
use banyan_coll::{
    Call, Groups, Kind, Op, Operand, Overrides, PlanCache, SharedCaps, Topology, Tuning, all, start,
};
use banyan_datatype::Datatype;
use banyan_datatype::op::Builtin;
use banyan_memory::{Buffer, HeapBuffer};

const COUNT: u64 = 12;

fn buffer(values: impl Iterator<Item = (f64, i32)>) -> Buffer {
    let buffer = HeapBuffer::zeroed(16 * COUNT as usize);
    for (i, (value, index)) in values.enumerate() {
        buffer.write(16 * i as isize, &value.to_ne_bytes());
        buffer.write(16 * i as isize + 8, &index.to_ne_bytes());
    }
    buffer
}

fn element(buffer: &Buffer, i: u64) -> (f64, i32) {
    let (mut value, mut index) = ([0; 8], [0; 4]);
    buffer.read(16 * i as isize, &mut value);
    buffer.read(16 * i as isize + 8, &mut index);
    (f64::from_ne_bytes(value), i32::from_ne_bytes(index))
}

/// Element `i` of what a rank sends: many values are equal, so that the index decides.
fn given(rank: u32, i: u64) -> (f64, i32) {
    (((u64::from(rank) * 7 + i * 3) % 5) as f64, rank as i32)
}

#[test]
fn the_largest_and_where_it_is() {
    let ty = Datatype::builtin(0x229).unwrap();
    let uniform =
        |base: &Buffer, count| Operand::Uniform { base: base.clone(), count, ty: ty.clone().into() };
    for row in all().filter(|row| row.kind.reduces()) {
        for ranks in [1, 2, 3, 4, 6] {
            let shared = Some(SharedCaps { inline: 1024, single_copy: true, scratch: 0 });
            let topology = Topology { ranks, cores: 8, shared, levels: Groups::on_nodes(1, ranks) };
            let overrides = Overrides::parse(&format!("{row:?}")).unwrap();
            let tuning = Tuning { overrides, ..Tuning::default() };
            let mut net = Net::new(ranks, 7, 1024, true);
            let recvs: Vec<Buffer> = (0..ranks).map(|_| buffer(std::iter::empty())).collect();
            let own = COUNT / u64::from(ranks);
            let begin = |rank: u32| {
                let send = buffer((0..COUNT).map(|i| given(rank, i)));
                let recv = match row.kind {
                    Kind::ReduceScatterBlock => uniform(&recvs[rank as usize], own),
                    Kind::ReduceScatter => {
                        let (base, counts) = (recvs[rank as usize].clone(), vec![own; ranks as usize]);
                        Operand::Vector { base, counts, displs: vec![], ty: ty.clone().into() }
                    }
                    _ => uniform(&recvs[rank as usize], COUNT),
                };
                let op = Op::Builtin(Builtin::Maxloc);
                let call = Call::reduction(row.kind, uniform(&send, COUNT), recv, op, 0);
                vec![start(call, &mut PlanCache::new(rank, topology), &tuning)]
            };
            let mut executions: Vec<_> = (0..ranks).map(begin).collect();
            let results = run(&mut net, &mut executions);
            assert!(results.iter().flatten().all(Result::is_ok), "{row:?}: {results:?}");
            net.assert_empty();
            let largest = |last: u32, i: u64| {
                let better = |a: (f64, i32), b: (f64, i32)| if b.0 > a.0 { b } else { a };
                (0..=last).map(|rank| given(rank, i)).reduce(better)
            };
            for (rank, recv) in (0..ranks).zip(&recvs) {
                let expected = |i: u64| match row.kind {
                    Kind::Reduce if rank > 0 => None,
                    Kind::ReduceScatter | Kind::ReduceScatterBlock if i >= own => None,
                    Kind::ReduceScatter | Kind::ReduceScatterBlock => {
                        largest(ranks - 1, u64::from(rank) * own + i)
                    }
                    Kind::Scan => largest(rank, i),
                    Kind::Exscan => rank.checked_sub(1).and_then(|last| largest(last, i)),
                    _ => largest(ranks - 1, i),
                };
                for i in 0..COUNT {
                    if let Some(expected) = expected(i) {
                        assert_eq!(
                            element(recv, i),
                            expected,
                            "{row:?}, rank {rank} of {ranks}, element {i}"
                        );
                    }
                }
            }
        }
    }
}
