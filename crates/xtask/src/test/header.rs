//! mpi.h under many compilers' eyes, and header and library beside those of MPICH's standard ABI.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::install;
use crate::process::Job;
use crate::project::{self, Project};
use crate::rivals;
use crate::steps::Tally;

/// Compilers and the languages they take mpi.h as.
const DIALECTS: &[(&str, &[&str])] = &[
    ("gcc", &["-ansi", "-std=c99", "-std=c11", "-std=c17", "-std=c2x"]),
    ("g++", &["-ansi", "-std=c++11", "-std=c++14", "-std=c++17", "-std=c++20"]),
];

/// What is compared besides constants: expressions in terms of types.
const LAYOUT: &[&str] = &[
    "sizeof(MPI_Status)",
    "offsetof(MPI_Status, MPI_SOURCE)",
    "offsetof(MPI_Status, MPI_TAG)",
    "offsetof(MPI_Status, MPI_ERROR)",
    "sizeof(MPI_Aint)",
    "sizeof(MPI_Offset)",
    "sizeof(MPI_Count)",
    "sizeof(MPI_Comm)",
    "sizeof(MPI_Request)",
    "sizeof(MPI_Datatype)",
];

/// All checks.
pub(super) fn run(project: &Project) -> Result<Tally> {
    let prefix = install::once(project)?;
    let work = project.folder("header")?;
    let mut tally = Tally::default();
    for (compiler, dialects) in DIALECTS {
        for dialect in *dialects {
            tally.check(&format!("{compiler} {dialect}"), compiles(compiler, dialect, &prefix, &work));
        }
    }
    let mpich = rivals::mpich(project)?;
    tally.check("constants beside MPICH's", constants(&prefix, &mpich, &work));
    tally.check("names in the library beside MPICH's", names(project, &prefix, &mpich));
    Ok(tally)
}

fn compiles(compiler: &str, dialect: &str, prefix: &Path, work: &Path) -> Result<()> {
    let source = work.join(if compiler == "g++" { "empty.cc" } else { "empty.c" });
    project::write(
        &source,
        "#include <mpi.h>\nint main(void) { MPI_Comm c = MPI_COMM_WORLD; return c == MPI_COMM_NULL; }\n",
    )?;
    let job = Job::new(compiler).args([dialect, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
    job.arg("-I").arg(prefix.join("include")).arg(&source).run_ok()?;
    Ok(())
}

/// Compiles a program that prints every constant, once with each header, and compares.
fn constants(prefix: &Path, mpich: &Path, work: &Path) -> Result<()> {
    let theirs = mpich.join("include/mpi_abi.h");
    let names = constant_names(&project::read(&theirs)?);
    if names.len() < 300 {
        bail!("only {} constants found in {}", names.len(), theirs.display());
    }
    let ours = printed("ours", "mpi.h", &prefix.join("include"), &names, work)?;
    let theirs = printed("theirs", "mpi_abi.h", &mpich.join("include"), &names, work)?;
    let differ: Vec<String> = theirs
        .iter()
        .filter(|(name, value)| ours.get(*name) != Some(value))
        .map(|(name, value)| format!("{name}: {:?}, MPICH has {value}", ours.get(name)))
        .collect();
    if differ.is_empty() { Ok(()) } else { bail!("{}", differ.join("\n")) }
}

/// Names in capitals that the header defines as macros without arguments or as enumerators.
fn constant_names(header: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in header.lines().map(str::trim) {
        let (word, rest) = match line.strip_prefix("#define ") {
            Some(define) => define.trim().split_once(char::is_whitespace).unwrap_or((define, "")),
            None => line.split_once('=').map_or((line, ""), |(name, value)| (name.trim(), value)),
        };
        let constant = word.starts_with("MPI_")
            && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
            && !rest.trim().is_empty();
        if constant {
            names.insert(word.to_owned());
        }
    }
    // Functions that a program may also find as macros.
    names.retain(|name| !name.ends_with("_FN"));
    names
}

fn printed(
    label: &str,
    header: &str,
    include: &Path,
    names: &BTreeSet<String>,
    work: &Path,
) -> Result<BTreeMap<String, String>> {
    let mut source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{}\"\nint main(void) {{\n",
        include.join(header).display()
    );
    for name in names {
        let _ = writeln!(source, "printf(\"{name}=%ld\\n\", (long)({name}));");
    }
    for expression in LAYOUT {
        let _ = writeln!(source, "printf(\"{expression}=%ld\\n\", (long)({expression}));");
    }
    source.push_str("return 0; }\n");
    let path = work.join(format!("{label}.c"));
    project::write(&path, source)?;
    let program = work.join(label);
    Job::new("gcc").args(["-w", "-o"]).arg(&program).arg(&path).run_ok()?;
    let done = Job::new(&program).run_ok()?;
    Ok(done
        .output
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect())
}

/// Every function of the ABI with its PMPI_ twin is exported, and so is all that MPICH exports.
fn names(project: &Project, prefix: &Path, mpich: &Path) -> Result<()> {
    let ours = exported(&prefix.join("lib/libmpi_abi.so.1"))?;
    let mut theirs = exported(&mpich.join("lib/libmpi_abi.so.1"))?;
    // What MPI 3.0 removed stands in their library still, but in no header.
    let header = project::read(&mpich.join("include/mpi_abi.h"))?;
    theirs.retain(|name| header.contains(&format!(" {name}(")));
    let table = project.read("abi/tables/functions.tsv")?;
    let functions: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    if functions.len() != 664 {
        bail!("the table has {} functions, not 664", functions.len());
    }
    let wanted: BTreeSet<String> =
        functions.iter().flat_map(|name| [(*name).to_owned(), format!("P{name}")]).collect();
    let missing: Vec<&String> = wanted.difference(&ours).collect();
    if !missing.is_empty() {
        bail!("{} names are missing: {missing:?}", missing.len());
    }
    if theirs.len() < 1300 {
        bail!("only {} names of MPICH's found", theirs.len());
    }
    let only_theirs: Vec<&String> = theirs.difference(&ours).collect();
    if !only_theirs.is_empty() {
        bail!("MPICH exports and we do not: {only_theirs:?}");
    }
    Ok(())
}

fn exported(library: &Path) -> Result<BTreeSet<String>> {
    let done = Job::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .run_ok()
        .context("nm (binutils) is needed")?;
    let names = done.output.lines().filter_map(|line| line.split_whitespace().last());
    let names = names.map(|name| name.split('@').next().unwrap_or(name));
    Ok(names
        .filter(|name| name.starts_with("MPI_") || name.starts_with("PMPI_"))
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_found_in_macros_and_enums() {
        let header = "#define MPI_A 3\n#define MPI_F(x) x\n#define MPI_H\nenum {\n  MPI_B = 7,\n};\n#define MPI_Fint int\n";
        let names = constant_names(header);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["MPI_A", "MPI_B"]);
    }
}
