//! What build systems ask: the wrappers' options, pkg-config, CMake's find_package(MPI) for C and C++.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::install;
use crate::process::{End, Job, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// All checks.
pub(super) fn run(project: &Project) -> Result<Tally> {
    let prefix = install::once(project)?;
    let work = project.folder("toolchain")?;
    project::write(&work.join("hello.c"), HELLO_C)?;
    project::write(&work.join("hello.cc"), HELLO_CXX)?;
    let mut tally = Tally::default();
    for wrapper in ["mpicc", "mpicc_abi", "mpicxx", "mpic++", "mpicxx_abi"] {
        tally.check(wrapper, compiles_and_runs(&prefix, wrapper, &work));
        tally.check(&format!("{wrapper}'s questions"), answers(&prefix, wrapper));
    }
    tally.check("another compiler", other_compiler(&prefix));
    tally.check("a program without a path to the library", without_a_path(&prefix, &work));
    for module in ["mpi_abi", "mpi", "mpi-c", "ompi-c"] {
        tally.check(
            &format!("pkg-config {module}"),
            pkg_config(&prefix, module, "gcc", &work.join("hello.c")),
        );
    }
    for module in ["mpi-cxx", "ompi-cxx"] {
        tally.check(
            &format!("pkg-config {module}"),
            pkg_config(&prefix, module, "g++", &work.join("hello.cc")),
        );
    }
    tally.check("the man page", man_page(&prefix));
    tally.check("cmake", cmake(&prefix, project));
    Ok(tally)
}

const HELLO_C: &str = "#include <mpi.h>\n#include <stdio.h>\n\nint main(void)\n{\n    int rank, sum;\n    MPI_Init(NULL, NULL);\n    \
MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);\n    \
printf(\"sum %d\\n\", sum);\n    MPI_Finalize();\n    return 0;\n}\n";

const HELLO_CXX: &str = "#include <mpi.h>\n#include <iostream>\n\nint main()\n{\n    int rank, sum;\n    MPI_Init(nullptr, nullptr);\n    \
MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);\n    \
std::cout << \"sum \" << sum << std::endl;\n    MPI_Finalize();\n}\n";

fn runs(prefix: &Path, program: &Path) -> Result<()> {
    let job = Job::new(prefix.join("bin/mpirun")).args(["-n", "3"]).arg(program).limit(30);
    let done = job.without_env("LD_LIBRARY_PATH").run()?;
    if done.end != End::Exit(0) || done.output.matches("sum 3").count() != 3 {
        bail!("{}\n{}", done.end, tail(&done.output, 20));
    }
    Ok(())
}

fn compiles_and_runs(prefix: &Path, wrapper: &str, work: &Path) -> Result<()> {
    let source = work.join(if wrapper.starts_with("mpicc") { "hello.c" } else { "hello.cc" });
    let program = work.join(wrapper);
    Job::new(prefix.join("bin").join(wrapper)).arg("-O1").arg(&source).arg("-o").arg(&program).run_ok()?;
    runs(prefix, &program)
}

/// What MPICH's and Open MPI's wrappers answer, ours answer too.
fn answers(prefix: &Path, wrapper: &str) -> Result<()> {
    let ask = |question: &str| -> Result<String> {
        Ok(Job::new(prefix.join("bin").join(wrapper)).arg(question).run_ok()?.output)
    };
    let include = prefix.join("include").to_string_lossy().into_owned();
    let lib = prefix.join("lib").to_string_lossy().into_owned();
    let expect: &[(&str, &[&str])] = &[
        ("-show", &[&include, &lib, "-lmpi_abi"]),
        ("-compile_info", &[&include]),
        ("-link_info", &[&lib, "-lmpi_abi"]),
        ("-showme:compile", &[&include]),
        ("-showme:link", &[&lib, "-lmpi_abi"]),
        ("-showme:incdirs", &[&include]),
        ("-showme:libdirs", &[&lib]),
        ("-showme:libs", &["mpi_abi"]),
    ];
    for (question, parts) in expect {
        let answer = ask(question)?;
        if let Some(part) = parts.iter().find(|part| !answer.contains(**part)) {
            bail!("{wrapper} {question} says {answer:?}, which lacks {part}");
        }
    }
    Ok(())
}

fn other_compiler(prefix: &Path) -> Result<()> {
    let mpicc = prefix.join("bin/mpicc");
    let by_option = Job::new(&mpicc).args(["-cc=another", "-show"]).run_ok()?.output;
    let by_variable = Job::new(&mpicc).arg("-show").env("MPICH_CC", "another").run_ok()?.output;
    if !by_option.starts_with("another ") || !by_variable.starts_with("another ") {
        bail!("-cc=another: {by_option}MPICH_CC=another: {by_variable}");
    }
    Ok(())
}

/// A program that was linked without the wrapper, and names no folder of the library, finds it under mpirun.
fn without_a_path(prefix: &Path, work: &Path) -> Result<()> {
    let program = work.join("no-path");
    let gcc = Job::new("gcc").arg(work.join("hello.c")).arg("-o").arg(&program);
    let gcc = gcc.arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib"));
    gcc.arg("-lmpi_abi").run_ok()?;
    runs(prefix, &program)
}

/// `man mpirun` finds the page, and every option that `mpirun --help` has is in it.
fn man_page(prefix: &Path) -> Result<()> {
    let page = project::read(&prefix.join("share/man/man1/mpirun.1"))?.replace("\\-", "-");
    let help = Job::new(prefix.join("bin/mpirun")).arg("--help").run_ok()?.output;
    let words = help.split_whitespace().filter_map(|word| word.strip_prefix("--"));
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let options = words.filter_map(|word| word.split(|c| !is_of_name(c)).next());
    let missing: Vec<&str> = options.filter(|option| !page.contains(&format!("--{option}"))).collect();
    if !missing.is_empty() {
        bail!("not in the man page: --{}", missing.join(", --"));
    }
    if !Path::new("/usr/bin/man").exists() {
        return Ok(());
    }
    for name in ["mpirun", "mpiexec"] {
        let man = Job::new("man").args(["--warnings", "-P", "cat"]).arg(name);
        let shown = man.env("MANPATH", prefix.join("share/man")).env("LC_ALL", "C").run_ok()?.output;
        if !shown.contains("SYNOPSIS") || shown.contains("warning:") {
            bail!("man {name} shows:\n{}", tail(&shown, 20));
        }
    }
    Ok(())
}

fn pkg_config(prefix: &Path, module: &str, compiler: &str, source: &Path) -> Result<()> {
    let job = Job::new("pkg-config").args(["--cflags", "--libs", module]);
    let flags =
        job.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).run_ok().context("pkg-config")?.output;
    let program = source.with_file_name(format!("pkg-{module}"));
    Job::new(compiler).arg(source).arg("-o").arg(&program).args(flags.split_whitespace()).run_ok()?;
    runs(prefix, &program)
}

fn cmake(prefix: &Path, project: &Project) -> Result<()> {
    let work = project.folder("toolchain/cmake")?;
    project::write(&work.join("hello.c"), HELLO_C)?;
    project::write(&work.join("hello.cc"), HELLO_CXX)?;
    project::write(
        &work.join("CMakeLists.txt"),
        "cmake_minimum_required(VERSION 3.20)\nproject(hello C CXX)\nfind_package(MPI REQUIRED COMPONENTS C CXX)\n\
         add_executable(hello_c hello.c)\ntarget_link_libraries(hello_c MPI::MPI_C)\n\
         add_executable(hello_cxx hello.cc)\ntarget_link_libraries(hello_cxx MPI::MPI_CXX)\n",
    )?;
    let build = work.join("build");
    let _ = std::fs::remove_dir_all(&build);
    let path = format!("{}:{}", prefix.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let configure = Job::new("cmake").arg("-S").arg(&work).arg("-B").arg(&build).env("PATH", path);
    let found = configure.run_ok().context("cmake")?.output;
    if !found.contains("Found MPI_C") || !found.contains("Found MPI_CXX") {
        bail!("cmake says:\n{found}");
    }
    Job::new("cmake").arg("--build").arg(&build).run_ok()?;
    runs(prefix, &build.join("hello_c"))?;
    runs(prefix, &build.join("hello_cxx"))
}
