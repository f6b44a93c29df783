//! Programs of tests/c and tests/gpu whose buffers are on devices: on a stand-in for CUDA's driver and for HIP's, as in `cargo xtask test`, or on a real one;
//! and what messages and sums take there.

mod bench;
pub(crate) mod direct;
mod hip;
mod mapped;
mod own;
mod programs;
mod suite;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use banyan_datatype::device::FOR_THE_PROCESSOR;
use clap::Args;
use cuda_double::compile;

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, Job, tail};
use crate::project::{self, Project};
use crate::steps::{self, Step, Tally};

/// What `cargo xtask gpu` does.
#[derive(Args)]
pub(crate) struct Options {
    /// On the stand-in for the driver: that the programs are right, as its figures are none of a device
    #[arg(long)]
    double: bool,
    /// Only these: programs of tests/c, `programs` (those of tests/gpu on any driver), `own` (those on the stand-in alone), `mapped` (those with the stand-in for GDRCopy), `hip` (those on the stand-in for HIP), `bench`
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Which programs run.
#[derive(Default)]
struct Selection(Vec<String>);

impl Selection {
    fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|one| one == name)
    }
}

/// Files that a machine with a CUDA device has.
const NODES: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg"];

/// The kernels of tests/gpu/training.c.
const TRAINING_KERNELS: &str = "tests/gpu/training.cuh";

/// Whose driver is loaded.
#[derive(Clone)]
pub(crate) enum Driver {
    /// The stand-in for the driver of a platform, which is in this folder, and a library of kernels for it if there is a compiler for them.
    Double {
        platform: Platform,
        folder: PathBuf,
        kernels: Option<PathBuf>,
        variables: Vec<(&'static str, &'static str)>,
    },
    /// The machine's own, CUDA's.
    Real,
}

/// Whose interface a driver has: by it `BANYAN_GPU` names it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Platform {
    Cuda,
    Hip,
}

impl Platform {
    fn setting(self) -> &'static str {
        match self {
            Platform::Cuda => "cuda",
            Platform::Hip => "hip",
        }
    }

    /// What a message names where there is no driver.
    fn library(self) -> &'static str {
        match self {
            Platform::Cuda => "libcuda.so.1",
            Platform::Hip => "libamdhip64.so",
        }
    }
}

/// The suite on the stand-in.
pub(crate) fn on_double(project: &Project, library: &Library) -> Result<Tally> {
    let mut tally = Tally::default();
    let [driver, hip] = doubles(project, &mut tally)?;
    let all = Selection::default();
    suite::run(project, library, &driver, &all, &mut tally)?;
    programs::run(project, library, &driver, &mut tally)?;
    own::run(project, library, &driver, &mut tally)?;
    mapped::run(project, library, &driver, &mut tally)?;
    hip::run(project, library, [&driver, &hip], &mut tally)?;
    Ok(tally)
}

/// `cargo xtask gpu`: the suite and the benches on the machine's own driver and devices, or on the stand-in; true if all passed.
pub(crate) fn run(project: &Project, options: &Options) -> Result<bool> {
    if !options.double && !NODES.iter().any(|node| Path::new(node).exists()) {
        bail!(
            "this machine has no CUDA device ({}); `cargo xtask gpu --double` runs the same programs on a stand-in for the driver",
            NODES.join(", ")
        );
    }
    let library = Library::open(project, Kind::Banyan)?;
    let selection = Selection(options.only.clone());
    let drivers = |tally: &mut Tally| {
        if options.double { doubles(project, tally) } else { Ok([Driver::Real, Driver::Real]) }
    };
    let programs = Step::new("gpu", || {
        let mut tally = Tally::default();
        let [driver, hip] = drivers(&mut tally)?;
        suite::run(project, &library, &driver, &selection, &mut tally)?;
        if selection.has("programs") {
            programs::run(project, &library, &driver, &mut tally)?;
        }
        if options.double && selection.has("own") {
            own::run(project, &library, &driver, &mut tally)?;
        }
        if options.double && selection.has("mapped") {
            mapped::run(project, &library, &driver, &mut tally)?;
        }
        if options.double && selection.has("hip") {
            hip::run(project, &library, [&driver, &hip], &mut tally)?;
        }
        Ok(tally)
    });
    let bench = Step::new("gpu-bench", || {
        let mut tally = Tally::default();
        let [driver, _] = drivers(&mut tally)?;
        bench::run(project, &library, &driver, &mut tally)?;
        Ok(tally)
    });
    let mut steps = vec![];
    if options.only.iter().any(|name| name != "bench") || options.only.is_empty() {
        steps.push(&programs);
    }
    if selection.has("bench") {
        steps.push(&bench);
    }
    Ok(steps::run(&steps))
}

/// Builds the stand-ins for both drivers, and kernels for them.
fn doubles(project: &Project, tally: &mut Tally) -> Result<[Driver; 2]> {
    build_doubles(project)?;
    let texts = format!("{FOR_THE_PROCESSOR}{}", project.read(TRAINING_KERNELS)?);
    let kernels = match compile::library(&texts, &project.folder("gpu/kernels")?) {
        Ok(kernels) => Some(kernels),
        Err(why) => {
            tally.notes.push(format!("devices run no kernels: {why}"));
            None
        }
    };
    drivers(project, kernels.as_ref())
}

/// Builds the stand-ins for both drivers, each under the names of the driver and of its compiler.
fn build_doubles(project: &Project) -> Result<()> {
    let packages = ["--package=banyan-cuda-double", "--package=banyan-hip-double"];
    let cargo = Job::new(env!("CARGO")).args(["build", "--release", "--quiet"]).args(packages);
    cargo.folder(project.root()).limit(600).run_ok()?;
    for (built, folder, names) in DOUBLES {
        let (built, folder) = (project.target().join("release").join(built), project.folder(folder)?);
        for name in names {
            fs::copy(&built, folder.join(name))
                .with_context(|| format!("cannot copy {}", built.display()))?;
        }
    }
    Ok(())
}

/// Libraries that stand in for the drivers of CUDA and HIP: as they are built, the folder for them, and the names that they have there.
const DOUBLES: [(&str, &str, [&str; 2]); 2] = [
    ("libcuda_double.so", "gpu/driver", ["libcuda.so.1", "libnvrtc.so"]),
    ("libhip_double.so", "gpu/hip", ["libamdhip64.so.6", "libhiprtc.so"]),
];

/// The stand-ins for both drivers, which are built, with kernels or without.
fn drivers(project: &Project, kernels: Option<&PathBuf>) -> Result<[Driver; 2]> {
    let [cuda, hip] = DOUBLES.map(|(_, folder, _)| project.folder(folder));
    let double = |platform, folder: PathBuf| Driver::Double {
        platform,
        folder,
        kernels: kernels.cloned(),
        variables: vec![],
    };
    Ok([double(Platform::Cuda, cuda?), double(Platform::Hip, hip?)])
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
        "tests/gpu/kinds.h",
        "tests/gpu/on_device.h",
    ]
    .map(|header| project.file(header))
    .to_vec();
    let flags =
        ["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"];
    unit.flags(flags).libs(["-lm", "-lpthread", "-ldl"])
}

/// A program of tests/gpu, built.
fn built(project: &Project, library: &Library, name: &str) -> Result<PathBuf> {
    let unit = program(project, &project.folder("gpu/bin")?, &format!("tests/gpu/{name}.c"));
    cc::build(library, &unit)?;
    Ok(unit.output)
}

impl Driver {
    fn is_double(&self) -> bool {
        matches!(self, Driver::Double { .. })
    }

    fn platform(&self) -> Platform {
        match self {
            Driver::Double { platform, .. } => *platform,
            Driver::Real => Platform::Cuda,
        }
    }

    /// Errors of functions that the stand-in is told to make, by CUDA's names for them.
    fn errors(&self, of_cuda: &str) -> String {
        const NAMES: [(&str, &str); 6] = [
            ("cuStreamCreate", "hipStreamCreateWithFlags"),
            ("cuEventCreate", "hipEventCreateWithFlags"),
            ("cuEventRecord", "hipEventRecord"),
            ("cuIpcOpenMemHandle", "hipIpcOpenMemHandle"),
            ("cuIpcGetMemHandle", "hipIpcGetMemHandle"),
            ("cuMemHostRegister", "hipHostRegister"),
        ];
        match self.platform() {
            Platform::Cuda => of_cuda.to_owned(),
            Platform::Hip => {
                NAMES.iter().fold(of_cuda.to_owned(), |text, (cuda, hip)| text.replace(cuda, hip))
            }
        }
    }

    /// The stand-in whose devices run none.
    fn without_kernels(&self) -> Driver {
        let mut driver = self.clone();
        if let Driver::Double { kernels, .. } = &mut driver {
            *kernels = None;
        }
        driver
    }

    /// The stand-in from another folder.
    fn within(&self, other: PathBuf) -> Driver {
        let mut driver = self.clone();
        if let Driver::Double { folder, .. } = &mut driver {
            *folder = other;
        }
        driver
    }

    /// The stand-in, in jobs with this variable.
    fn with(&self, name: &'static str, value: &'static str) -> Driver {
        let mut driver = self.clone();
        if let Driver::Double { variables, .. } = &mut driver {
            variables.push((name, value));
        }
        driver
    }

    /// A job on this driver.
    fn job(&self, library: &Library, ranks: usize, program: &Path, fabric: Fabric) -> Result<Job> {
        let job = library.mpirun(ranks, program, fabric)?.limit(120);
        Ok(match self {
            Driver::Double { platform, folder, kernels, variables } => {
                let setting = platform.setting();
                let job = variables.iter().fold(job, |job, (name, value)| job.env(name, value));
                let job = job.env("LD_LIBRARY_PATH", folder).env("BANYAN_GPU", setting);
                let job = job.env("BANYAN_TEST_DRIVER", setting);
                kernels.iter().fold(job, |job, kernels| job.env("BANYAN_TEST_CUDA_KERNELS", kernels))
            }
            Driver::Real => job.env("BANYAN_GPU", "cuda"),
        })
    }
}

/// The output of such a job that says what the stand-in does, and in which memory of a process was mapped by another one, or was not.
fn passed_mapping(job: Job, maps: bool) -> Result<String> {
    let output = passed(&job.env("BANYAN_TEST_CUDA_SAYS", "1"))?;
    match output.contains("is mapped") {
        mapped if mapped == maps => Ok(output),
        mapped => bail!("memory of a process was mapped: {mapped}"),
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
