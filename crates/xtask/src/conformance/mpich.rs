//! MPICH 4.0.2's own test programs (Debian source `mpich`), built with a library's mpicc and run under its mpirun.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::makefile::Makefile;
use super::suite::{Plan, Suite};
use super::testlist;
use crate::cc::{self, Unit};
use crate::debian;
use crate::library::Library;
use crate::project::{self, Project};
use crate::steps::Tally;

/// The folders of the suite that are run.
const FOLDERS: &[&str] =
    &["attr", "basic", "coll", "comm", "datatype", "errhan", "group", "info", "init", "pt2pt"];

/// Runs of `basic`, which has no list of its own and whose programs say nothing when all is well.
const BASIC: &[&str] = &[
    "self 1 resultTest=Clean",
    "simple 2 resultTest=Clean",
    "sendrecv 2 resultTest=Clean",
    "srtest 4 resultTest=Clean",
    "wtime 1 resultTest=Clean",
    "netpipe 2 resultTest=Clean timeLimit=900 arg=-reps arg=20 arg=-end arg=300000",
    "patterns 2 resultTest=Clean",
    // It takes half a minute for each of so many sizes, whatever the library.
    "adapt 3 resultTest=Clean timeLimit=900 arg=-reps arg=10 arg=-end arg=300000",
];

/// Builds and runs the suite.
pub(crate) fn run(project: &Project, library: &Library, plan: &Plan<'_>) -> Result<Tally> {
    let tests = prepare(project)?;
    let mut cases = Vec::new();
    for folder in FOLDERS {
        cases.extend(testlist::cases(&tests, folder)?);
    }
    cases.extend(BASIC.iter().filter_map(|line| testlist::parse("basic", line)));
    let mut suite = Suite::new(project, "mpich", library, plan, cases)?;
    // Some programs read files of their folder.
    suite.sources = Some(&tests);
    let begun = Instant::now();
    let programs = build(project, &suite, &tests)?;
    println!("        {} programs built in {:.1} s", programs.len(), begun.elapsed().as_secs_f64());
    suite.run(project, &programs)
}

/// Unpacks the tests and writes what configure would write; returns `test/mpi`.
fn prepare(project: &Project) -> Result<PathBuf> {
    let source = debian::unpacked(project, "mpich", "conformance/mpich")?;
    let tests = source.join("test/mpi");
    let conf = project.read("tests/conformance/mpitestconf.h")?;
    for path in ["include/mpitestconf.h", "dtpools/dtpoolsconf.h"] {
        let path = tests.join(path);
        if project::read(&path).ok().as_deref() != Some(&conf) {
            project::write(&path, &conf)?;
        }
    }
    Ok(tests)
}

/// Builds the programs that the runs need, each by the id of its runs.
fn build(project: &Project, suite: &Suite<'_>, tests: &Path) -> Result<BTreeMap<String, Result<PathBuf>>> {
    let library = suite.library;
    let bin = project.folder(&format!("conformance/mpich-{}", library.name()))?;
    let flags = flags(tests);
    let objects = helpers(tests, &bin, &flags)?;
    for result in cc::build_all(project, library, &objects) {
        result.context("MPICH's helper library")?;
    }
    let is_dtypes = |object: &PathBuf| object.ends_with("util-dtypes.o");
    let objects: Vec<PathBuf> = objects.into_iter().map(|unit| unit.output).collect();

    let wanted: BTreeSet<(&str, &str)> =
        suite.cases.iter().map(|c| (c.folder.as_str(), c.name.as_str())).collect();
    let mut units = Vec::new();
    for folder in FOLDERS {
        let here = tests.join(folder);
        let makefile = Makefile::read(&here)?;
        for (_, program) in wanted.iter().filter(|(in_folder, _)| in_folder == folder) {
            let recipe = makefile.recipe(&here, program);
            let mut unit = Unit::program(bin.join(folder).join(program), PathBuf::new());
            unit.sources = recipe.sources;
            unit.sources.extend(objects.iter().filter(|o| recipe.dtypes || !is_dtypes(o)).cloned());
            unit = unit.flags(flags.clone()).flags(recipe.flags).libs(["-lm", "-lpthread"]);
            units.push((format!("{folder}/{program}"), unit));
        }
    }
    let (names, units): (Vec<String>, Vec<Unit>) = units.into_iter().unzip();
    let built = cc::build_all(project, library, &units);
    let programs = units.into_iter().map(|unit| unit.output).zip(built);
    Ok(names.into_iter().zip(programs.map(|(program, built)| built.map(|()| program))).collect())
}

/// Compiler options for all of the suite. Warnings are its authors' affair.
fn flags(tests: &Path) -> Vec<String> {
    let include = |folder: &str| format!("-I{}", tests.join(folder).display());
    ["-O1", "-w"]
        .map(str::to_owned)
        .into_iter()
        .chain([include("include"), include("dtpools/include")])
        .collect()
}

/// The objects that every program links.
fn helpers(tests: &Path, bin: &Path, flags: &[String]) -> Result<Vec<Unit>> {
    let mut sources: Vec<PathBuf> = ["mtest", "mtest_common", "mtest_single", "dtypes"]
        .map(|name| tests.join(format!("util/{name}.c")))
        .to_vec();
    sources.extend(project::files_with(&tests.join("dtpools/src"), "c")?);
    let unit = |source: PathBuf| {
        let place = if source.parent().is_some_and(|p| p.ends_with("util")) { "util" } else { "dtpools" };
        let object = bin.join(format!("{place}-{}.o", project::stem(&source)));
        let mut unit = Unit::program(object, source).flags(flags.iter().cloned()).flags(["-c"]);
        unit.headers.push(tests.join("include/mpitestconf.h"));
        unit
    };
    Ok(sources.into_iter().map(unit).collect())
}
