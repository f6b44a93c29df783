//! Programs on the stand-in for CUDA's driver with the one for GDRCopy beside it, which is the same library under one more name: what the processor copies by
//! itself, and what becomes of it where GDRCopy refuses.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Driver, built, passed, suite};
use crate::library::{Fabric, Library};
use crate::process::Job;
use crate::project::Project;
use crate::steps::Tally;

/// Programs of tests/c that run so.
const SOME: [&str; 6] = ["collectives", "operations", "between", "modes", "types", "repeated"];

/// What the stand-in is told to refuse: all of it, or what comes later than the first of it.
const REFUSED: [&str; 3] = ["gdr_open=1@1-", "gdr_pin_buffer=12@1-", "gdr_map=22@1-"];

/// Runs them.
pub(super) fn run(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let driver = &with_gdrcopy(project, driver)?;
    let program = built(project, library, "mapped")?;
    for &fabric in suite::BOTH {
        let job = |how: &str| -> Result<Job> { Ok(driver.job(library, 2, &program, fabric)?.arg(how)) };
        let title =
            |of: &str| format!("short messages and the processor's copies over {}, {of}", fabric.name());
        tally.check(&title("all of them"), passed(&job("mapped")?).map(drop));
        for errors in REFUSED {
            let job = job("refused")?.env("BANYAN_TEST_CUDA_ERRORS", errors);
            tally.check(&title(&format!("where {errors} fails")), passed(&job).map(drop));
        }
    }
    shown(driver, library, &program, tally)?;
    suite::some(project, library, driver, &SOME, tally)?;
    // Mappings come and go, and are refused in between.
    let scarce =
        driver.with("BANYAN_TEST_CUDA_BAR", "131072").with("BANYAN_TEST_CUDA_ERRORS", "gdr_map=12@5-9");
    suite::some(project, library, &scarce, &["repeated", "collectives"], tally)
}

/// What a job says of it that asks for that.
fn shown(driver: &Driver, library: &Library, program: &Path, tally: &mut Tally) -> Result<()> {
    for (how, errors, expected) in
        [("mapped", "", "by the processor (GDRCopy): "), ("refused", REFUSED[1], "gdr_pin_buffer says")]
    {
        let job = driver.job(library, 2, program, Fabric::SHM)?.arg(how).env("BANYAN_P2P", "show");
        let checked = passed(&job.env("BANYAN_TEST_CUDA_ERRORS", errors)).and_then(|output| {
            if output.contains(expected) { Ok(()) } else { bail!("nothing says \"{expected}\"\n{output}") }
        });
        tally.check(&format!("what a job says of copies that are {how}"), checked);
    }
    Ok(())
}

/// The stand-in in a folder that has it under the name of GDRCopy's library, too. All names are of one file, and so of one library in a process.
fn with_gdrcopy(project: &Project, driver: &Driver) -> Result<Driver> {
    let Driver::Double { folder, .. } = driver else {
        bail!("GDRCopy has a stand-in beside the one for the driver")
    };
    let with: PathBuf = project.folder("gpu/gdrcopy")?;
    for name in ["libcuda.so.1", "libnvrtc.so", "libgdrapi.so.2"] {
        let link = with.join(name);
        let _ = fs::remove_file(&link);
        fs::hard_link(folder.join("libcuda.so.1"), &link)
            .with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(driver.within(with))
}
