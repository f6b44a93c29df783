//! A job on emulated hosts whose every listening port strangers attack, from a host that has no part in it and from one that has:
//! the job's results are right, ranks that meet for the first time meanwhile do, its memory and descriptors stay within bounds, and
//! nothing stays.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_pmi::settings;

use super::{Lab, Link, faults};
use crate::library::{Fabric, Kind, Library};
use crate::process::{Done, End, Job, parallel, tail};
use crate::project::{self, Project};
use crate::steps::Tally;

const RANKS: usize = 6;
/// Handshakes to record before the attack begins.
const RECORDED: &str = "2";
/// What a rank may need more under attack, and an agent, bytes. (What it needs grows with its peers, so that it is compared with a job
/// that is left alone.)
const MORE_MEMORY: u64 = 2 << 20;
/// Descriptors that a rank may have more under attack: those of its unproven connections, and of a replayed handshake for each peer.
const MORE_DESCRIPTORS: usize = 64 + RANKS;
/// The most descriptors of a rank that is left alone, beside those of connections.
const BASE_DESCRIPTORS: usize = 32;
/// Seconds that the job may take in all.
const LIMIT: u64 = 100;
/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const SEED: u64 = 20_261_123;
/// Connections of strangers in each wave after the first, while ranks still have to meet.
const WAVE: u64 = 1000;

/// An attack: over how many hosts, whether the job encrypts, how many connections.
pub(crate) struct Attack {
    hosts: usize,
    encrypt: bool,
    connections: usize,
}

/// Those of `cargo xtask test`.
const QUICK: &[Attack] = &[
    Attack { hosts: 3, encrypt: false, connections: 10_000 },
    Attack { hosts: 1, encrypt: true, connections: 2_000 },
];

/// Those of `cargo xtask conformance`.
const LONG: &[Attack] = &[
    Attack { hosts: 3, encrypt: false, connections: 50_000 },
    Attack { hosts: 3, encrypt: true, connections: 50_000 },
    Attack { hosts: 1, encrypt: false, connections: 50_000 },
    Attack { hosts: 1, encrypt: true, connections: 50_000 },
];

/// All attacks, or those that are quick: a check for each, and a note of what it has cost.
pub(crate) fn run(project: &Project, quick: bool) -> Result<Tally> {
    if let Some(reason) = super::why_not(project)? {
        return Ok(Tally::skip(reason));
    }
    let mut tally = Tally::default();
    for attack in if quick { QUICK } else { LONG } {
        let encrypted = if attack.encrypt { ", encrypted" } else { "" };
        let name =
            format!("{} strangers, {RANKS} ranks, hosts: {}{encrypted}", attack.connections, attack.hosts);
        let outcome = carry_out(project, attack).map(|said| tally.notes.push(format!("{name}: {said}")));
        tally.check(&name, outcome);
    }
    Ok(tally)
}

/// The job that is attacked, and what its files are called.
struct Scene<'a> {
    attack: &'a Attack,
    lab: &'a Lab,
    library: Library,
    program: PathBuf,
    folder: PathBuf,
    recorded: PathBuf,
}

/// What was seen of a job that ran.
#[derive(Default)]
struct Seen {
    /// The most that any rank, and any agent, had in memory of its own, and in descriptors.
    ranks: Usage,
    agents: Usage,
    /// Rounds each second.
    rate: f64,
    /// Connections between ranks when the strangers came, and when they had gone.
    connections: [usize; 2],
    /// What the strangers say of themselves.
    strangers: String,
}

#[derive(Default, Clone, Copy)]
struct Usage {
    memory: u64,
    descriptors: usize,
}

impl Usage {
    fn max(&mut self, other: Usage) {
        self.memory = self.memory.max(other.memory);
        self.descriptors = self.descriptors.max(other.descriptors);
    }
}

fn carry_out(project: &Project, attack: &Attack) -> Result<String> {
    let library = Library::open(project, Kind::Banyan)?;
    let program = faults::rounds(project, &library)?;
    let folder = project.folder("hosts/attack")?;
    // The last host is the strangers'.
    let lab = Lab::up(project, "attack", attack.hosts + 1, Link::Veth)?;
    let recorded = folder.join("recorded");
    let scene = Scene { attack, lab: &lab, library, program, folder, recorded };
    let calm = scene.run(false)?;
    let seen = scene.run(true)?;
    for (what, calm, seen) in [("rank", calm.ranks, seen.ranks), ("agent", calm.agents, seen.agents)] {
        ensure!(
            seen.memory <= calm.memory + MORE_MEMORY
                && seen.descriptors <= calm.descriptors + MORE_DESCRIPTORS,
            "under attack a {what} has {} KiB and {} descriptors, in a job that is left alone {} KiB and {}",
            seen.memory >> 10,
            seen.descriptors,
            calm.memory >> 10,
            calm.descriptors
        );
    }
    let (memory, descriptors) = (seen.ranks.memory as i64 - calm.ranks.memory as i64, seen.ranks.descriptors);
    let [before, after] = seen.connections;
    let (under, left_alone) = (seen.rate, calm.rate);
    Ok(format!(
        "right; at most {} KiB more in a rank, {} in an agent, {descriptors} descriptors for {}; {before} connections of ranks became \
         {after}; {under:.0} rounds a second for {left_alone:.0}\n{}",
        memory >> 10,
        (seen.agents.memory as i64 - calm.agents.memory as i64) >> 10,
        calm.ranks.descriptors,
        seen.strangers
    ))
}

impl Scene<'_> {
    /// A file by which job and test talk.
    fn file(&self, end: &str) -> PathBuf {
        self.folder.join(format!("begun{end}"))
    }

    /// The hosts of the job.
    fn hosts(&self) -> Lab {
        self.lab.part(self.attack.hosts)
    }

    /// Runs the job, attacked or left alone.
    fn run(&self, attacked: bool) -> Result<Seen> {
        for end in ["", ".go", ".all"] {
            let _ = fs::remove_file(self.file(end));
        }
        let _ = fs::remove_file(&self.recorded);
        let job = self.job()?;
        let (seen, done) = std::thread::scope(|scope| {
            let recorder = attacked.then(|| scope.spawn(|| self.stranger(1, &["record", RECORDED]).run_ok()));
            wait("a recorder", || !attacked || self.recorded.exists())?;
            let running = scope.spawn(|| job.run());
            let seen = wait("the first rounds", || self.file("").exists() || running.is_finished());
            let seen = seen.and_then(|()| {
                recorder.map_or(Ok(()), |recorder| recorder.join().expect("no panic").map(|_| ()))?;
                self.watch(attacked)
            });
            // This ends the job.
            let _ = fs::remove_file(self.file(""));
            let done = running.join().expect("the job's thread does not panic")?;
            Ok::<_, anyhow::Error>((seen, done))
        })?;
        let mut seen = seen.with_context(|| format!("{}\n{}", done.end, tail(&done.output, 20)))?;
        seen.rate = rate(&done)?;
        wait("the end of all processes", || self.processes().is_ok_and(|left| left.is_empty()))?;
        let left = self.listeners()?;
        ensure!(left.is_empty(), "somebody still listens at {left:?}");
        Ok(seen)
    }

    fn job(&self) -> Result<Job> {
        let each = RANKS / self.attack.hosts;
        let job = self.library.mpirun_on(&self.hosts(), each, &self.program, &self.folder)?;
        let job = job.arg(LIMIT.to_string()).arg(self.file("")).limit(LIMIT + 20);
        let job = if self.attack.hosts == 1 { job.env(settings::FABRICS, Fabric::TCP.name()) } else { job };
        Ok(if self.attack.encrypt { job.env("BANYAN_ENCRYPT", "1") } else { job })
    }

    /// Watches the job until all of its ranks have met and, if it is attacked, the strangers have gone.
    fn watch(&self, attacked: bool) -> Result<Seen> {
        let (processes, listeners) = (self.processes()?, self.listeners()?);
        of_ranks(&processes, &listeners)?;
        let mut seen = Seen { connections: [self.connections(&listeners)?, 0], ..Seen::default() };
        let begun = Instant::now();
        seen.strangers = std::thread::scope(|scope| {
            let strangers = attacked.then(|| scope.spawn(|| self.strangers(&listeners)));
            wait("strangers", || {
                !attacked || self.connections(&listeners).is_ok_and(|now| now > seen.connections[0])
            })?;
            // Now the ranks meet.
            project::write(&self.file(".go"), "")?;
            let is_over = || strangers.as_ref().is_none_or(|strangers| strangers.is_finished());
            while !(self.file(".all").exists() && is_over()) {
                ensure!(begun.elapsed() < 2 * PATIENCE, "the ranks do not meet");
                for process in &processes {
                    let most = if process.is_rank { &mut seen.ranks } else { &mut seen.agents };
                    most.max(process.usage()?);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            strangers.map_or(Ok(String::new()), |strangers| strangers.join().expect("no panic"))
        })?;
        // All pairs of ranks that share no memory.
        let pairs = RANKS * (RANKS - 1) / 2;
        let near = if self.attack.hosts == 1 { 0 } else { RANKS * (RANKS / self.attack.hosts - 1) / 2 };
        let settled = || self.connections(&listeners).is_ok_and(|now| now == pairs - near);
        wait("only the connections of ranks to be left", settled)?;
        seen.connections[1] = pairs - near;
        // On one host an allreduce may have all of them meet before.
        let met = seen.connections[0] < seen.connections[1] || self.attack.hosts == 1;
        ensure!(met, "no ranks met while the strangers were there");
        for rank in processes.iter().filter(|process| process.is_rank) {
            wait("a rank to close what strangers left", || {
                rank.usage().is_ok_and(|now| now.descriptors <= BASE_DESCRIPTORS + RANKS)
            })?;
        }
        Ok(seen)
    }

    /// A stranger on a host, counted from 1.
    fn stranger(&self, host: usize, words: &[&str]) -> Job {
        let program = std::env::current_exe().unwrap_or_default();
        self.lab.on(host, &Job::new(program).arg("stranger").arg(&self.recorded).args(words).limit(LIMIT))
    }

    /// Strangers come from a host of the job, and from the last one where ranks can be reached from there, until all ranks have met.
    /// Gives what they say.
    fn strangers(&self, listeners: &[Listener]) -> Result<String> {
        let from = if self.attack.hosts == 1 { vec![1] } else { vec![1, self.attack.hosts + 1] };
        let begun = Instant::now();
        let (mut said, mut connections) = (String::new(), self.attack.connections);
        for wave in 0.. {
            let jobs: Vec<Job> = from
                .iter()
                .map(|&host| {
                    let each = (connections / from.len()).to_string();
                    let seed = (SEED + 1000 * wave + 100 * host as u64).to_string();
                    let addresses = listeners.iter().map(|listener| listener.address.to_string());
                    self.stranger(host, &["connect", &each, "--seed", &seed]).args(addresses)
                })
                .collect();
            for (host, done) in from.iter().zip(parallel(jobs.len(), &jobs, Job::run_ok)) {
                let output = done?.output;
                if wave == 0 {
                    writeln!(said, "from h{host}: {}", output.trim())?;
                }
            }
            if self.file(".all").exists() || begun.elapsed() > PATIENCE {
                write!(said, "and {} more until all ranks had met", wave * WAVE)?;
                break;
            }
            connections = WAVE as usize;
        }
        Ok(said)
    }

    /// The namespaces of the hosts, and one process in each.
    fn networks(&self) -> Result<Vec<(PathBuf, String)>> {
        let ids = self.hosts().ids();
        ids.into_iter().map(|id| Ok((fs::read_link(format!("/proc/{id}/ns/net"))?, id))).collect()
    }

    /// What runs on the hosts and is of the job.
    fn processes(&self) -> Result<Vec<Process>> {
        let networks = self.networks()?;
        let file = |path: &Path| fs::metadata(path).map(|data| (data.dev(), data.ino()));
        let mpirun = file(&self.library.prefix().join("bin/mpirun"))?;
        let program = file(&self.program)?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let folder = entry?.path();
            let Ok(runs) = file(&folder.join("exe")) else { continue };
            let network = fs::read_link(folder.join("ns/net"));
            let ours = network.is_ok_and(|network| networks.iter().any(|(of_host, _)| *of_host == network));
            if ours && (runs == mpirun || runs == program) {
                found.push(Process { folder, is_rank: runs == program });
            }
        }
        Ok(found)
    }

    /// The rows of the kernel's tables of TCP sockets on all hosts that are in this state.
    fn sockets(&self, state: &str) -> Result<Vec<Socket>> {
        let mut found = Vec::new();
        for (_, id) in self.networks()? {
            for table in ["tcp", "tcp6"] {
                // Without IPv6 there is one table.
                let text = fs::read_to_string(format!("/proc/{id}/net/{table}")).unwrap_or_default();
                found.extend(text.lines().skip(1).filter_map(|line| Socket::read(line, state)));
            }
        }
        Ok(found)
    }

    /// Where somebody listens on the hosts, but for their sshd.
    fn listeners(&self) -> Result<Vec<Listener>> {
        let mut found = self.sockets("0A")?;
        found.retain(|listener| listener.address.port() != 22);
        Ok(found)
    }

    /// How many connections there are at these listeners.
    fn connections(&self, listeners: &[Listener]) -> Result<usize> {
        let at = |socket: &Socket| listeners.iter().any(|listener| listener.address == socket.address);
        Ok(self.sockets("01")?.iter().filter(|socket| at(socket)).count())
    }
}

/// Waits until something is so.
fn wait(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        ensure!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The job's results are right; gives rounds a second.
fn rate(done: &Done) -> Result<f64> {
    let said = tail(&done.output, 20);
    ensure!(done.end == End::Exit(0) && done.output.lines().any(|line| line == "ok"), "{}\n{said}", done.end);
    let words: Vec<&str> = done.output.lines().last().unwrap_or_default().split(' ').collect();
    match words[..] {
        [rounds, "rounds", "in", seconds, "s"] => Ok(rounds.parse::<f64>()? / seconds.parse::<f64>()?),
        _ => bail!("it does not say how many rounds there were:\n{said}"),
    }
}

/// Every port is a rank's, and every rank has one.
fn of_ranks(processes: &[Process], listeners: &[Listener]) -> Result<()> {
    let ranks: Vec<_> = processes.iter().filter(|process| process.is_rank).collect();
    ensure!(ranks.len() == RANKS, "{} ranks run", ranks.len());
    let mut free: BTreeSet<&str> = listeners.iter().map(|listener| &*listener.inode).collect();
    for rank in ranks {
        let before = free.len();
        for entry in fs::read_dir(rank.folder.join("fd"))? {
            let target = fs::read_link(entry?.path()).unwrap_or_default();
            let inode = target.to_str().and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']'));
            inode.map(|inode| free.remove(inode));
        }
        ensure!(free.len() < before, "{} listens nowhere", rank.folder.display());
    }
    ensure!(free.is_empty(), "somebody other than a rank listens: {listeners:?}");
    Ok(())
}

/// A process of the job.
struct Process {
    folder: PathBuf,
    is_rank: bool,
}

impl Process {
    fn usage(&self) -> Result<Usage> {
        let text = project::read(&self.folder.join("smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")?.strip_suffix("kB"));
        let memory = line.context("no Pss")?.trim().parse::<u64>()? << 10;
        Ok(Usage { memory, descriptors: fs::read_dir(self.folder.join("fd"))?.count() })
    }
}

/// A socket of TCP, as the kernel's table has it.
#[derive(Debug)]
struct Socket {
    address: SocketAddr,
    inode: String,
}

type Listener = Socket;

impl Socket {
    /// Reads a row of /proc/net/tcp or tcp6, if the socket is in this state.
    fn read(row: &str, state: &str) -> Option<Socket> {
        let words: Vec<&str> = row.split_whitespace().collect();
        let (ip, port) = words.get(1)?.split_once(':')?;
        if *words.get(3)? != state {
            return None;
        }
        // Words of 32 bits, each in the machine's order of bytes.
        let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
        let ip: IpAddr = match ip.len() {
            8 => Ipv4Addr::from(word(0)?).into(),
            32 => {
                let words = [word(0)?, word(8)?, word(16)?, word(24)?];
                Ipv6Addr::from(<[u8; 16]>::try_from(words.concat()).ok()?).into()
            }
            _ => return None,
        };
        let address = SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?);
        Some(Socket { address, inode: (*words.get(9)?).to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_kernels_tables_are_read() {
        let row = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0";
        let socket = Socket::read(row, "0A").expect("a listener");
        assert_eq!((socket.address.to_string(), &*socket.inode), ("127.0.0.1:8080".into(), "4711"));
        assert!(Socket::read(row, "01").is_none() && Socket::read("  sl  local_address", "0A").is_none());
        let row = "   1: 000077FD000000000000000002000000:0016 00:0 01 0:0 00:0 0 0 0 5";
        let socket = Socket::read(row, "01").expect("a connection");
        assert_eq!(socket.address.to_string(), "[fd77::2]:22");
    }
}
