//! `cargo xtask test`: everything that CI runs, as a list of steps.

mod applications;
mod counts;
pub(crate) mod cprograms;
mod docs;
mod examples;
pub(crate) mod fuzz;
mod header;
mod hosts;
mod kernels;
mod launchers;
mod limits;
mod others;
pub(crate) mod programs;
pub(crate) mod rust;
mod rust_programs;
mod slurm;
mod stalls;
mod swap;
mod toolchain;

use anyhow::{Result, bail};
use clap::Args;

use crate::hosts::attacks;
use crate::library::{Fabric, Kind, Library};
use crate::project::Project;
use crate::steps::{self, Step, Tally};
use crate::{bench, conformance, debian, demo, gpu, hpcc, install, rdma};

/// Which steps to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Only these steps, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// All but these steps, separated by commas
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
    /// Name the steps and run nothing
    #[arg(long)]
    list: bool,
    /// Which library the steps on C programs use
    #[arg(long, value_enum, default_value_t = Kind::Banyan)]
    mpi: Kind,
}

/// For virtual environments, in which PyPI's libraries are kept.
const PYTHON: &str = "python3-venv";
/// For programs that come as Debian sources.
const SOURCES: &[&str] = &["make", "dpkg-dev"];
/// Debian packages that the steps need, beyond Rust and a C compiler.
const PACKAGES: &[&str] = &[
    "g++",
    "make",
    "cmake",
    "pkg-config",
    "libopenblas-dev",
    "libclang-dev",
    PYTHON,
    "dpkg-dev",
    counts::VALGRIND,
];

/// Runs the steps asked for; true if nothing failed.
pub(crate) fn run(project: &Project, options: &Options) -> Result<bool> {
    let library = || Library::open(project, options.mpi);
    // Steps of a track build in the same folder, or need one before them. The longest tracks come first.
    let tracks = [
        vec![
            Step::new("fmt", || rust::fmt(project)),
            Step::new("clippy", || rust::clippy(project)),
            Step::new("rustdoc", || rust::rustdoc(project)),
            Step::new("examples", || examples::run(project)),
            Step::new("unit", || rust::unit(project)),
            Step::new("kernels", || having(project, &["g++", PYTHON], || kernels::run(project))),
            Step::new("loom", || rust::loom(project)),
            Step::new("asan", || rust::asan(project)),
        ],
        vec![
            Step::new("install", || install::once(project).map(|_| Tally::pass())),
            Step::new("demo", || demo::run(project, options.mpi).map(|()| Tally::pass())),
            Step::new("header", || having(project, &["g++", PYTHON], || header::run(project))),
            Step::new("toolchain", || {
                having(project, &["g++", "make", "cmake", "pkg-config"], || toolchain::run(project))
            }),
            Step::new("swap", || having(project, &[PYTHON], || swap::run(project))),
            Step::new("others", || having(project, &[PYTHON], || others::run(project, &library()?))),
            Step::new("c", || cprograms::run(project, &library()?)),
            Step::new("gpu", || gpu::on_double(project, &library()?)),
            Step::new("launchers", || having(project, &[PYTHON], || launchers::run(project, &library()?))),
            Step::new("counts", || {
                having(project, &[counts::VALGRIND], || counts::run(project, &library()?))
            }),
            Step::new("limits", || limits::run(project)),
            Step::new("sanity", || bench::sanity(project, &library()?)),
            Step::new("docs", || having(project, &["pkg-config"], || docs::run(project))),
        ],
        vec![
            Step::new("hosts", || having(project, &[PYTHON], || hosts::run(project))),
            Step::new("attacks", || attacks::run(project, true)),
            Step::new("slurm", || having(project, &[PYTHON], || slurm::run(project))),
            Step::new("rdma", || on_rdma_devices(project)),
        ],
        vec![Step::new("mpich", || {
            having(project, SOURCES, || conformance::mpich_quick(project, &library()?))
        })],
        vec![Step::new("rust-programs", || rust_programs::run(project, &library()?))],
        vec![
            Step::new("hpcc-shm", || {
                having(project, hpcc::PACKAGES, || programs::hpcc(project, &library()?, Fabric::SHM))
            }),
            Step::new("hpcc-tcp", || {
                having(project, hpcc::PACKAGES, || programs::hpcc(project, &library()?, Fabric::TCP))
            }),
        ],
        vec![Step::new("rust-mpi", || conformance::rust_mpi_quick(project, &library()?))],
        vec![
            Step::new("netpipe-shm", || {
                having(project, SOURCES, || programs::netpipe(project, &library()?, Fabric::SHM))
            }),
            Step::new("netpipe-tcp", || {
                having(project, SOURCES, || programs::netpipe(project, &library()?, Fabric::TCP))
            }),
        ],
    ];
    let mut steps = vec![Step::new("packages", || packages(project))];
    for (track, of_track) in tracks.into_iter().enumerate() {
        steps.extend(of_track.into_iter().map(|step| step.on(track)));
    }
    if let Some(unknown) =
        options.only.iter().chain(&options.skip).find(|n| !steps.iter().any(|s| s.name == **n))
    {
        bail!("there is no step {unknown}; `cargo xtask test --list` names them");
    }
    let wanted = |name: &str| {
        (options.only.is_empty() || options.only.iter().any(|n| n == name))
            && !options.skip.iter().any(|n| n == name)
    };
    let chosen: Vec<&Step<'_>> = steps.iter().filter(|step| wanted(step.name)).collect();
    if options.list {
        chosen.iter().for_each(|step| println!("{}", step.name));
        return Ok(true);
    }
    Ok(steps::run(&chosen))
}

/// What `cargo xtask conformance` runs under Valgrind.
pub(crate) fn valgrind(project: &Project) -> Result<Tally> {
    having(project, &[counts::VALGRIND], || rust::valgrind(project))
}

/// A short part of what `cargo xtask rdma` runs.
fn on_rdma_devices(project: &Project) -> Result<Tally> {
    rdma::why_not(project)?
        .map_or_else(|| rust::tallied(&rdma::short(project)?), |reason| Ok(Tally::skip(reason)))
}

fn packages(project: &Project) -> Result<Tally> {
    Ok(debian::packages(project, PACKAGES)?.map_or_else(Tally::pass, left_out))
}

/// Does the work if these packages are there, or can be installed; otherwise says what is missing.
pub(crate) fn having(
    project: &Project,
    packages: &[&str],
    work: impl FnOnce() -> Result<Tally>,
) -> Result<Tally> {
    debian::packages(project, packages)?.map_or_else(work, |missing| Ok(left_out(missing)))
}

fn left_out(missing: debian::Missing) -> Tally {
    Tally::skip(format!("{} not there: {}", missing.packages.join(" "), missing.reason))
}
