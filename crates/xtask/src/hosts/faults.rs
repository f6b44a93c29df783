//! Faults that strike a job on emulated hosts: what becomes of it, and after how long.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use banyan_pmi::settings;

use super::{Lab, Link};
use crate::cc::{self, Unit};
use crate::library::{Kind, Library};
use crate::process::{Done, End, Job, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// Where faults strike.
pub(crate) struct Ground {
    hosts: usize,
    link: Link,
    /// Ranks on each host.
    each: usize,
    /// Options of mpirun, and settings.
    options: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
    pub(crate) faults: &'static [Fault],
}

/// Hosts with a network that is a program.
pub(crate) const NETWORK: Ground =
    Ground { hosts: 3, link: Link::Emulated, each: 2, options: &[], settings: &[], faults: FAULTS };
/// Hosts with an RDMA device each.
pub(crate) const DEVICES: Ground = Ground {
    hosts: 2,
    link: Link::Devices,
    each: 4,
    options: SLOW,
    settings: BY_DEVICES,
    faults: ON_DEVICES,
};
/// A host in a guest may be so slow that its agent answers late.
pub(crate) const SLOW: &[&str] = &["--patience", "120"];
/// Nothing but shared memory and devices.
pub(crate) const BY_DEVICES: &[(&str, &str)] = &[(settings::FABRICS, "shm,rdma")];
/// Seconds for which another host may be silent, as mpirun has it by itself; and what a job may take longer to be over.
const PATIENCE: u64 = 30;
const GRACE: u64 = 2;

/// What becomes of the job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is over, everywhere.
    Over,
    /// It goes on as if nothing had been.
    GoesOn,
    /// With `--keep-going` it goes on with the ranks of the first two hosts, as `tests/c/survivors.c` does.
    GoesOnWithout,
}

/// A fault.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    strike: fn(&Scene<'_>) -> Result<()>,
    outcome: Outcome,
    /// Whether it is one of `cargo xtask test`, as it is over at once.
    pub(crate) quick: bool,
    /// What mpirun says: culprit and cause.
    says: &'static [&'static str],
}

const fn fatal(
    name: &'static str,
    says: &'static [&'static str],
    strike: fn(&Scene<'_>) -> Result<()>,
) -> Fault {
    Fault { name, strike, outcome: Outcome::Over, quick: false, says }
}

const fn harmless(name: &'static str, strike: fn(&Scene<'_>) -> Result<()>) -> Fault {
    Fault { name, strike, outcome: Outcome::GoesOn, quick: false, says: &[] }
}

const fn survived(name: &'static str, strike: fn(&Scene<'_>) -> Result<()>) -> Fault {
    let says = &["host h3 is lost", "2 of 6 ranks failed"];
    Fault { name, strike, outcome: Outcome::GoesOnWithout, quick: false, says }
}

const fn quick(fault: Fault) -> Fault {
    Fault { quick: true, ..fault }
}

const FAULTS: &[Fault] = &[
    quick(fatal("rank killed", &["on h3, pid", "signal 9 (SIGKILL)"], |scene| {
        scene.signal(3, &scene.program, First, "KILL")
    })),
    quick(fatal("agent killed", &["host h2 is lost", "signal 9 (SIGKILL)"], |scene| {
        scene.signal(2, &scene.mpirun, Last, "KILL")
    })),
    fatal("agent's front killed", &["host h2 is lost", "its agent was killed"], |scene| {
        scene.signal(2, &scene.mpirun, First, "KILL")
    }),
    quick(fatal("mpirun killed", &[], |scene| scene.signal(1, &scene.mpirun, First, "KILL"))),
    fatal("mpirun's agent killed", &["its agent", "signal 9 (SIGKILL)"], |scene| {
        scene.signal(1, &scene.mpirun, Last, "KILL")
    }),
    fatal("host vanishes", &["host h3 is lost"], |scene| scene.lab.end(3)),
    fatal("link cut for good", &["MPI_ERR_PROC_ABORTED", "10.77.0."], |scene| scene.lab.net("cut h2 h3")),
    fatal("host cut off for good", &["host h3 is lost", "--patience"], |scene| scene.lab.net("cut h3")),
    harmless("link cut for 5 s", |scene| {
        scene.lab.net("cut h2 h3")?;
        std::thread::sleep(Duration::from_secs(5));
        scene.lab.net("heal")
    }),
    harmless("5 % loss", |scene| scene.lab.net("loss 5%")),
    harmless("200 ms delay", |scene| scene.lab.net("delay 200ms")),
    harmless("5 % reordered", |scene| scene.lab.net("reorder 5%")),
    harmless("5 % duplicated", |scene| scene.lab.net("duplicate 5%")),
    fatal("a rank is stopped", &["on h3, pid", "stopped by a signal for 30 s"], |scene| {
        scene.signal(3, &scene.program, First, "STOP")
    }),
    quick(survived("agent killed, --keep-going", |scene| scene.signal(3, &scene.mpirun, Last, "KILL"))),
    survived("host vanishes, --keep-going", |scene| scene.lab.end(3)),
    survived("host cut off, --keep-going", |scene| scene.lab.net("cut h3")),
];

/// What ends a job, however its messages go.
const ON_DEVICES: &[Fault] = &[
    quick(fatal("rank killed", &["on h2, pid", "signal 9 (SIGKILL)"], |scene| {
        scene.signal(2, &scene.program, First, "KILL")
    })),
    fatal("Ctrl-C", &[], |scene| scene.signal(1, &scene.mpirun, First, "INT")),
    fatal("agent killed", &["host h2 is lost", "signal 9 (SIGKILL)"], |scene| {
        scene.signal(2, &scene.mpirun, Last, "KILL")
    }),
    fatal("mpirun killed", &[], |scene| scene.signal(1, &scene.mpirun, First, "KILL")),
];

/// What a fault strikes.
struct Scene<'a> {
    lab: &'a Lab,
    program: PathBuf,
    mpirun: PathBuf,
}

/// Which of the processes on a host that run a program: an agent's front starts before the agent.
#[derive(Clone, Copy)]
enum Which {
    First,
    Last,
}
use Which::{First, Last};

/// Signals the first process on a host that runs a program, in an order of their numbers.
const SIGNAL: &str = "for p in $(ls /proc | grep '^[0-9]*$' | sort -n $2); do \
    if [ \"$(readlink /proc/$p/exe)\" = \"$0\" ]; then exec kill -$1 $p; fi; done; exit 1";
/// Names all processes on a host that run one of two programs.
const LEFT: &str = "for p in /proc/[0-9]*; do e=$(readlink $p/exe); \
    if [ \"$e\" = \"$0\" ] || [ \"$e\" = \"$1\" ]; then echo $p $e; fi; done";

impl Scene<'_> {
    fn signal(&self, host: usize, program: &Path, which: Which, signal: &str) -> Result<()> {
        let order = if matches!(which, First) { "-n" } else { "-r" };
        let kill = Job::new("sh").args(["-c", SIGNAL]).arg(program).arg(signal).arg(order);
        self.lab.on(host, &kill.limit(20)).run_ok().map(|_| ())
    }

    /// Waits until no host that is there has a process of the job.
    fn wait_until_clean(&self, deadline: Instant) -> Result<()> {
        loop {
            let mut left = String::new();
            for host in 1..=self.lab.hosts() {
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
    for fault in FAULTS {
        check(project, &NETWORK, fault, &mut tally)?;
    }
    Ok(tally)
}

/// One fault: a check, and a line of the table.
pub(crate) fn check(project: &Project, ground: &Ground, fault: &Fault, tally: &mut Tally) -> Result<()> {
    let library = Library::open(project, Kind::Banyan)?;
    let folder = project.folder("hosts/banyan")?;
    let program = match fault.outcome {
        Outcome::GoesOnWithout => built(project, &library, "tests/c/survivors.c")?,
        _ => rounds(project, &library)?,
    };
    let lab = Lab::up(project, "faults", ground.hosts, ground.link)?;
    let mpirun = library.prefix().join("bin/mpirun").canonicalize()?;
    let scene = Scene { lab: &lab, program, mpirun };
    let begun = folder.join("begun");
    let _ = std::fs::remove_file(&begun);
    let (options, argument): (&[&str], _) = match fault.outcome {
        Outcome::GoesOn => (&[], "8"),
        Outcome::Over => (&[], "600"),
        Outcome::GoesOnWithout => (&["--keep-going"], "2"),
    };
    let options = [ground.options, options].concat();
    let job = library.mpirun_with(&options, &lab, ground.each, &scene.program, &folder)?;
    let job = ground.settings.iter().fold(job, |job, (name, value)| job.env(name, value));
    let job = job.arg(argument).arg(&begun).limit(120);
    let (done, after) = struck(&scene, fault, &job, &begun)?;
    let outcome = verdict(&scene, fault, &done, after);
    let said = done.output.lines().next().unwrap_or("nothing said");
    let went = if outcome.is_ok() { "" } else { ", not as it should" };
    let after = after.as_secs_f64();
    tally.notes.push(format!("{:24} {} {after:.1} s after the fault{went}: {said}", fault.name, done.end));
    tally.check(fault.name, outcome);
    Ok(())
}

/// The program that runs meanwhile.
pub(crate) fn rounds(project: &Project, library: &Library) -> Result<PathBuf> {
    built(project, library, "tests/hosts/rounds.c")
}

fn built(project: &Project, library: &Library, source: &str) -> Result<PathBuf> {
    let source = project.file(source);
    let program = project.folder("hosts/banyan")?.join(project::stem(&source));
    let flags = ["-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"];
    cc::build(library, &Unit::program(program.clone(), source).flags(flags))?;
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
    let ok = done.output.lines().any(|line| line == "ok");
    let right = match (fault.outcome, done.end) {
        (Outcome::Over, End::Exit(0) | End::TimedOut | End::TooMuchOutput) => false,
        (Outcome::Over, _) => !ok,
        (Outcome::GoesOn, end) => ok && end == End::Exit(0),
        (Outcome::GoesOnWithout, end) => ok && matches!(end, End::Exit(1..)),
    };
    if !right {
        bail!("{}\n{}", done.end, tail(&done.output, 20));
    }
    let most = Duration::from_secs(PATIENCE + GRACE);
    if fault.outcome == Outcome::Over && after > most {
        bail!("over only after {:.1} s\n{}", after.as_secs_f64(), tail(&done.output, 20));
    }
    if let Some(missing) = fault.says.iter().find(|what| !done.output.contains(**what)) {
        bail!("mpirun does not say {missing:?}\n{}", tail(&done.output, 20));
    }
    scene.wait_until_clean(Instant::now() + most.saturating_sub(after).max(Duration::from_secs(GRACE)))
}
