//! The library where the machine gives it little: no single copy, a tiny /dev/shm, no temporary folder.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, Job, tail};
use crate::project::Project;
use crate::steps::Tally;

/// Programs that move small and large messages, with their ranks.
const PROGRAMS: &[(&str, usize)] = &[("ring", 3), ("modes", 2), ("matching", 2), ("outstanding", 3)];

/// All checks.
pub(super) fn run(project: &Project) -> Result<Tally> {
    let library = Library::open(project, Kind::Banyan)?;
    let bin = project.folder("limits")?;
    let refuse = bin.join("refuse");
    let made = Job::new("gcc")
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .arg(&refuse)
        .arg(project.file("tests/tools/refuse.c"));
    made.run_ok()?;
    let mut tally = Tally::default();
    for &(name, ranks) in PROGRAMS {
        let program = bin.join(name);
        let unit = Unit::program(program.clone(), project.file(&format!("tests/c/{name}.c")));
        cc::build(&library, &unit.flags(["-O1", "-D_DEFAULT_SOURCE"]))?;
        let mpirun = library.mpirun(ranks, &program, Fabric::SHM)?;
        tally.check(&format!("{name} without process_vm_readv"), says_ok(&mpirun.under(&refuse, &[])));
        tally.check(
            &format!("{name} without a temporary folder"),
            says_ok(&mpirun.clone().env("TMPDIR", "/nonexistent")),
        );
        match tiny_shm() {
            Ok(()) => tally.check(
                &format!("{name} with a /dev/shm of 64 KiB"),
                says_ok(&mpirun.under(Path::new("unshare"), TINY_SHM)),
            ),
            Err(error) => tally.leave_out(&format!("{name} with a /dev/shm of 64 KiB"), &error.to_string()),
        }
    }
    Ok(tally)
}

/// Arguments of `unshare` that run what follows with a tiny /dev/shm of its own.
const TINY_SHM: &[&str] = &[
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs -o size=64k none /dev/shm && exec \"$@\"",
    "sh",
];

/// Checks that this machine lets a process mount its own /dev/shm.
fn tiny_shm() -> Result<()> {
    Job::new("unshare").args(TINY_SHM).arg("true").run_ok()?;
    Ok(())
}

fn says_ok(job: &Job) -> Result<()> {
    let done = job.clone().limit(90).run()?;
    if done.end != End::Exit(0) || !done.output.lines().any(|line| line == "ok") {
        bail!("{}\n{}", done.end, tail(&done.output, 20));
    }
    Ok(())
}
