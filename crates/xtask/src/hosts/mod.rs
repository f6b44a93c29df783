//! Emulated hosts on one machine, for tests and benchmarks: each has its own network, host name, mounts, processes, System V
//! objects, /dev/shm, /tmp, /run and sshd. They are joined by a bridge of the kernel, by a program that delays, loses,
//! doubles, reorders and cuts ([`switch`]), or by RDMA devices.
//!
//! Nothing of a lab is outside of its namespaces but files under target/hosts: a process owns it (`supervisor`), with which
//! the kernel ends all the rest.

pub(crate) mod attacks;
pub(crate) mod faults;
mod orders;
pub(crate) mod slurm;
pub(crate) mod stranger;
pub(crate) mod supervisor;
mod switch;
mod tap;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};

use self::slurm::Slurm;
use crate::debian;
use crate::process::{End, Job, tail};
use crate::project::{self, Project};

/// Debian packages that hosts need.
const PACKAGES: &[&str] = &["openssh-server", "iproute2", "iputils-ping"];
/// Arguments of `unshare` that try what a lab takes, beside a network.
const NAMESPACES: &str = "--uts --ipc --mount --pid --fork --mount-proc";
/// The socket for orders, in the lab's folder.
const CONTROL: &str = "control";
/// The order to end.
const DOWN: &str = "down";
/// The seed of what happens by chance in the network.
const SEED: u64 = 20_261_122;
/// As many as there are addresses.
const MOST: usize = 250;
/// The lab of `cargo xtask hosts`.
const OURS: &str = "people";

/// What joins the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// The kernel: as fast as it can
    Veth,
    /// A program, which can delay, lose, cut and more
    Emulated,
    /// RDMA devices of this machine, one for each host. Its network they share, as RoCE in software works in one namespace alone
    Devices,
}

impl Link {
    /// What `unshare` is told beside the other namespaces.
    fn namespace(self) -> &'static [&'static str] {
        if self == Link::Devices { &[] } else { &["--net"] }
    }

    /// The address of a host, counted from 1.
    fn address(self, number: usize) -> String {
        let network = if self == Link::Devices { "127.77.0" } else { "10.77.0" };
        format!("{network}.{number}")
    }
}

/// What people may do.
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start hosts h1, h2, ..., and keep them until Ctrl-C or `hosts down`
    Up {
        #[arg(default_value_t = 3)]
        hosts: usize,
        /// What joins them
        #[arg(long, value_enum, default_value_t = Link::Emulated)]
        link: Link,
    },
    /// Run a command on a host, in this folder
    Exec {
        host: String,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Change the network: "delay 0.1ms", "rate 1gbit", "loss 5% h1", "cut h1 h2", "heal", "clear"
    Net { order: String },
    /// Start Slurm on the hosts
    Slurm {
        /// Processors of each host
        #[arg(default_value_t = 2)]
        slots: usize,
    },
    /// End the hosts
    Down,
}

/// `cargo xtask hosts`.
pub(crate) fn run(project: &Project, options: &Options) -> Result<bool> {
    match &options.task {
        Task::Up { hosts, link } => {
            if let Some(reason) = why_not_joined(project, *link)? {
                bail!(reason);
            }
            let lab = Lab::up(project, OURS, *hosts, *link)?;
            println!("h1 to h{hosts} are up: cargo xtask hosts exec h1 ssh h2 hostname; Ctrl-C ends them");
            lab.wait()?;
        }
        Task::Exec { host, command } => {
            let lab = Lab::attached(project, OURS)?;
            let host = orders::host(host, lab.hosts())? + 1;
            let job = Job::new(&command[0]).args(&command[1..]).folder(std::env::current_dir()?);
            let job = lab.on(host, &job.limit(u64::from(u32::MAX))).env("SLURM_CONF", lab.slurm_conf());
            return Ok(job.show()? == End::Exit(0));
        }
        Task::Net { order } => println!("{}", supervisor::ask(&folder(project, OURS)?, order)?),
        Task::Slurm { slots } => {
            if let Some(reason) = slurm::why_not(project)? {
                bail!(reason);
            }
            Slurm::up(&Lab::attached(project, OURS)?, *slots)?;
            println!("cargo xtask hosts exec h1 srun -N 2 hostname");
        }
        Task::Down => drop(supervisor::ask(&folder(project, OURS)?, DOWN)?),
    }
    Ok(true)
}

/// Why there can be no emulated hosts on this machine, if so; missing packages are installed.
pub(crate) fn why_not(project: &Project) -> Result<Option<String>> {
    why_not_joined(project, Link::Emulated)
}

/// [`why_not`] of hosts that are joined in some way.
pub(crate) fn why_not_joined(project: &Project, link: Link) -> Result<Option<String>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Some("emulated hosts need root, for namespaces and sshd".into()));
    }
    if let Some(reason) = daemons_missing(project, "/usr/sbin/sshd", PACKAGES)? {
        return Ok(Some(reason));
    }
    let tap = if link == Link::Devices { "true" } else { "ip tuntap add mode tap" };
    let job = Job::new("unshare").args(link.namespace()).args(NAMESPACES.split(' '));
    let done = job.args(tap.split(' ')).limit(20).run()?;
    let refused = || format!("no namespaces or TAP devices here: {}", tail(done.output.trim(), 2));
    Ok((done.end != End::Exit(0)).then(refused))
}

/// Installs packages with a daemon unless they are there; says what is missing. Where systemd runs nothing is installed, as it
/// would start the daemon for the whole machine.
fn daemons_missing(project: &Project, daemon: &str, packages: &[&str]) -> Result<Option<String>> {
    if !Path::new(daemon).exists() && Path::new("/run/systemd/system").exists() {
        return Ok(Some(format!("{daemon} is not there, and to install it would start it for this machine")));
    }
    let missing = debian::packages(project, packages)?;
    Ok(missing.map(|missing| format!("{} not there: {}", missing.packages.join(" "), missing.reason)))
}

fn folder(project: &Project, name: &str) -> Result<PathBuf> {
    project.folder(&format!("hosts/labs/{name}"))
}

/// The process 1 of each host, as the machine numbers them.
fn ids(folder: &Path) -> Result<Vec<Pid>> {
    let text = project::read(&folder.join("ids")).context("there are no hosts: cargo xtask hosts up 3")?;
    text.lines()
        .map(|line| line.trim().parse().ok().and_then(Pid::from_raw).context("an id of a process"))
        .collect()
}

/// A job that runs in the namespaces of a process.
fn entered(id: Pid, job: &Job) -> Job {
    let folder = job.in_folder().map_or("/".into(), |folder| folder.display().to_string());
    let id = id.as_raw_nonzero().to_string();
    // The folder is looked up once the host's mounts are there.
    let script = "cd \"$0\" && exec \"$@\"";
    // The root of its mounts need not be that of its files: the guest of `cargo xtask rdma` has changed its own.
    job.under(
        Path::new("nsenter"),
        &["--all", "--root", "--wd", "--target", &id, "--", "sh", "-c", script, &folder],
    )
}

/// Emulated hosts, which end when this is dropped.
pub(crate) struct Lab {
    folder: PathBuf,
    /// None for hosts that another process owns.
    owner: Option<Child>,
    ids: Vec<Pid>,
}

impl Lab {
    /// Starts hosts h1, h2, ...; a lab that was there under this name is a thing of the past, or ends.
    pub(crate) fn up(project: &Project, name: &str, hosts: usize, link: Link) -> Result<Lab> {
        if !(1..=MOST).contains(&hosts) {
            bail!("a lab has 1 to {MOST} hosts");
        }
        let folder = folder(project, name)?;
        // Nobody is there to hear it, as a rule.
        let _ = supervisor::ask(&folder, DOWN);
        for file in [CONTROL, "ids"] {
            let _ = std::fs::remove_file(folder.join(file));
        }
        files(project, &folder, hosts, link)?;
        let mut command = Command::new("unshare");
        command.args(link.namespace()).args(["--mount", "--pid", "--fork", "--kill-child", "--"]);
        command.arg(std::env::current_exe()?).arg("supervise").arg(hosts.to_string());
        command.arg("--link").arg(link.to_possible_value().context("a link")?.get_name());
        command.arg("--script").arg(project.file("tests/hosts/host.sh")).arg("--folder").arg(&folder);
        for kept in kept(project) {
            command.arg("--keep").arg(kept);
        }
        // Signals of a terminal are for the owner of the owner.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let log = std::fs::File::create(folder.join("log"))?;
        command.current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut owner = command.spawn().context("cannot start unshare")?;
        let said = owner.stdout.take().context("a pipe")?;
        let mut lab = Lab { folder, owner: Some(owner), ids: Vec::new() };
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        if !line.starts_with("ready") {
            bail!("the hosts did not start\n{}", project::read(&lab.folder.join("log"))?);
        }
        lab.ids = ids(&lab.folder)?;
        Ok(lab)
    }

    /// Hosts that another process owns.
    fn attached(project: &Project, name: &str) -> Result<Lab> {
        let folder = folder(project, name)?;
        let ids = ids(&folder)?;
        Ok(Lab { folder, owner: None, ids })
    }

    /// Waits until the hosts have ended.
    fn wait(mut self) -> Result<()> {
        let Some(owner) = &mut self.owner else { return Ok(()) };
        // To wait closes the owner's standard input, which would end it.
        let _held = owner.stdin.take();
        owner.wait().context("the owner of the hosts")?;
        Ok(())
    }

    /// The first hosts of these, which end with this lab.
    fn part(&self, hosts: usize) -> Lab {
        Lab { folder: self.folder.clone(), owner: None, ids: self.ids[..hosts].to_vec() }
    }

    /// How many hosts there are.
    pub(crate) fn hosts(&self) -> usize {
        self.ids.len()
    }

    /// Where Slurm on these hosts has its settings, if there is one.
    fn slurm_conf(&self) -> PathBuf {
        self.folder.join("slurm/slurm.conf")
    }

    /// The process 1 of each host, as the machine knows it.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.ids.iter().map(|id| id.as_raw_nonzero().to_string()).collect()
    }

    /// A job that runs on a host, counted from 1.
    pub(crate) fn on(&self, host: usize, job: &Job) -> Job {
        entered(self.ids[host - 1], job)
    }

    /// Changes the network.
    pub(crate) fn net(&self, order: &str) -> Result<()> {
        match supervisor::ask(&self.folder, order)?.as_str() {
            "done" => Ok(()),
            said => bail!("{order}: {said}"),
        }
    }

    /// Ends a host, counted from 1, as if its power went: nobody says good-bye.
    pub(crate) fn end(&self, host: usize) -> Result<()> {
        kill_process(self.ids[host - 1], Signal::KILL).with_context(|| format!("cannot end h{host}"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(owner) = &mut self.owner {
            drop(owner.stdin.take());
            // The kernel is through with all processes of the lab before it tells.
            let _ = owner.wait();
        }
    }
}

/// What hosts read: keys, made for this lab, settings of ssh, the table of hosts.
fn files(project: &Project, folder: &Path, hosts: usize, link: Link) -> Result<()> {
    let ssh = folder.join("ssh");
    std::fs::create_dir_all(&ssh)?;
    for name in ["id", "host_key"] {
        if !ssh.join(name).exists() {
            Job::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(ssh.join(name))
                .run_ok()?;
        }
        std::fs::set_permissions(ssh.join(name), std::fs::Permissions::from_mode(0o600))?;
    }
    let settings = |name: &str| project.read(&format!("tests/hosts/{name}"));
    let mut config = settings("ssh_config")?;
    let mut table = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
    for number in 1..=hosts {
        let address = link.address(number);
        match link {
            // In the table these would be names of one machine, since each host has all addresses.
            Link::Devices => config.push_str(&format!("Host h{number}\n    HostName {address}\n")),
            Link::Veth | Link::Emulated => table.push_str(&format!("{address} h{number}\n")),
        }
    }
    project::write(&ssh.join("ssh_config"), config)?;
    project::write(&ssh.join("sshd_config"), settings("sshd_config")?)?;
    project::write(&folder.join("hosts"), table)
}

/// Folders that are needed on hosts, and lie where hosts have something of their own.
fn kept(project: &Project) -> Vec<PathBuf> {
    let given = std::env::var_os("BANYAN_TEST_PREFIX").map(PathBuf::from);
    let needed = [Some(project.root().to_owned()), Some(project.target().to_owned()), given];
    let hidden = |path: &PathBuf| ["/tmp", "/run", "/dev/shm"].iter().any(|folder| path.starts_with(folder));
    needed.into_iter().flatten().filter(hidden).collect()
}
