//! Whole runtimes of many ranks in one process, over a simulated network: each rank is a thread with a runtime of its own.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use banyan_coll::{Link, Model};
use banyan_datatype::op::Builtin;
use banyan_datatype::{Data, Datatype, TypeArc};
use banyan_memory::{Buffer, HeapBuffer, SimulatedDevice};
use banyan_pmi::{Job, NodeKind, Places};
use banyan_runtime::{Comm, Op, Result, Runtime, Threads};
use banyan_transport::sim::{Clock, LinkCost, Net, Options};

/// The job of `rank` among the ranks of `nodes`, whose sizes are given; ranks are numbered node by node. Where that is
/// `known`, those of a node are on sockets, and on some of these they have caches.
pub(crate) fn job(rank: u32, nodes: &[u32], known: bool) -> Job {
    let on = (0..).zip(nodes).flat_map(|(node, &size)| std::iter::repeat_n(node, size as usize));
    let part = |node: u32| move |rank: u32| (rank.count_ones() % 3 % 2, rank / 3 % (1 + node % 2));
    let places = Places::new(on, |node| {
        let first: u32 = nodes[..node as usize].iter().sum();
        let bound = (first..first + nodes[node as usize]).map(part(node));
        NodeKind::new(1, bound.filter(|_| known))
    });
    let here = places.home(rank);
    let (local_rank, local_size, size) = (here.index, nodes[here.node as usize], nodes.iter().sum());
    // One core: ranks yield to each other.
    Job { rank, size, local_rank, local_size, places, app_size: size, ..Job::singleton(1) }
}

/// Runs `body` as each rank of a job on nodes of these sizes; the seed is that of the network.
pub(crate) fn run(
    nodes: &[u32],
    seed: u64,
    options: &Options,
    body: impl Fn(&Arc<Runtime>, &Arc<Comm>) -> Result<()> + Sync,
) {
    run_with(nodes, &[], seed, options, body);
}

/// As [`run`], with settings of the job. Gives the simulated time, if the network has a clock.
pub(crate) fn run_with(
    nodes: &[u32],
    settings: &[(&str, &str)],
    seed: u64,
    options: &Options,
    body: impl Fn(&Arc<Runtime>, &Arc<Comm>) -> Result<()> + Sync,
) -> Duration {
    let run = format!("nodes {nodes:?}, {settings:?}, seed {seed}");
    println!("{run}");
    say_why_ranks_fail();
    // The ranks of a node share memory if the seed is odd, unless there is a clock, which knows nothing of it, nor of sockets.
    let (shares, known) =
        (seed % 2 == 1 && options.clock.is_none(), seed / 2 % 2 == 1 && options.clock.is_none());
    let shared = |&ranks: &u32| banyan_shm::Shm::memory(ranks, None).expect("memory for a node");
    let memory: Vec<_> = nodes.iter().filter(|_| shares).map(shared).collect();
    let memory = &memory;
    let settings: Vec<_> =
        settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let net = Net::new(nodes.iter().sum::<u32>() as usize, seed, options.clone());
    thread::scope(|scope| {
        for (rank, end) in (0..).zip(net.endpoints()) {
            let (body, settings) = (&body, settings.clone());
            let named = thread::Builder::new().name(format!("{RANK}{rank}, {run}"));
            let started = named.spawn_scoped(scope, move || {
                let _end = EndsAll;
                let job = Job { settings, ..job(rank, nodes, known) };
                let node = memory.get(job.node_of(rank) as usize);
                let node = node.map(|memory| memory.try_clone().expect("a descriptor"));
                let rt = Runtime::open_over(end, node, &job, Threads::Multiple, None).expect("a runtime");
                let world = rt.world().expect("a world");
                body(&rt, &world)
                    .and_then(|()| rt.close(&world))
                    .unwrap_or_else(|error| panic!("rank {rank}: {error}"));
            });
            started.expect("a thread");
        }
    });
    net.time()
}

/// A clock for a network with nodes of these sizes, on which messages cost what the tuner takes them to cost.
pub(crate) fn clock(nodes: &[u32]) -> Clock {
    let [far, .., near] = Model::default().links;
    let cost = |link: Link| LinkCost { latency: link.alpha, overhead: link.overhead, per_byte: link.beta };
    Clock {
        nodes: (0..).zip(nodes).flat_map(|(node, &size)| vec![node; size as usize]).collect(),
        near: cost(near),
        far: cost(far),
    }
}

/// What the names of threads that are ranks begin with.
const RANK: &str = "rank ";

/// Panics of ranks go past the test harness, which has no time to show what it has captured when the process ends.
fn say_why_ranks_fail() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            match thread::current().name().filter(|name| name.starts_with(RANK)) {
                Some(rank) => drop(writeln!(io::stderr(), "{rank}: {panic}")),
                None => usual(panic),
            }
        }));
    });
}

/// Ends the test when its rank panics: the other ranks would wait for it for ever.
struct EndsAll;

impl Drop for EndsAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::exit(101);
        }
    }
}

/// Different numbers at each call, and from run to run.
pub(crate) fn fresh_seed() -> u64 {
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0)
}

/// MPI_SUM.
pub(crate) fn sum() -> Op {
    Op::Builtin(Builtin::from_code(0x21).expect("MPI_SUM"))
}

/// MPI_INT64_T.
pub(crate) fn integer() -> TypeArc {
    Datatype::builtin(0x258).expect("MPI_INT64_T").clone().into()
}

/// `count` 64-bit integers at `base`.
pub(crate) fn integers(base: &Buffer, count: u64) -> (Buffer, u64, TypeArc) {
    (base.clone(), count, integer())
}

thread_local! {
    /// The device that this rank's memory is to be of, if any.
    pub(crate) static DEVICE: RefCell<Option<SimulatedDevice>> = const { RefCell::new(None) };
}

/// Memory for messages.
pub(crate) fn room(bytes: usize) -> Buffer {
    DEVICE.with_borrow(|device| match device {
        Some(device) => device.alloc(bytes),
        None => HeapBuffer::zeroed(bytes),
    })
}

/// Memory with these integers.
pub(crate) fn filled(values: impl Iterator<Item = i64>) -> Buffer {
    let bytes: Vec<u8> = values.flat_map(i64::to_le_bytes).collect();
    let memory = room(bytes.len());
    memory.write(0, &bytes);
    memory
}

/// The integers in `memory`.
pub(crate) fn read(memory: &Buffer) -> Vec<i64> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect()
}

/// Memory as a message.
pub(crate) fn message(memory: &Buffer) -> Data {
    Data::bytes(memory.clone())
}
