//! The `mpi` crate of Rust's registry, unmodified: built with a library's mpicc, its tests and examples run on 1 to 5 ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::suite::{Case, Plan, Suite, Want};
use crate::library::{Kind, Library};
use crate::process::{Job, tail};
use crate::project::{self, Project};
use crate::steps::Tally;
use crate::test::rust;

/// Debian packages that building it needs, beyond a C compiler: bindgen reads mpi.h with libclang, and libffi is built by make.
pub(crate) const PACKAGES: &[&str] = &["libclang-dev", "make"];

/// Examples for each change: messages and broadcasts, operations that are closures, types derived from Rust's.
pub(crate) const QUICK: [&str; 3] = ["examples/readme", "examples/reduce", "examples/struct"];

/// The crates, as cargo's options.
const CRATES: [&str; 4] = ["-p", "mpi", "-p", "mpi-sys"];

/// A kind of cargo's targets that is run: what cargo calls it, the first part of the names of its runs, and what these must show.
type Runnable = (&'static str, &'static str, Want);

const RUNNABLE: [Runnable; 3] = [
    ("example", "examples", Want::Clean),
    ("test", "tests", Want::RustTests),
    // The tests beside the code.
    ("lib", "units", Want::RustTests),
];

/// Builds and runs the suite; all of it also by `cargo test`, where each program is a job of one process without a launcher.
pub(crate) fn run(project: &Project, library: &Library, plan: &Plan<'_>) -> Result<Tally> {
    let cargo = cargo(project, library)?;
    let suite = Suite::new(project, "rust-mpi", library, plan, cases(&cargo, library)?)?;
    let mut tally = suite.run(project, &build(&cargo, &suite)?)?;
    if plan.only.is_empty() {
        let lib = library.prefix().join("lib");
        tally.add(rust::tests(cargo("test").args(CRATES).arg("--no-fail-fast").env("LD_LIBRARY_PATH", lib))?);
    }
    Ok(tally)
}

/// Where what is built with a library is.
fn folder(project: &Project, library: &Library) -> Result<PathBuf> {
    project.folder(&format!("conformance/rust-mpi-{}", library.name()))
}

/// Calls of cargo that build with a library's mpicc, in a folder for this library.
fn cargo(project: &Project, library: &Library) -> Result<impl Fn(&str) -> Job> {
    let folder = folder(project, library)?;
    let mpicc = match library.kind {
        // The header of its standard ABI lacks MPI_Fint, which mpi-sys needs; that of its own ABI has it.
        Kind::Mpich => library.prefix().join("bin/mpicc"),
        _ => library.cc().to_owned(),
    };
    let manifest = project.file("tests/conformance/rust-mpi/Cargo.toml");
    let built_with = folder.join("built-with");
    let asked = mpicc.display().to_string();
    let is_current = library.is_current(&built_with) && project::read(&built_with).is_ok_and(|m| m == asked);
    let cargo = move |command: &str| {
        let job = Job::new(env!("CARGO")).args([command, "--locked", "--manifest-path"]).arg(&manifest);
        // Where the crate would look before it asks mpicc.
        let job = job.without_env("MPI_PKG_CONFIG").without_env("CRAY_MPICH_DIR");
        job.env("CARGO_TARGET_DIR", &folder).env("MPICC", &mpicc)
    };
    if !is_current {
        // Its build script is not run again for another mpi.h or mpicc.
        cargo("clean").args(["-p", "mpi-sys"]).run_ok()?;
        project::write(&built_with, asked)?;
    }
    Ok(cargo)
}

/// All tests and examples, on 1 to 5 ranks.
fn cases(cargo: &impl Fn(&str) -> Job, library: &Library) -> Result<Vec<Case>> {
    let answer = cargo("metadata").args(["--quiet", "--format-version", "1"]).run_ok()?.output;
    let metadata = json(&answer).next().context("cargo metadata says nothing")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let ours = packages.filter(|package| CRATES.iter().any(|name| package["name"] == *name));
    let mut cases = Vec::new();
    for target in ours.flat_map(|package| package["targets"].as_array().into_iter().flatten()) {
        let Some(((_, folder, want), name)) = runnable(target) else { continue };
        let env = paths(library);
        cases.extend((1..=5).map(|ranks| Case { env: env.clone(), ..Case::new(folder, name, ranks, *want) }));
    }
    Ok(cases)
}

/// The bench's program in Rust, built with a library's mpicc.
pub(crate) fn bench(project: &Project, library: &Library) -> Result<PathBuf> {
    cargo(project, library)?("build").args(["--quiet", "--release", "--example", "bench"]).run_ok()?;
    Ok(folder(project, library)?.join("release/examples/bench"))
}

/// Where ranks find the library, as mpi-sys links without a path to it: our mpirun says it.
pub(crate) fn paths(library: &Library) -> Vec<(String, String)> {
    match library.kind {
        Kind::Banyan => vec![],
        _ => vec![("LD_LIBRARY_PATH".into(), library.prefix().join("lib").display().to_string())],
    }
}

/// Builds what is asked for.
fn build(cargo: &impl Fn(&str) -> Job, suite: &Suite<'_>) -> Result<BTreeMap<String, Result<PathBuf>>> {
    let begun = Instant::now();
    let ids: BTreeSet<String> = suite.cases.iter().map(Case::id).collect();
    let examples = ids.iter().filter_map(|id| id.strip_prefix("examples/"));
    let tests = ids.iter().find(|id| !id.starts_with("examples/")).map(|_| "--tests");
    // `cargo test --example` would build examples as tests, without their `main`.
    let job = cargo("build").args(CRATES).args(examples.flat_map(|name| ["--example", name])).args(tests);
    let answer = job.args(["--quiet", "--message-format=json-render-diagnostics"]).run_ok()?.output;
    let mut programs = BTreeMap::new();
    for message in json(&answer) {
        let Some(((_, folder, want), name)) = runnable(&message["target"]) else { continue };
        if let Some(program) = message["executable"].as_str() {
            let id = format!("{folder}/{name}");
            if message["profile"]["test"] != (*want == Want::RustTests) {
                bail!("cargo has built {id} with the wrong `main`");
            }
            programs.insert(id, Ok(PathBuf::from(program)));
        }
    }
    if let Some(missing) = ids.iter().find(|id| !programs.contains_key(*id)) {
        bail!("cargo says nothing of {missing}:\n{}", tail(&answer, 20));
    }
    println!("        {} programs built in {:.1} s", ids.len(), begun.elapsed().as_secs_f64());
    Ok(programs)
}

/// What cargo says, a value on each line.
pub(super) fn json(answer: &str) -> impl Iterator<Item = Value> {
    answer.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// What a target of cargo's is, if it is run, and its name.
fn runnable(target: &Value) -> Option<(&'static Runnable, &str)> {
    let runnable = RUNNABLE.iter().find(|(kind, ..)| target["kind"][0] == *kind)?;
    Some((runnable, target["name"].as_str()?))
}
