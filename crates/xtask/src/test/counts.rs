//! Instructions of the hot paths, counted by callgrind over transports inside one process, with each step scripted:
//! nothing waits, so the counts hardly vary. A bound is the count that was measured when it was recorded, and 3 % for
//! compilers; a change that makes a path longer on purpose records a new bound.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cc::{self, Unit};
use crate::library::Library;
use crate::process::Job;
use crate::project::Project;
use crate::steps::Tally;

/// The Debian package with callgrind.
pub(super) const VALGRIND: &str = "valgrind";

/// A path, how often the program takes it inside `counted`, and the most instructions for each time.
struct Count {
    name: &'static str,
    times: u64,
    bound: u64,
}

/// `MPI_Send` and `MPI_Recv` by the `self` fabric, a queue from a process to itself: all layers but the fabric between ranks.
const SELF: Count = Count { name: "0 bytes to oneself, from MPI_Send to MPI_Recv", times: 1000, bound: 1605 };
/// p2p and the rings of shared memory, both ranks in one thread.
const PAIR: Count = Count { name: "0 bytes from rank to rank, below MPI", times: 1000, bound: 565 };

/// Schedules and the CICO buffers of shared memory, both ranks in one thread: the first rank waits for the second one, which
/// finds the first one's data there.
const ALLREDUCE: Count = Count { name: "8-byte allreduce on 2 ranks, below MPI", times: 1000, bound: 1467 };

/// Builds the programs and counts their instructions.
pub(super) fn run(project: &Project, library: &Library) -> Result<Tally> {
    let folder = project.folder("counts")?;
    let mut tally = Tally::default();
    let program = folder.join("self");
    let unit = Unit::program(program.clone(), project.file("tests/counts/self.c"));
    cc::build(library, &unit.flags(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]))?;
    check(&mut tally, &SELF, &program, &folder);
    for (path, package, example) in
        [(&PAIR, "banyan-p2p", "messages"), (&ALLREDUCE, "banyan-coll", "collectives")]
    {
        let cargo = Job::new(env!("CARGO")).args(["build", "--release", "--quiet", "-p", package]);
        cargo.args(["--example", example]).folder(project.root()).limit(1800).run_ok()?;
        check(&mut tally, path, &project.target().join("release/examples").join(example), &folder);
    }
    Ok(tally)
}

fn check(tally: &mut Tally, path: &Count, program: &Path, folder: &Path) {
    match count(program, folder).map(|all| all / path.times) {
        Ok(each) => {
            tally.notes.push(format!("{}: {each} instructions, bound {}", path.name, path.bound));
            let within =
                if each <= path.bound { Ok(()) } else { Err(anyhow::anyhow!("{each} instructions")) };
            tally.check(path.name, within);
        }
        Err(error) => tally.check(path.name, Err(error)),
    }
}

/// Instructions inside the function `counted` of a program.
fn count(program: &Path, folder: &Path) -> Result<u64> {
    let job = Job::new("valgrind").args(["--tool=callgrind", "--toggle-collect=*counted*"]);
    let done = job.arg("--callgrind-out-file=/dev/null").arg(program).folder(folder).limit(120).run_ok()?;
    let line = done.output.lines().find_map(|line| line.split("Collected :").nth(1));
    let instructions = line.context("callgrind said nothing")?.trim().parse()?;
    if instructions == 0 {
        bail!("`counted` was not found in {}", program.display());
    }
    Ok(instructions)
}
