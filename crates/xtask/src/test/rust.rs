//! Formatting, lints, documentation and the crates' own tests.

use anyhow::{Context, Result, bail};

use crate::process::{Done, End, Job, tail};
use crate::project::Project;
use crate::steps::Tally;

pub(super) fn cargo(project: &Project) -> Job {
    Job::new(env!("CARGO")).folder(project.root()).limit(1500)
}

/// `cargo fmt --check`.
pub(super) fn fmt(project: &Project) -> Result<Tally> {
    cargo(project).args(["fmt", "--all", "--check"]).run_ok()?;
    for manifest in ["tests/fuzz/Cargo.toml", "tests/conformance/rust-mpi/Cargo.toml"] {
        cargo(project).args(["fmt", "--manifest-path", manifest, "--check"]).run_ok()?;
    }
    Ok(Tally::pass())
}

/// Clippy on everything, warnings denied.
pub(super) fn clippy(project: &Project) -> Result<Tally> {
    let job =
        cargo(project).args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    job.run_ok()?;
    Ok(Tally::pass())
}

/// The crates' documentation, warnings denied.
pub(super) fn rustdoc(project: &Project) -> Result<Tally> {
    let job = cargo(project).env("RUSTDOCFLAGS", "-D warnings");
    job.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]).run_ok()?;
    Ok(Tally::pass())
}

/// `cargo test --workspace`, each test counted.
pub(super) fn unit(project: &Project) -> Result<Tally> {
    tests(cargo(project).args(["test", "--workspace", "--no-fail-fast"]))
}

/// The proofs of all algorithms of collectives with all sizes, of which the step `unit` leaves some out where there are many ranks.
pub(crate) fn verifier(project: &Project) -> Result<Tally> {
    tests(cargo(project).env("BANYAN_VERIFY", "all").args([
        "test",
        "-p",
        "banyan-coll",
        "--test",
        "verifier",
    ]))
}

/// The models of what is lock-free, in every order that threads can come in.
pub(super) fn loom(project: &Project) -> Result<Tally> {
    let job = cargo(project).env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", built(project, "loom")?);
    tests(job.args(["test", "-p", "banyan-shm", "-p", "banyan-memory", "--lib"]))
}

/// All tests of the crates whose `unsafe` reaches memory, those beside the code and those in the folders `tests`; examples in
/// the documentation reach no memory of their own.
const OF_MEMORY: [&str; 6] =
    ["test", "--tests", "--no-fail-fast", "-p=banyan-memory", "-p=banyan-shm", "-p=banyan-datatype"];

/// Tests that load the stand-in for drivers: built with the sanitizer it wants functions of that, which programs do not export.
const UNDER_ASAN: [&str; 5] = [
    "--skip=on_the_stand_in",
    "--skip=a_device_gathers_scatters_and_reduces",
    "--skip=what_was_compiled_is_kept_by_text_and_architecture_and_only_whole",
    "--skip=what_does_not_compile_says_why",
    "--skip=for_devices_of_amd_hiprtc_compiles_and_versions_are_kept_apart",
];

/// [`OF_MEMORY`] under AddressSanitizer.
pub(super) fn asan(project: &Project) -> Result<Tally> {
    let host = host()?;
    // Sanitizers are not stable yet. With a target, what runs while building is built without them.
    let job = cargo(project).env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    // An allocation that is too large must be refused, as without the sanitizer, which would end the program.
    let job = job
        .env("CARGO_TARGET_DIR", built(project, "asan")?)
        .env("ASAN_OPTIONS", "allocator_may_return_null=1");
    programs_of(&job.args(OF_MEMORY).args(["--target", &host]).arg("--").args(UNDER_ASAN))
}

/// One test at a time, as Valgrind may hang in the child of a process with several threads that run; and tests that it cannot run.
const UNDER_VALGRIND: [&str; 6] = [
    "--test-threads=1",
    // It computes with 64 bits where x87 has 80.
    "--skip=every_operation_agrees_with_scalar_code",
    "--skip=kernels_reduce_as_the_processor_does",
    // It has no room for so many reservations.
    "--skip=idle_pairs_take_no_memory",
    "--skip=idle_peers_stop_being_polled_and_are_heard_again",
    "--skip=memory_grows_with_the_pairs_that_talk",
];

/// [`OF_MEMORY`] under Valgrind, which sees what AddressSanitizer does not: a use of memory that was never written.
pub(super) fn valgrind(project: &Project) -> Result<Tally> {
    let runner = format!("CARGO_TARGET_{}_RUNNER", host()?.to_uppercase().replace('-', "_"));
    // Threads that wait for one another by spinning take fair turns. Leaks are for AddressSanitizer.
    let job = cargo(project).env(runner, "valgrind --quiet --error-exitcode=99 --fair-sched=yes");
    programs_of(&job.args(OF_MEMORY).arg("--").args(UNDER_VALGRIND))
}

/// The machine that rustc builds for.
fn host() -> Result<String> {
    let version = Job::new("rustc").arg("-vV").run_ok()?.output;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc names no host")
}

/// Runs `cargo test`, each test counted and each program named.
fn programs_of(job: &Job) -> Result<Tally> {
    let done = job.run()?;
    let mut tally = tallied(&done)?;
    tally.notes.extend(programs(&done.output));
    Ok(tally)
}

/// A line for each test program that was run: what it is built from, and how many tests are in it.
fn programs(output: &str) -> Vec<String> {
    let mut ran: Vec<(&str, usize)> = vec![];
    for line in output.lines().map(str::trim_start) {
        if let Some(program) = line.strip_prefix("Running ") {
            let file = program.rsplit_once("/deps/").map_or(program, |(_, file)| file);
            ran.push((file.rsplit_once('-').map_or(file, |(name, _)| name), 0));
        } else if let Some((_, tests)) = ran.last_mut() {
            let tally = counted(line);
            *tests += tally.passed + tally.failed;
        }
    }
    ran.iter().map(|(name, tests)| format!("ran {name}: {tests} tests")).collect()
}

/// A build folder of its own: other flags would have everything built anew in turn.
fn built(project: &Project, name: &str) -> Result<String> {
    Ok(project.folder(name)?.display().to_string())
}

/// Runs `cargo test`, each test counted.
pub(crate) fn tests(job: Job) -> Result<Tally> {
    tallied(&job.run()?)
}

/// What came of a run of `cargo test`, or of test programs.
pub(super) fn tallied(done: &Done) -> Result<Tally> {
    let mut tally = counted(&done.output);
    if done.end != End::Exit(0) {
        let failed: Vec<&str> = done
            .output
            .lines()
            .filter(|line| line.starts_with("test ") && line.ends_with("FAILED"))
            .collect();
        let shown = if failed.is_empty() { tail(&done.output, 60) } else { failures(&done.output) };
        tally.failed = tally.failed.max(1);
        tally.notes.push(format!("FAILED cargo test ({}): {}\n{shown}", done.end, failed.join("; ")));
    }
    if tally.passed + tally.failed == 0 {
        bail!("no test was run:\n{}", tail(&done.output, 20));
    }
    Ok(tally)
}

/// What the failed tests printed.
fn failures(output: &str) -> String {
    let parts = output.split("\nfailures:\n").skip(1).filter(|part| part.trim_start().starts_with("----"));
    tail(&parts.collect::<Vec<_>>().join("\n"), 80)
}

/// The sum of all lines `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn counted(output: &str) -> Tally {
    let mut tally = Tally::default();
    for line in output.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        let number = |what: &str| {
            let before = line.split(what).next().unwrap_or_default();
            before.split_whitespace().last().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0)
        };
        tally.passed += number(" passed");
        tally.failed += number(" failed");
        tally.skipped += number(" ignored");
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_that_ran_is_told() {
        let output = "     Running unittests src/lib.rs (target/asan/x/debug/deps/banyan_shm-4aaa9b543f2721da)\n\
                      running 2 tests\n\
                      test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured\n\
                      \x20    Running tests/arena.rs (target/asan/x/debug/deps/arena-e5516e160ffb6fde)\n\
                      test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(programs(output), ["ran banyan_shm: 2 tests", "ran arena: 5 tests"]);
    }

    #[test]
    fn results_are_added_up() {
        let output = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                      test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured\n";
        let tally = counted(output);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (5, 4, 1));
    }
}
