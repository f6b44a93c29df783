//! Programs built with other MPIs, which speak PMI-1, as ranks of our mpirun.

use std::path::Path;

use anyhow::{Result, bail};

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, Job, tail};
use crate::project::Project;
use crate::rivals;
use crate::steps::Tally;

const PROGRAMS: [&str; 3] = ["ring", "collectives", "communicators"];

/// MPICH by its own ABI, on one, two and four ranks, and Intel MPI on one and two.
pub(super) fn run(project: &Project, ours: &Library) -> Result<Tally> {
    // It has MPICH's own ABI, and so takes programs that are built with MPICH's mpicc.
    let intel = Library::open(project, Kind::Intel)?;
    let mpich = rivals::mpich(project)?.join("lib");
    let mut tally = Tally::default();
    for name in PROGRAMS {
        let program = project.folder("others")?.join(name);
        let unit = Unit::program(program.clone(), project.file(&format!("tests/c/{name}.c")));
        cc::build(&intel, &unit.flags(["-O1", "-D_DEFAULT_SOURCE"]).libs(["-lm"]))?;
        for ranks in [1, 2, 4] {
            // With more ranks than cores Intel MPI takes minutes.
            let both = [("mpich", mpich.clone()), ("intel", intel.prefix().join("lib"))];
            for (mpi, lib) in both.into_iter().filter(|(mpi, _)| *mpi == "mpich" || ranks <= 2) {
                let job = ours.mpirun(ranks, &program, Fabric::SHM)?.env("LD_LIBRARY_PATH", &lib);
                let job = if mpi == "intel" { job.env("I_MPI_FABRICS", "shm") } else { job };
                tally.check(&format!("{name} of {mpi} on {ranks} ranks"), is_one_job(job, &program, &lib));
            }
        }
    }
    Ok(tally)
}

/// The ranks are those of one job: in jobs of its own each would be rank 0, which says `ok`.
fn is_one_job(job: Job, program: &Path, lib: &Path) -> Result<()> {
    let linked = Job::new("ldd").arg(program).env("LD_LIBRARY_PATH", lib).run_ok()?;
    if !linked.output.contains(&*lib.to_string_lossy()) {
        bail!("{} does not use {}:\n{}", program.display(), lib.display(), linked.output);
    }
    let done = job.limit(120).run()?;
    let said = done.output.lines().filter(|line| *line == "ok").count();
    if done.end != End::Exit(0) || said != 1 {
        bail!("{}, {said} times ok\n{}", done.end, tail(&done.output, 20));
    }
    Ok(())
}
