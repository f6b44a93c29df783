//! HPCC and NetPIPE: fetched as Debian sources, built with a library's mpicc, run, and their own checks read.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::debian;
use crate::hpcc::{self, Problem, Report};
use crate::library::{Fabric, Library};
use crate::process::{Job, tail};
use crate::project::Project;
use crate::steps::Tally;

/// HPCC 1.5.0 on 4 ranks: it must call itself a success and pass all HPL residuals.
pub(crate) fn hpcc(project: &Project, library: &Library, fabric: Fabric) -> Result<Tally> {
    let program = hpcc::program(project, library)?;
    let work = project.folder(&format!("programs/hpcc-run-{}-{}", library.name(), fabric.name()))?;
    let problem = Problem { order: 1000, grid: (2, 2) };
    hpcc::job(library, &program, fabric, &problem, &work)?.limit(300).run_ok()?;
    let report = Report::read(&work)?;
    let mut tally = Tally::default();
    tally.check("Success=1", report.success());
    tally.check("HPL residuals PASSED", report.residuals());
    for name in [
        "MPIRandomAccess_GUPs",
        "MPIFFT_Gflops",
        "PTRANS_GBs",
        "MinPingPongLatency_usec",
        "MaxPingPongBandwidth_GBytes",
    ] {
        tally.notes.extend(report.figure(name).map(|figure| format!("{name}={figure}")));
    }
    Ok(tally)
}

/// Builds NetPIPE with a library, unless that is done; gives the program.
pub(crate) fn netpipe_program(project: &Project, library: &Library) -> Result<PathBuf> {
    // A copy for each library, since it builds in place.
    let source = debian::unpacked(project, "netpipe", &format!("programs/netpipe-{}", library.name()))?;
    let program = source.join("NPmpi");
    if !library.is_current(&program) {
        let _ = std::fs::remove_file(&program);
        let variables =
            [format!("CC={}", library.cc().display()), format!("MPICC={}", library.cc().display())];
        Job::new("make").arg("mpi").args(variables).arg("CFLAGS=-O2 -w -fcommon").folder(&source).run_ok()?;
    }
    Ok(program)
}

/// NetPIPE with its check of integrity.
pub(crate) fn netpipe(project: &Project, library: &Library, fabric: Fabric) -> Result<Tally> {
    let program = netpipe_program(project, library)?;
    let work = project.folder(&format!("programs/netpipe-run-{}-{}", library.name(), fabric.name()))?;
    netpipe_checked(library.mpirun(2, &program, fabric)?.folder(&work).limit(300))?;
    Ok(Tally::pass())
}

/// A start of NetPIPE on two ranks finds all data right, up to 1 MiB.
pub(crate) fn netpipe_checked(job: Job) -> Result<()> {
    let done = job.args(["-i", "-u", "1048576"]).run_ok()?;
    let sizes = done.output.lines().filter(|line| line.contains("bytes") && line.contains("times")).count();
    if let Some(line) =
        done.output.lines().find(|line| line.contains("ntegrity check failed") || line.contains("rror"))
    {
        bail!("{line}");
    }
    if sizes < 20 {
        bail!("only {sizes} sizes\n{}", tail(&done.output, 20));
    }
    Ok(())
}
