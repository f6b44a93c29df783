//! The guide's example of data-parallel training, by PyTorch and mpi4py of PyPI: on several ranks the losses are those of the program for one process,
//! which is the example without its lines on MPI.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::library::{Fabric, Library};
use crate::process::{Job, tail};
use crate::project::{self, Project};
use crate::rivals;
use crate::steps::Tally;

/// Debian packages for virtual environments, and for what is built in them.
pub(super) const PACKAGES: &[&str] = &["python3-venv", "python3-dev"];

const EXAMPLE: &str = "docs/src/examples/data_parallel.py";
/// What ends the lines that the program for one process does not have.
const MARK: &str = "# MPI";
/// By how much of itself a loss may differ: ranks add the same numbers in another order.
const TOLERANCE: f64 = 1e-4;
/// At least so many times as large as the last loss the first one must be.
const FALL: f64 = 10.0;

/// Runs the program without MPI, and the example on 1, 2 and 4 ranks, and compares.
pub(super) fn run(project: &Project, library: &Library, fabric: Fabric) -> Result<Tally> {
    let environment = match rivals::pytorch(project) {
        Ok(environment) => environment,
        Err(why) => return Ok(Tally::skip(format!("PyTorch is not to be had: {why:#}"))),
    };
    rivals::mpi4py(&environment, library.cc())?;
    let python = environment.join("bin/python");
    let example = project.file(EXAMPLE);
    let alone = project.folder("conformance/data-parallel")?.join("alone.py");
    project::write(&alone, without_mpi(&project::read(&example)?))?;
    let expected = losses(&Job::new(&python), &alone)?;
    let mut tally = Tally::default();
    tally.check("the loss falls in one process", falls(&expected));
    tally.notes.push(format!("losses of one process: {expected:?}"));
    for ranks in [1, 2, 4] {
        let checked = losses(&library.mpirun(ranks, &python, fabric)?, &example)
            .and_then(|found| agree(&expected, &found))
            .map(|apart| {
                tally.notes.push(format!("-n {ranks}: losses differ by up to {apart:.1e} of themselves"))
            });
        tally.check(&format!("the losses of one process -n {ranks}"), checked);
    }
    Ok(tally)
}

/// The program for one process.
fn without_mpi(example: &str) -> String {
    example.lines().filter(|line| !line.ends_with(MARK)).map(|line| format!("{line}\n")).collect()
}

/// What a run of the program says of each epoch. Each rank computes in one thread.
fn losses(python: &Job, program: &Path) -> Result<Vec<f64>> {
    let output = python.clone().arg(program).env("OMP_NUM_THREADS", "1").limit(300).run_ok()?.output;
    let loss = |line: &str| line.split_once("loss ")?.1.trim().parse().ok();
    let losses: Option<Vec<f64>> =
        output.lines().filter(|line| line.starts_with("epoch")).map(loss).collect();
    losses.filter(|losses| losses.len() > 1).with_context(|| format!("no losses:\n{}", tail(&output, 20)))
}

fn falls(losses: &[f64]) -> Result<()> {
    match losses {
        [first, .., last] if *first >= FALL * last => Ok(()),
        _ => bail!("the last loss is not {FALL} times smaller than the first: {losses:?}"),
    }
}

/// By how much of themselves losses differ at most, if that is little enough.
fn agree(expected: &[f64], found: &[f64]) -> Result<f64> {
    let apart = expected.iter().zip(found).map(|(a, b)| ((a - b) / a).abs()).fold(0.0, f64::max);
    let comparable = expected.len() == found.len() && found.iter().all(|loss| loss.is_finite());
    if !comparable || apart > TOLERANCE {
        bail!("{found:?}, by one process {expected:?}");
    }
    Ok(apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_differ_are_told() {
        assert!(agree(&[1.0, 0.1], &[1.0, 0.100001]).unwrap() > 9e-6);
        for wrong in [&[1.0, 0.2][..], &[1.0], &[1.0, f64::NAN]] {
            assert!(agree(&[1.0, 0.1], wrong).is_err(), "{wrong:?}");
        }
        assert!(falls(&[1.0, 2.0, 0.05]).is_ok() && falls(&[1.0, 0.5]).is_err() && falls(&[1.0]).is_err());
    }

    #[test]
    fn the_guide_says_how_many_lines_are_on_mpi() {
        let project = Project::find().unwrap();
        let (example, page) = (project.read(EXAMPLE).unwrap(), project.read("docs/src/training.md").unwrap());
        let (all, alone) = (example.lines().count(), without_mpi(&example));
        assert!(!alone.contains("MPI.") && !alone.contains("comm."), "{alone}");
        let said = format!("{} of {all} lines", all - alone.lines().count());
        assert!(page.contains(&said), "the page should say: {said}");
    }
}
