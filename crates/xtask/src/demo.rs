//! `cargo xtask demo`: install, compile the heat equation with mpicc, run it on 4 ranks.

use anyhow::{Context, Result, bail};

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::End;
use crate::project::Project;

/// How many ranks the demo runs on.
const RANKS: usize = 4;

/// Builds, installs, compiles and runs the demo, with its output as it comes.
pub(crate) fn run(project: &Project, mpi: Kind) -> Result<()> {
    println!("building and installing ({mpi:?}) ...");
    let library = Library::open(project, mpi)?;
    println!("installed in {}", library.prefix().display());
    let folder = project.folder("demo")?;
    let program = folder.join(format!("heat-{}", library.name()));
    let source = project.file("tests/demo/heat.c");
    println!("{} -O2 tests/demo/heat.c", library.cc().display());
    cc::build(&library, &Unit::program(program.clone(), source).flags(["-O2"]).libs(["-lm"]))?;
    let picture = folder.join("heat.png");
    let job = library.mpirun(RANKS, &program, Fabric::SHM)?.arg(&picture).limit(300);
    println!("{}", job.line());
    let end = job.show().context("the demo did not start")?;
    if end != End::Exit(0) {
        bail!("the demo failed: {end}");
    }
    println!("picture: {}", picture.display());
    Ok(())
}
