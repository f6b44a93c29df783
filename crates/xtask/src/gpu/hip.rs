//! What runs on the stand-in in the place of HIP's runtime: the code below MPI is that for CUDA, but for the functions of the driver, so some programs of each
//! kind show that these are right. And both drivers in one process.

use anyhow::{Context, Result};

use super::{Driver, built, own, passed, programs, suite};
use crate::library::{Fabric, Library};
use crate::project::Project;
use crate::steps::Tally;

/// Programs of tests/c that run there.
const SOME: [&str; 4] = ["collectives", "operations", "modes", "ways"];

/// Runs them.
pub(super) fn run(
    project: &Project,
    library: &Library,
    [cuda, hip]: [&Driver; 2],
    tally: &mut Tally,
) -> Result<()> {
    suite::some(project, library, hip, &SOME, tally)?;
    programs::some(project, library, hip, tally)?;
    own::run(project, library, hip, tally)?;
    // The structure that tells what to compile for is another one before ROCm 6.
    let local = project.folder("gpu/bin")?.join("local");
    let older = hip.job(library, 1, &local, Fabric::SHM)?;
    let older = older.env("BANYAN_TEST_CUDA_ERRORS", "hipGetDevicePropertiesR0600=801@1-");
    tally.check("packing and reducing at one rank, as on ROCm 5", passed(&older).map(drop));
    both(project, library, [cuda, hip], tally)
}

/// A program that has loaded both drivers.
fn both(project: &Project, library: &Library, [cuda, hip]: [&Driver; 2], tally: &mut Tally) -> Result<()> {
    let program = built(project, library, "both")?;
    let folders = [cuda, hip].map(|driver| match driver {
        Driver::Double { folder, .. } => Some(folder.display().to_string()),
        Driver::Real => None,
    });
    let folders =
        folders.into_iter().collect::<Option<Vec<String>>>().context("a stand-in for each")?.join(":");
    for (gpu, seen) in [("auto", "both"), ("cuda", "cuda"), ("hip", "hip")] {
        let job = cuda.job(library, 1, &program, Fabric::SHM)?.arg(seen);
        let job = job.env("LD_LIBRARY_PATH", &folders).env("BANYAN_GPU", gpu);
        tally.check(&format!("both drivers in a program, BANYAN_GPU={gpu}"), passed(&job).map(drop));
    }
    Ok(())
}
