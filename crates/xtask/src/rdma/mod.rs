//! `cargo xtask rdma`: runs a command where there are RDMA devices: on this machine if its kernel has one, else in a guest that has
//! two in software.

mod guest;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use self::guest::Guest;
use crate::process::{End, Job};
use crate::project::Project;

/// The time that a command may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    /// The command, as root where it runs in a guest; without one the devices are listed
    #[arg(last = true)]
    command: Vec<String>,
}

/// `cargo xtask rdma`; true if the command's exit status was 0.
pub(crate) fn run(project: &Project, options: &Options) -> Result<bool> {
    let list = || ["rdma", "link"].map(String::from).to_vec();
    let command = if options.command.is_empty() { list() } else { options.command.clone() };
    let status = on_devices(project, &command)?;
    if status != 0 {
        eprintln!("xtask: exit status {status}");
    }
    Ok(status == 0)
}

/// Runs a command in the folder of the repository, where there are RDMA devices, and shows its output; gives its exit status.
fn on_devices(project: &Project, command: &[String]) -> Result<i32> {
    if has_devices() {
        let job = Job::new(&command[0]).args(&command[1..]).folder(project.root()).limit(LIMIT.as_secs());
        return match job.show()? {
            End::Exit(status) => Ok(status),
            other => bail!("{}: {other}", job.line()),
        };
    }
    if let Some(reason) = guest::why_not(project)? {
        bail!("no RDMA device in this kernel, and no guest with one: {reason}");
    }
    Guest::ready(project)?.run(command, LIMIT)
}

/// True if this kernel has an RDMA device.
fn has_devices() -> bool {
    Path::new("/sys/class/infiniband").read_dir().is_ok_and(|mut devices| devices.next().is_some())
}
