//! `#[mpi::test]`: what a test on processes promises, and how it fails. Tests that are ignored are run by others here, which look at how
//! they end.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

#[mpi::test(ranks = [1, 2, 5])]
fn ranks_are_processes(universe: &mut Universe) {
    let world = universe.world();
    let mut pids = vec![0; world.size() as usize];
    world.all_gather_into(&std::process::id(), &mut pids[..]);
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), world.size() as usize);
    assert_eq!(universe.size(), Some(pids.len()));
}

#[mpi::test(ranks = 3)]
fn results_are_looked_at(world: SimpleCommunicator) -> Result<(), std::num::ParseIntError> {
    let number: i32 = "7".parse()?;
    let mut sum = 0;
    world.all_reduce_into(&number, &mut sum, SystemOperation::sum());
    assert_eq!(sum, 21);
    Ok(())
}

mod below {
    use mpi::environment::Universe;

    #[mpi::test(ranks = 2)]
    fn a_function_without_an_argument_is_a_rank() {
        assert_eq!(mpi::environment::threading_support(), mpi::Threading::Single);
    }

    #[mpi::test(ranks = 2, timeout = 60)]
    fn a_universe_may_be_looked_at(universe: &Universe) {
        assert_eq!((universe.size(), universe.buffer_size()), (Some(2), 0));
    }
}

#[mpi::test(ranks = 2)]
#[ignore = "fails on purpose"]
fn rank_1_gives_an_error(world: SimpleCommunicator) -> Result<(), String> {
    if world.rank() == 1 {
        return Err("the reason of rank 1".to_owned());
    }
    world.process_at_rank(1).receive::<u8>();
    Ok(())
}

#[mpi::test(ranks = 3)]
#[ignore = "fails on purpose"]
fn rank_2_panics(world: SimpleCommunicator) {
    println!("rank {} is there", world.rank());
    world.barrier();
    assert_ne!(world.rank(), 2, "the bug of rank 2");
    world.barrier();
}

#[mpi::test(ranks = 2)]
#[ignore = "fails on purpose"]
fn rank_0_leaves(world: SimpleCommunicator) {
    if world.rank() == 0 {
        std::process::exit(0);
    }
    world.barrier();
}

#[mpi::test(ranks = 2, timeout = 0.5)]
#[ignore = "hangs on purpose"]
fn rank_1_hangs(world: SimpleCommunicator) {
    while world.rank() == 1 {
        std::thread::park();
    }
    world.barrier();
}

#[mpi::test(ranks = 2)]
#[ignore = "ends well although it is to panic"]
#[should_panic]
fn nobody_panics() {}

/// Where the ranks of `ranks_hold_lines` connect to.
const LISTENER: &str = "BANYAN_TEST_LISTENER";

#[mpi::test(ranks = 2, timeout = 600)]
#[ignore = "hangs on purpose"]
fn ranks_hold_lines(world: SimpleCommunicator) {
    let _line = TcpStream::connect(std::env::var(LISTENER).unwrap()).unwrap();
    world.process_at_rank(1 - world.rank()).receive::<u8>();
}

/// This program, asked to run one of the tests above.
fn program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("entry::{test}"), "--exact", "--ignored"]).stdin(Stdio::null());
    command
}

/// Runs a test that fails, and gives what is printed of it.
fn failed(test: &str) -> String {
    let Output { status, stdout, .. } = program(test).output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.code() == Some(101) && text.contains("1 failed"), "{test}: {status}\n{text}");
    text
}

#[test]
fn who_fails_is_named_with_the_reason() {
    let cases: [(&str, &[&str]); 5] = [
        (
            "rank_1_gives_an_error",
            &["on 2 ranks", "[1] Error: \"the reason of rank 1\"", "mpirun: rank 1 on"],
        ),
        (
            "rank_2_panics",
            &["on 3 ranks", "[2]   left: 2", "the bug of rank 2\n", "mpirun: rank 2 on", "[0] rank 0 is"],
        ),
        ("rank_0_leaves", &["on 2 ranks", "mpirun: rank 0 on", "ended without MPI_Finalize"]),
        ("rank_1_hangs", &["on 2 ranks", "the job took longer than 0.5 s"]),
        ("nobody_panics", &["test did not panic as expected"]),
    ];
    for (test, parts) in cases {
        let text = failed(test);
        parts.iter().for_each(|part| assert!(text.contains(part), "{test}: no '{part}' in\n{text}"));
    }
}

#[test]
fn a_launcher_is_told_that_it_is_one_too_many() {
    let done = program("rank_2_panics").env("PMI_SIZE", "2").output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("(PMI_SIZE is set)") && text.contains("`cargo test`"), "{text}");
}

#[test]
fn a_test_that_is_killed_leaves_no_rank() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut test = program("ranks_hold_lines").env(LISTENER, address).stdout(Stdio::null()).spawn().unwrap();
    let mut lines: Vec<TcpStream> = (0..2).map(|_| listener.accept().unwrap().0).collect();
    test.kill().unwrap();
    test.wait().unwrap();
    for line in &mut lines {
        line.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        // The kernel closes it when the rank has ended.
        assert_eq!(line.read(&mut [0]).unwrap(), 0);
    }
}
