//! Programs of tests/c whose buffers are put onto devices, on the stand-in and on a real driver.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, bail};

use super::{Driver, Selection, passed, program};
use crate::cc::{self, Unit};
use crate::library::{Fabric, Library};
use crate::process::tail;
use crate::project::{self, Project};
use crate::steps::Tally;

/// A program of tests/c that is put onto devices, and how it is run there.
struct OnDevices {
    name: &'static str,
    ranks: &'static [usize],
    fabrics: &'static [Fabric],
    /// A setting of its own, as its comment RUN says.
    coll: &'static str,
    /// Also on devices that do not reach each other.
    apart: bool,
}

impl OnDevices {
    const fn new(name: &'static str, ranks: &'static [usize]) -> OnDevices {
        OnDevices { name, ranks, fabrics: BOTH, coll: "", apart: false }
    }
}

/// Shared memory and TCP.
pub(super) const BOTH: &[Fabric] = &[Fabric::SHM, Fabric::TCP];

/// Point-to-point in all modes, derived datatypes, all collectives, and these between groups; what calls that fail leave behind.
const PROGRAMS: &[OnDevices] = &[
    OnDevices::new("collectives", &[1, 2, 4]),
    OnDevices { apart: true, ..OnDevices::new("operations", &[3]) },
    OnDevices::new("between", &[2, 5]),
    OnDevices { apart: true, ..OnDevices::new("modes", &[2]) },
    OnDevices::new("matching", &[3]),
    OnDevices::new("types", &[2]),
    OnDevices::new("repeated", &[1, 2, 5]),
    OnDevices { coll: "gather=linear,alltoallv=spread", ..OnDevices::new("given_back", &[3]) },
    OnDevices { fabrics: &[Fabric::SHM], ..OnDevices::new("ways", &[2]) },
];

/// Those of the programs that are selected, with every number of ranks, over every fabric.
pub(super) fn run(
    project: &Project,
    library: &Library,
    driver: &Driver,
    selection: &Selection,
    tally: &mut Tally,
) -> Result<()> {
    let programs: Vec<&OnDevices> = PROGRAMS.iter().filter(|program| selection.has(program.name)).collect();
    run_all(project, library, driver, &programs, tally)
}

/// Programs of these names, on the first number of ranks above one, over shared memory.
pub(super) fn some(
    project: &Project,
    library: &Library,
    driver: &Driver,
    names: &[&str],
    tally: &mut Tally,
) -> Result<()> {
    let one_run = |program: &'static OnDevices| {
        let first = program.ranks.iter().position(|&ranks| ranks > 1).unwrap_or(0);
        OnDevices { ranks: &program.ranks[first..=first], fabrics: &[Fabric::SHM], apart: false, ..*program }
    };
    let programs: Vec<OnDevices> =
        PROGRAMS.iter().filter(|program| names.contains(&program.name)).map(one_run).collect();
    run_all(project, library, driver, &programs.iter().collect::<Vec<_>>(), tally)
}

/// Builds programs of these names, in the folder of programs.
pub(super) fn build(project: &Project, library: &Library, names: &[&str]) -> Result<()> {
    let bin = project.folder("gpu/bin")?;
    write_wrappers(project, &bin)?;
    let units: Vec<Unit> = names.iter().map(|name| on_devices(project, &bin, name)).collect();
    cc::build_all(project, library, &units).into_iter().collect()
}

/// Writes the wrappers of MPI's functions that programs are built with.
fn write_wrappers(project: &Project, bin: &Path) -> Result<()> {
    project::write(&bin.join("wrapped.h"), wrapped(&project.read("abi/tables/functions.tsv")?)?)
}

fn run_all(
    project: &Project,
    library: &Library,
    driver: &Driver,
    programs: &[&OnDevices],
    tally: &mut Tally,
) -> Result<()> {
    let bin = project.folder("gpu/bin")?;
    write_wrappers(project, &bin)?;
    let units: Vec<Unit> = programs.iter().map(|program| on_devices(project, &bin, program.name)).collect();
    let built = cc::build_all(project, library, &units);
    for ((program, unit), built) in programs.iter().zip(&units).zip(built) {
        if let Err(error) = built {
            tally.check(program.name, Err(error));
            continue;
        }
        for (&fabric, &ranks) in
            program.fabrics.iter().flat_map(|f| program.ranks.iter().map(move |r| (f, r)))
        {
            let on = driver.platform().setting();
            let title = format!("{} on devices of {on} -n {ranks} over {}", program.name, fabric.name());
            let job = driver.job(library, ranks, &unit.output, fabric)?;
            let seed = (ranks * 2 + usize::from(fabric == Fabric::TCP)).to_string();
            let job = job.env("BANYAN_TEST_SEED", &seed).env("BANYAN_TEST_CUDA_SEED", &seed);
            let job = if program.coll.is_empty() { job } else { job.env("BANYAN_COLL", program.coll) };
            tally.check(&title, passed(&job).and_then(|output| passed_buffers(&output)));
            if driver.is_double() && program.apart {
                let job = job.env("BANYAN_TEST_CUDA_PEERS", "0");
                let title = format!("{title}, none of which reaches another");
                tally.check(&title, passed(&job).and_then(|output| passed_buffers(&output)));
            }
        }
    }
    Ok(())
}

/// A program of tests/c with its buffers on devices.
fn on_devices(project: &Project, bin: &Path, name: &str) -> Unit {
    let ours = project.file("tests/gpu");
    let mut unit = program(project, bin, &format!("tests/c/{name}.c"));
    unit.sources.push(ours.join("on_device.c"));
    let include = [format!("-I{}", bin.display()), format!("-include{}", ours.join("on_device.h").display())];
    unit.headers.push(bin.join("wrapped.h"));
    unit.flags(include)
}

/// Buffers of the program really were on devices.
pub(super) fn passed_buffers(output: &str) -> Result<()> {
    let counts =
        output.lines().filter_map(|line| line.split_once(" passed ")?.1.split_once(" buffers on devices"));
    let buffers: u64 = counts.filter_map(|(count, _)| count.parse::<u64>().ok()).sum();
    if buffers == 0 { bail!("no buffer was on a device\n{}", tail(output, 25)) } else { Ok(()) }
}

/// Functions of other groups that take users' buffers, and are over when they return.
const LOCAL: [&str; 5] =
    ["MPI_Pack", "MPI_Unpack", "MPI_Pack_external", "MPI_Unpack_external", "MPI_Reduce_local"];

/// The functions that take users' buffers, and those that complete requests, each with its wrapper, in C. Large counts have none, as no
/// program that is put onto devices uses them.
fn wrapped(table: &str) -> Result<String> {
    let mut text = String::from("/* Made by xtask from the table of MPI's functions. */\n");
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, group, _, parameters, ..] = columns[..] else { bail!("a row of the table: {line}") };
        let groups = ["coll-", "p2p-", "request"];
        let is_local = LOCAL.contains(&name);
        let takes = group != "p2p-buffer" && groups.iter().any(|start| group.starts_with(start)) || is_local;
        if name.ends_with("_c") || !takes {
            continue;
        }
        let parameters: Vec<(&str, &str)> =
            parameters.split("; ").filter_map(|parameter| parameter.rsplit_once(' ')).collect();
        let has_buffers = parameters.iter().any(|(kind, _)| is_buffer(kind));
        let starts = name.starts_with("MPI_Start");
        let completes = group.contains("blocking") && !name.starts_with("MPI_I")
            || group == "request"
            || group == "p2p-probe"
            || is_local;
        // A barrier: what the program has written is on the device when it begins, and what is there afterwards is seen.
        let meets = completes && !has_buffers && group.starts_with("coll-");
        let starts = starts || meets;
        if !(has_buffers || starts || group == "request") || name == "MPI_Request_get_status" {
            continue;
        }
        let declared: Vec<String> = parameters.iter().map(|&(kind, name)| declared(kind, name)).collect();
        let passed: Vec<String> = parameters
            .iter()
            .map(|&(kind, name)| if is_buffer(kind) { format!("given({name})") } else { name.to_owned() })
            .collect();
        let (first, last) =
            (if starts { "before(); " } else { "" }, if completes { "after(); " } else { "" });
        writeln!(
            text,
            "int {name}({}) {{ {first}int code_ = P{name}({}); {last}return code_; }}",
            declared.join(", "),
            passed.join(", ")
        )?;
    }
    Ok(text)
}

fn is_buffer(kind: &str) -> bool {
    matches!(kind, "void*" | "const void*")
}

/// A parameter in C: `const int[] counts` is `const int counts[]`.
fn declared(kind: &str, name: &str) -> String {
    match kind.strip_suffix("[]") {
        Some(of) => format!("{of} {name}[]"),
        None => format!("{kind} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_made_from_the_table() {
        let row =
            |name: &str, group: &str, parameters: &str| format!("{name}\t{group}\tint\t{parameters}\t9\n");
        let table = String::from("head\n")
            + &row("MPI_Bcast", "coll-blocking", "void* buffer; int count; MPI_Comm comm")
            + &row("MPI_Irecv", "p2p-nonblocking", "void* buf; int[] list; MPI_Request* request")
            + &row("MPI_Startall", "p2p-persistent", "int count; MPI_Request[] requests")
            + &row("MPI_Wait", "request", "MPI_Request* request; MPI_Status* status")
            + &row("MPI_Win_free", "rma", "MPI_Win* win");
        let text = wrapped(&table).unwrap();
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            [
                "int MPI_Bcast(void* buffer, int count, MPI_Comm comm) { int code_ = PMPI_Bcast(given(buffer), count, comm); after(); return code_; }",
                "int MPI_Irecv(void* buf, int list[], MPI_Request* request) { int code_ = PMPI_Irecv(given(buf), list, request); return code_; }",
                "int MPI_Startall(int count, MPI_Request requests[]) { before(); int code_ = PMPI_Startall(count, requests); return code_; }",
                "int MPI_Wait(MPI_Request* request, MPI_Status* status) { int code_ = PMPI_Wait(request, status); after(); return code_; }",
            ]
        );
    }
}
