//! Whoever is measured: a library with the bench programs built for it, or the machine itself.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::cases::{BUSY, Case, Figure, Who};
use super::output::Output;
use super::results::{Ending, MACHINE};
use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, Job, tail};
use crate::project::{self, Project};

/// A library with the bench programs built for it, or the machine.
pub(super) struct Contender {
    /// None is the machine.
    library: Option<Library>,
    bin: PathBuf,
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
        Ok(Contender { library: Some(library), bin, cores: cores() })
    }

    /// The machine: programs without MPI, by the system's own compiler.
    pub(super) fn machine(project: &Project) -> Result<Contender> {
        let bin = project.folder("bench/plain")?;
        for source in project::files_with(&project.file("tests/bench/plain"), "c")? {
            let compile = Job::new("cc").args(["-O2", "-std=gnu11", "-pthread", "-o"]);
            compile.arg(bin.join(project::stem(&source))).arg(&source).limit(120).run_ok()?;
        }
        Ok(Contender { library: None, bin, cores: cores() })
    }

    /// The name in tables.
    pub(super) fn name(&self) -> &'static str {
        self.library.as_ref().map_or(MACHINE, Library::name)
    }

    /// Whether this case is for it.
    pub(super) fn takes(&self, case: &Case) -> bool {
        match (case.who, &self.library) {
            (Who::Machine, library) => library.is_none(),
            (Who::All, library) => library.is_some(),
            (Who::Ours, library) => library.as_ref().is_some_and(|library| library.kind == Kind::Banyan),
        }
    }

    /// What the library calls itself, in one line.
    pub(super) fn version(&self, project: &Project) -> Result<String> {
        let Some(library) = &self.library else { return Ok(String::new()) };
        let job = library.mpirun(1, &self.bin.join("version"), Fabric::Shm)?.limit(60);
        let output = job.folder(project.folder("bench")?).run_ok()?.output;
        let line = output.lines().find_map(|line| line.strip_prefix("VERSION ")).context("no version")?;
        let version = match line.split_once("Version:") {
            Some((name, number)) => format!("{} {}", name.trim(), number.trim()),
            None => line.split(", package").next().unwrap_or(line).to_owned(),
        };
        Ok(version)
    }

    /// One start of a case: its cells, how it ended, and after how many seconds.
    pub(super) fn run(&self, project: &Project, case: &Case) -> Result<(Output, Ending, f64)> {
        let _busy = if case.loaded { Busy::start(project, case.limit)? } else { Busy(Vec::new()) };
        let job = self.job(case)?.limit(case.limit).folder(project.folder("bench")?);
        let done = job.run()?;
        let seconds = done.time.as_secs_f64();
        let mut output = Output::read(&done.output);
        let ending = match done.end {
            End::TimedOut => Ending::Slow,
            _ if output.slow.is_some() => Ending::Slow,
            End::Exit(0) => Ending::Done,
            end => Ending::Failed(format!("{end}: {}", tail(done.output.trim(), 3))),
        };
        if case.figure == Figure::Wall && ending == Ending::Done {
            output.cells.push((case.program.to_owned(), seconds * 1e3, "ms".to_owned()));
        }
        Ok((output, ending, seconds))
    }

    fn job(&self, case: &Case) -> Result<Job> {
        let program = match case.program {
            "true" => PathBuf::from("true"),
            program => self.bin.join(program),
        };
        let Some(library) = &self.library else { return Ok(Job::new(program).args(case.args)) };
        let mut job = library.mpirun(case.ranks, &program, case.fabric)?;
        if case.ranks > self.cores {
            for (name, value) in library.crowded() {
                job = job.env(name, value);
            }
        }
        Ok(job.args(case.args))
    }
}

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
            // One that has ended already is no fault.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
