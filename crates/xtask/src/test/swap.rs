//! One binary, two libraries: built with MPICH's mpicc_abi it runs on ours, built with our mpicc it runs on theirs.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, tail};
use crate::project::Project;
use crate::steps::Tally;

/// Programs that use a good part of the ABI, and the ranks they run on.
const PROGRAMS: &[(&str, usize)] =
    &[("ring", 3), ("modes", 2), ("collectives", 4), ("operations", 3), ("outstanding", 2)];

/// Both directions.
pub(super) fn run(project: &Project) -> Result<Tally> {
    let ours = Library::open(project, Kind::Banyan)?;
    let theirs = Library::open(project, Kind::Mpich)?;
    let mut tally = Tally::default();
    for (builder, runner) in [(&theirs, &ours), (&ours, &theirs)] {
        for &(name, ranks) in PROGRAMS {
            let title = format!("{name} built with {}, run on {}", builder.name(), runner.name());
            tally.check(&title, crossed(project, builder, runner, name, ranks));
        }
    }
    Ok(tally)
}

fn crossed(project: &Project, builder: &Library, runner: &Library, name: &str, ranks: usize) -> Result<()> {
    let program = project.folder(&format!("swap/{}", builder.name()))?.join(name);
    let unit = Unit::program(program.clone(), project.file(&format!("tests/c/{name}.c")));
    cc::build(builder, &unit.flags(["-O1", "-D_DEFAULT_SOURCE"]).libs(["-lm"]))?;
    let lib = runner.prefix().join("lib");
    // A binary's rpath gives way to this (DT_RUNPATH).
    let job = runner.mpirun(ranks, &program, Fabric::SHM)?.env("LD_LIBRARY_PATH", &lib).limit(90);
    let done = job.run()?;
    if done.end != End::Exit(0) || !done.output.lines().any(|line| line == "ok") {
        bail!("{}\n{}", done.end, tail(&done.output, 20));
    }
    uses(&program, &lib)
}

/// The dynamic linker really takes `libmpi_abi.so.1` from `lib`.
fn uses(program: &Path, lib: &Path) -> Result<()> {
    let done = crate::process::Job::new("ldd").arg(program).env("LD_LIBRARY_PATH", lib).run_ok()?;
    let wanted = lib.join("libmpi_abi.so.1");
    if !done.output.contains(&*wanted.to_string_lossy()) {
        bail!("{} does not use {}:\n{}", program.display(), wanted.display(), done.output);
    }
    Ok(())
}
