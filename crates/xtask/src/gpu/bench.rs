//! What messages and sums take whose buffers are on a GPU, beside the copies that bound them: a table on the page about GPUs.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Driver;
use crate::bench::output::Output;
use crate::cc::{self, Unit};
use crate::generated::with_middle;
use crate::library::{Fabric, Library};
use crate::process::{End, Job, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// The page with the table, and the marks around it there.
const PAGE: &str = "docs/src/gpu.md";
const MARKS: [&str; 2] = ["<!-- figures of `cargo xtask gpu` -->", "<!-- end of the figures -->"];

/// One start of the program.
struct Start {
    /// What the rows are about.
    title: &'static str,
    ranks: usize,
    fabric: Fabric,
    argument: &'static str,
    /// The setting for the way of messages.
    ipc: &'static str,
    /// What bounds its longest messages, and the part of that which is to be reached.
    target: Option<(Bound, f64)>,
}

/// A copy that bounds messages.
#[derive(Clone, Copy)]
enum Bound {
    /// Within the device.
    Device,
    /// From the device to pinned memory and back: the slower of both.
    Pinned,
}

const fn start(title: &'static str, ranks: usize, argument: &'static str) -> Start {
    Start { title, ranks, fabric: Fabric::SHM, argument, ipc: "64K", target: None }
}

/// What is measured after the limits.
const STARTS: &[Start] = &[
    Start { target: Some((Bound::Device, 0.8)), ..start("by CUDA IPC", 2, "messages") },
    Start { target: Some((Bound::Pinned, 0.85)), ipc: "off", ..start("by handover buffers", 2, "messages") },
    Start { fabric: Fabric::TCP, ..start("by bounce buffers and TCP", 2, "messages") },
    start("2 ranks", 2, "sums"),
    start("4 ranks", 4, "sums"),
];

/// Measures, and writes the table: to the page if the devices are real, else beside the programs.
pub(super) fn run(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let program = project.folder("gpu/bin")?.join("bench");
    let mut unit = Unit::program(program.clone(), project.file("tests/bench/gpu.c"));
    unit.headers = ["tests/bench/bench.h", "tests/gpu/device.h"].map(|header| project.file(header)).to_vec();
    let flags =
        ["-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"];
    cc::build(library, &unit.flags(flags).libs(["-lm", "-ldl"]))?;
    let (limits, device) = measured(&driver.job(library, 1, &program, Fabric::SHM)?.arg("limits"))?;
    let mut table = String::from("| | ranks | | |\n|---|---|---|---|\n");
    row(&mut table, ("copy within the device", 1, "64 MiB"), limits.figure("limit/device")?, "");
    row(&mut table, ("copy from pinned memory to the device", 1, "64 MiB"), limits.figure("limit/to")?, "");
    row(&mut table, ("copy from the device to pinned memory", 1, "64 MiB"), limits.figure("limit/from")?, "");
    for start in STARTS {
        let job = driver.job(library, start.ranks, &program, start.fabric)?;
        let job = job.arg(start.argument).env("BANYAN_GPU_IPC", start.ipc);
        let title = format!("{} {}, {} ranks", start.argument, start.title, start.ranks);
        match measured(&job) {
            Ok((output, _)) => {
                let reached = rows(&mut table, start, &output, &limits)?;
                tally.check(&title, if driver.is_double() { Ok(()) } else { reached });
            }
            Err(error) => tally.check(&title, Err(error)),
        }
    }
    let text = format!("Measured on {}, {device}{}.\n\n{table}", today()?, kernel_driver());
    if driver.is_double() {
        let file = project.folder("gpu")?.join("figures.md");
        project::write(
            &file,
            format!("Figures of a stand-in for the driver, which say nothing of a device.\n\n{text}"),
        )?;
        tally
            .notes
            .push(format!("{}: figures of the stand-in, which say nothing of a device", file.display()));
        return Ok(());
    }
    let page = project.read(PAGE)?;
    project::write(&project.file(PAGE), with_middle(&page, MARKS, &text).context(PAGE)?)?;
    tally.notes.push(format!("{PAGE} has the figures"));
    Ok(())
}

impl Output {
    /// A cell's value and unit.
    fn figure(&self, name: &str) -> Result<(f64, &str)> {
        let cell =
            self.cells.iter().find(|cell| cell.0 == name).with_context(|| format!("no figure {name}"))?;
        Ok((cell.1, &cell.2))
    }
}

/// The figures of a job, and what it says of the device.
fn measured(job: &Job) -> Result<(Output, String)> {
    let done = job.run()?;
    let output = Output::read(&done.output);
    if done.end != End::Exit(0)
        || !output.wrong.is_empty()
        || output.slow.is_some()
        || output.cells.is_empty()
    {
        bail!("{}, {:?}\n{}", done.end, output.wrong, tail(&done.output, 25));
    }
    let device = done.output.lines().find_map(|line| line.strip_prefix("DEVICE ")).unwrap_or_default();
    Ok((output, device.to_owned()))
}

/// The rows of one start; an error if its longest messages are too slow.
fn rows(table: &mut String, start: &Start, output: &Output, limits: &Output) -> Result<Result<()>> {
    let mut reached = Ok(());
    for (name, value, unit) in &output.cells {
        let bytes: u64 = name.rsplit('/').next().unwrap_or_default().parse()?;
        let mut beside = String::new();
        if let Some((bound, least)) = start.target.filter(|_| bytes == 64 << 20) {
            let limit = match bound {
                Bound::Device => limits.figure("limit/device")?.0,
                Bound::Pinned => limits.figure("limit/to")?.0.min(limits.figure("limit/from")?.0),
            };
            let part = value / limit;
            beside = format!("{part:.2} of the copy (asked: {least})");
            if part < least {
                reached = Err(anyhow::anyhow!(
                    "{value:.1} {unit} is {part:.2} of the copy that bounds it, and {least} is asked for"
                ));
            }
        }
        let what =
            format!("{} {}", if start.argument == "sums" { "allreduce," } else { "ping-pong" }, start.title);
        row(table, (&what, start.ranks, &length(bytes)), (*value, unit), &beside);
    }
    Ok(reached)
}

fn row(
    table: &mut String,
    (what, ranks, length): (&str, usize, &str),
    (value, unit): (f64, &str),
    beside: &str,
) {
    let _ = writeln!(table, "| {what}, {length} | {ranks} | {value:.3} {unit} | {beside} |");
}

/// Such as "64 KiB".
fn length(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn today() -> Result<String> {
    Ok(Job::new("date").args(["-u", "+%Y-%m-%d"]).run_ok()?.output.trim().to_owned())
}

/// The version of the driver's part in the kernel, as in ", driver 550.54"; nothing if the kernel has none.
fn kernel_driver() -> String {
    let text = project::read(Path::new("/proc/driver/nvidia/version")).unwrap_or_default();
    let version = text.lines().next().unwrap_or_default();
    let number = version
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    number.map(|number| format!(", driver {number}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_takes_the_place_of_the_one_before() {
        let [begin, end] = MARKS;
        let page = format!("a\n{begin}\nold\n{end}\nb\n");
        let new = with_middle(&page, MARKS, "new\n").unwrap();
        assert_eq!(new, format!("a\n{begin}\n\nnew\n\n{end}\nb\n"));
        assert_eq!(with_middle(&new, MARKS, "new\n").unwrap(), new);
        assert!(with_middle("a", MARKS, "new").is_err());
    }

    #[test]
    fn what_is_too_slow_is_told() {
        let limits =
            Output::read("CELL limit/device 100 GB/s\nCELL limit/to 20 GB/s\nCELL limit/from 25 GB/s\n");
        let told = |value: f64, start: &Start| {
            let mut table = String::new();
            let output =
                Output::read(&format!("CELL messages/8 3 us\nCELL messages/67108864 {value} GB/s\n"));
            let reached = rows(&mut table, start, &output, &limits).unwrap().is_ok();
            (reached, table)
        };
        assert!(told(80.0, &STARTS[0]).0 && !told(79.0, &STARTS[0]).0);
        assert!(told(17.0, &STARTS[1]).0 && !told(16.0, &STARTS[1]).0);
        assert!(
            told(90.0, &STARTS[0])
                .1
                .ends_with("64 MiB | 2 | 90.000 GB/s | 0.90 of the copy (asked: 0.8) |\n")
        );
    }
}
