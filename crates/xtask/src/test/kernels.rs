//! The kernels for devices, compiled by CUDA's own compilers, where there is no device.

use anyhow::{Result, bail};

use super::rust::{cargo, tallied};
use crate::process::{End, tail};
use crate::project::Project;
use crate::rivals;
use crate::steps::Tally;

/// What the test prints of each compute capability.
const LINES: &str = "sm_";

/// Fetches the compilers and runs the test that needs them.
pub(super) fn run(project: &Project) -> Result<Tally> {
    let compilers = match rivals::cuda(project) {
        Ok(compilers) => compilers,
        Err(why) => return Ok(Tally::skip(format!("CUDA's compilers are not to be had: {why:#}"))),
    };
    // With the features that the tests of all crates have, so that nothing is built anew; the short test of that name in `memory` runs, too.
    let job = cargo(project).args(["test", "--workspace", "--test", "nvrtc", "--", "--nocapture"]);
    let job = job
        .env("LD_LIBRARY_PATH", compilers.join("cuda_nvrtc/lib"))
        .env("BANYAN_TEST_PTXAS", compilers.join("cuda_nvcc/bin/ptxas"));
    let done = job.run()?;
    let mut tally = tallied(&done)?;
    let lines = done.output.lines().filter(|line| line.starts_with(LINES));
    tally.notes.extend(lines.map(str::to_owned));
    if done.end == End::Exit(0) && tally.notes.is_empty() {
        bail!("nothing was compiled:\n{}", tail(&done.output, 10));
    }
    Ok(tally)
}
