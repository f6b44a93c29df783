//! Ranks of other launchers: servers of PMI-1 in the dialects of Hydra, Intel MPI and Slurm, as they were seen on the wire, and
//! the jobs that ranks work out with them. Each server, and each rank, is a thread of this process.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use banyan_pmi::pmi1::Line;
use banyan_pmi::{Client, Error, Event, Here, Job, Pmi1Error};
use rustix::fs::{MemfdFlags, fstat, memfd_create};

/// A launcher's way to speak PMI-1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dialect {
    Hydra4,
    Hydra5,
    Intel,
    Slurm,
}
use Dialect::{Hydra4, Hydra5, Intel, Slurm};

/// What the ranks of a job share on the servers' side.
struct Servers {
    dialect: Dialect,
    mapping: Option<&'static str>,
    store: Mutex<HashMap<String, String>>,
    fence: Barrier,
    /// What the servers saw, as `rank:command`, but for puts and gets.
    seen: Mutex<Vec<String>>,
    /// The rank that gets another nonce than was put.
    cheated: Option<u32>,
}

impl Servers {
    fn new(dialect: Dialect, ranks: usize, mapping: Option<&'static str>) -> Servers {
        let (store, seen) = (Mutex::default(), Mutex::default());
        Servers { dialect, mapping, store, fence: Barrier::new(ranks), seen, cheated: None }
    }

    /// Serves a rank until it has left, or is gone.
    fn serve(&self, rank: u32, mut socket: impl Read + Write) {
        let mut room = [0; 4096];
        loop {
            let count = socket.read(&mut room).unwrap_or(0);
            if count == 0 {
                return;
            }
            // As Slurm does: one read, one command.
            let text = std::str::from_utf8(&room[..count]).expect("requests are ASCII");
            assert!(count < 1024 && text.ends_with('\n') && text.matches('\n').count() == 1, "{text:?}");
            assert!(!text.starts_with("cmd=init ") || count < 64, "{text:?}");
            let request = Line::parse(text).unwrap();
            if !matches!(&*request.command, "put" | "get") {
                self.seen.lock().unwrap().push(format!("{rank}:{}", text.trim()));
            }
            if let Some(answer) = self.answer(rank, &request) {
                socket.write_all(format!("{answer}\n").as_bytes()).unwrap();
            }
            if request.command == "finalize" {
                return;
            }
        }
    }

    fn answer(&self, rank: u32, request: &Line) -> Option<String> {
        let slurm = self.dialect == Slurm;
        Some(match &*request.command {
            "init" => {
                let version = (request.get("pmi_version"), request.get("pmi_subversion"));
                if version != (Some("1"), Some("1")) {
                    return Some("cmd=response_to_init rc=-1".to_owned());
                }
                let sub = if self.dialect == Hydra5 { 2 } else { 1 };
                format!("cmd=response_to_init rc=0 pmi_version=1 pmi_subversion={sub}")
            }
            "get_maxes" if self.dialect == Intel => {
                "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096".to_owned()
            }
            "get_maxes" => "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024".to_owned(),
            "get_appnum" => format!("cmd=appnum rc=0 appnum={}", if slurm { -1 } else { 0 }),
            "get_universe_size" => format!("cmd=universe_size rc=0 size={}", if slurm { 9 } else { -1 }),
            "get_my_kvsname" if slurm => "cmd=my_kvsname rc=0 kvsname=9.0".to_owned(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_25468_0_1555983738_vm rc=0".to_owned(),
            "put" => self.put(request),
            "get" => self.get(rank, request.get("key")?),
            "barrier_in" => {
                self.fence.wait();
                match self.dialect {
                    Slurm => "cmd=barrier_out rc=0".to_owned(),
                    Hydra5 => "cmd=barrier_out tag=0".to_owned(),
                    _ => "cmd=barrier_out".to_owned(),
                }
            }
            "finalize" if slurm => "cmd=finalize_ack rc=0".to_owned(),
            "finalize" => "cmd=finalize_ack".to_owned(),
            "abort" => return None,
            other => panic!("no such command: {other}"),
        })
    }

    fn put(&self, request: &Line) -> String {
        let (key, value) = (request.get("key").unwrap(), request.get("value").unwrap());
        assert!(request.get("kvsname").is_some_and(|name| !name.is_empty()));
        assert!(key.len() <= 64 && value.len() <= 512 && !key.starts_with("PMI_"), "{key}={value}");
        let before = self.store.lock().unwrap().insert(key.to_owned(), value.to_owned());
        assert_eq!(before, None, "{key} is put twice");
        if self.dialect == Slurm { "cmd=put_result rc=0" } else { "cmd=put_result rc=0 msg=success" }
            .to_owned()
    }

    fn get(&self, rank: u32, key: &str) -> String {
        let mapping = self.mapping.filter(|_| key == "PMI_process_mapping").map(str::to_owned);
        let mut found = mapping.or_else(|| self.store.lock().unwrap().get(key).cloned());
        if let Some(value) =
            found.as_mut().filter(|_| self.cheated == Some(rank) && key.ends_with("-offer-0"))
        {
            let last = value.pop().unwrap();
            let before_last = value.pop().unwrap();
            value.extend([if before_last == 'A' { 'B' } else { 'A' }, last]);
        }
        match (found, self.dialect) {
            (Some(value), Hydra5) => format!("rc=0 msg=success cmd=get_result value={value}"),
            (Some(value), _) => format!("cmd=get_result rc=0 value={value}"),
            (None, Slurm) => "cmd=get_result rc=1".to_owned(),
            (None, _) => format!("cmd=get_result rc=-1 msg=key_{key}_not_found value=unknown"),
        }
    }
}

fn here(_rank: u32) -> Here {
    Here {
        settings: banyan_pmi::settings::of_environment,
        memory: |_| Ok(memfd_create("banyan", MemfdFlags::CLOEXEC)?),
        cpus: vec![0, 1],
        cores: 2,
        single_copy: || true,
    }
}

/// Runs `rank` on a thread for each rank of a job, and gives what they return.
fn job<T: Send>(
    servers: &Servers,
    ranks: u32,
    here: impl Fn(u32) -> Here,
    rank: impl Fn(Client) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let start = |number| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            scope.spawn(move || servers.serve(number, ours));
            let (rank, here) = (&rank, here(number));
            scope.spawn(move || {
                let socket: OwnedFd = theirs.try_clone().unwrap().into();
                let answer = rank(Client::join_by_pmi1(socket, number, ranks, &here).unwrap());
                // The client keeps its socket as long as the process lives.
                let _ = theirs.shutdown(std::net::Shutdown::Both);
                answer
            })
        };
        let running: Vec<_> = (0..ranks).map(start).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The job as a rank sees it, and the inode of its node's memory.
fn joined(mut client: Client) -> (Job, Option<u64>) {
    let memory = client.take_node_memory().unwrap();
    client.ready().unwrap();
    client.finalized().unwrap();
    (client.job().clone(), memory.map(|memory| fstat(memory.as_fd()).unwrap().st_ino))
}

/// Nodes of all ranks, after a check that ranks agree, and that those of one node have one memory.
fn nodes_of(seen: &[(Job, Option<u64>)]) -> Vec<u32> {
    let first = &seen[0].0;
    let node = |rank: usize| first.node_of(rank as u32);
    for (rank, (job, memory)) in seen.iter().enumerate() {
        assert_eq!((job.rank, job.size), (rank as u32, seen.len() as u32));
        assert_eq!((&job.places, job.job_id, job.secret), (&first.places, first.job_id, first.secret));
        let local: Vec<usize> = (0..seen.len()).filter(|&other| node(other) == node(rank)).collect();
        assert_eq!(job.local_size as usize, local.len());
        assert_eq!(local[job.local_rank as usize], rank);
        assert_eq!(memory.is_some(), local.len() > 1);
        assert!(local.iter().all(|&other| seen[other].1 == *memory), "one node, one memory");
        assert!((0..seen.len()).all(
            |other| node(other) == node(rank) || seen[other].1.is_none_or(|inode| Some(inode) != *memory)
        ));
    }
    assert!(first.secret != [0; 32] && first.job_id != 0);
    (0..seen.len()).map(node).collect()
}

#[test]
fn ranks_of_every_dialect_join_and_find_each_other() {
    for dialect in [Hydra4, Hydra5, Intel, Slurm] {
        let servers = Servers::new(dialect, 4, Some("(vector,(0,1,4))"));
        // A business card of some length goes in chunks.
        let card = |rank: u32| vec![rank as u8 + 1; 3000];
        let seen = job(&servers, 4, here, |mut client| {
            let rank = client.job().rank;
            client.publish(&card(rank)).unwrap();
            client.ready().unwrap();
            assert_eq!(client.try_event().unwrap(), None);
            for other in 0..4 {
                client.lookup(other).unwrap();
                let business_card = card(other);
                assert_eq!(
                    client.try_event().unwrap(),
                    Some(Event::BusinessCard { rank: other, business_card })
                );
            }
            assert!(client.events().is_none(), "a lookup has its event at once");
            joined(client)
        });
        assert_eq!(nodes_of(&seen), [0, 0, 0, 0], "{dialect:?}");
        let job = &seen[3].0;
        assert_eq!(
            (job.appnum, job.universe_size, job.cores()),
            (0, if dialect == Slurm { 9 } else { 4 }, 2)
        );
        assert!(job.single_copy);
        let log = servers.seen.lock().unwrap();
        assert_eq!(log.iter().filter(|line| line.ends_with(":cmd=finalize")).count(), 4);
    }
}

#[test]
fn fences_are_few() {
    let fences = |mapping, ranks: u32, publishes: bool| {
        let servers = Servers::new(Slurm, ranks as usize, mapping);
        job(&servers, ranks, here, |mut client| {
            let job = client.job().clone();
            let others = job.hosts();
            if publishes {
                client.publish(b"card").unwrap();
            }
            let (whole, memory) = joined(client);
            // What fabrics start by does not change: this node, and whether there are others.
            assert_eq!(others == 1, whole.hosts() == 1);
            assert_eq!((job.local_rank, job.local_size), (whole.local_rank, whole.local_size));
            assert!((0..ranks).all(|other| {
                let same = |job: &Job| job.node_of(other) == job.node_of(job.rank);
                same(&job) == same(&whole)
            }));
            assert_eq!((job.cores(), memory.is_some()), (whole.cores(), job.local_size > 1));
        });
        let seen = servers.seen.lock().unwrap();
        seen.iter().filter(|line| line.ends_with(":cmd=barrier_in")).count() / ranks as usize
    };
    assert_eq!(fences(Some("(vector,(0,1,4))"), 4, false), 2, "one node: who shares memory");
    assert_eq!(fences(Some("(vector,(0,1,4))"), 4, true), 3, "and cards");
    assert_eq!(fences(Some("(vector,(0,4,1))"), 4, true), 2, "nobody shares memory");
    assert_eq!(fences(Some("(vector,(0,2,2))"), 4, true), 3, "cards come with the nodes");
    assert_eq!(fences(Some("(vector,(0,2,2))"), 4, false), 3);
    assert_eq!(fences(None, 4, true), 4, "without a mapping");
}

#[test]
fn nodes_are_those_of_the_mapping_and_of_who_shares_memory() {
    let nodes = |mapping, ranks: u32| {
        let servers = Servers::new(Slurm, ranks as usize, mapping);
        nodes_of(&job(&servers, ranks, here, joined))
    };
    assert_eq!(nodes(Some("(vector,(0,2,2))"), 4), [0, 0, 1, 1]);
    assert_eq!(nodes(Some("(vector,(0,3,1),(0,3,1))"), 6), [0, 1, 2, 0, 1, 2]);
    assert_eq!(nodes(Some("(vector,(5,1,3),(1,1,1))"), 4), [0, 0, 0, 1]);
    // Without a mapping ranks compare where they are.
    assert_eq!(nodes(None, 3), [0, 0, 0]);
    assert_eq!(nodes(Some("(nonsense)"), 3), [0, 0, 0]);
    assert_eq!(nodes(Some("(vector,(0,1,1))"), 1), [0]);
}

#[test]
fn who_cannot_open_the_memory_is_a_node_of_its_own() {
    let servers = Servers { cheated: Some(2), ..Servers::new(Hydra5, 5, Some("(vector,(0,1,4),(1,1,1))")) };
    assert_eq!(nodes_of(&job(&servers, 5, here, joined)), [0, 0, 1, 0, 2]);
    // No memory, no shared node.
    let servers = Servers::new(Hydra4, 3, Some("(vector,(0,1,3))"));
    let refused = |rank| Here { memory: |_| Err(std::io::ErrorKind::OutOfMemory.into()), ..here(rank) };
    assert_eq!(nodes_of(&job(&servers, 3, refused, joined)), [0, 1, 2]);
}

#[test]
fn cores_of_a_node_are_those_of_all_its_ranks() {
    let servers = Servers::new(Slurm, 4, Some("(vector,(0,1,3),(1,1,1))"));
    let bound = |rank| Here { cpus: vec![rank], cores: 1, ..here(rank) };
    let seen = job(&servers, 4, bound, joined);
    assert_eq!(nodes_of(&seen), [0, 0, 0, 1]);
    assert_eq!(seen.iter().map(|(job, _)| job.cores()).collect::<Vec<_>>(), [3, 3, 3, 1]);
}

#[test]
fn an_abort_reaches_the_server_also_without_the_client() {
    let servers = Servers::new(Hydra4, 2, Some("(vector,(0,1,2))"));
    job(&servers, 2, here, |mut client| {
        if client.job().rank == 1 { client.last_word().abort(7, "") } else { client.abort(-3, "").unwrap() }
    });
    let log = servers.seen.lock().unwrap();
    assert!(
        log.contains(&"1:cmd=abort exitcode=7".to_owned())
            && log.contains(&"0:cmd=abort exitcode=-3".to_owned())
    );
}

/// What a rank says whose server answers with these lines, one after the other, and is then gone.
fn answered(answers: &'static [&'static str]) -> Error {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let mut room = [0; 1024];
        for answer in answers {
            assert!(ours.read(&mut room).unwrap() > 0);
            ours.write_all(answer.as_bytes()).unwrap();
        }
        // The request that stays without an answer.
        let _ = ours.read(&mut room);
    });
    let error = Client::join_by_pmi1(theirs.into(), 0, 2, &here(0)).unwrap_err();
    server.join().unwrap();
    error
}

#[test]
fn servers_that_say_something_else_are_refused() {
    assert!(matches!(answered(&[]), Error::Pmi1(Pmi1Error::Closed)));
    for answers in [
        &["garbage\n"][..],
        &["cmd=response_to_init rc=-1\n"],
        &["cmd=maxes\n"],
        &["cmd=response_to_init rc=0\n", "cmd=maxes\n", "cmd=nothing\n"],
        &[
            "cmd=response_to_init rc=0\n",
            "cmd=maxes\n",
            "cmd=appnum\n",
            "cmd=universe_size\n",
            "cmd=my_kvsname rc=5\n",
        ],
    ] {
        let error = answered(answers);
        assert!(matches!(error, Error::Pmi1(Pmi1Error::Answer { .. })), "{answers:?}: {error}");
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    let none = Client::join_by_pmi1(theirs.into(), 2, 2, &here(0)).unwrap_err();
    assert!(matches!(none, Error::Pmi1(Pmi1Error::NoPlace)));
    drop(ours);
}

#[test]
fn answers_may_come_in_pieces() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let servers = Arc::new(Servers::new(Intel, 1, None));
    let server = thread::spawn(move || {
        let mut room = [0; 1024];
        while let Ok(count @ 1..) = ours.read(&mut room) {
            let request = Line::parse(std::str::from_utf8(&room[..count]).unwrap()).unwrap();
            for byte in format!("{}\n", servers.answer(0, &request).unwrap()).bytes() {
                ours.write_all(&[byte]).unwrap();
            }
            if request.command == "finalize" {
                return;
            }
        }
    });
    let (job, memory) = joined(Client::join_by_pmi1(theirs.into(), 0, 1, &here(0)).unwrap());
    assert_eq!((job.size, memory), (1, None));
    server.join().unwrap();
}

#[test]
fn a_port_is_an_entrance_as_well() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().to_string();
    let servers = Servers::new(Hydra5, 1, Some("(vector,(0,1,1))"));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = listener.accept().unwrap();
            let mut room = [0; 1024];
            let count = socket.read(&mut room).unwrap();
            assert_eq!(&room[..count], b"cmd=initack pmiid=5\n");
            socket.write_all(b"cmd=initack rc=0\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0\n").unwrap();
            servers.serve(0, socket.try_clone().unwrap());
        });
        let client = Client::join_by_pmi1_port(&port, 5, &here(0)).unwrap();
        let (job, _) = joined(client);
        assert_eq!((job.rank, job.size), (0, 1));
    });
}
