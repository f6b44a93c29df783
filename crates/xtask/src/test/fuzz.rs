//! The fuzz targets of tests/fuzz: each runs for some seconds from where the last run left its corpus.

use anyhow::{Context, Result, bail};

use crate::process::{End, Job, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// Seconds for each target in `cargo xtask test`.
const SMOKE: u64 = 4;

/// Flags that make rustc count edges for libFuzzer and check memory, on a stable compiler.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1";

/// Each target for a few seconds.
pub(crate) fn smoke(project: &Project) -> Result<Tally> {
    run(project, SMOKE)
}

/// Each target for `seconds`.
pub(crate) fn run(project: &Project, seconds: u64) -> Result<Tally> {
    let target = target_triple()?;
    let job = Job::new(env!("CARGO")).args([
        "build",
        "--release",
        "--quiet",
        "--manifest-path",
        "tests/fuzz/Cargo.toml",
    ]);
    let folder = project.folder("fuzz")?;
    let job =
        job.args(["--target", &target]).arg("--target-dir").arg(&folder).folder(project.root()).limit(900);
    // Nightly options on a stable compiler: there is no other way to sanitizers.
    job.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS).run_ok()?;
    let mut tally = Tally::default();
    for source in project::files_with(&project.file("tests/fuzz/targets"), "rs")? {
        let name = project::stem(&source);
        let corpus = project.folder(&format!("fuzz/corpus/{name}"))?;
        let work = project.folder(&format!("fuzz/found/{name}"))?;
        let program = folder.join(&target).join("release").join(&name);
        let limit = format!("-max_total_time={seconds}");
        let fuzz = Job::new(program)
            .args([&limit, "-rss_limit_mb=2048", "-timeout=10", "-max_len=4096"])
            .arg(&corpus);
        tally.check(&name, verdict(&fuzz.folder(work).env("RUST_BACKTRACE", "1").limit(seconds + 60)));
    }
    Ok(tally)
}

fn verdict(job: &Job) -> Result<()> {
    let done = job.run()?;
    if done.end != End::Exit(0) {
        bail!("{}\n{}", done.end, tail(&done.output, 40));
    }
    Ok(())
}

fn target_triple() -> Result<String> {
    let version = Job::new("rustc").arg("-vV").run_ok()?.output;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}
