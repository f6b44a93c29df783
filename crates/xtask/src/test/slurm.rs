//! Slurm on emulated hosts: programs of other MPIs and ours by `srun` and `sbatch`, our mpirun in allocations, and what is refused.

use std::path::Path;

use anyhow::{Result, bail};

use super::applications::{self, Applications, EACH, HOSTS, built, places, refused, says_ok};
use crate::hosts::slurm::{self, Slurm};
use crate::hosts::{self, Lab, Link};
use crate::library::{Kind, Library};
use crate::process::Job;
use crate::project::{self, Project};
use crate::steps::Tally;

/// The ways in which `srun` lets ranks find each other.
const PMI: [&str; 2] = ["pmi2", "pmix"];

/// All checks.
pub(super) fn run(project: &Project) -> Result<Tally> {
    if let Some(reason) =
        hosts::why_not(project)?.map_or_else(|| slurm::why_not(project), |why| Ok(Some(why)))?
    {
        return Ok(Tally::skip(reason));
    }
    let lab = Lab::up(project, "slurm", HOSTS, Link::Veth)?;
    let cluster = Cluster { project, slurm: Slurm::up(&lab, EACH)? };
    let mut tally = Tally::default();
    for (kind, pmi) in [Kind::Mpich, Kind::Openmpi].into_iter().zip(PMI) {
        let library = Library::open(project, kind)?;
        let program = on_the_network(kind, Job::new(built(project, &library, "ring")?));
        let srun = srun(&program, pmi, HOSTS * EACH);
        tally.check(&format!("{} by srun --mpi={pmi}", library.name()), says_ok(&cluster.slurm.on(1, &srun)));
        tally.check(
            &format!("{} by sbatch", library.name()),
            cluster.sbatch(&srun).and_then(|job| says_ok(&job)),
        );
    }
    cluster.ours(&mut tally)?;
    Ok(tally)
}

/// The settings that a launcher other than the library's own has to be told.
fn on_the_network(kind: Kind, job: Job) -> Job {
    match kind {
        Kind::Mpich => job.env("MPIR_CVAR_CH4_NETMOD", "ofi").env("FI_PROVIDER", "tcp"),
        Kind::Openmpi => job.env("OMPI_MCA_pml", "ob1").env("OMPI_MCA_btl", "tcp,sm,self"),
        _ => job,
    }
}

/// A program on so many ranks, by `srun`; the first rank that fails ends the others.
fn srun(program: &Job, pmi: &str, ranks: usize) -> Job {
    step(program, pmi, ranks, "--kill-on-bad-exit=1")
}

/// Ranks that all fail by themselves: none is killed, as Slurm may lose what a killed step has said.
fn srun_failing(program: &Job, pmi: &str, ranks: usize) -> Job {
    step(program, pmi, ranks, "--kill-on-bad-exit=0")
}

/// A step of so many ranks with an option for their ends.
fn step(program: &Job, pmi: &str, ranks: usize, ends: &str) -> Job {
    let (pmi, ranks) = (format!("--mpi={pmi}"), ranks.to_string());
    program.under("srun".as_ref(), &[&pmi, ends, "-n", &ranks])
}

/// Slurm with a processor for each rank.
struct Cluster<'a> {
    project: &'a Project,
    slurm: Slurm<'a>,
}

impl Cluster<'_> {
    /// A batch job that runs a program, for an allocation of all processors; it says what the batch job says.
    fn sbatch(&self, program: &Job) -> Result<Job> {
        let folder = self.project.folder("hosts/slurm")?;
        let (script, said) = (folder.join("job.sh"), folder.join("job.out"));
        project::write(&script, "#!/bin/sh\nexec \"$@\"\n")?;
        let (script, said) = (script.to_string_lossy(), said.to_string_lossy());
        let (hosts, ranks) = (HOSTS.to_string(), (HOSTS * EACH).to_string());
        let sbatch = ["--quiet", "--wait", "-N", &hosts, "-n", &ranks, "-o", &said, &script];
        let and_show = ["-c", "\"$@\"; status=$?; cat $0; exit $status", &said];
        Ok(self.slurm.on(1, &program.under("sbatch".as_ref(), &sbatch).under("sh".as_ref(), &and_show)))
    }

    /// Our library and our mpirun.
    fn ours(&self, tally: &mut Tally) -> Result<()> {
        let library = Library::open(self.project, Kind::Banyan)?;
        let mpirun = library.prefix().join("bin/mpirun");
        let applications = Applications::built(self.project)?;
        for pmi in PMI {
            let start = |program: &Job| Ok(self.slurm.on(1, &srun(program, pmi, HOSTS * EACH)));
            applications.check(&format!("srun --mpi={pmi}"), tally, start);
        }
        // Without options it starts a rank for each task of its allocation, on all hosts, by srun.
        applications.check("mpirun in sbatch", tally, |program| self.sbatch(&program.under(&mpirun, &[])));
        self.uneven(&mpirun, &applications, tally);
        self.refusals(&applications, tally)
    }

    /// Hosts with tasks of different numbers: SLURM_TASKS_PER_NODE is 2(x2),1.
    fn uneven(&self, mpirun: &Path, applications: &Applications, tally: &mut Tally) {
        let ranks = HOSTS * EACH - 1;
        let salloc = |job: &Job| {
            let (hosts, ranks) = (HOSTS.to_string(), ranks.to_string());
            let job = job.under("salloc".as_ref(), &["--quiet", "-N", &hosts, "-n", &ranks]);
            self.slurm.on(1, &job.limit(90))
        };
        let launched = Job::new(&applications.launched);
        let by_mpirun = salloc(&launched.under(mpirun, &[]));
        tally.check("mpirun on uneven hosts", places(&by_mpirun, ranks, EACH, 1));
        for pmi in PMI {
            let by_srun = salloc(&srun(&launched, pmi, ranks));
            tally.check(&format!("srun --mpi={pmi} on uneven hosts"), places(&by_srun, ranks, EACH, 1));
        }
        let echo = Job::new("sh").args(["-c", "echo rank $BANYAN_RANK on $(hostname)"]);
        tally.check("places of ranks", at(&salloc(&echo.under(mpirun, &[])), ranks));
    }

    /// What cannot be joined says why, and what to do; what only looks so starts.
    fn refusals(&self, applications: &Applications, tally: &mut Tally) -> Result<()> {
        let launched = Job::new(&applications.launched).limit(60);
        let step = srun_failing(&launched, "none", EACH);
        let words = ["SLURM_PROCID", "srun --mpi=pmi2"];
        tally.check("a step without PMI is refused", refused(&self.slurm.on(1, &step), &words));
        tally.check("and one of a script", refused(&self.sbatch(&step)?, &words));
        let broken = applications::without_pmix(self.project)?;
        let broken = srun_failing(&launched.under("env".as_ref(), &[&broken]), "pmix", EACH);
        let words = ["libpmix.so.2", "srun --mpi=pmi2"];
        tally.check("PMIx without its library is refused", refused(&self.slurm.on(1, &broken), &words));
        let alone = self.slurm.on(1, &srun(&launched, "none", 1));
        tally.check("a step of one process is not", places(&alone, 1, 1, 1));
        tally.check("nor a program in a batch script", places(&self.sbatch(&launched)?, 1, 1, 1));
        let nested = srun(&launched.under("env".as_ref(), &["BANYAN_PMI=none"]), "none", EACH);
        tally.check("nor ranks that join nothing", places(&self.slurm.on(1, &nested), 1, 1, EACH));
        Ok(())
    }
}

/// The ranks say that they fill one host after the other.
fn at(job: &Job, ranks: usize) -> Result<()> {
    let said = job.run_ok()?.output;
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    let wanted = (0..ranks).map(|rank| format!("rank {rank} on h{}", rank / EACH + 1));
    if !wanted.eq(lines.iter().map(|line| (*line).to_owned())) {
        bail!("the ranks are elsewhere:\n{said}");
    }
    Ok(())
}
