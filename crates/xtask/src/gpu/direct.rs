//! Memory of GPUs that RDMA devices go to by themselves (GPUDirect RDMA): programs whose buffers are on the stand-in for a driver, over the RDMA devices of
//! this kernel. Those in software register no dma-buf, so a library stands in for that one call (`tests/gpu/dmabuf.c`); without it all is staged.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use banyan_topo::RdmaPort;

use super::{Platform, build_doubles, built, passed, program, suite};
use crate::cc;
use crate::library::{Fabric, Library};
use crate::process::{Job, tail};
use crate::project::{self, Project};

/// Programs of tests/c whose buffers are put onto devices.
const ALL: [&str; 3] = ["modes", "types", "collectives"];
/// What one of them may take in a guest, in seconds.
const LIMIT: u64 = 400;

/// Builds what runs; nothing has to be built after this.
pub(crate) fn build(project: &Project, library: &Library) -> Result<()> {
    build_doubles(project)?;
    let unit = program(project, &project.folder("gpu/bin")?, "tests/gpu/dmabuf.c");
    let unit = cc::Unit { output: stand_in(project)?, ..unit };
    cc::build(library, &unit.flags(["-shared", "-fPIC"]).libs(["-libverbs"]))?;
    built(project, library, "direct")?;
    suite::build(project, library, &ALL)
}

/// The library that stands in for the registration of dma-bufs.
fn stand_in(project: &Project) -> Result<PathBuf> {
    Ok(project.folder("gpu/bin")?.join("libdmabuf.so"))
}

/// Runs a program on what goes directly and what is staged, with the drivers of both platforms, and others; or, if it is to be `short`, that
/// program with one driver. On iWARP in software all is staged: it registers memory under its own address alone.
pub(crate) fn run(
    project: &Project,
    library: &Library,
    (short, iwarp): (bool, bool),
    told: &mut dyn FnMut(&str, Result<()>),
) -> Result<()> {
    let [near, apart] = ["near.toml", "apart.toml"].map(|name| project.target().join("gpu/bin").join(name));
    project::write(&near, map(false))?;
    project::write(&apart, map(true))?;
    let direct = project.folder("gpu/bin")?.join("direct");
    let [cuda, hip] = super::drivers(project, None)?;
    let with = |job: Job, registers: bool| -> Result<Job> {
        let job = job.env("BANYAN_TOPOLOGY", &near).env("BANYAN_P2P", "show").limit(LIMIT);
        Ok(if registers { job.env("LD_PRELOAD", stand_in(project)?) } else { job })
    };
    for (driver, registers) in [(&cuda, true), (&cuda, false), (&hip, true)] {
        if short && driver.platform() == Platform::Hip || iwarp && registers {
            continue;
        }
        let how = if registers { "direct" } else { "staged" };
        let job = with(driver.job(library, 2, &direct, Fabric::RDMA)?, registers)?.arg(how);
        let said = passed(&job).and_then(|output| {
            let reason = "memory of GPUs is staged: no registration of a dma-buf";
            match output.contains(reason) {
                said if said != registers => Ok(()),
                said => bail!("that devices refuse is said: {said}\n{}", tail(&output, 25)),
            }
        });
        told(&format!("messages of GPUs of {}, {how}", driver.platform().setting()), said);
    }
    told("which GPUs RDMA devices are near to is explained", explained(library, &near));
    if short || iwarp {
        return Ok(());
    }
    for (map, striped) in [(&near, true), (&apart, false)] {
        let job = with(cuda.job(library, 2, &direct, Fabric::RDMA)?, true)?.arg("direct");
        let job = job.env("BANYAN_RDMA", "rails=2").env("BANYAN_TOPOLOGY", map);
        let by_second = passed(&job).and_then(|output| {
            let of_rank = |line: &str| line.contains("rank 1: rdma: ") && !line.contains("; of that 0 by ");
            match output.lines().any(of_rank) {
                by_second if by_second == striped => Ok(()),
                by_second => bail!("bytes went by the second rail: {by_second}\n{}", tail(&output, 25)),
            }
        });
        let which = if striped { "both" } else { "the first alone" };
        told(&format!("messages of GPUs on two rails, near to {which}"), by_second);
    }
    for name in ALL {
        let program = project.folder("gpu/bin")?.join(name);
        let job = with(cuda.job(library, 2, &program, Fabric::RDMA)?, true)?.env("BANYAN_TEST_SEED", "5");
        let checked = passed(&job).and_then(|output| suite::passed_buffers(&output));
        told(&format!("{name} on GPUs that RDMA devices are near to"), checked);
    }
    Ok(())
}

/// `mpirun --explain rdma` says by which path memory of each GPU goes.
fn explained(library: &Library, map: &Path) -> Result<()> {
    let job = Job::new(library.prefix().join("bin/mpirun")).args(["--explain", "rdma"]).limit(60);
    let said = job.env("BANYAN_TOPOLOGY", map).run()?.output;
    let of = |gpu: usize| {
        said.lines().find(|line| line.contains(&format!("memory of GPU{gpu} "))).unwrap_or_default()
    };
    let (near, far) = ("GPUDirect RDMA (dma-buf) by ", "staged through the host's memory by ");
    if [0, 1].iter().any(|&gpu| !of(gpu).contains(near)) || [2, 3].iter().any(|&gpu| !of(gpu).contains(far)) {
        bail!("not all GPUs are as the map has them\n{said}");
    }
    Ok(())
}

/// A host whose RDMA ports are on switches of one root port, with the stand-in's first two GPUs, or (`apart`) of a root port each, with one of these; the
/// other GPUs are below another host bridge.
fn map(apart: bool) -> String {
    let switch = |at: usize| {
        let root = if apart { at + 1 } else { 1 };
        format!("pci0000:10/0000:10:0{root:x}.0/0000:1{root:x}:00.0/0000:20:")
    };
    let mut nics = String::new();
    for (at, port) in RdmaPort::read(Path::new("/")).iter().enumerate() {
        let place = format!("{}{at:02x}.0/0000:f{at:x}:00.0", switch(at));
        nics += &format!(
            "    {{ name = \"{}\", rdma = \"{}\", speed = 1000, at = \"{place}\" }},\n",
            port.name(),
            port.link
        );
    }
    let gpus: String = (0..4)
        .map(|at| {
            let place = if at < 2 {
                format!("{}1{at}.0/", switch(at))
            } else {
                format!("pci0000:80/0000:80:0{at}.0/")
            };
            let place = format!("{place}0000:{at}3:00.0", at = at + 1);
            format!("    {{ name = \"GPU{at}\", model = \"a stand-in\", at = \"{place}\" }},\n")
        })
        .collect();
    format!("[[host]]\nnic = [\n{nics}]\ngpu = [\n{gpus}]\n")
}
