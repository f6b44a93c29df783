//! `cargo xtask rdma`: runs the tests of the RDMA fabric and jobs over it, or a command, where there are RDMA devices: on this machine if its
//! kernel has one, else in guests that have two in software, one with those of RoCE and one with those of iWARP.

mod figures;
mod guest;
mod jobs;
mod siw;
mod two_hosts;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum as _};

use self::figures::Wanted;
use self::guest::{Devices, Guest};
use self::jobs::Which;
use crate::library::{Kind, Library};
use crate::process::{Done, End, Job};
use crate::project::Project;
use crate::{debian, install};

/// Debian packages that the fabric takes to build.
pub(crate) const PACKAGES: &[&str] = &["libibverbs-dev", "librdmacm-dev", "libclang-dev", "pkg-config"];
/// The fabric, for cargo.
const FABRIC: &[&str] = &["--package=banyan-rdma", "--features=verbs", "--quiet"];
/// Its tests that take devices.
const TESTS: &[&str] =
    &["--test=conformance", "--test=devices", "--test=faults", "--test=memory", "--test=taken_back"];
/// The time that a command may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    /// On the devices of this kernel: these programs, which are tests, and jobs by the Banyan in target/banyan as it is
    #[arg(long, hide = true)]
    here: Option<Which>,
    /// The guest's devices; if none are named, the tests run on either kind, and a command on those of RoCE
    #[arg(long)]
    devices: Option<Devices>,
    #[command(flatten)]
    figures: Wanted,
    /// A command in place of the tests; as root, if it runs in a guest
    #[arg(last = true)]
    command: Vec<String>,
}

/// `cargo xtask rdma`; true if all went well.
pub(crate) fn run(project: &Project, options: &Options) -> Result<bool> {
    if let Some(which) = options.here {
        return jobs::run(project, &Library::open(project, Kind::Banyan)?, which, &options.command);
    }
    if let Some(reason) = why_not(project)? {
        bail!(reason);
    }
    let start = Instant::now();
    let tests = options.command.is_empty() && options.figures.rounds.is_none();
    let command = match options.figures.rounds {
        Some(_) if has_devices() => return figures::run(project, &options.figures).map(|()| true),
        Some(_) => figures::command(project, &options.figures)?,
        None if tests => test_command(project, Which::All)?,
        None => options.command.clone(),
    };
    let built = start.elapsed().as_secs_f64();
    let kinds = match options.devices {
        Some(devices) => vec![devices],
        None if tests && !has_devices() => Devices::value_variants().to_vec(),
        None => vec![Devices::Roce],
    };
    let (mut ok, mut times) = (true, vec![format!("to build {built:.0} s")]);
    for devices in kinds {
        let done = on_devices(project, devices, &command, &mut |line| println!("{line}"))?;
        if done.end != End::Exit(0) {
            eprintln!("xtask: {}", done.end);
            ok = false;
        }
        times.push(format!("{devices} {:.0} s", done.time.as_secs_f64()));
    }
    if tests {
        println!("{}", times.join(", "));
    }
    Ok(ok)
}

/// Why nothing can run here on RDMA devices, if so; missing packages are installed.
pub(crate) fn why_not(project: &Project) -> Result<Option<String>> {
    let missing =
        |missing: debian::Missing| format!("{} not there: {}", missing.packages.join(" "), missing.reason);
    if let Some(reason) = debian::packages(project, PACKAGES)?.map(missing) {
        return Ok(Some(reason));
    }
    let guest = if has_devices() { None } else { guest::why_not(project)? };
    Ok(guest.map(|reason| format!("no RDMA device in this kernel, and no guest with one: {reason}")))
}

/// Runs the fabric's tests but for the longest, and some jobs, and says nothing meanwhile.
pub(crate) fn short(project: &Project) -> Result<Done> {
    on_devices(project, Devices::Roce, &test_command(project, Which::Short)?, &mut |_| {})
}

/// Checks and builds the fabric with its tests, and what jobs take; gives the command that runs them where the devices are: this program, with
/// the Banyan that is installed here.
fn test_command(project: &Project, which: Which) -> Result<Vec<String>> {
    let cargo = |task: &str| Job::new(env!("CARGO")).arg(task).args(FABRIC).folder(project.root());
    cargo("clippy").args(["--all-targets", "--", "-D", "warnings"]).run_ok()?;
    let built = cargo("test").args(TESTS).args(["--no-run", "--message-format=json"]).run_ok()?.output;
    let mut programs = Vec::new();
    for line in built.lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value = serde_json::from_str(line)?;
        programs.extend(message["executable"].as_str().map(str::to_owned));
    }
    if programs.is_empty() {
        bail!("cargo has built no tests");
    }
    let library = with_fabric(project)?;
    jobs::build(project, &library, which)?;
    let which = which.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let mut command = this_again(&library)?;
    command.extend([format!("--here={which}"), "--".into()]);
    command.extend(programs);
    Ok(command)
}

/// Banyan with the library of the fabric.
fn with_fabric(project: &Project) -> Result<Library> {
    let library = Library::open(project, Kind::Banyan)?;
    if !install::has_rdma(library.prefix())
        && let Some(reason) = install::add_rdma(project, library.prefix())?
    {
        bail!("no library of the fabric: {reason}");
    }
    Ok(library)
}

/// What starts this subcommand where the devices are, with the Banyan that is installed here.
fn this_again(library: &Library) -> Result<Vec<String>> {
    let given = format!("{}={}", install::GIVEN, library.prefix().display());
    let this = std::env::current_exe()?.display().to_string();
    Ok(vec!["env".into(), given, this, "rdma".into()])
}

/// Runs a command in the folder of the repository, where there are RDMA devices, and hands on each line that it prints. A guest has those of
/// this kind.
fn on_devices(
    project: &Project,
    devices: Devices,
    command: &[String],
    show: &mut dyn FnMut(&str),
) -> Result<Done> {
    if has_devices() {
        let job = Job::new(&command[0]).args(&command[1..]).folder(project.root());
        let done = job.limit(LIMIT.as_secs()).run()?;
        done.output.lines().for_each(show);
        return Ok(done);
    }
    let (start, mut output) = (Instant::now(), String::new());
    let status = Guest::ready(project, devices)?.run(command, LIMIT, &mut |line| {
        output.push_str(line);
        output.push('\n');
        show(line);
    })?;
    Ok(Done { end: End::Exit(status), output, time: start.elapsed() })
}

/// True if this kernel has an RDMA device.
fn has_devices() -> bool {
    Path::new("/sys/class/infiniband").read_dir().is_ok_and(|mut devices| devices.next().is_some())
}
