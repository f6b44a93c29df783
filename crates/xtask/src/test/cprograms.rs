//! Our own C programs in tests/c, each on several rank counts and fabrics, as its comment `RUN:` says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cc::{self, Unit};
use crate::docs;
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, Job, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// How a program asks to be run.
#[derive(Debug, PartialEq)]
struct Plan {
    ranks: Vec<usize>,
    fabrics: Vec<Fabric>,
    /// Seconds for one run.
    limit: u64,
    /// The status that mpirun ends with.
    status: i32,
    /// A word that the output must have.
    says: Option<String>,
    /// It checks what only our library promises.
    ours: bool,
    /// The job goes on when a rank fails.
    keep_going: bool,
    /// Settings that it runs under.
    env: Vec<(String, String)>,
}

/// Builds and runs them all.
pub(super) fn run(project: &Project, library: &Library) -> Result<Tally> {
    let units = units(project, library, &|_| true)?;
    let built = cc::build_all(project, library, &units);
    let mut tally = Tally::default();
    for (unit, built) in units.iter().zip(built) {
        let source = &unit.sources[0];
        let name = project::stem(source);
        if let Err(error) = built {
            tally.check(&name, Err(error));
            continue;
        }
        for plan in plans_of(&project::read(source)?).with_context(|| source.display().to_string())? {
            try_plan(library, &mut tally, &name, &unit.output, &plan);
        }
    }
    if library.kind == Kind::Banyan {
        let programs: Vec<PathBuf> = units.into_iter().map(|unit| unit.output).collect();
        tally.check("every built function with 64-bit counts is called", twins(project, &programs));
    }
    Ok(tally)
}

/// Builds those of them that are named, or all; or does nothing if they are built.
pub(crate) fn build(project: &Project, library: &Library, named: &[&str]) -> Result<()> {
    let units = units(project, library, &|name| named.is_empty() || named.contains(&name))?;
    cc::build_all(project, library, &units).into_iter().collect()
}

/// Runs those that are wanted over a fabric that is a network, where they say that they run over TCP, on the fewest ranks (at least 2) and on
/// the most, up to so many, with so many times as much time; tells what became of each run.
pub(crate) fn over(
    project: &Project,
    library: &Library,
    fabric: Fabric,
    wanted: &dyn Fn(&str) -> bool,
    (most, slower): (usize, u64),
    told: &mut dyn FnMut(&str, Result<()>),
) -> Result<()> {
    for unit in units(project, library, wanted)? {
        let (source, program) = (&unit.sources[0], &unit.output);
        let name = project::stem(source);
        for mut plan in plans_of(&project::read(source)?).with_context(|| name.clone())? {
            if !plan.fabrics.contains(&Fabric::TCP) {
                continue;
            }
            plan.limit *= slower;
            let fit = || plan.ranks.iter().copied().filter(|ranks| (2..=most).contains(ranks));
            for ranks in BTreeSet::from_iter(fit().min().into_iter().chain(fit().max())) {
                let title = format!("{name} -n {ranks} over {}", fabric.name());
                told(&title, one(library, program, ranks, fabric, &plan));
            }
        }
    }
    Ok(())
}

/// Runs a program as one of its plans says.
fn try_plan(library: &Library, tally: &mut Tally, name: &str, program: &Path, plan: &Plan) {
    if plan.ours && library.kind != Kind::Banyan {
        return tally.leave_out(name, "checks what only Banyan promises");
    }
    for &fabric in
        plan.fabrics.iter().filter(|fabric| library.kind == Kind::Banyan || **fabric == Fabric::SHM)
    {
        for &ranks in &plan.ranks {
            let title = format!("{name} -n {ranks} over {}", fabric.name());
            tally.check(&title, one(library, program, ranks, fabric, plan));
        }
    }
}

/// Every `MPI_X_c` that is built is called by one of the programs.
fn twins(project: &Project, programs: &[PathBuf]) -> Result<()> {
    let called = Job::new("nm").args(["-D", "--undefined-only"]).args(programs).run_ok()?.output;
    let called: BTreeSet<&str> = called.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let missing = docs::not_built(project)?;
    let table = project.read("abi/tables/functions.tsv")?;
    let twins = table.lines().filter_map(|line| line.split('\t').next()).filter(|name| name.ends_with("_c"));
    let built = twins.filter(|name| !missing.iter().any(|other| other == name));
    let uncalled: Vec<&str> = built.filter(|name| !called.contains(name)).collect();
    if uncalled.is_empty() { Ok(()) } else { bail!("not called: {}", uncalled.join(", ")) }
}

/// The programs with these names.
fn units(project: &Project, library: &Library, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Unit>> {
    let bin = project.folder(&format!("tests-c/{}", library.name()))?;
    let sources = project::files_with(&project.file("tests/c"), "c")?;
    let mut all = project::files_with(&project.file("tests/c"), "h")?;
    all.extend(sources.iter().cloned());
    let sources = sources.iter().filter(|source| wanted(&project::stem(source)));
    Ok(sources.map(|source| unit(&all, &bin, source)).collect())
}

fn unit(all: &[PathBuf], bin: &Path, source: &Path) -> Unit {
    let flags =
        ["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"];
    let mut unit = Unit::program(bin.join(project::stem(source)), source.to_owned());
    // A program may include another's source, too.
    unit.headers = all.to_vec();
    unit.flags(flags).libs(["-lm", "-lpthread"])
}

fn one(library: &Library, program: &Path, ranks: usize, fabric: Fabric, plan: &Plan) -> Result<()> {
    let mut job = library.mpirun(ranks, program, fabric)?.limit(plan.limit);
    if plan.keep_going {
        job = job.first_arg("--keep-going");
    }
    let done = plan.env.iter().fold(job, |job, (name, value)| job.env(name, value)).run()?;
    let said = done.output.lines().filter(|line| *line == "ok").count();
    if done.end != End::Exit(plan.status) || said != 1 {
        bail!("{}, {said} times \"ok\"\n{}", done.end, tail(&done.output, 25));
    }
    if let Some(word) = plan.says.as_ref().filter(|word| !done.output.contains(*word)) {
        bail!("the output has no {word}\n{}", tail(&done.output, 25));
    }
    Ok(())
}

/// Reads `RUN: ranks=1,2 fabrics=shm,tcp limit=60 status=9 says=WORD only=banyan keep_going=yes env=NAME=VALUE`;
/// `env` may come several times. There may be several such lines.
fn plans_of(source: &str) -> Result<Vec<Plan>> {
    let plans: Vec<Plan> =
        source.lines().filter_map(|line| line.split("RUN:").nth(1)).map(plan_of).collect::<Result<_>>()?;
    if plans.is_empty() { bail!("no comment RUN:") } else { Ok(plans) }
}

fn plan_of(line: &str) -> Result<Plan> {
    let fabrics = vec![Fabric::SHM];
    let (status, says, env) = (0, None, Vec::new());
    let ranks = Vec::new();
    let mut plan = Plan { ranks, fabrics, limit: 60, status, says, ours: false, keep_going: false, env };
    for (key, value) in line.trim_end_matches("*/").split_whitespace().filter_map(|word| word.split_once('='))
    {
        match key {
            "ranks" => plan.ranks = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "fabrics" => plan.fabrics = value.split(',').map(str::parse).collect::<Result<_>>()?,
            "limit" => plan.limit = value.parse()?,
            "status" => plan.status = value.parse()?,
            "says" => plan.says = Some(value.to_owned()),
            "only" => plan.ours = value == "banyan",
            "keep_going" => plan.keep_going = value == "yes",
            "env" => {
                let (name, value) = value.split_once('=').context("RUN: env is not NAME=VALUE")?;
                plan.env.push((name.to_owned(), value.to_owned()));
            }
            _ => bail!("RUN: what is {key}?"),
        }
    }
    if plan.ranks.is_empty() {
        bail!("RUN: names no ranks");
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_from_the_comment() {
        let plans = plans_of(
            "/* RUN: ranks=2\n * x\n * RUN: ranks=1,16 fabrics=shm,tcp limit=9 status=3 says=why only=banyan keep_going=yes env=A=b=c */",
        )
        .unwrap();
        let fabrics = vec![Fabric::SHM, Fabric::TCP];
        let (says, env) = (Some("why".to_owned()), vec![("A".to_owned(), "b=c".to_owned())]);
        let wanted = Plan {
            ranks: vec![1, 16],
            fabrics,
            limit: 9,
            status: 3,
            says,
            ours: true,
            keep_going: true,
            env,
        };
        assert_eq!((plans.len(), &plans[0].ranks[..], &plans[1]), (2, &[2][..], &wanted));
        assert!(plans_of("/* nothing */").is_err());
        assert!(plans_of("/* RUN: ranks=2 colour=red */").is_err());
        assert!(plans_of("/* RUN: ranks=2 fabrics=string */").is_err());
    }
}
