//! The fabric's own tests, and real jobs over RDMA devices: programs of tests/c, and what a user sees. This runs where the devices are; in a
//! guest it is this program, started there.
//!
//! Ranks of one host take turns in its devices, so that with two devices each job has ranks on both. Jobs on two hosts are in `two_hosts`.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use banyan_topo::{RdmaLink, RdmaPort};

use super::two_hosts::{self, bytes_by_rdma};
use crate::gpu::direct;
use crate::library::{Fabric, Library};
use crate::process::{End, Job, tail};
use crate::project::Project;
use crate::test::cprograms;

/// Which jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Which {
    /// Some of each kind
    Short,
    /// All
    All,
}

/// The programs of the short part: messages in a ring, and each collective.
const SHORT: &[&str] = &["ring", "collectives"];
/// The tests of the fabric that take longest, and show what others show, too: the short part is without them.
const WITHOUT_LONG: &[&str] = &["--skip=two_threads", "--skip=rails"];
/// More ranks than these take too long where each frame is several packets of TCP in an emulated processor.
const MOST_ON_IWARP: usize = 4;
/// Programs that are for something else: one counts a processor's time, of which an emulated one takes so much for the polls before the first
/// sleep, and one ends the sockets of TCP.
const UNFIT: &[&str] = &["idle", "sendrecv_lost"];
/// More ranks than these do not get on, where two processors are emulated.
const MOST: usize = 8;
/// A guest may be slower than a host by this factor.
const SLOWER: u64 = 6;

impl Which {
    fn programs(self) -> &'static [&'static str] {
        if self == Which::Short { SHORT } else { &[] }
    }

    fn wants(self, name: &str) -> bool {
        self == Which::All || SHORT.contains(&name)
    }

    fn most(self) -> usize {
        if self == Which::Short { 2 } else { MOST }
    }
}

/// True if the devices here are of iWARP.
fn is_iwarp() -> bool {
    RdmaPort::read(Path::new("/")).iter().any(|port| port.link == RdmaLink::Iwarp)
}

/// Builds what the jobs run; nothing has to be built after this.
pub(super) fn build(project: &Project, library: &Library, which: Which) -> Result<()> {
    cprograms::build(project, library, which.programs())?;
    cprograms::build(project, library, two_hosts::PROGRAMS)?;
    direct::build(project, library)?;
    two_hosts::build(project, library, which == Which::Short)
}

/// Runs the fabric's tests, which are these programs, and the jobs; says of each what became of it, in the words of Rust's test harness, and
/// how long it took. True if all went well.
pub(super) fn run(project: &Project, library: &Library, which: Which, tests: &[String]) -> Result<bool> {
    let tests_ok = tests_are_ok(which, tests)?;
    let (mut passed, mut failed) = (0, 0);
    let mut begun = Instant::now();
    let mut told = |title: &str, result: Result<()>| {
        let took = std::mem::replace(&mut begun, Instant::now()).elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                println!("test {title} ... ok, {took:.1} s");
                passed += 1;
            }
            Err(error) => {
                println!("test {title} ... FAILED\nafter {took:.1} s: {error:#}");
                failed += 1;
            }
        }
    };
    told("bytes go by the devices", bytes_are_counted(project, library));
    told("explained", explained(library));
    told("a limit on locked memory is named", limit_is_named(project, library));
    let iwarp = is_iwarp();
    let most = if iwarp { MOST_ON_IWARP } else { which.most() };
    let wanted = |name: &str| which.wants(name) && !UNFIT.contains(&name);
    cprograms::over(project, library, Fabric::RDMA, &wanted, (most, SLOWER), &mut told)?;
    direct::run(project, library, (which == Which::Short, iwarp), &mut told)?;
    two_hosts::run(project, library, which == Which::Short, &mut told)?;
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored");
    Ok(tests_ok && failed == 0)
}

/// Runs the fabric's own tests, whose harness says what became of them and how long they took; true if all went well.
fn tests_are_ok(which: Which, tests: &[String]) -> Result<bool> {
    let mut ok = true;
    for test in tests {
        let filter = if which == Which::Short { WITHOUT_LONG } else { &[] };
        let done = Job::new(test).arg("--color=never").args(filter).run()?;
        println!("{}", done.output.trim());
        ok &= done.end == End::Exit(0);
    }
    Ok(ok)
}

/// Where several fabrics may be used, those ranks of one host that share no memory talk by the devices: by what the fabric counts, and by
/// what the kernel does.
fn bytes_are_counted(project: &Project, library: &Library) -> Result<()> {
    let program = project.target().join("tests-c").join(library.name()).join("ring");
    let job = Job::new(library.prefix().join("bin/mpirun")).env("BANYAN_FABRICS", "rdma,tcp");
    let done = job.env("BANYAN_P2P", "show").args(["-n", "2"]).arg(program).limit(120).run()?;
    let bytes = bytes_by_rdma(&done.output);
    if done.end != End::Exit(0) || bytes.len() != 2 || bytes.contains(&0) {
        bail!("{}: no bytes by rdma\n{}", done.end, tail(&done.output, 25));
    }
    Ok(())
}

/// Where a process may lock less than the fabric takes, TCP carries its messages, and one line says why.
fn limit_is_named(project: &Project, library: &Library) -> Result<()> {
    let program = project.target().join("tests-c").join(library.name()).join("ring");
    // Root may lock what it likes, but for siw, unless that privilege is taken from it.
    let lowered = [
        "--bounding-set=-ipc_lock",
        "--inh-caps=-ipc_lock",
        "sh",
        "-c",
        "ulimit -l 256 && exec \"$0\" \"$@\"",
    ];
    let job = Job::new("setpriv").args(lowered).arg(library.prefix().join("bin/mpirun")).args(["-n", "2"]);
    let done = job.arg(program).env("BANYAN_FABRICS", "rdma,tcp").limit(120).run()?;
    if done.end != End::Exit(0) || !done.output.contains("may lock 262144 bytes") {
        bail!("{}, and no word of the limit\n{}", done.end, tail(&done.output, 25));
    }
    Ok(())
}

/// `mpirun --explain rdma` names the device that ranks take.
fn explained(library: &Library) -> Result<()> {
    let mpirun = library.prefix().join("bin/mpirun");
    let explain =
        |nic: &str| Job::new(&mpirun).args(["--explain", "rdma"]).env("BANYAN_NIC", nic).limit(60).run();
    let said = explain("")?.output;
    let Some(first) = said.split("chosen: ").nth(1).and_then(|rest| rest.split(' ').next()) else {
        bail!("no device is chosen\n{said}")
    };
    let forced = explain(first)?.output;
    if !forced.contains(&format!("chosen: {first} for all ranks")) {
        bail!("{first} is not forced\n{forced}");
    }
    let bad = explain(&format!("{}:77", first.split(':').next().unwrap_or_default()))?;
    if bad.end == End::Exit(0) || !bad.output.contains("has no port 77") {
        bail!("a port that is not there: {}\n{}", bad.end, bad.output);
    }
    Ok(())
}
