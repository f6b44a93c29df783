//! HPCC and NetPIPE: fetched as Debian sources, built with a library's mpicc, run, and their own checks read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::debian;
use crate::library::{Fabric, Library};
use crate::process::{Job, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

/// How many ranks HPCC runs on.
const RANKS: usize = 4;

/// HPCC 1.5.0 on 4 ranks: it must call itself a success and pass all HPL residuals.
pub(crate) fn hpcc(project: &Project, library: &Library, fabric: Fabric) -> Result<Tally> {
    let program = hpcc_program(project, library)?;
    let work = project.folder(&format!("programs/hpcc-run-{}-{}", library.name(), fabric.name()))?;
    let _ = std::fs::remove_file(work.join("hpccoutf.txt"));
    let source = program.parent().context("a folder")?;
    // The sample: a matrix of 1000 on a 2 x 2 grid.
    project::write(&work.join("hpccinf.txt"), project::read(&source.join("_hpccinf.txt"))?)?;
    let job =
        library.mpirun(RANKS, &program, fabric)?.env("OPENBLAS_NUM_THREADS", "1").folder(&work).limit(300);
    job.run_ok()?;
    let report = project::read(&work.join("hpccoutf.txt")).context("HPCC wrote no report")?;
    let mut tally = Tally::default();
    tally.check("Success=1", said(&report, "Success=1"));
    let residuals: Vec<&str> =
        report.lines().filter(|line| line.contains("||Ax-b||") && line.contains("...")).collect();
    let passed = residuals.iter().filter(|line| line.ends_with("PASSED")).count();
    let all = if passed > 0 && passed == residuals.len() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("{}", residuals.join("\n")))
    };
    tally.check("HPL residuals PASSED", all);
    for name in [
        "MPIRandomAccess_GUPs",
        "MPIFFT_Gflops",
        "PTRANS_GBs",
        "MinPingPongLatency_usec",
        "MaxPingPongBandwidth_GBytes",
    ] {
        if let Some(line) = report.lines().find(|line| line.starts_with(&format!("{name}="))) {
            tally.notes.push(line.to_owned());
        }
    }
    Ok(tally)
}

fn said(report: &str, line: &str) -> Result<()> {
    if report.lines().any(|have| have == line) { Ok(()) } else { bail!("{}", tail(report, 30)) }
}

fn hpcc_program(project: &Project, library: &Library) -> Result<PathBuf> {
    let source = copy_of(project, "hpcc", library)?;
    let program = source.join("hpcc");
    let makefile = source.join("hpl/Make.banyan");
    let text = hpcc_makefile(library);
    let same = project::read(&makefile).is_ok_and(|have| have == text);
    if same && is_current(&program, library) {
        return Ok(program);
    }
    project::write(&makefile, text)?;
    let _ = std::fs::remove_file(&program);
    let make = |goal: &str| Job::new("make").args(["arch=banyan", goal]).folder(&source).limit(600);
    make("clean").run()?;
    // Its makefiles do not know all that their parts need of each other, so one at a time.
    make("all").run_ok()?;
    Ok(program)
}

/// What HPL calls an architecture: compilers, libraries, options.
fn hpcc_makefile(library: &Library) -> String {
    let settings = [
        "SHELL = /bin/sh",
        "CD = cd",
        "CP = cp",
        "LN_S = ln -sf",
        "MKDIR = mkdir -p",
        "RM = /bin/rm -f",
        "TOUCH = touch",
        "ARCH = banyan",
        "TOPdir = ../../..",
        "INCdir = $(TOPdir)/include",
        "BINdir = $(TOPdir)/bin/$(ARCH)",
        "LIBdir = $(TOPdir)/lib/$(ARCH)",
        "HPLlib = $(LIBdir)/libhpl.a",
        "LAlib = -lopenblas",
        "F2CDEFS = -DAdd_ -DF77_INTEGER=int -DStringSunStyle",
        "HPL_INCLUDES = -I$(INCdir) -I$(INCdir)/$(ARCH) $(LAinc) $(MPinc)",
        "HPL_LIBS = $(HPLlib) $(LAlib) $(MPlib) -lm",
        "HPL_OPTS = -DHPL_CALL_CBLAS",
        "HPL_DEFS = $(F2CDEFS) $(HPL_OPTS) $(HPL_INCLUDES)",
        "CCNOOPT = $(HPL_DEFS) -w",
        "CCFLAGS = $(HPL_DEFS) -O2 -w -fcommon",
        "LINKFLAGS = $(CCFLAGS)",
        "ARCHIVER = ar",
        "ARFLAGS = r",
        "RANLIB = ranlib",
    ];
    let mpicc = library.cc().display();
    format!("{}\nCC = {mpicc}\nLINKER = {mpicc}\n", settings.join("\n"))
}

/// NetPIPE with its check of integrity, up to 1 MiB.
pub(crate) fn netpipe(project: &Project, library: &Library, fabric: Fabric) -> Result<Tally> {
    let source = copy_of(project, "netpipe", library)?;
    let program = source.join("NPmpi");
    if !is_current(&program, library) {
        let _ = std::fs::remove_file(&program);
        let variables =
            [format!("CC={}", library.cc().display()), format!("MPICC={}", library.cc().display())];
        Job::new("make").arg("mpi").args(variables).arg("CFLAGS=-O2 -w -fcommon").folder(&source).run_ok()?;
    }
    let work = project.folder(&format!("programs/netpipe-run-{}-{}", library.name(), fabric.name()))?;
    let job = library.mpirun(2, &program, fabric)?.args(["-i", "-u", "1048576"]).folder(&work).limit(300);
    let done = job.run_ok()?;
    let sizes = done.output.lines().filter(|line| line.contains("bytes") && line.contains("times")).count();
    if let Some(line) =
        done.output.lines().find(|line| line.contains("ntegrity check failed") || line.contains("rror"))
    {
        bail!("{line}");
    }
    if sizes < 20 {
        bail!("only {sizes} sizes\n{}", tail(&done.output, 20));
    }
    Ok(Tally::pass())
}

/// The program is there and newer than the header it was built with.
fn is_current(program: &Path, library: &Library) -> bool {
    let time = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    match (time(program), time(&library.prefix().join("include/mpi.h"))) {
        (Some(made), Some(header)) => made >= header,
        _ => false,
    }
}

/// A copy of a source package for each library, since they build in place.
fn copy_of(project: &Project, name: &str, library: &Library) -> Result<PathBuf> {
    debian::unpacked(project, name, &format!("programs/{name}-{}", library.name()))
}
