//! Programs of tests/c and tests/gpu whose buffers are on CUDA devices: on a stand-in for the driver, as in `cargo xtask test`, or on a real one.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use banyan_datatype::device::FOR_THE_PROCESSOR;
use cuda_double::compile;

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, Job, tail};
use crate::project::{self, Project};
use crate::steps::{self, Step, Tally};

/// A program of tests/c that is put onto devices, and how it is run there.
struct OnDevices {
    name: &'static str,
    ranks: &'static [usize],
    fabrics: &'static [Fabric],
}

const BOTH: &[Fabric] = &[Fabric::SHM, Fabric::TCP];

/// Point-to-point in all modes, derived datatypes, all collectives, and these between groups.
const PROGRAMS: &[OnDevices] = &[
    OnDevices { name: "collectives", ranks: &[1, 2, 4], fabrics: BOTH },
    OnDevices { name: "operations", ranks: &[3], fabrics: BOTH },
    OnDevices { name: "between", ranks: &[2, 5], fabrics: BOTH },
    OnDevices { name: "modes", ranks: &[2], fabrics: BOTH },
    OnDevices { name: "matching", ranks: &[3], fabrics: BOTH },
    OnDevices { name: "types", ranks: &[2], fabrics: BOTH },
    OnDevices { name: "ways", ranks: &[2], fabrics: &[Fabric::SHM] },
];

/// Files that a machine with a CUDA device has.
const NODES: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg"];

/// Whose driver is loaded.
pub(crate) enum Driver {
    /// The stand-in, which is in this folder, and a library of kernels for it if there is a compiler for them.
    Double { folder: PathBuf, kernels: Option<PathBuf> },
    /// The machine's own.
    Real,
}

/// The suite on the stand-in.
pub(crate) fn on_double(project: &Project, library: &Library) -> Result<Tally> {
    let mut tally = Tally::default();
    let folder = double(project)?;
    let kernels = match compile::library(FOR_THE_PROCESSOR, &project.folder("gpu/kernels")?) {
        Ok(kernels) => Some(kernels),
        Err(why) => {
            tally.notes.push(format!("devices run no kernels: {why}"));
            None
        }
    };
    let [with_kernels, without] =
        [kernels, None].map(|kernels| Driver::Double { folder: folder.clone(), kernels });
    suite(project, library, &with_kernels, &mut tally)?;
    for (driver, how) in [(&with_kernels, "with kernels"), (&without, "without kernels")] {
        local(project, library, driver, how, &mut tally)?;
    }
    streams(project, library, &with_kernels, &mut tally)?;
    peers(project, library, &with_kernels, &mut tally)?;
    asserted(project, library, &with_kernels, &mut tally)?;
    own(project, library, &without, &mut tally)?;
    Ok(tally)
}

/// `cargo xtask gpu`: the suite on the machine's own driver and devices; true if all passed.
pub(crate) fn run(project: &Project) -> Result<bool> {
    if !NODES.iter().any(|node| Path::new(node).exists()) {
        bail!(
            "this machine has no CUDA device ({}); `cargo xtask test --only gpu` runs on a stand-in",
            NODES.join(", ")
        );
    }
    let library = Library::open(project, Kind::Banyan)?;
    Ok(steps::run(&[&Step::new("gpu", || {
        let mut tally = Tally::default();
        suite(project, &library, &Driver::Real, &mut tally)?;
        local(project, &library, &Driver::Real, "by the real driver", &mut tally)?;
        streams(project, &library, &Driver::Real, &mut tally)?;
        Ok(tally)
    })]))
}

/// Builds the stand-in; the folder that has it under the names of the driver and of NVRTC.
fn double(project: &Project) -> Result<PathBuf> {
    let cargo =
        Job::new(env!("CARGO")).args(["build", "--release", "--quiet", "--package=banyan-cuda-double"]);
    cargo.folder(project.root()).limit(600).run_ok()?;
    let folder = project.folder("gpu/driver")?;
    let built = project.target().join("release/libcuda_double.so");
    for name in ["libcuda.so.1", "libnvrtc.so"] {
        fs::copy(&built, folder.join(name)).with_context(|| format!("cannot copy {}", built.display()))?;
    }
    Ok(folder)
}

/// The programs of tests/c, with two seeds where they are quick.
fn suite(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let bin = project.folder("gpu/bin")?;
    project::write(&bin.join("wrapped.h"), wrapped(&project.read("abi/tables/functions.tsv")?)?)?;
    let units: Vec<Unit> = PROGRAMS.iter().map(|program| on_devices(project, &bin, program.name)).collect();
    let built = cc::build_all(project, library, &units);
    for ((program, unit), built) in PROGRAMS.iter().zip(&units).zip(built) {
        if let Err(error) = built {
            tally.check(program.name, Err(error));
            continue;
        }
        for (&fabric, &ranks) in
            program.fabrics.iter().flat_map(|f| program.ranks.iter().map(move |r| (f, r)))
        {
            let title = format!("{} on devices -n {ranks} over {}", program.name, fabric.name());
            let job = driver.job(library, ranks, &unit.output, fabric)?;
            let seed = (ranks * 2 + usize::from(fabric == Fabric::TCP)).to_string();
            let job = job.env("BANYAN_TEST_SEED", &seed).env("BANYAN_TEST_CUDA_SEED", &seed);
            tally.check(&title, passed(&job).and_then(|output| passed_buffers(&output)));
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

/// A program of one source in a folder of programs.
fn program(project: &Project, bin: &Path, source: &str) -> Unit {
    let source = project.file(source);
    let mut unit = Unit::program(bin.join(project::stem(&source)), source);
    unit.headers = [
        "tests/c/check.h",
        "tests/c/large.h",
        "tests/c/forbid.h",
        "tests/gpu/device.h",
        "tests/gpu/on_device.h",
    ]
    .map(|header| project.file(header))
    .to_vec();
    let flags =
        ["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"];
    unit.flags(flags).libs(["-lm", "-lpthread", "-ldl"])
}

impl Driver {
    /// A job on this driver.
    fn job(&self, library: &Library, ranks: usize, program: &Path, fabric: Fabric) -> Result<Job> {
        let job = library.mpirun(ranks, program, fabric)?.limit(120);
        Ok(match self {
            Driver::Double { folder, kernels } => {
                let job = job.env("LD_LIBRARY_PATH", folder).env("BANYAN_GPU", "cuda");
                kernels.iter().fold(job, |job, kernels| job.env("BANYAN_TEST_CUDA_KERNELS", kernels))
            }
            Driver::Real => job,
        })
    }
}

/// The output of a job that ends well and says "ok" once.
fn passed(job: &Job) -> Result<String> {
    let done = job.run()?;
    let said = done.output.lines().filter(|line| *line == "ok").count();
    if done.end != End::Exit(0) || said != 1 {
        bail!("{}, {said} times \"ok\"\n{}", done.end, tail(&done.output, 25));
    }
    Ok(done.output)
}

/// Buffers of the program really were on devices.
fn passed_buffers(output: &str) -> Result<()> {
    let counts =
        output.lines().filter_map(|line| line.split_once(" passed ")?.1.split_once(" buffers on devices"));
    let buffers: u64 = counts.filter_map(|(count, _)| count.parse::<u64>().ok()).sum();
    if buffers == 0 { bail!("no buffer was on a device\n{}", tail(output, 25)) } else { Ok(()) }
}

/// A program of tests/gpu on what is done at one rank.
fn local(project: &Project, library: &Library, driver: &Driver, how: &str, tally: &mut Tally) -> Result<()> {
    let unit = program(project, &project.folder("gpu/bin")?, "tests/gpu/local.c");
    cc::build(library, &unit)?;
    let job = driver.job(library, 1, &unit.output, Fabric::SHM)?;
    tally.check(&format!("packing and reducing at one rank, {how}"), passed(&job).map(drop));
    Ok(())
}

/// Operations on streams of the program's.
fn streams(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let unit = program(project, &project.folder("gpu/bin")?, "tests/gpu/streams.c");
    cc::build(library, &unit)?;
    for (ranks, fabric, seed) in
        [(1, Fabric::SHM, "1"), (2, Fabric::SHM, "2"), (3, Fabric::TCP, "3"), (4, Fabric::SHM, "4")]
    {
        let job = driver.job(library, ranks, &unit.output, fabric)?.env("BANYAN_TEST_CUDA_SEED", seed);
        let title = format!("operations on streams -n {ranks} over {}", fabric.name());
        tally.check(&title, passed(&job).map(drop));
    }
    let refused = driver.job(library, 1, &unit.output, Fabric::SHM)?.arg("serialized");
    tally.check("streams below MPI_THREAD_MULTIPLE are refused", passed(&refused).map(drop));
    Ok(())
}

/// Algorithms that send messages, whose long ones go from device to device.
const MESSAGES: [&str; 2] = [
    "allreduce=ring,bcast=binomial,alltoall=pairwise,allgather=ring,reduce_scatter_block=pairwise",
    "allreduce=rabenseifner,bcast=chain,alltoall=bruck,allgather=bruck,reduce_scatter_block=doubling",
];

/// Collectives between devices of several processes.
fn peers(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let unit = program(project, &project.folder("gpu/bin")?, "tests/gpu/peers.c");
    cc::build(library, &unit)?;
    for (ranks, ipc) in [(2, true), (3, true), (4, true), (3, false)] {
        for algorithms in MESSAGES {
            let job = driver.job(library, ranks, &unit.output, Fabric::SHM)?.env("BANYAN_COLL", algorithms);
            let job = job
                .env("BANYAN_TEST_CUDA_IPC", if ipc { "1" } else { "0" })
                .env("BANYAN_TEST_CUDA_SAYS", "1");
            let checked = passed(&job).and_then(|output| match output.contains("is mapped") {
                mapped if mapped == ipc => Ok(()),
                mapped => bail!("memory of a process was mapped: {mapped}"),
            });
            let with = if ipc { "with" } else { "without" };
            tally.check(&format!("collectives by messages {with} IPC -n {ranks}: {algorithms}"), checked);
        }
    }
    Ok(())
}

/// The same where a hint says that all buffers are on devices: messages are chosen then, by what is between the GPUs of a host like this.
fn asserted(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let program = project.folder("gpu/bin")?.join("peers");
    let map = project.file("crates/topo/tests/hosts/hgx.toml");
    for (hint, chosen) in [("cuda:device", true), ("cuda:device,system", false)] {
        let job = driver.job(library, 4, &program, Fabric::SHM)?.arg(hint).env("BANYAN_TOPOLOGY", &map);
        let job = job.env("BANYAN_TEST_CUDA_DEVICES", "8").env("BANYAN_TEST_CUDA_SAYS", "1");
        let checked = passed(&job).and_then(|output| match output.contains("is mapped") {
            mapped if mapped == chosen => Ok(()),
            mapped => bail!("memory of a process was mapped: {mapped}"),
        });
        tally.check(&format!("collectives on a communicator whose buffers are said to be {hint}"), checked);
    }
    Ok(())
}

/// Programs of tests/gpu, on what only the stand-in does.
fn own(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let bin = project.folder("gpu/bin")?;
    let build = |name: &str| -> Result<PathBuf> {
        let unit = program(project, &bin, &format!("tests/gpu/{name}.c"));
        cc::build(library, &unit)?;
        Ok(unit.output)
    };
    let (touch, failing) = (build("touch")?, build("failing")?);
    let job = |program: &Path| driver.job(library, 1, program, Fabric::SHM);
    let caught = job(&touch)?.run().and_then(|done| match done.end {
        End::Exit(42) if done.output.contains("the touch was caught") => Ok(()),
        end => bail!("{end}\n{}", tail(&done.output, 25)),
    });
    tally.check("a touch of memory of a device is caught", caught);
    for errors in
        ["", "cuStreamCreate=2@1-", "cuStreamCreate=2@2-", "cuEventCreate=2@1-", "cuEventRecord=2@1-"]
    {
        let job = job(&failing)?.env("BANYAN_TEST_CUDA_ERRORS", errors);
        tally.check(&format!("memory that is gone, where {errors:?} fails"), passed(&job).map(drop));
    }
    between_processes(project, library, driver, tally)?;
    let queries = build("queries")?;
    for (gpu, expected) in [("off", "no"), ("cuda", "first"), ("auto", "first"), ("auto", "late")] {
        let job = job(&queries)?.arg(expected).env("BANYAN_GPU", gpu);
        tally.check(&format!("queries with BANYAN_GPU={gpu}, expecting {expected}"), passed(&job).map(drop));
    }
    let hip = job(&queries)?.arg("no").env("BANYAN_GPU", "hip").run()?;
    let refused = hip.end != End::Exit(0) && hip.output.contains("HIP are not built");
    let refused =
        if refused { Ok(()) } else { Err(anyhow::anyhow!("{}\n{}", hip.end, tail(&hip.output, 25))) };
    tally.check("BANYAN_GPU=hip is refused", refused);
    let without = driver.job(library, 1, &failing, Fabric::SHM)?.env("LD_LIBRARY_PATH", "").run()?;
    let told = match without.end {
        End::Exit(0) => bail!("a job without a driver has passed"),
        _ if without.output.contains("BANYAN_GPU") && without.output.contains("libcuda.so.1") => Ok(()),
        end => Err(anyhow::anyhow!("{end}\n{}", tail(&without.output, 25))),
    };
    tally.check("BANYAN_GPU=cuda without a driver says so", told);
    Ok(())
}

/// Long messages between processes of a host: by memory that the driver shares, and by the host where it does not, from the first or from
/// a later time on.
fn between_processes(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let ways = project.folder("gpu/bin")?.join("ways");
    let settings = [
        ("IPC", "1", true),
        ("IPC", "0", false),
        ("PEERS", "0", true),
        ("ERRORS", "cuIpcOpenMemHandle=801@2-", true),
    ];
    for (name, value, maps) in settings {
        let job = driver.job(library, 2, &ways, Fabric::SHM)?.env("BANYAN_TEST_CUDA_SAYS", "1");
        let job = job.env("BANYAN_TEST_SEED", "4").env(format!("BANYAN_TEST_CUDA_{name}"), value);
        let checked = passed(&job).and_then(|output| match output.contains("is mapped") {
            mapped if mapped == maps => passed_buffers(&output),
            mapped => bail!("memory of a process was mapped: {mapped}"),
        });
        tally.check(&format!("long messages on devices, {name} is {value}"), checked);
    }
    Ok(())
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
