//! The process that owns a lab: process 1 of a process namespace, in a network namespace where nothing but the lab's network
//! is, unless hosts share that of the machine. It starts the hosts, is the network between them, and obeys orders. When it ends, the kernel ends all hosts
//! with all that runs in them; it ends when its standard input does, that is, with whoever started it.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::num::NonZero;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use banyan_topo::RdmaPort;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::switch::{self, Switch};
use super::{CONTROL, DOWN, Link, SEED, orders, tap};
use crate::process::Job;
use crate::project;

/// What a lab is.
#[derive(Args)]
pub(crate) struct Options {
    hosts: usize,
    #[arg(long, value_enum)]
    link: Link,
    /// The host's script
    #[arg(long)]
    script: PathBuf,
    /// Where the lab's keys and tables are; also where it is heard
    #[arg(long)]
    folder: PathBuf,
    /// Folders that hosts see although they lie under /tmp
    #[arg(long)]
    keep: Vec<PathBuf>,
}

/// Frames read from one device before others have their turn.
const BATCH: usize = 64;
/// The longest frame: 1,500 bytes and a header, with room.
const FRAME: usize = 2048;

/// Starts the hosts, says so, and serves them to the end.
pub(crate) fn run(options: &Options) -> Result<()> {
    let devices = devices(options)?;
    let control = UnixListener::bind(CONTROL).context("cannot listen for orders")?;
    let _hosts = start(options)?;
    // The network is quicker than what runs on the hosts: else they would wait for each other's time slices.
    let quick = Job::new("chrt").args(["--fifo", "--pid", "50"]).arg(std::process::id().to_string()).run_ok();
    let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
    println!("ready{}", if quick.is_ok() { "" } else { " (without real-time priority)" });
    serve(&devices, &control, options, lateness()?)
}

/// The cards of the hosts, or a bridge that joins those which the kernel makes.
fn devices(options: &Options) -> Result<Vec<File>> {
    if options.link == Link::Devices {
        return Ok(Vec::new());
    }
    ip(&["link", "set", "lo", "up"])?;
    if options.link == Link::Emulated {
        return (1..=options.hosts).map(|number| tap::open(&format!("h{number}"))).collect();
    }
    ip(&["link", "add", "bridge", "type", "bridge", "mcast_snooping", "0"])?;
    ip(&["link", "set", "bridge", "up"])?;
    for number in 1..=options.hosts {
        let (ours, theirs) = (format!("b{number}"), format!("h{number}"));
        ip(&["link", "add", &ours, "type", "veth", "peer", "name", &theirs])?;
        ip(&["link", "set", &ours, "master", "bridge", "up"])?;
    }
    Ok(Vec::new())
}

fn ip(args: &[&str]) -> Result<()> {
    Job::new("ip").args(args).limit(20).run_ok().map(|_| ())
}

/// Starts all hosts and waits until ssh answers on each; their process ids, as the machine knows them, go into a file.
fn start(options: &Options) -> Result<Vec<Child>> {
    let mut hosts = (1..=options.hosts).map(|number| host(options, number)).collect::<Result<Vec<_>>>()?;
    let mut ids = String::new();
    for (index, child) in hosts.iter_mut().enumerate() {
        let (number, id) = (index + 1, child.id().to_string());
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut line)?;
        if line.trim().is_empty() {
            bail!("h{number} did not start\n{}", log(options, number));
        }
        ids.push_str(&line);
        if options.link != Link::Devices {
            let device = format!("h{number}");
            ip(&["link", "set", &device, "address", &switch::address(index)])?;
            ip(&["link", "set", &device, "netns", &id, "name", "eth0"])?;
        }
        child.stdin.take().context("a pipe")?.write_all(b"go\n")?;
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    for number in 1..=options.hosts {
        while !log(options, number).contains("listening on") {
            if Instant::now() > deadline {
                bail!("there is no sshd on h{number}\n{}", log(options, number));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    project::write(&options.folder.join("ids"), ids)?;
    Ok(hosts)
}

fn host(options: &Options, number: usize) -> Result<Child> {
    let mut command = Command::new("unshare");
    command.args(options.link.namespace());
    command.args(["--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "sh"]);
    if options.link == Link::Devices {
        let devices = RdmaPort::devices();
        let device = devices.get(number - 1).with_context(|| format!("no RDMA device for h{number}"))?;
        command.env("DEVICE", device).env("ADDRESS", options.link.address(number));
    }
    command.arg(&options.script).arg(&options.folder).arg(number.to_string()).args(&options.keep);
    let log = File::create(log_of(options, number))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    command.spawn().context("cannot start unshare")
}

fn log_of(options: &Options, number: usize) -> PathBuf {
    options.folder.join(format!("h{number}.log"))
}

fn log(options: &Options, number: usize) -> String {
    project::read(&log_of(options, number)).unwrap_or_default()
}

/// How many nanoseconds after its time a sleep ends here, in the median. On virtual machines it is as much as the delay of a quick
/// network, so frames leave by as much before they are due.
fn lateness() -> Result<u64> {
    let mut late: Vec<u64> = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 100_000 }))?;
        late.push((begun.elapsed().as_nanos() as u64).saturating_sub(100_000));
    }
    late.sort_unstable();
    Ok(late[late.len() / 2])
}

/// Passes frames on and obeys orders until there is nobody left to do it for.
fn serve(devices: &[File], control: &UnixListener, options: &Options, early: u64) -> Result<()> {
    let mut switch = Switch::new(options.hosts, SEED);
    let stdin = std::io::stdin();
    let begun = Instant::now();
    let now = || begun.elapsed().as_nanos() as u64;
    let mut buffer = [0; FRAME];
    let mut watched: Vec<PollFd<'_>> =
        devices.iter().map(|device| PollFd::new(device, PollFlags::IN)).collect();
    watched.extend([PollFd::new(control, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)]);
    loop {
        while let Some((to, frame)) = switch.take(now() + early) {
            // A card that has no room loses the frame, and one that is not up takes none.
            let _ = (&devices[to]).write(&frame);
            switch.reuse(frame);
        }
        let wait = switch.due().map(|due| due.saturating_sub(now() + early));
        let wait = wait
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        match poll(&mut watched, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for number in 0..watched.len() {
            if watched[number].revents().is_empty() {
                continue;
            }
            if number < devices.len() {
                for _ in 0..BATCH {
                    match (&devices[number]).read(&mut buffer) {
                        Ok(length) => switch.offer(now(), number, &buffer[..length]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        Err(_) => {
                            // The host is gone, and its card with it, which would be reported for ever.
                            watched[number] = PollFd::new(control, PollFlags::empty());
                            break;
                        }
                    }
                }
            } else if number == devices.len() {
                if control.accept().is_ok_and(|(stream, _)| answer(stream, &mut switch, options)) {
                    return Ok(());
                }
            } else {
                // Nobody writes there: that there is something to read means that the owner is gone.
                return Ok(());
            }
        }
    }
}

/// Reads an order, obeys it and says so; true if it was to end.
fn answer(stream: UnixStream, switch: &mut Switch, options: &Options) -> bool {
    let limit = Some(Duration::from_secs(1));
    let mut line = String::new();
    let read = stream.set_read_timeout(limit).and_then(|()| BufReader::new(&stream).read_line(&mut line));
    if read.is_err() {
        return false;
    }
    let done = match line.trim() {
        DOWN => return true,
        _ if options.link != Link::Emulated => {
            Err(anyhow::anyhow!("no program joins these hosts: start them with --link emulated"))
        }
        order => orders::read(order, options.hosts).map(|order| switch.obey(order)),
    };
    let said = done.map_or_else(|error| format!("{error:#}\n"), |()| "done\n".to_owned());
    // Who asked may be gone.
    let _ = (&stream).write_all(said.as_bytes());
    false
}

/// Sends an order to the lab in a folder.
pub(super) fn ask(folder: &Path, order: &str) -> Result<String> {
    // The path of a socket must be short; that of the folder may be long.
    let folder = File::open(folder).with_context(|| format!("there is no lab in {}", folder.display()))?;
    let path = format!("/proc/self/fd/{}/{CONTROL}", std::os::fd::AsRawFd::as_raw_fd(&folder));
    let mut stream = UnixStream::connect(path).context("there are no hosts: cargo xtask hosts up 3")?;
    stream.write_all(format!("{order}\n").as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said.trim().to_owned())
}
