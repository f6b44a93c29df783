//! Building C programs with a library's wrapper: two at a time, and only what changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::library::Library;
use crate::process::{Job, parallel};
use crate::project::{self, Project};

/// A program or an object file to build.
pub(crate) struct Unit {
    /// What is made.
    pub(crate) output: PathBuf,
    /// C sources, and objects to link.
    pub(crate) sources: Vec<PathBuf>,
    /// Options before the sources.
    pub(crate) flags: Vec<String>,
    /// Options after the sources, such as `-lm`.
    pub(crate) libs: Vec<String>,
    /// Headers whose change means building again.
    pub(crate) headers: Vec<PathBuf>,
}

impl Unit {
    /// A program of one source.
    pub(crate) fn program(output: PathBuf, source: PathBuf) -> Unit {
        Unit { output, sources: vec![source], flags: Vec::new(), libs: Vec::new(), headers: Vec::new() }
    }

    /// Adds options before the sources.
    pub(crate) fn flags(mut self, flags: impl IntoIterator<Item = impl Into<String>>) -> Unit {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// Adds options after the sources.
    pub(crate) fn libs(mut self, libs: impl IntoIterator<Item = impl Into<String>>) -> Unit {
        self.libs.extend(libs.into_iter().map(Into::into));
        self
    }
}

/// Builds all units, in parallel; one answer each.
pub(crate) fn build_all(project: &Project, library: &Library, units: &[Unit]) -> Vec<Result<()>> {
    parallel(project.jobs, units, |unit| build(library, unit))
}

/// Builds one unit, unless what is there is newer than all that it is made of.
pub(crate) fn build(library: &Library, unit: &Unit) -> Result<()> {
    let job = Job::new(library.cc())
        .args(&unit.flags)
        .arg("-o")
        .arg(&unit.output)
        .args(&unit.sources)
        .args(&unit.libs)
        .limit(120);
    let record = record_of(&unit.output);
    if is_fresh(library, unit) && project::read(&record).is_ok_and(|line| line == job.line()) {
        return Ok(());
    }
    let folder = unit.output.parent().context("a program in a folder")?;
    fs::create_dir_all(folder)?;
    let _ = fs::remove_file(&record);
    job.run_ok()?;
    project::write(&record, job.line())
}

fn record_of(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".cmd");
    PathBuf::from(name)
}

fn is_fresh(library: &Library, unit: &Unit) -> bool {
    let Some(made) = modified(&unit.output) else { return false };
    let header = library.prefix().join("include/mpi.h");
    let inputs = unit.sources.iter().chain(&unit.headers).chain(std::iter::once(&header));
    inputs.filter_map(|path| modified(path)).all(|time| time <= made)
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}
