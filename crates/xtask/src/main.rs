//! The project's tasks, `cargo xtask ...`: demo, test, install, conformance, gpu, rivals, bench, costs, hosts, rdma.
#![deny(unsafe_code)]

mod bench;
mod cc;
mod conformance;
mod costs;
mod debian;
mod demo;
mod docs;
mod generated;
mod gpu;
mod hosts;
mod hot;
mod hpcc;
mod install;
mod library;
mod process;
mod project;
mod rdma;
mod rivals;
mod steps;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::library::Kind;
use crate::project::Project;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the Banyan MPI project")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build, install into target/banyan, and run a 2-D heat equation on 4 ranks
    Demo {
        /// Which MPI library to use
        #[arg(long, value_enum, default_value_t = Kind::Banyan)]
        mpi: Kind,
    },
    /// Everything that CI runs, at most 30 minutes cold on 2 cores
    Test(test::Options),
    /// Build in release and install
    Install {
        /// Where to: bin, lib, include and share are made below it
        #[arg(long)]
        prefix: PathBuf,
    },
    /// Test suites that we did not write, with the long programs too
    Conformance(conformance::Options),
    /// Write the parts of the guide that are made from the code
    Docs,
    /// Write which code of the library the linker puts together, from what ranks run
    Hot,
    /// Run the programs whose buffers are on GPUs, and measure, on this machine's own; `--double` on a stand-in
    Gpu(gpu::Options),
    /// Fetch MPICH, Open MPI and Intel MPI from PyPI into target/rivals
    Rivals,
    /// Measure what the constants of the cost model stand for
    Costs(costs::Options),
    /// Measure beside MPICH, Open MPI and Intel MPI, at most 40 minutes; `--quick` for 3
    Bench(bench::Options),
    /// Emulated hosts on this machine, with ssh between them
    Hosts(hosts::Options),
    /// Run a command where there are RDMA devices: here, or in a guest that has two in software
    Rdma(rdma::Options),
    /// What owns emulated hosts; started by `hosts up`
    #[command(hide = true)]
    Supervise(hosts::supervisor::Options),
    /// A stranger on an emulated host; started by tests
    #[command(hide = true)]
    Stranger(hosts::stranger::Options),
}

fn main() -> ExitCode {
    if let Err(error) = process::end_children_on_signals() {
        eprintln!("xtask: cannot watch for signals: {error}");
    }
    match run(Cli::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<bool> {
    let project = Project::find()?;
    match task {
        Task::Demo { mpi } => demo::run(&project, mpi).map(|()| true),
        Task::Test(options) => test::run(&project, &options),
        Task::Install { prefix } => install::install(&project, &prefix).map(|()| true),
        Task::Conformance(options) => conformance::run(&project, &options),
        Task::Docs => docs::write(&project).map(|()| true),
        Task::Hot => hot::write(&project).map(|()| true),
        Task::Gpu(options) => gpu::run(&project, &options),
        Task::Rivals => rivals::all(&project).map(|()| true),
        Task::Costs(options) => costs::run(&project, &options).map(|()| true),
        Task::Bench(options) => bench::run(&project, &options).map(|()| true),
        Task::Hosts(options) => hosts::run(&project, &options),
        Task::Rdma(options) => rdma::run(&project, &options),
        Task::Supervise(options) => hosts::supervisor::run(&options).map(|()| true),
        Task::Stranger(options) => hosts::stranger::run(&options).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }
}
