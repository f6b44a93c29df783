//! The fuzz targets of tests/fuzz: each runs for some seconds from where the last run left its corpus.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::process::{End, Job, parallel, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// How the line of a target begins that names the files of its parsers.
const PARSER: &str = "//! Parser: ";

/// Flags that make rustc count edges for libFuzzer and check memory, on a stable compiler.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address -Ccodegen-units=1";

/// Each target for `seconds`, with a note that says how much of its parsers all inputs together have reached.
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
    let sources = project::files_with(&project.file("tests/fuzz/targets"), "rs")?;
    let built = folder.join(&target).join("release");
    // Two at a time: each has one thread, and may take as much memory as it is allowed.
    let outcomes = parallel(2, &sources, |source| fuzz(project, &built, source, seconds));
    for (source, outcome) in sources.iter().zip(outcomes) {
        let outcome = outcome.map(|figures| tally.notes.push(figures));
        tally.check(&project::stem(source), outcome);
    }
    Ok(tally)
}

/// Runs a target for `seconds`; gives a note about its coverage.
fn fuzz(project: &Project, built: &Path, source: &Path, seconds: u64) -> Result<String> {
    let name = project::stem(source);
    let corpus = project.folder(&format!("fuzz/corpus/{name}"))?;
    let work = project.folder(&format!("fuzz/found/{name}"))?;
    let limit = format!("-max_total_time={seconds}");
    let words = format!("-dict={}", project.file("tests/fuzz/words.dict").display());
    let job = Job::new(built.join(&name))
        .args([&limit, &words, "-rss_limit_mb=2048", "-timeout=10", "-max_len=4096"])
        .arg("-print_coverage=1")
        .arg(&corpus);
    let output = verdict(&job.folder(work).env("RUST_BACKTRACE", "1").limit(seconds + 900))?;
    Ok(format!("{name:13} {}", figures(&output, &parsers(source)?)?))
}

/// Runs a target; gives what it says.
fn verdict(job: &Job) -> Result<String> {
    let done = job.run()?;
    if done.end != End::Exit(0) {
        bail!("{}\n{}", done.end, tail(&done.output, 40));
    }
    Ok(done.output)
}

/// The files of a target's parsers.
fn parsers(source: &Path) -> Result<Vec<String>> {
    let text = project::read(source)?;
    let files =
        text.lines().find_map(|line| line.strip_prefix(PARSER)).context("the target names no parser")?;
    Ok(files.split(' ').map(str::to_owned).collect())
}

/// What libFuzzer says at the end: seed, time, executions, edges reached; and of the functions in these files, but for those that print
/// values, how many were reached, and how many of their edges. (Some edges lead to panics and unwinding, which no input reaches.)
fn figures(output: &str, files: &[String]) -> Result<String> {
    let word = |line: &str, at: usize| line.split_whitespace().nth(at).unwrap_or_default().to_owned();
    let find =
        |part: &str| output.lines().find(|line| line.contains(part)).context("libFuzzer says too little");
    let (seed, last, done) = (find("INFO: Seed:")?, find("DONE")?, find(" runs in ")?);
    let (mut reached, mut all) = ([0; 2], [0; 2]);
    for line in output.lines().filter(|line| line.contains("COVERED_FUNC") && names(line, files)) {
        let edges = line.split("edges: ").nth(1).and_then(|rest| rest.split(' ').next()?.split_once('/'));
        let (some, of) = edges.context("edges")?;
        let (some, of) = (some.parse::<u64>()?, of.parse::<u64>()?);
        reached = [reached[0] + u64::from(some > 0), reached[1] + some];
        all = [all[0] + 1, all[1] + of];
    }
    let parser = match all {
        [0, _] if output.contains("COVERED_FUNC") => "the parser is compiled into its caller".to_owned(),
        [0, _] => "no symbolizer here (llvm-symbolizer, addr2line)".to_owned(),
        _ => format!(
            "{} of {} functions and {} of {} edges of the parser",
            reached[0], all[0], reached[1], all[1]
        ),
    };
    let (runs, seconds, edges) = (word(done, 1), word(done, 4), word(last, 3));
    Ok(format!("{seconds} s, {runs} executions, {edges} edges, {parser}; seed {}", word(seed, 2)))
}

/// Whether a function is in one of these files or folders, and does not print a value.
fn names(line: &str, files: &[String]) -> bool {
    !line.contains("::fmt /") && files.iter().any(|file| line.contains(&format!("/{file}")))
}

fn target_triple() -> Result<String> {
    let version = Job::new("rustc").arg("-vV").run_ok()?.output;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_that_of_the_parsers_files() {
        let output = "INFO: Seed: 77\n#9 DONE   cov: 312 ft: 800 corp: 5/10b lim: 4 exec/s: 0 rss: 30Mb\n\
                      COVERED_FUNC: hits: 2 edges: 3/5 a::b /x/crates/a/src/b.rs:7\n  UNCOVERED_PC: /x/crates/a/src/b.rs:8\n\
                      UNCOVERED_FUNC: hits: 0 edges: 0/3 a::c /x/crates/a/src/b.rs:9\n\
                      COVERED_FUNC: hits: 2 edges: 3/3 d::e /x/crates/d/src/e.rs:7\nDone 99 runs in 4 second(s)";
        let said = figures(output, &["crates/a/src/b.rs".to_owned()]).expect("figures");
        assert_eq!(
            said,
            "4 s, 99 executions, 312 edges, 1 of 2 functions and 3 of 8 edges of the parser; seed 77"
        );
        assert!(figures(output, &[]).expect("figures").contains("compiled into its caller"));
        assert!(figures(&output.replace("_FUNC", ""), &[]).expect("figures").contains("no symbolizer"));
        assert!(figures("", &[]).is_err());
    }
}
