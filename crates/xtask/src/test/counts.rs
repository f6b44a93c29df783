//! Instructions of the hot paths, counted by callgrind over transports inside one process, with each step scripted:
//! nothing waits, so the counts hardly vary. A bound is the count that was measured when it was recorded, and 3 % for
//! compilers; a change that makes a path longer on purpose records a new bound. Also how far apart lies what a rank runs, and how many
//! [loads wait for several stores](super::stalls).

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cc::{self, Unit};
use crate::hot::{self, Trace};
use crate::library::Library;
use crate::process::Job;
use crate::project::Project;
use crate::steps::Tally;

use super::stalls;

/// The Debian package with callgrind.
pub(super) const VALGRIND: &str = "valgrind";

/// What is counted, and the most that it may be.
struct Count {
    name: &'static str,
    unit: &'static str,
    bound: u64,
}

/// How often a program takes its path inside `counted`.
const TIMES: u64 = 1000;

const fn instructions(name: &'static str, bound: u64) -> Count {
    Count { name, unit: "instructions", bound }
}

/// `MPI_Send` and `MPI_Recv` by the `self` fabric, a queue from a process to itself: all layers but the fabric between ranks.
const SELF: Count = instructions("0 bytes to oneself, from MPI_Send to MPI_Recv", 1605);
/// p2p and the rings of shared memory, both ranks in one thread.
const PAIR: Count = instructions("0 bytes from rank to rank, below MPI", 565);

/// Schedules and the CICO buffers of shared memory, both ranks in one thread: the first rank waits for the second one, which
/// finds the first one's data there.
const ALLREDUCE: Count = instructions("8-byte allreduce on 2 ranks, below MPI", 1467);

/// 12 where nothing waits long, and 34 without `abi/hot.ld`, which `cargo xtask hot` writes anew.
const HOT: Count = Count { name: "code that a rank runs", unit: "windows of 64 KiB", bound: 16 };

/// In front and agent: 15, and 40 without `launcher/hot.ld` where it is not compiled for size.
const HOT_MPIRUN: Count = Count { name: "code that mpirun runs", unit: "windows of 64 KiB", bound: 18 };

/// Messages: 8 bytes that were received 1, 1 KiB 1, a request and a wait 1, two requests and a wait 2; and one more for each, for other compilers.
/// Before they were looked for there were 18.
const MESSAGES_WAIT: Count = Count { name: "loads of messages that wait", unit: "loads", bound: 9 };

/// 0 in any collective of few bytes; one for each second one, for other compilers. Before, each had one, and those with areas on the scratch three.
const COLLECTIVES_WAIT: Count = Count { name: "loads of collectives that wait", unit: "loads", bound: 4 };

/// Builds the programs and counts their instructions.
pub(super) fn run(project: &Project, library: &Library) -> Result<Tally> {
    let folder = project.folder("counts")?;
    let mut tally = Tally::default();
    let program = folder.join("self");
    let unit = Unit::program(program.clone(), project.file("tests/counts/self.c"));
    cc::build(library, &unit.flags(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]))?;
    check(&mut tally, &SELF, count(&program, &folder));
    let cargo = Job::new(env!("CARGO")).args(["build", "--release", "--quiet", "--package=banyan-counts"]);
    cargo.folder(project.root()).limit(1800).run_ok()?;
    for (path, program) in [(&PAIR, "messages"), (&ALLREDUCE, "collectives")] {
        let program = project.target().join("release").join(program);
        check(&mut tally, path, count(&program, &folder));
    }
    look_for_stalls(&mut tally, project, library);
    let windows = |count, trace: &dyn Fn() -> Result<Trace>| {
        fewest([count], 5, || Ok([trace()?.windows()])).map(|[windows]| windows)
    };
    check(&mut tally, &HOT, windows(&HOT, &|| hot::trace(project, library, 2, &[])));
    check(&mut tally, &HOT_MPIRUN, windows(&HOT_MPIRUN, &|| hot::trace_mpirun(project, library)));
    Ok(tally)
}

/// Counts the loads that wait, and says where they are if there are too many.
fn look_for_stalls(tally: &mut Tally, project: &Project, library: &Library) {
    let (counts, mut places) = ([&MESSAGES_WAIT, &COLLECTIVES_WAIT], String::new());
    let found = fewest(counts, 3, || {
        let found = stalls::find(project, library)?;
        places = found.places;
        Ok([found.messages, found.collectives])
    });
    match found {
        Err(error) => tally.check("loads that wait", Err(error)),
        Ok(found) => {
            counts.iter().zip(found).for_each(|(count, found)| check(tally, count, Ok(found)));
            if found.iter().zip(counts).any(|(found, count)| *found > count.bound) {
                tally.notes.push(format!("where, the last time:{places}"));
            }
        }
    }
}

/// The fewest that several looks find, if the first finds too many: where the machine is busy ranks wait, and run code that they do not run otherwise, as
/// does mpirun, which asks them what for.
fn fewest<const N: usize>(
    counts: [&Count; N],
    looks: u32,
    mut look: impl FnMut() -> Result<[u64; N]>,
) -> Result<[u64; N]> {
    let mut fewest = [u64::MAX; N];
    for _ in 0..looks {
        fewest.iter_mut().zip(look()?).for_each(|(least, found)| *least = found.min(*least));
        if fewest.iter().zip(counts).all(|(least, count)| *least <= count.bound) {
            break;
        }
    }
    Ok(fewest)
}

fn check(tally: &mut Tally, what: &Count, counted: Result<u64>) {
    let Count { name, unit, bound } = what;
    if let Ok(counted) = counted {
        tally.notes.push(format!("{name}: {counted} {unit}, bound {bound}"));
    }
    let within = |counted| if counted <= *bound { Ok(()) } else { Err(anyhow::anyhow!("{counted} {unit}")) };
    tally.check(name, counted.and_then(within));
}

/// Instructions of the path that a program takes inside its function `counted`.
fn count(program: &Path, folder: &Path) -> Result<u64> {
    let job = Job::new("valgrind").args(["--tool=callgrind", "--toggle-collect=*counted*"]);
    let done = job.arg("--callgrind-out-file=/dev/null").arg(program).folder(folder).limit(120).run_ok()?;
    let line = done.output.lines().find_map(|line| line.split("Collected :").nth(1));
    let instructions: u64 = line.context("callgrind said nothing")?.trim().parse()?;
    if instructions == 0 {
        bail!("`counted` was not found in {}", program.display());
    }
    Ok(instructions / TIMES)
}
