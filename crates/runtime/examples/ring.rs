//! Ranks pass messages around a ring, in all sizes: a check of the runtime without the C interface.
//! `mpirun -n 4 target/release/examples/ring`

use banyan_datatype::op::Builtin;
use banyan_datatype::{Data, Datatype};
use banyan_memory::HeapBuffer;
use banyan_runtime::{Dest, Kind, Op, Runtime, SendMode, Source, Threads};

fn main() -> Result<(), banyan_runtime::Error> {
    let rt = Runtime::open(Threads::Multiple, None)?;
    let world = rt.world()?;
    let (me, size) = (world.rank() as i32, world.size() as i32);
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    for bytes in [0usize, 1, 8, 40, 100, 4000, 20_000, 70_000, 300_000, 5_000_000] {
        let pattern = |rank: i32| (0..bytes).map(|i| (i as i32 * 7 + rank) as u8).collect::<Vec<u8>>();
        let out = Data::bytes(HeapBuffer::copy_of(&pattern(me)));
        let room = HeapBuffer::zeroed(bytes);
        let started = std::time::Instant::now();
        let outcome = world.sendrecv(
            (&out, Dest::Rank(right), 5),
            (&Data::bytes(room.clone()), Source::Rank(left), Some(5)),
        );
        let status = outcome.into_result()?;
        let mut got = vec![0; bytes];
        room.read(0, &mut got);
        assert_eq!(got, pattern(left), "{bytes} bytes from {left}");
        assert_eq!((status.source(), status.bytes()), (Source::Rank(left), bytes as u64));
        if me == 0 {
            println!("{bytes:8} bytes around {size} ranks: {:?}", started.elapsed());
        }
    }
    let word = Data::bytes(HeapBuffer::zeroed(8));
    let rounds = 100_000;
    let started = std::time::Instant::now();
    if size > 1 && me < 2 {
        for _ in 0..rounds {
            if me == 0 {
                world.send(&word, Dest::Rank(1), 1, SendMode::Standard)?;
                world.recv(&word, Source::Rank(1), Some(1)).into_result()?;
            } else {
                world.recv(&word, Source::Rank(0), Some(1)).into_result()?;
                world.send(&word, Dest::Rank(0), 1, SendMode::Standard)?;
            }
        }
    }
    if me == 0 {
        println!("8 bytes one way: {:.3} us", started.elapsed().as_secs_f64() * 1e6 / f64::from(2 * rounds));
    }
    for count in [1u64, 1000, 131_072] {
        let double = Datatype::builtin(0x214).expect("MPI_DOUBLE");
        let sum = Op::Builtin(Builtin::from_code(0x21).expect("MPI_SUM"));
        let ones: Vec<u8> = (0..count).flat_map(|i| (i as f64 + f64::from(me)).to_le_bytes()).collect();
        let (send, recv) = (HeapBuffer::copy_of(&ones), HeapBuffer::zeroed(ones.len()));
        let started = std::time::Instant::now();
        let rounds = 200;
        for _ in 0..rounds {
            let elements = (count, double.clone().into(), sum.clone());
            world.run(world.allreduce(Kind::Allreduce, (&send, &recv), elements)?)?;
        }
        let took = started.elapsed();
        let mut last = [0; 8];
        recv.read(8 * (count as isize - 1), &mut last);
        assert_eq!(
            f64::from_le_bytes(last),
            f64::from(size) * ((count - 1) as f64 + f64::from(size - 1) / 2.0)
        );
        if me == 0 {
            println!(
                "allreduce of {} bytes: {:.3} us",
                8 * count,
                took.as_secs_f64() * 1e6 / f64::from(rounds)
            );
        }
    }
    rt.close(&world)
}
