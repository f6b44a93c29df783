//! Faults that strike a job on three emulated hosts: what becomes of it, and after how long.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Lab, Link};
use crate::cc::{self, Unit};
use crate::library::{Kind, Library};
use crate::process::{Done, End, Job, tail};
use crate::project::Project;
use crate::steps::Tally;

const HOSTS: usize = 3;
const EACH: usize = 2;
/// Seconds for which another host may be silent, as mpirun has it by itself; and what a job may take longer to be over.
const PATIENCE: u64 = 30;
const GRACE: u64 = 2;

/// A fault.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    strike: fn(&Scene<'_>) -> Result<()>,
    /// Whether the job goes on as if nothing had been; otherwise it is over, everywhere.
    harmless: bool,
    /// Whether it is one of `cargo xtask test`, as it is over at once.
    pub(crate) quick: bool,
    /// Why it does not end as it should yet; a line that holds after all is a failure, so that this goes.
    not_yet: Option<&'static str>,
}

const fn fatal(name: &'static str, strike: fn(&Scene<'_>) -> Result<()>) -> Fault {
    Fault { name, strike, harmless: false, quick: false, not_yet: None }
}

const fn harmless(name: &'static str, strike: fn(&Scene<'_>) -> Result<()>) -> Fault {
    Fault { name, strike, harmless: true, quick: false, not_yet: None }
}

const fn quick(fault: Fault) -> Fault {
    Fault { quick: true, ..fault }
}

const fn not_yet(reason: &'static str, fault: Fault) -> Fault {
    Fault { not_yet: Some(reason), ..fault }
}

/// All faults.
pub(crate) const ALL: &[Fault] = &[
    quick(fatal("rank killed", |scene| scene.signal(3, &scene.program, "KILL"))),
    quick(fatal("agent killed", |scene| scene.signal(2, &scene.mpirun, "KILL"))),
    quick(fatal("mpirun killed", |scene| scene.signal(1, &scene.mpirun, "KILL"))),
    fatal("host vanishes", |scene| scene.lab.end(3)),
    not_yet(
        "ranks that cannot reach each other, while mpirun reaches both, wait for TCP to give up",
        fatal("link cut for good", |scene| scene.lab.net("cut h2 h3")),
    ),
    fatal("host cut off for good", |scene| scene.lab.net("cut h3")),
    harmless("link cut for 5 s", |scene| {
        scene.lab.net("cut h2 h3")?;
        std::thread::sleep(Duration::from_secs(5));
        scene.lab.net("heal")
    }),
    harmless("5 % loss", |scene| scene.lab.net("loss 5%")),
    harmless("200 ms delay", |scene| scene.lab.net("delay 200ms")),
    harmless("5 % reordered", |scene| scene.lab.net("reorder 5%")),
    harmless("5 % duplicated", |scene| scene.lab.net("duplicate 5%")),
    not_yet(
        "a rank that is stopped counts as slow",
        fatal("a rank stops reading", |scene| scene.signal(3, &scene.program, "STOP")),
    ),
];

/// Where a fault strikes.
struct Scene<'a> {
    lab: &'a Lab,
    program: PathBuf,
    mpirun: PathBuf,
}

/// Signals the first process on a host that runs a program.
const SIGNAL: &str = "for p in $(ls /proc | grep '^[0-9]*$' | sort -n); do \
    if [ \"$(readlink /proc/$p/exe)\" = \"$0\" ]; then exec kill -$1 $p; fi; done; exit 1";
/// Names all processes on a host that run one of two programs.
const LEFT: &str = "for p in /proc/[0-9]*; do e=$(readlink $p/exe); \
    if [ \"$e\" = \"$0\" ] || [ \"$e\" = \"$1\" ]; then echo $p $e; fi; done";

impl Scene<'_> {
    fn signal(&self, host: usize, program: &Path, signal: &str) -> Result<()> {
        let kill = Job::new("sh").args(["-c", SIGNAL]).arg(program).arg(signal);
        self.lab.on(host, &kill.limit(20)).run_ok().map(|_| ())
    }

    /// Waits until no host that is there has a process of the job.
    fn wait_until_clean(&self, deadline: Instant) -> Result<()> {
        loop {
            let mut left = String::new();
            for host in 1..=HOSTS {
                let list = Job::new("sh").args(["-c", LEFT]).arg(&self.program).arg(&self.mpirun).limit(20);
                // A host that vanished has nothing.
                let done = self.lab.on(host, &list).run()?;
                if done.end == End::Exit(0) {
                    left.push_str(&done.output);
                }
            }
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("left behind: {}", left.trim().replace('\n', ", "));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// All faults, each on hosts of its own, as a table in the notes.
pub(crate) fn table(project: &Project) -> Result<Tally> {
    if let Some(reason) = super::why_not(project)? {
        return Ok(Tally::skip(reason));
    }
    let mut tally = Tally::default();
    for fault in ALL {
        check(project, fault, &mut tally)?;
    }
    Ok(tally)
}

/// One fault: a check, and a line of the table.
pub(crate) fn check(project: &Project, fault: &Fault, tally: &mut Tally) -> Result<()> {
    let library = Library::open(project, Kind::Banyan)?;
    let folder = project.folder("hosts/banyan")?;
    let program = rounds(project, &library)?;
    let lab = Lab::up(project, "faults", HOSTS, Link::Emulated)?;
    let mpirun = library.prefix().join("bin/mpirun").canonicalize()?;
    let scene = Scene { lab: &lab, program, mpirun };
    let begun = folder.join("begun");
    let _ = std::fs::remove_file(&begun);
    let seconds = if fault.harmless { "8" } else { "600" };
    let job = library.mpirun_on(&lab, EACH, &scene.program, &folder)?.arg(seconds).arg(&begun).limit(120);
    let (done, after) = struck(&scene, fault, &job, &begun)?;
    let outcome = verdict(&scene, fault, &done, after);
    let said = done.output.lines().next().unwrap_or("nothing said");
    let went = if outcome.is_ok() { "" } else { ", not as it should" };
    let after = after.as_secs_f64();
    tally.notes.push(format!("{:24} {} {after:.1} s after the fault{went}: {said}", fault.name, done.end));
    match (fault.not_yet, outcome) {
        (None, outcome) => tally.check(fault.name, outcome),
        (Some(reason), Err(_)) => tally.leave_out(fault.name, reason),
        (Some(_), Ok(())) => tally.check(fault.name, Err(anyhow::anyhow!("it holds: no longer \"not yet\""))),
    }
    Ok(())
}

/// Builds the program that runs meanwhile.
pub(super) fn rounds(project: &Project, library: &Library) -> Result<PathBuf> {
    let program = project.folder("hosts/banyan")?.join("rounds");
    let unit = Unit::program(program.clone(), project.file("tests/hosts/rounds.c"));
    cc::build(library, &unit.flags(["-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"]))?;
    Ok(program.canonicalize()?)
}

/// Runs the job and lets the fault strike once it is under way; how it ended, and how long after the fault began.
fn struck(scene: &Scene<'_>, fault: &Fault, job: &Job, begun: &Path) -> Result<(Done, Duration)> {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| job.run());
        while !begun.exists() && !running.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let start = Instant::now();
        let strike = if begun.exists() { (fault.strike)(scene) } else { Ok(()) };
        let done = running.join().expect("the job's thread does not panic")?;
        let after = start.elapsed();
        strike?;
        Ok((done, after))
    })
}

fn verdict(scene: &Scene<'_>, fault: &Fault, done: &Done, after: Duration) -> Result<()> {
    let right = done.end == End::Exit(0) && done.output.lines().any(|line| line == "ok");
    if right != fault.harmless || matches!(done.end, End::TimedOut | End::TooMuchOutput) {
        bail!("{}\n{}", done.end, tail(&done.output, 20));
    }
    let most = Duration::from_secs(PATIENCE + GRACE);
    if !fault.harmless && after > most {
        bail!("over only after {:.1} s\n{}", after.as_secs_f64(), tail(&done.output, 20));
    }
    scene.wait_until_clean(Instant::now() + most.saturating_sub(after).max(Duration::from_secs(GRACE)))
}
