//! A contender of the bench: a library with the bench programs built for it, or the machine itself.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::cases::{BUSY, Case, Figure, RUST, Who};
use super::output::Output;
use super::results::{Ending, MACHINE};
use crate::cc::{self, Unit};
use crate::conformance::{dependent, rust_mpi};
use crate::hosts::Lab;
use crate::hpcc::{self, Problem, Report};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, Job, tail};
use crate::project::{self, Project};

/// A library with the bench programs built for it, or the machine.
pub(super) struct Contender {
    /// None is the machine.
    library: Option<Library>,
    bin: PathBuf,
    /// HPCC, if it was asked for and could be built.
    hpcc: Option<PathBuf>,
    /// The program in Rust, likewise.
    rust: Option<PathBuf>,
    cores: usize,
}

impl Contender {
    /// A library and its programs, fetched and built as needed.
    pub(super) fn ready(project: &Project, kind: Kind) -> Result<Contender> {
        Contender::built(project, Library::open(project, kind)?)
    }

    /// A library that is there.
    pub(super) fn built(project: &Project, library: Library) -> Result<Contender> {
        let bin = project.folder(&format!("bench/{}", library.name()))?;
        let units: Vec<Unit> = project::files_with(&project.file("tests/bench"), "c")?
            .into_iter()
            .map(|source| {
                let mut unit = Unit::program(bin.join(project::stem(&source)), source);
                unit.headers.push(project.file("tests/bench/bench.h"));
                unit.flags(["-O2", "-std=gnu11", "-pthread"])
            })
            .collect();
        for result in cc::build_all(project, &library, &units) {
            result?;
        }
        Ok(Contender { library: Some(library), bin, hpcc: None, rust: None, cores: cores() })
    }

    /// The machine: programs without MPI, by the system's own compiler.
    pub(super) fn machine(project: &Project) -> Result<Contender> {
        let bin = project.folder("bench/plain")?;
        for source in project::files_with(&project.file("tests/bench/plain"), "c")? {
            let compile = Job::new("cc").args(["-O2", "-std=gnu11", "-pthread", "-o"]);
            compile.arg(bin.join(project::stem(&source))).arg(&source).limit(120).run_ok()?;
        }
        Ok(Contender { library: None, bin, hpcc: None, rust: None, cores: cores() })
    }

    /// Fetches and builds HPCC for a library.
    pub(super) fn with_hpcc(&mut self, project: &Project) -> Result<()> {
        if let Some(library) = &self.library {
            self.hpcc = Some(hpcc::program(project, library)?);
        }
        Ok(())
    }

    /// Builds the program in Rust: with the crate of this repository, as a user's package has it, or with the crate `mpi`.
    pub(super) fn with_rust(&mut self, project: &Project) -> Result<()> {
        self.rust = match &self.library {
            Some(library) if library.kind == Kind::Banyan => Some(ours_in_rust(project)?),
            Some(library) if library.kind == Kind::Mpich => Some(rust_mpi::bench(project, library)?),
            _ => None,
        };
        Ok(())
    }

    /// The name in tables.
    pub(super) fn name(&self) -> &'static str {
        self.library.as_ref().map_or(MACHINE, Library::name)
    }

    /// Whether this case is for it.
    pub(super) fn takes(&self, case: &Case) -> bool {
        if case.figure == Figure::Report && self.hpcc.is_none() {
            return false;
        }
        if case.hosts > 0 && self.library.as_ref().is_some_and(|library| library.kind == Kind::Intel) {
            return false;
        }
        match (case.who, &self.library) {
            (Who::Machine, library) => library.is_none(),
            (Who::All, library) => library.is_some(),
            (Who::Rust, _) => self.rust.is_some(),
            (Who::Ours, library) => library.as_ref().is_some_and(|library| library.kind == Kind::Banyan),
        }
    }

    /// What the library calls itself, in one line.
    pub(super) fn version(&self, project: &Project) -> Result<String> {
        let Some(library) = &self.library else { return Ok(String::new()) };
        let job = library.mpirun(1, &self.bin.join("version"), Fabric::SHM)?.limit(60);
        let output = job.folder(project.folder("bench")?).run_ok()?.output;
        let line = output.lines().find_map(|line| line.strip_prefix("VERSION ")).context("no version")?;
        let version = match line.split_once("Version:") {
            Some((name, number)) => format!("{} {}", name.trim(), number.trim()),
            None => line.split(", package").next().unwrap_or(line).to_owned(),
        };
        Ok(version)
    }

    /// One start of a case, on emulated hosts if there are some: its cells, how it ended, and after how many seconds.
    pub(super) fn run(
        &self,
        project: &Project,
        case: &Case,
        lab: Option<&Lab>,
    ) -> Result<(Output, Ending, f64)> {
        let _busy = if case.loaded { Busy::start(project, case.limit)? } else { Busy(Vec::new()) };
        let work = project.folder(&format!("bench/{}-run", self.name()))?;
        // What jobs have found is kept in a folder that most users do not have, and what another run has left there would count.
        let job = self.job(case, lab, &work)?.env("XDG_CACHE_HOME", &work).limit(case.limit);
        let done = job.run()?;
        let seconds = done.time.as_secs_f64();
        let mut output = Output::read(&done.output);
        let mut ending = match done.end {
            End::TimedOut => Ending::Slow,
            _ if output.slow.is_some() => Ending::Slow,
            End::Exit(0) => Ending::Done,
            end => Ending::Failed(format!("{end}: {}", tail(done.output.trim(), 3))),
        };
        match case.figure {
            Figure::Wall if ending == Ending::Done => {
                output.cells.push((case.program.to_owned(), seconds * 1e3, "ms".to_owned()));
            }
            Figure::Report if ending == Ending::Done => {
                match Report::read(&work).and_then(|report| Output::reported(&report)) {
                    Ok(reported) => output = reported,
                    Err(error) => ending = Ending::Failed(format!("{error:#}")),
                }
            }
            _ => {}
        }
        Ok((output, ending, seconds))
    }

    fn job(&self, case: &Case, lab: Option<&Lab>, work: &Path) -> Result<Job> {
        if let (Figure::Report, Some(library), Some(program)) = (case.figure, &self.library, &self.hpcc) {
            let problem = Problem { order: HPCC_ORDER, grid: (1, case.ranks) };
            return hpcc::job(library, program, case.fabric, &problem, work);
        }
        let program = match case.program {
            "true" => PathBuf::from("true"),
            RUST => self.rust.clone().context("no program in Rust")?,
            program => self.bin.join(program),
        };
        let Some(library) = &self.library else { return Ok(Job::new(program).args(&case.args).folder(work)) };
        let job = match lab {
            Some(lab) => library.mpirun_on(lab, case.ranks / case.hosts, &program, work),
            None => library.mpirun(case.ranks, &program, case.fabric),
        };
        let mut job = job?.folder(work);
        if case.program == RUST {
            for (name, value) in rust_mpi::paths(library) {
                job = job.env(name, value);
            }
        }
        if case.ranks > self.cores {
            for (name, value) in library.crowded() {
                job = job.env(name, value);
            }
        }
        Ok(job.args(&case.args))
    }
}

/// The program in Rust with `crates/mpi`, which a package of its own depends on as the guide says: with cargo's own profile.
fn ours_in_rust(project: &Project) -> Result<PathBuf> {
    let folder = project.folder("bench/rust")?;
    let source = project.file("tests/bench/rust.rs").display().to_string();
    let manifest = format!("[[bin]]\nname = \"bench\"\npath = {source:?}\n");
    let cargo = dependent(project, &folder, &manifest, &[])?;
    cargo.args(["build", "--release", "--quiet"]).run_ok()?;
    Ok(folder.join("target/release/bench"))
}

/// HPCC takes 7 s on two cores; its table for random access, 64 MiB, is larger than their caches.
const HPCC_ORDER: usize = 4000;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Processes that do nothing but take time from others, while this lives.
struct Busy(Vec<Child>);

impl Busy {
    /// They end by themselves should this process be killed.
    fn start(project: &Project, limit: u64) -> Result<Busy> {
        let program = project.folder("bench/plain")?.join("busy");
        let mut busy = Busy(Vec::new());
        for _ in 0..BUSY {
            let mut command = Command::new(&program);
            command.arg((limit + 5).to_string()).stdin(Stdio::null()).stdout(Stdio::null());
            busy.0.push(command.spawn().with_context(|| format!("cannot start {}", program.display()))?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It is no error if a process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
