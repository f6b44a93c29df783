//! Programs of ours on the ranks of three hosts with two ranks each, by any launcher: who is there and who shares memory, the
//! demo, and HPCC.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::cc::{self, Unit};
use crate::debian;
use crate::hpcc::{self, Problem, Report};
use crate::library::{Kind, Library};
use crate::process::{Done, End, Job, tail};
use crate::project::Project;
use crate::steps::Tally;

/// Hosts of the lab.
pub(super) const HOSTS: usize = 3;
/// Ranks on each.
pub(super) const EACH: usize = 2;

/// The programs, built with our library.
pub(super) struct Applications {
    pub(super) launched: PathBuf,
    heat: PathBuf,
    /// HPCC, or why it is not there.
    hpcc: Result<PathBuf, String>,
    /// The folder where it runs.
    work: PathBuf,
}

impl Applications {
    /// Builds them, unless that is done.
    pub(super) fn built(project: &Project) -> Result<Applications> {
        let library = Library::open(project, Kind::Banyan)?;
        let heat = project.folder("hosts/banyan")?.join("heat");
        let unit = Unit::program(heat.clone(), project.file("tests/demo/heat.c"));
        cc::build(&library, &unit.flags(["-O2"]).libs(["-lm"]))?;
        let hpcc = match debian::packages(project, hpcc::PACKAGES)? {
            None => Ok(hpcc::program(project, &library)?),
            Some(missing) => Err(missing.reason),
        };
        let launched = built(project, &library, "launched")?;
        Ok(Applications { launched, heat, hpcc, work: project.folder("hosts/hpcc")? })
    }

    /// Runs them. `start` has a launcher start a program on all ranks of all hosts.
    pub(super) fn check(&self, launcher: &str, tally: &mut Tally, start: impl Fn(&Job) -> Result<Job>) {
        let ranks = HOSTS * EACH;
        let launched =
            start(&Job::new(&self.launched).limit(60)).and_then(|job| places(&job, ranks, EACH, 1));
        tally.check(&format!("{ranks} ranks by {launcher}"), launched);
        let heat = Job::new(&self.heat).arg(self.heat.with_extension("png")).limit(120);
        let right = |done: Done| {
            let says = |line: &str| done.output.lines().filter(|said| said.contains(line)).count();
            match (says(&format!("on {HOSTS} x {EACH} ranks")), says("the result is right")) {
                (1, 1) => Ok(()),
                _ => bail!("{}", tail(&done.output, 20)),
            }
        };
        let demo = start(&heat).and_then(|job| job.run_ok()).and_then(right);
        tally.check(&format!("demo on {ranks} ranks by {launcher}"), demo);
        let name = format!("HPCC on {ranks} ranks by {launcher}");
        match &self.hpcc {
            Ok(program) => tally.check(&name, self.hpcc(program, start)),
            Err(reason) => tally.leave_out(&name, reason),
        }
    }

    fn hpcc(&self, program: &Path, start: impl Fn(&Job) -> Result<Job>) -> Result<()> {
        hpcc::prepare(program, &Problem { order: 600, grid: (EACH, HOSTS) }, &self.work)?;
        let job = Job::new("env").args(["OPENBLAS_NUM_THREADS=1", hpcc::WITHOUT_LATENCY]).arg(program);
        start(&job.folder(&self.work).limit(240))?.run_ok()?;
        let report = Report::read(&self.work)?;
        report.success()?;
        report.residuals()
    }
}

/// The program `launched` ends well `jobs` times, with so many ranks, of which so many share the memory of rank 0.
pub(super) fn places(job: &Job, ranks: usize, sharing: usize, jobs: usize) -> Result<()> {
    let done = job.run()?;
    let line = format!("{ranks} ranks, {sharing} share memory");
    let said = |line: &str| done.output.lines().filter(|said| said.trim() == line).count();
    if done.end == End::Exit(0) && said(&line) == jobs && said("ok") == jobs {
        return Ok(());
    }
    failed(job, &done)
}

/// The job fails, and says these words.
pub(super) fn refused(job: &Job, words: &[&str]) -> Result<()> {
    let done = job.run()?;
    let named = words.iter().all(|word| done.output.contains(word));
    if matches!(done.end, End::Exit(1..)) && named { Ok(()) } else { failed(job, &done) }
}

/// What a job did that did something else than it should.
pub(super) fn failed(job: &Job, done: &Done) -> Result<()> {
    bail!("{}: {}\n{}", job.line(), done.end, tail(&done.output, 25))
}

/// A folder whose `libpmix.so.2` is no library: what the loader finds first, whether or not this system has one.
pub(super) fn without_pmix(project: &Project) -> Result<String> {
    let broken = project.folder("hosts/broken")?;
    crate::project::write(&broken.join("libpmix.so.2"), "no library")?;
    Ok(format!("LD_LIBRARY_PATH={}", broken.display()))
}

/// A program of tests/c, built with a library.
pub(super) fn built(project: &Project, library: &Library, name: &str) -> Result<PathBuf> {
    let program = project.folder(&format!("hosts/{}", library.name()))?.join(name);
    let mut unit = Unit::program(program.clone(), project.file(&format!("tests/c/{name}.c")));
    unit.headers = vec![project.file("tests/c/check.h")];
    cc::build(library, &unit.flags(["-O1", "-D_DEFAULT_SOURCE"]).libs(["-lm"]))?;
    Ok(program)
}

/// The job says that all is right.
pub(super) fn says_ok(job: &Job) -> Result<()> {
    let done = job.clone().limit(120).run()?;
    match done.end == End::Exit(0) && done.output.lines().any(|line| line == "ok") {
        true => Ok(()),
        false => failed(job, &done),
    }
}
