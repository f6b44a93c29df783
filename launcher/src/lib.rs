//! mpirun: starts ranks on one or many machines and looks after them until the last process is gone.
//!
//! Two processes share the work. The *front* is the process that the user started: it reads the command line, relays
//! signals (and the terminal's input), and ends with the job's status. The *agent*, its child in a process
//! group of its own, plans the job, starts the ranks, writes their output and judges how they end. Both adopt orphans
//! (subreapers), so whichever of the two is killed, even with SIGKILL, the other finds every process that
//! descends from a rank and kills it. The ranks themselves also die with the agent (PDEATHSIG).
//!
//! On each other host of a job the same two processes run, started by ssh (`mpirun --agent`). Their agent is a *host part* alone,
//! which tells the first host's agent what happens and does what it orders; see `frames` and `tree`.
//!
//! `unsafe` is confined to `start.rs`, which forks and executes.
#![deny(unsafe_code)]

mod agent;
pub mod allocation;
pub mod binding;
mod default_variables;
mod descendants;
mod environment;
mod executable;
mod explain;
mod explain_gpu_messages;
mod explain_gpus;
pub mod files;
mod frames;
mod front;
pub mod hosts;
mod input;
mod lines;
mod links;
pub mod machine;
#[cfg(test)]
#[path = "../../crates/topo/tests/machines/mod.rs"]
mod machines;
pub mod mapping;
mod measure;
mod oom;
pub mod options;
mod output;
mod placement;
mod plan;
pub mod pmi1;
mod pty;
pub mod rankfile;
mod ranks;
mod report;
#[cfg(feature = "sim")]
pub mod scale;
mod sink;
#[allow(unsafe_code, reason = "fork, exec and signal masks need it; no other module does")]
mod start;
pub mod topology;
pub mod translate;
mod tree;
mod trouble;
mod verdict;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

#[cfg(any(test, fuzzing))]
pub use frames::any_bytes;
pub use start::run_in_child;
pub use trouble::Trouble;

/// Runs mpirun with this process's arguments.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os().skip(1).collect()))
}

/// Runs mpirun with these arguments (without its own name), and gives its status.
fn run(arguments: Vec<OsString>) -> u8 {
    let outcome = options::parse(arguments).and_then(|command| match command {
        options::Command::Print(text) => Ok(print(&text)),
        options::Command::Explain { what, ranks, per_host } => {
            Ok(print(&explain::explain(&what, ranks, per_host)?))
        }
        options::Command::Machine(what) => Ok(print(&machine::machine(&what)?)),
        options::Command::Topology(show) => Ok(print(&topology::topology(&show)?)),
        options::Command::Yield(pages) => Ok(measure::yields(pages)),
        options::Command::Run(options) => front::run(front::Work::Job(options)),
        options::Command::Agent => front::run(front::Work::Host),
    });
    outcome.unwrap_or_else(|trouble| trouble.tell())
}

/// Writes to stdout; gives the status. A reader that leaves early causes no panic.
fn print(text: &str) -> u8 {
    std::io::stdout().write_all(text.as_bytes()).map_or(1, |()| 0)
}
