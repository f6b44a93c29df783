//! A suite of programs that we did not write, whichever it is: its runs, which of them are asked for, what they must show, and
//! the table of how they went.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::skips::{Skips, Verdict};
use crate::library::{Fabric, Kind, Library};
use crate::process::{Done, End, parallel, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// How long a run may take that names no limit.
const LIMIT: Duration = Duration::from_secs(120);

/// What to run and how.
pub(crate) struct Plan<'a> {
    pub(crate) only: &'a [String],
    pub(crate) fabric: Fabric,
    /// Leave out what is marked as long or large.
    pub(crate) quick: bool,
    pub(crate) verbose: bool,
}

/// What a run must show to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// The line ` No Errors` once and status 0.
    NoErrors,
    /// Status 0 and no complaint.
    Clean,
    /// Status 0, and each rank says that it has run tests of Rust's, which have passed.
    RustTests,
    /// A status that is not 0.
    BadStatus,
    /// A status that is not 0, and no ` No Errors`.
    Fatal,
}

/// One run of a program.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) folder: String,
    pub(crate) name: String,
    pub(crate) ranks: usize,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) limit: Option<Duration>,
    /// Memory that the whole run needs, in GB.
    pub(crate) memory: f64,
    pub(crate) want: Want,
    /// Marked as large by its authors.
    pub(crate) large: bool,
}

impl Case {
    /// A run without arguments.
    pub(crate) fn new(folder: &str, name: &str, ranks: usize, want: Want) -> Case {
        Case {
            folder: folder.to_owned(),
            name: name.to_owned(),
            ranks,
            args: Vec::new(),
            env: Vec::new(),
            limit: None,
            memory: 0.0,
            want,
            large: false,
        }
    }

    /// `folder/name`.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.folder, self.name)
    }

    /// `folder/name -n ranks args`, different for every run.
    pub(crate) fn title(&self) -> String {
        let mut title = format!("{} -n {}", self.id(), self.ranks);
        for arg in &self.args {
            title.push(' ');
            title.push_str(arg);
        }
        title
    }

    fn asked_for(&self, word: &str) -> bool {
        word == self.folder || word == self.id() || word == self.title()
    }
}

/// How one run went.
enum Outcome {
    Passed,
    Failed(String),
    LeftOut(String),
}

/// A suite for one library.
pub(crate) struct Suite<'a> {
    /// Its name in files: that of its list is `tests/conformance/NAME.toml`.
    pub(crate) name: &'a str,
    pub(crate) library: &'a Library,
    pub(crate) plan: &'a Plan<'a>,
    /// Where the folders of cases are, if programs read files there.
    pub(crate) sources: Option<&'a Path>,
    skips: Skips,
    /// The runs that are asked for.
    pub(crate) cases: Vec<Case>,
}

impl<'a> Suite<'a> {
    /// The suite with those of its runs that are asked for.
    pub(crate) fn new(
        project: &Project,
        name: &'a str,
        library: &'a Library,
        plan: &'a Plan<'a>,
        mut cases: Vec<Case>,
    ) -> Result<Suite<'a>> {
        let list = format!("tests/conformance/{name}.toml");
        let skips = Skips::read(&project.file(&list))?;
        // A name in the list that no test has is a mistake or is out of date.
        let known: BTreeSet<String> = cases.iter().flat_map(|case| [case.id(), case.title()]).collect();
        if let Some(name) = skips.names().find(|name| !known.contains(*name)) {
            bail!("{list} names {name}, which is no test");
        }
        cases.retain(|case| plan.only.is_empty() || plan.only.iter().any(|word| case.asked_for(word)));
        if cases.is_empty() {
            bail!("no test matches {}", plan.only.join(","));
        }
        Ok(Suite { name, library, plan, sources: None, skips, cases })
    }

    /// Runs everything that is asked for, and prints a table. `programs` are by [`Case::id`]; an error says why one was not built.
    pub(crate) fn run(
        &self,
        project: &Project,
        programs: &BTreeMap<String, Result<PathBuf>>,
    ) -> Result<Tally> {
        let memory = memory_available();
        let results = parallel(1, &self.cases, |case| {
            let begun = Instant::now();
            let outcome = self.judge(case, &programs[&case.id()], memory);
            if let Outcome::Failed(why) = &outcome {
                println!("        FAILED {}: {}", case.title(), why.lines().next().unwrap_or_default());
            }
            (outcome, begun.elapsed())
        });
        self.report(project, &results)
    }

    fn judge(&self, case: &Case, program: &Result<PathBuf>, memory: f64) -> Outcome {
        let verdict = self.skips.verdict(&case.id(), &case.title());
        let quick = self.plan.quick;
        match &verdict {
            Verdict::Never(reason) => return Outcome::LeftOut(reason.clone()),
            Verdict::Long(reason) if quick => return Outcome::LeftOut(format!("in CI: {reason}")),
            _ if case.large && quick => return Outcome::LeftOut("in CI: large".into()),
            _ if case.memory > memory => return Outcome::LeftOut(format!("needs {} GB", case.memory)),
            _ => {}
        }
        if let Verdict::Lacks(name) = &verdict {
            return match program {
                Ok(_) => Outcome::Failed(format!("compiles, though the list says that it needs {name}")),
                Err(error) if names_it(&error.to_string(), name) => {
                    Outcome::LeftOut(format!("{name} is not in the MPI 5.0 ABI"))
                }
                Err(error) => Outcome::Failed(format!("does not compile, but not for {name}:\n{error}")),
            };
        }
        let program = match program {
            Ok(program) => program,
            Err(error) => return Outcome::Failed(format!("does not compile:\n{error}")),
        };
        let done = match self.start(case, program) {
            Ok(done) => done,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        if self.plan.verbose {
            println!("{}: {}\n{}", case.title(), done.end, tail(&done.output, 200));
        }
        let result = passed(case, &done);
        match &verdict {
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

    fn start(&self, case: &Case, program: &Path) -> Result<Done> {
        let limit = case.limit.unwrap_or(LIMIT);
        // A test that must be ended by its time limit means the launcher's own limit.
        let launcher_limit = case.limit.filter(|_| case.want == Want::Fatal);
        let launch = self.library.mpirun_within(launcher_limit, case.ranks, program, self.plan.fabric)?;
        let mut job = launch.args(&case.args);
        for (name, value) in &case.env {
            job = job.env(name, value);
        }
        if let Some(sources) = self.sources {
            job = job.folder(sources.join(&case.folder));
        }
        job.limit(limit.as_secs() + 5).run()
    }

    /// Prints a table by folder, writes all results to a file, and tallies.
    fn report(&self, project: &Project, results: &[(Outcome, Duration)]) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut lines = String::from("test\toutcome\tseconds\tnote\n");
        let mut folders: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
        for (case, (outcome, time)) in self.cases.iter().zip(results) {
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
        let name = format!("{}-{}.tsv", self.name, self.library.name());
        let file = project.folder("conformance")?.join(name);
        project::write(&file, lines)?;
        println!("        every run: {}", file.display());
        Ok(tally)
    }
}

/// Whether a text has `name` as a whole word.
fn names_it(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name)
}

fn passed(case: &Case, done: &Done) -> Result<(), String> {
    let clean = done.output.lines().any(|line| line.trim().eq_ignore_ascii_case("no errors"));
    let good = match case.want {
        Want::NoErrors => clean && done.end == End::Exit(0),
        Want::Clean => !done.output.contains("FAILURE") && done.end == End::Exit(0),
        Want::RustTests => ranks_with_tests(&done.output) == case.ranks && done.end == End::Exit(0),
        Want::BadStatus => matches!(done.end, End::Exit(code) if code != 0),
        Want::Fatal => matches!(done.end, End::Exit(code) if code != 0) && !clean,
    };
    if good { Ok(()) } else { Err(format!("{}\n{}", done.end, tail(&done.output, 25))) }
}

/// How many ranks say that tests have passed, and more than none.
fn ranks_with_tests(output: &str) -> usize {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    results.filter(|result| !result.starts_with("0 passed")).count()
}

/// Memory that is free for programs, in GB.
fn memory_available() -> f64 {
    let text = project::read(Path::new("/proc/meminfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0);
    kib / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_whole_word() {
        assert!(names_it("MPI_Win_create: not built yet", "MPI_Win_create"));
        assert!(!names_it("MPI_Win_create_dynamic", "MPI_Win_create"));
    }

    #[test]
    fn ranks_without_tests_count_for_nothing() {
        let result = |passed| format!("running some tests\n\ntest result: ok. {passed} passed; 0 failed\n");
        assert_eq!(ranks_with_tests(&[result(11), result(11)].concat()), 2);
        assert_eq!(ranks_with_tests(&[result(0), result(10)].concat()), 1);
        assert_eq!(ranks_with_tests("test result: FAILED. 1 passed; 1 failed"), 0);
    }
}
