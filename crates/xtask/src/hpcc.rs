//! HPCC, the HPC Challenge benchmark: fetched as Debian sources, built with a library's mpicc, run, its report read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::debian;
use crate::library::{Fabric, Kind, Library};
use crate::process::{Job, tail};
use crate::project::{self, Project};

/// Debian packages that building it needs, beyond a C compiler.
pub(crate) const PACKAGES: &[&str] = &["make", "dpkg-dev", "libopenblas-dev"];

/// The matrix of HPL, from whose size all other sizes follow, and the grid of ranks that it lies on.
pub(crate) struct Problem {
    pub(crate) order: usize,
    pub(crate) grid: (usize, usize),
}

/// Set to anything, this variable leaves out the part on latency and bandwidth, which takes the most time and checks nothing.
pub(crate) const WITHOUT_LATENCY: &str = "HPCC_WITHOUT_LATENCY=1";
/// What makes that so: a line of HPCC's, and what takes its place.
const LATENCY: [&str; 2] = [
    "if (params.RunLatencyBandwidth) main",
    "if (params.RunLatencyBandwidth && !getenv(\"HPCC_WITHOUT_LATENCY\")) main",
];

/// Builds it with a library, unless that is done; gives the program.
pub(crate) fn program(project: &Project, library: &Library) -> Result<PathBuf> {
    // A copy for each library, since it builds in place.
    let source = debian::unpacked(project, "hpcc", &format!("programs/hpcc-{}", library.name()))?;
    let program = source.join("hpcc");
    let makefile = source.join("hpl/Make.banyan");
    let text = settings(library);
    let same = project::read(&makefile).is_ok_and(|have| have == text);
    if same && library.is_current(&program) {
        return Ok(program);
    }
    project::write(&makefile, text)?;
    let parts = source.join("src/hpcc.c");
    project::write(&parts, project::read(&parts)?.replace(LATENCY[0], LATENCY[1]))?;
    let _ = std::fs::remove_file(&program);
    let make = |goal: &str| Job::new("make").args(["arch=banyan", goal]).folder(&source).limit(600);
    make("clean").run()?;
    // Its makefiles do not know all that their parts need of each other, so one at a time.
    make("all").run_ok()?;
    Ok(program)
}

/// A start of it in a folder of its own, where the problem is written and the report will be.
pub(crate) fn job(
    library: &Library,
    program: &Path,
    fabric: Fabric,
    problem: &Problem,
    work: &Path,
) -> Result<Job> {
    prepare(program, problem, work)?;
    let (rows, columns) = problem.grid;
    Ok(library.mpirun(rows * columns, program, fabric)?.env("OPENBLAS_NUM_THREADS", "1").folder(work))
}

/// Writes the problem into a folder, in which the report will be.
pub(crate) fn prepare(program: &Path, problem: &Problem, work: &Path) -> Result<()> {
    let _ = std::fs::remove_file(work.join(REPORT));
    let sample = project::read(&program.with_file_name("_hpccinf.txt"))?;
    project::write(&work.join("hpccinf.txt"), input(&sample, problem)?)
}

const REPORT: &str = "hpccoutf.txt";

/// The sample input with another problem.
fn input(sample: &str, problem: &Problem) -> Result<String> {
    let values = [("Ns", problem.order), ("Ps", problem.grid.0), ("Qs", problem.grid.1)];
    let mut lines: Vec<String> = sample.lines().map(str::to_owned).collect();
    for (name, value) in values {
        let is_named = |line: &&mut String| line.split_whitespace().nth(1) == Some(name);
        let line = lines.iter_mut().find(is_named).with_context(|| format!("no {name} in HPCC's sample"))?;
        *line = format!("{value} {name}");
    }
    Ok(lines.join("\n") + "\n")
}

/// What a run wrote.
pub(crate) struct Report(String);

impl Report {
    /// The report in the folder of a job.
    pub(crate) fn read(work: &Path) -> Result<Report> {
        project::read(&work.join(REPORT)).map(Report).context("HPCC wrote no report")
    }

    /// Whether HPCC calls itself a success; that is about all of its parts but HPL.
    pub(crate) fn success(&self) -> Result<()> {
        if self.0.lines().any(|line| line == "Success=1") { Ok(()) } else { bail!("{}", tail(&self.0, 30)) }
    }

    /// Whether there are residuals of HPL and all are small enough.
    pub(crate) fn residuals(&self) -> Result<()> {
        let lines = self.0.lines().filter(|line| line.contains("||Ax-b||") && line.contains("..."));
        let residuals: Vec<&str> = lines.collect();
        if !residuals.is_empty() && residuals.iter().all(|line| line.ends_with("PASSED")) {
            return Ok(());
        }
        bail!("residuals of HPL: {}", residuals.join("\n"))
    }

    /// A figure of the summary, by HPCC's name.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix('=')?.trim().parse().ok();
        self.0.lines().find_map(value)
    }
}

/// What HPL calls an architecture: compilers, libraries, options.
fn settings(library: &Library) -> String {
    // HPL calls two functions by names that MPI-3 removed; our header and that of Intel MPI have them.
    let names = match library.kind {
        Kind::Banyan | Kind::Intel => "",
        Kind::Mpich | Kind::Openmpi => {
            "-DMPI_Address=MPI_Get_address -DMPI_Type_struct=MPI_Type_create_struct"
        }
    };
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
        "HPL_OPTS = -DHPL_CALL_CBLAS $(REMOVED)",
        "HPL_DEFS = $(F2CDEFS) $(HPL_OPTS) $(HPL_INCLUDES)",
        "CCNOOPT = $(HPL_DEFS) -w",
        "CCFLAGS = $(HPL_DEFS) -O2 -w -fcommon",
        "LINKFLAGS = $(CCFLAGS)",
        "ARCHIVER = ar",
        "ARFLAGS = r",
        "RANLIB = ranlib",
    ];
    let mpicc = library.cc().display();
    let note = format!("# With {}", LATENCY[1]);
    format!("{}\nREMOVED = {names}\nCC = {mpicc}\nLINKER = {mpicc}\n{note}\n", settings.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problem_is_written_into_the_sample() {
        let sample =
            "1            # of problems sizes (N)\n1000         Ns\n2            Ps\n2            Qs\n";
        let problem = Problem { order: 4000, grid: (1, 2) };
        let text = input(sample, &problem).unwrap();
        assert_eq!(text, "1            # of problems sizes (N)\n4000 Ns\n1 Ps\n2 Qs\n");
        assert!(input("1000 Ns\n2 Ps\n", &problem).is_err());
    }

    #[test]
    fn reports_are_believed_only_if_they_say_so() {
        let residual = "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=        0.0036 ......";
        let report = |success: &str, verdict: &str| {
            Report(format!("{residual} {verdict}\n{success}\nPTRANS_GBs=3.5\nMPIFFT_Gflops=6e-1\n"))
        };
        let good = report("Success=1", "PASSED");
        assert!(good.success().is_ok() && good.residuals().is_ok());
        assert_eq!(good.figure("PTRANS_GBs"), Some(3.5));
        assert_eq!(good.figure("MPIFFT_Gflops"), Some(0.6));
        assert_eq!(good.figure("FFT_Gflops"), None);
        assert!(report("Success=0", "PASSED").success().is_err());
        assert!(report("Success=1", "FAILED").residuals().is_err());
        assert!(Report(String::new()).residuals().is_err());
    }
}
