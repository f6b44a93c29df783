//! Real jobs over RDMA devices: programs of tests/c, a ping-pong, and what a user sees. This runs where the devices are; in a guest it is
//! this program, started there.
//!
//! Ranks of one host take turns in its devices, so that with two devices each job has ranks on both. Jobs on two hosts are in `two_hosts`.

use anyhow::{Result, bail};

use super::two_hosts::{self, bytes_by_rdma};
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
/// More ranks than these do not get on, where two processors are emulated.
const MOST: usize = 8;
/// A guest may be slower than a host by this factor.
const SLOWER: u64 = 6;

impl Which {
    fn programs(self) -> &'static [&'static str] {
        if self == Which::Short { SHORT } else { &[] }
    }

    fn most(self) -> usize {
        if self == Which::Short { 3 } else { MOST }
    }
}

/// Builds what the jobs run; nothing has to be built after this.
pub(super) fn build(project: &Project, library: &Library, which: Which) -> Result<()> {
    cprograms::build(project, library, which.programs())?;
    cprograms::build(project, library, two_hosts::PROGRAMS)?;
    two_hosts::build(project, library, which == Which::Short)
}

/// Runs them, and says of each what became of it, in the words of Rust's test harness; true if all went well.
pub(super) fn run(project: &Project, library: &Library, which: Which) -> Result<bool> {
    let (mut passed, mut failed) = (0, 0);
    let mut told = |title: &str, result: Result<()>| match result {
        Ok(()) => {
            println!("test {title} ... ok");
            passed += 1;
        }
        Err(error) => {
            println!("test {title} ... FAILED\n{error:#}");
            failed += 1;
        }
    };
    told("bytes go by the devices", bytes_are_counted(project, library));
    told("explained", explained(library));
    cprograms::over(project, library, Fabric::RDMA, which.programs(), (which.most(), SLOWER), &mut told)?;
    two_hosts::run(project, library, which == Which::Short, &mut told)?;
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored");
    Ok(failed == 0)
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
