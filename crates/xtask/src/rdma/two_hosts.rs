//! Jobs on two hosts with an RDMA device each, which share no memory: programs of ours, HPCC and NetPIPE, and how jobs end. The devices'
//! counts say that bytes went by them.

use std::path::Path;

use anyhow::{Result, bail};
use banyan_topo::RdmaPort;

use crate::debian;
use crate::hosts::{self, Lab, Link, faults};
use crate::hpcc::{self, Problem, Report};
use crate::library::Library;
use crate::process::{End, Job, tail};
use crate::project::Project;
use crate::steps::Tally;
use crate::test::programs;

const HOSTS: usize = 2;
/// Ranks on each host.
const EACH: usize = 4;
/// What each rank of `launched` sends to each other one, at least.
const SENT: u64 = 400_000;
/// The programs of tests/c.
pub(super) const PROGRAMS: &[&str] = &["launched", "collectives"];

/// Builds what runs here; nothing has to be built after this.
pub(super) fn build(project: &Project, library: &Library, short: bool) -> Result<()> {
    // For what it installs: a guest reaches nobody.
    let _ = hosts::why_not_joined(project, Link::Devices)?;
    faults::rounds(project, library)?;
    if !short && debian::packages(project, hpcc::PACKAGES)?.is_none() {
        hpcc::program(project, library)?;
        programs::netpipe_program(project, library)?;
    }
    Ok(())
}

/// Runs it all, and tells what became of each part.
pub(super) fn run(
    project: &Project,
    library: &Library,
    short: bool,
    told: &mut dyn FnMut(&str, Result<()>),
) -> Result<()> {
    let devices = RdmaPort::devices().len();
    let few = (devices < HOSTS).then(|| format!("there are {devices} RDMA devices here"));
    if let Some(reason) =
        few.map_or_else(|| hosts::why_not_joined(project, Link::Devices), |few| Ok(Some(few)))?
    {
        println!("left out: jobs on {HOSTS} hosts: {reason}");
        return Ok(());
    }
    let lab = Lab::up(project, "rdma", HOSTS, Link::Devices)?;
    let pair = Pair { project, library, lab };
    let of_c = |name: &str| project.target().join("tests-c").join(library.name()).join(name);
    if short {
        told("launched on 4 ranks of 2 hosts", pair.launched(&of_c("launched"), 2));
        return Ok(());
    }
    told("launched on 8 ranks of 2 hosts", pair.launched(&of_c("launched"), EACH));
    told("collectives on 8 ranks of 2 hosts", pair.ok(EACH, &of_c("collectives")));
    if debian::packages(project, hpcc::PACKAGES)?.is_none() {
        told("HPCC on 8 ranks of 2 hosts", pair.hpcc());
        told("NetPIPE between 2 hosts", pair.netpipe());
    }
    drop(pair);
    for fault in faults::DEVICES.faults {
        let mut tally = Tally::default();
        faults::check(project, &faults::DEVICES, fault, &mut tally)?;
        let went = if tally.failed == 0 { Ok(()) } else { Err(anyhow::anyhow!(tally.notes.join("\n"))) };
        told(&format!("{} on 2 hosts", fault.name), went);
    }
    Ok(())
}

/// The hosts, and what runs on them.
struct Pair<'a> {
    project: &'a Project,
    library: &'a Library,
    lab: Lab,
}

impl Pair<'_> {
    fn job(&self, each: usize, program: &Path, work: &Path) -> Result<Job> {
        let job = self.library.mpirun_with(faults::SLOW, &self.lab, each, program, work)?;
        Ok(faults::BY_DEVICES.iter().fold(job, |job, (name, value)| job.env(name, value)).limit(400))
    }

    /// All bytes between hosts go by devices, and the ranks of one host share memory.
    fn launched(&self, program: &Path, each: usize) -> Result<()> {
        let job = self.job(each, program, self.project.root())?.env("BANYAN_P2P", "show");
        let done = job.run()?;
        let place = format!("{} ranks, {each} share memory", each * HOSTS);
        let bytes = bytes_by_rdma(&done.output);
        let least = (each * (HOSTS - 1)) as u64 * SENT;
        let enough =
            bytes.len() == each * HOSTS && bytes.iter().sum::<u64>() >= least * (each * HOSTS) as u64;
        let said = |line: &str| done.output.lines().any(|said| said == line);
        if done.end != End::Exit(0) || !said("ok") || !said(&place) || !enough {
            bail!("{}, by rdma {bytes:?} bytes\n{}", done.end, tail(&done.output, 30));
        }
        Ok(())
    }

    /// A program says that all is right.
    fn ok(&self, each: usize, program: &Path) -> Result<()> {
        let done = self.job(each, program, self.project.root())?.run_ok()?;
        if done.output.lines().any(|line| line == "ok") {
            Ok(())
        } else {
            bail!("{}", tail(&done.output, 20))
        }
    }

    fn hpcc(&self) -> Result<()> {
        let program = hpcc::program(self.project, self.library)?;
        let work = self.project.folder("rdma/hpcc")?;
        hpcc::prepare(&program, &Problem { order: 200, grid: (HOSTS, EACH) }, &work)?;
        let [name, without] = ["env", hpcc::WITHOUT_LATENCY];
        let job = self.job(EACH, Path::new(name), &work)?.args(["OPENBLAS_NUM_THREADS=1", without]);
        job.arg(&program).run_ok()?;
        let report = Report::read(&work)?;
        report.success()?;
        report.residuals()
    }

    fn netpipe(&self) -> Result<()> {
        let program = programs::netpipe_program(self.project, self.library)?;
        let work = self.project.folder("rdma/netpipe")?;
        programs::netpipe_checked(self.job(1, &program, &work)?)
    }
}

/// How many bytes each rank sent, read or wrote by devices, as `BANYAN_P2P=show` says it.
pub(super) fn bytes_by_rdma(output: &str) -> Vec<u64> {
    let accounts = output.lines().filter(|line| line.contains(": rdma: "));
    let bytes = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let before = words.windows(2).filter(|pair| pair[1] == "bytes");
        before.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
    };
    accounts.map(bytes).collect()
}
