//! The examples of the `mpi` crate of Rust's registry, with the dependency changed alone: built with the crate of this repository, run on
//! 1 to 5 ranks. `tests/conformance/rust-native.toml` says which are not run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use super::rust_mpi::json;
use super::suite::{Case, Plan, Suite, Want};
use crate::library::Library;
use crate::process::{Job, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// The package that the examples are put into. Its dependencies are those of the crate's examples.
const MANIFEST: &str = r#"[features]
default = ["user-operations"]
user-operations = []

[dependencies]
memoffset = "0.9"
num-complex = "0.4"

[profile.dev]
debug = false

[lints.rust]
unexpected_cfgs = { level = "warn", check-cfg = ["cfg(msmpi)"] }
"#;

/// Builds and runs the suite.
pub(crate) fn run(project: &Project, library: &Library, plan: &Plan<'_>) -> Result<Tally> {
    let folder = project.folder("conformance/rust-native")?;
    let (cargo, examples) = prepare(project, &folder)?;
    let runs = |name: &String| {
        (1..=5).map(|ranks| Case::new("examples", name, ranks, Want::Clean)).collect::<Vec<_>>()
    };
    let suite = Suite::new(project, "rust-native", library, plan, examples.iter().flat_map(runs).collect())?;
    suite.run(project, &build(cargo, &examples)?)
}

/// Writes the package; gives a call of cargo for it, and the names of its examples.
fn prepare(project: &Project, folder: &Path) -> Result<(Job, Vec<String>)> {
    let manifest = project.file("tests/conformance/rust-mpi/Cargo.toml");
    let metadata = Job::new(env!("CARGO")).args(["metadata", "--quiet", "--locked", "--format-version", "1"]);
    let answer = metadata.arg("--manifest-path").arg(manifest).run_ok()?.output;
    let metadata = json(&answer).next().context("cargo metadata says nothing")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mpi = packages.into_iter().find(|package| package["name"] == "mpi");
    let source = mpi.and_then(|mpi| Path::new(mpi["manifest_path"].as_str()?).parent());
    let source = source.context("cargo metadata names no crate mpi")?.join("examples");

    let cargo = dependent(project, folder, MANIFEST, &["complex"])?;
    fs::create_dir_all(folder.join("src"))?;
    project::write(&folder.join("src/lib.rs"), "")?;
    let copies = folder.join("examples");
    fs::create_dir_all(&copies)?;
    let mut names = vec![];
    for file in fs::read_dir(source)? {
        let file = file?.path();
        let Some(name) = file.file_stem().filter(|_| file.extension().is_some_and(|kind| kind == "rs"))
        else {
            continue;
        };
        fs::copy(&file, copies.join(name).with_extension("rs"))?;
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok((cargo, names))
}

/// A package outside the workspace that depends on the crate of this repository as users' do: its manifest is written, beside what is
/// there; gives calls of cargo for it, which builds below its folder.
pub(crate) fn dependent(project: &Project, folder: &Path, manifest: &str, features: &[&str]) -> Result<Job> {
    let package = "[package]\nname = \"dependent\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n";
    let ours = project.file("crates/mpi").display().to_string();
    let dependency = format!("package = \"banyan-mpi\"\npath = {ours:?}\nfeatures = {features:?}\n");
    let whole = format!("{package}\n{manifest}\n[dependencies.mpi]\n{dependency}");
    project::write(&folder.join("Cargo.toml"), whole)?;
    // What is built here and there is of one version.
    fs::copy(project.file("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(Job::new(env!("CARGO")).folder(folder).env("CARGO_TARGET_DIR", folder.join("target")).limit(1800))
}

/// Builds the examples, each by its id.
fn build(cargo: Job, examples: &[String]) -> Result<BTreeMap<String, Result<PathBuf>>> {
    let begun = Instant::now();
    let job = cargo.args([
        "build",
        "--quiet",
        "--examples",
        "--keep-going",
        "--message-format=json-render-diagnostics",
    ]);
    let answer = job.run()?.output;
    let mut programs: BTreeMap<String, Result<PathBuf>> = BTreeMap::new();
    for message in json(&answer).filter(|message| message["target"]["kind"][0] == "example") {
        if let (Some(name), Some(program)) =
            (message["target"]["name"].as_str(), message["executable"].as_str())
        {
            programs.insert(format!("examples/{name}"), Ok(PathBuf::from(program)));
        }
    }
    println!(
        "        {} of {} programs built in {:.1} s",
        programs.len(),
        examples.len(),
        begun.elapsed().as_secs_f64()
    );
    for name in examples {
        let missing = || Err(anyhow!("cargo does not build it:\n{}", tail(&answer, 20)));
        programs.entry(format!("examples/{name}")).or_insert_with(missing);
    }
    Ok(programs)
}
