//! MPICH 4.0.2's own test programs (Debian source `mpich`), built with a library's mpicc and run under its mpirun.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::makefile::Makefile;
use super::skips::{Skips, Verdict};
use super::testlist::{self, Case, Want};
use crate::cc::{self, Unit};
use crate::debian;
use crate::library::{Fabric, Kind, Library};
use crate::process::{Done, End, parallel, tail};
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

/// How long a test may take that names no limit.
const LIMIT: Duration = Duration::from_secs(120);

/// What to run and how.
pub(crate) struct Plan<'a> {
    pub(crate) only: &'a [String],
    pub(crate) fabric: Fabric,
    /// Leave out what is marked as long or large.
    pub(crate) quick: bool,
    pub(crate) verbose: bool,
}

/// How one run went.
enum Outcome {
    Passed,
    Failed(String),
    LeftOut(String),
}

/// Builds and runs the suite.
pub(crate) fn run(project: &Project, library: &Library, plan: &Plan<'_>) -> Result<Tally> {
    let skips = Skips::read(&project.file("tests/conformance/mpich.toml"))?;
    let tests = prepare(project)?;
    let mut cases = Vec::new();
    for folder in FOLDERS {
        cases.extend(testlist::cases(&tests, folder)?);
    }
    cases.extend(BASIC.iter().filter_map(|line| testlist::parse("basic", line)));
    unknown_names(&skips, &cases)?;
    cases.retain(|case| plan.only.is_empty() || plan.only.iter().any(|word| asked_for(case, word)));
    if cases.is_empty() {
        bail!("no test matches {}", plan.only.join(","));
    }

    let begun = Instant::now();
    let suite = Suite::build(project, library, &tests, &cases)?;
    println!("        {} programs built in {:.1} s", suite.built.len(), begun.elapsed().as_secs_f64());
    let memory = memory_available();
    let results = parallel(1, &cases, |case| {
        let verdict = skips.verdict(&case.id(), &case.title());
        let begun = Instant::now();
        let outcome = suite.judge(case, &verdict, plan, memory);
        if let Outcome::Failed(why) = &outcome {
            println!("        FAILED {}: {}", case.title(), why.lines().next().unwrap_or_default());
        }
        (outcome, begun.elapsed())
    });
    report(project, library, &cases, &results)
}

fn asked_for(case: &Case, word: &str) -> bool {
    word == case.folder || word == case.id() || word == case.title()
}

/// A name in the list that no test has is a mistake or is out of date.
fn unknown_names(skips: &Skips, cases: &[Case]) -> Result<()> {
    let known: BTreeSet<String> = cases.iter().flat_map(|case| [case.id(), case.title()]).collect();
    match skips.names().find(|name| !known.contains(*name)) {
        Some(name) => bail!("tests/conformance/mpich.toml names {name}, which is no test"),
        None => Ok(()),
    }
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

/// The built programs.
struct Suite<'a> {
    library: &'a Library,
    tests: &'a Path,
    bin: PathBuf,
    built: BTreeMap<String, Result<()>>,
}

impl<'a> Suite<'a> {
    fn build(project: &Project, library: &'a Library, tests: &'a Path, cases: &[Case]) -> Result<Suite<'a>> {
        let bin = project.folder(&format!("conformance/mpich-{}", library.name()))?;
        let flags = flags(tests);
        let objects = helpers(tests, &bin, &flags)?;
        for result in cc::build_all(project, library, &objects) {
            result.context("MPICH's helper library")?;
        }
        let is_dtypes = |object: &PathBuf| object.ends_with("util-dtypes.o");
        let objects: Vec<PathBuf> = objects.into_iter().map(|unit| unit.output).collect();

        let wanted: BTreeSet<(&str, &str)> =
            cases.iter().map(|c| (c.folder.as_str(), c.name.as_str())).collect();
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
        let built = names.into_iter().zip(cc::build_all(project, library, &units)).collect();
        Ok(Suite { library, tests, bin, built })
    }

    fn judge(&self, case: &Case, verdict: &Verdict, plan: &Plan<'_>, memory: f64) -> Outcome {
        match verdict {
            Verdict::Never(reason) => return Outcome::LeftOut(reason.clone()),
            Verdict::Long(reason) if plan.quick => return Outcome::LeftOut(format!("in CI: {reason}")),
            _ if case.large && plan.quick => return Outcome::LeftOut("in CI: large".into()),
            _ if case.memory > memory => return Outcome::LeftOut(format!("needs {} GB", case.memory)),
            _ => {}
        }
        let built = &self.built[&case.id()];
        if let Verdict::Lacks(name) = verdict {
            return match built {
                Ok(()) => Outcome::Failed(format!("compiles, though the list says that it needs {name}")),
                Err(error) if names_it(&error.to_string(), name) => {
                    Outcome::LeftOut(format!("{name} is not in the MPI 5.0 ABI"))
                }
                Err(error) => Outcome::Failed(format!("does not compile, but not for {name}:\n{error}")),
            };
        }
        if let Err(error) = built {
            return Outcome::Failed(format!("does not compile:\n{error}"));
        }
        let done = match self.start(case, plan.fabric) {
            Ok(done) => done,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        if plan.verbose {
            println!("{}: {}\n{}", case.title(), done.end, tail(&done.output, 200));
        }
        let result = passed(case.want, &done);
        match verdict {
            Verdict::Needs(name) if self.library.kind == Kind::Banyan => match result {
                Ok(()) => Outcome::Failed(format!("passes, though the list says that it needs {name}")),
                Err(_)
                    if done.output.contains(&format!("{name} is not built yet"))
                        || done.output.contains(&format!("{name} are not built yet")) =>
                {
                    Outcome::LeftOut(format!("needs {name}, not built yet"))
                }
                Err(why) => Outcome::Failed(format!("fails, but not for {name}: {why}")),
            },
            _ => result.map_or_else(Outcome::Failed, |()| Outcome::Passed),
        }
    }

    fn start(&self, case: &Case, fabric: Fabric) -> Result<Done> {
        let program = self.bin.join(&case.folder).join(&case.name);
        let limit = case.limit.unwrap_or(LIMIT);
        // A test that must be ended by its time limit means the launcher's own limit.
        let launcher_limit = case.limit.filter(|_| case.want == Want::Fatal);
        let launch = self.library.mpirun_within(launcher_limit, case.ranks, &program, fabric)?;
        let mut job = launch.args(&case.args);
        for (name, value) in &case.env {
            job = job.env(name, value);
        }
        // Some read files of their folder.
        job.folder(self.tests.join(&case.folder)).limit(limit.as_secs() + 5).run()
    }
}

/// Whether a text has `name` as a whole word.
fn names_it(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name)
}

fn passed(want: Want, done: &Done) -> Result<(), String> {
    let clean = done.output.lines().any(|line| line.trim().eq_ignore_ascii_case("no errors"));
    let good = match want {
        Want::NoErrors => clean && done.end == End::Exit(0),
        Want::Clean => !done.output.contains("FAILURE") && done.end == End::Exit(0),
        Want::BadStatus => matches!(done.end, End::Exit(code) if code != 0),
        Want::Fatal => matches!(done.end, End::Exit(code) if code != 0) && !clean,
    };
    if good { Ok(()) } else { Err(format!("{}\n{}", done.end, tail(&done.output, 25))) }
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

/// Memory that is free for programs, in GB.
fn memory_available() -> f64 {
    let text = project::read(Path::new("/proc/meminfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0);
    kib / 1e6
}

/// Prints a table by folder, writes all results to a file, and tallies.
fn report(
    project: &Project,
    library: &Library,
    cases: &[Case],
    results: &[(Outcome, Duration)],
) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut lines = String::from("test\toutcome\tseconds\tnote\n");
    let mut folders: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for (case, (outcome, time)) in cases.iter().zip(results) {
        let row = folders.entry(&case.folder).or_default();
        let (word, note) = match outcome {
            Outcome::Passed => {
                row[0] += 1;
                tally.passed += 1;
                ("passed", String::new())
            }
            Outcome::Failed(why) => {
                row[1] += 1;
                tally.failed += 1;
                tally.notes.push(format!("FAILED {}: {why}", case.title()));
                ("FAILED", why.replace(['\n', '\t'], " | "))
            }
            Outcome::LeftOut(why) => {
                row[2] += 1;
                tally.skipped += 1;
                ("left out", why.clone())
            }
        };
        let _ = writeln!(lines, "{}\t{word}\t{:.2}\t{note}", case.title(), time.as_secs_f64());
    }
    println!("        {:10} {:>7} {:>7} {:>8}", "folder", "passed", "failed", "left out");
    for (folder, [passed, failed, left]) in folders {
        println!("        {folder:10} {passed:>7} {failed:>7} {left:>8}");
    }
    let file = project.folder("conformance")?.join(format!("mpich-{}.tsv", library.name()));
    project::write(&file, lines)?;
    println!("        every run: {}", file.display());
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_whole_word() {
        assert!(names_it("MPI_Win_create: not built yet", "MPI_Win_create"));
        assert!(!names_it("MPI_Win_create_dynamic", "MPI_Win_create"));
    }
}
