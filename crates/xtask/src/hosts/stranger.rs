//! A stranger at the ports of a job: it records handshakes that pass by, and opens connections that do all that a stranger can. It runs
//! as a process of its own on an emulated host; ports elsewhere are nothing to it, as no other network is there.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use banyan_tcp::handshake::{Answer, Features, Handshake, Hello, message_length};
use banyan_transport::Peer;
use banyan_transport::random::Random;
use clap::{Args, Subcommand};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::project;

/// What a stranger does.
#[derive(Args)]
pub(crate) struct Options {
    /// Recorded handshakes: a line for each, as `Recorded` writes them
    file: PathBuf,
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Record this many handshakes
    Record { handshakes: usize },
    /// Open this many connections
    Connect {
        connections: usize,
        #[arg(long)]
        seed: u64,
        /// Where to
        #[arg(required = true)]
        targets: Vec<SocketAddr>,
    },
}

/// The longest that a recorder waits for handshakes, and a connection for what it waits for.
const RECORDING: Duration = Duration::from_secs(60);
const HEARING: Duration = Duration::from_millis(250);
/// Threads that open connections.
const THREADS: usize = 8;
/// Descriptors that a stranger leaves free for what it does besides.
const SPARE: u64 = 64;
/// All protocols, in the order of bytes on the network.
const ALL: NonZero<u32> = NonZero::new((3_u16.to_be()) as u32).expect("not 0");

/// What `cargo xtask stranger` does.
pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.task {
        Task::Record { handshakes } => record(&options.file, *handshakes),
        Task::Connect { connections, seed, targets } => connect(&options.file, *connections, *seed, targets),
    }
}

/// What the connecting side of a handshake has sent.
struct Recorded {
    to: SocketAddr,
    opening: Vec<u8>,
    proof: Vec<u8>,
}

impl Recorded {
    fn line(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{} {} {}\n", self.to, hex(&self.opening), hex(&self.proof))
    }

    fn read(line: &str) -> Option<Recorded> {
        let bytes = |hex: &str| -> Option<Vec<u8>> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect()
        };
        let mut words = line.split(' ');
        let to = words.next()?.parse().ok()?;
        Some(Recorded { to, opening: bytes(words.next()?)?, proof: bytes(words.next()?)? })
    }
}

/// Reads what passes through all network devices of this host until so many handshakes have been seen.
fn record(file: &Path, most: usize) -> Result<()> {
    let tap = socket(AddressFamily::PACKET, SocketType::DGRAM, Some(Protocol::from_raw(ALL)))
        .context("to read packets takes root")?;
    sockopt::set_socket_recv_buffer_size_force(&tap, 64 << 20)?;
    sockopt::set_socket_timeout(&tap, sockopt::Timeout::Recv, Some(Duration::from_millis(100)))?;
    // Whoever waits for the recorder sees that it is there.
    project::write(file, "")?;
    let (deadline, mut packet) = (Instant::now() + RECORDING, [0; 512]);
    let mut flows = BTreeMap::new();
    let mut lines = String::new();
    while lines.lines().count() < most {
        ensure!(Instant::now() < deadline, "only these handshakes passed by:\n{lines}");
        let Ok((read, _)) = recv(&tap, &mut packet[..], RecvFlags::empty()) else { continue };
        if let Some(segment) = Segment::read(&packet[..read])
            && let Some(recorded) = segment.note(&mut flows)
        {
            lines.push_str(&recorded.line());
        }
    }
    project::write(file, lines)
}

/// A packet of TCP.
struct Segment<'a> {
    from: SocketAddr,
    to: SocketAddr,
    /// It opens a connection.
    opens: bool,
    body: &'a [u8],
}

/// The messages that the connecting side of a connection has sent, by its two ends.
type Flows = BTreeMap<(SocketAddr, SocketAddr), Vec<Vec<u8>>>;

impl Segment<'_> {
    /// The TCP segment that a packet of IP holds, if it is one.
    fn read(packet: &[u8]) -> Option<Segment<'_>> {
        let (from, to, tcp): (IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
            4 if packet.get(9) == Some(&6) => {
                let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?).into());
                let end = usize::from(u16::from_be_bytes(*packet.get(2..)?.first_chunk()?));
                let rest = packet.get(4 * usize::from(packet[0] & 15)..end.min(packet.len()))?;
                (address(12)?, address(16)?, rest)
            }
            6 if packet.get(6) == Some(&6) => {
                let address =
                    |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?).into());
                (address(8)?, address(24)?, packet.get(40..)?)
            }
            _ => return None,
        };
        let port = |at: usize| Some(u16::from_be_bytes(*tcp.get(at..)?.first_chunk()?));
        let (from, to) = (SocketAddr::new(from, port(0)?), SocketAddr::new(to, port(2)?));
        let body = tcp.get(4 * usize::from(tcp.get(12)? >> 4)..)?;
        // SYN without ACK.
        Some(Segment { from, to, opens: tcp[13] & 0x12 == 2, body })
    }

    /// Notes what the segment says; gives a handshake that is complete with it. A packet of the loopback passes twice.
    fn note(&self, flows: &mut Flows) -> Option<Recorded> {
        let flow = (self.from, self.to);
        if self.opens {
            flows.insert(flow, Vec::new());
        }
        let messages = flows.get_mut(&flow).filter(|_| !self.body.is_empty())?;
        if messages.last().is_some_and(|last| last == self.body) {
            return None;
        }
        match message_length(self.body) {
            Ok(Some(length)) if self.body.len() == 2 + length => messages.push(self.body.to_vec()),
            _ => drop(flows.remove(&flow)),
        }
        let [opening, proof] = <[Vec<u8>; 2]>::try_from(flows.get(&flow)?.clone()).ok()?;
        flows.remove(&flow);
        Some(Recorded { to: self.to, opening, proof })
    }
}

/// A connection's way to annoy; true if the other end is still to be kept waiting.
type Kind = fn(&mut Stranger<'_>, &mut TcpStream) -> std::io::Result<bool>;

/// What connections do, in turn.
const KINDS: [(&str, Kind); 5] = [
    ("random bytes", |stranger, socket| stranger.random_bytes(socket)),
    ("replayed", |stranger, socket| stranger.replay(socket)),
    ("wrong secret", |stranger, socket| stranger.wrong_secret(socket)),
    ("half a handshake", |stranger, socket| stranger.half(socket)),
    ("silent", |_, _| Ok(true)),
];

struct Stranger<'a> {
    recorded: &'a [Recorded],
    random: Random,
    /// Where the present connection leads.
    target: SocketAddr,
    /// Bytes that the job has said to one who knows nothing, or whose replayed handshake should end with the answer.
    heard: usize,
    answers: usize,
}

/// Opens the connections, and fails if the job has said to any of them what it should not.
fn connect(file: &Path, connections: usize, seed: u64, targets: &[SocketAddr]) -> Result<()> {
    let text = project::read(file)?;
    let recorded: Vec<Recorded> = text.lines().filter_map(Recorded::read).collect();
    ensure!(!recorded.is_empty(), "there is no recorded handshake in {}", file.display());
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let most = limit.maximum.unwrap_or(u64::MAX).saturating_sub(SPARE) as usize / THREADS;
    let (mut made, mut heard, mut answers) = ([0; KINDS.len()], 0, 0);
    let mut kept = Vec::new();
    std::thread::scope(|scope| {
        let recorded = &recorded;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let random = Random::new(seed.wrapping_add(thread as u64));
                    let target = targets[0];
                    let mut stranger = Stranger { recorded, random, target, heard: 0, answers: 0 };
                    let (made, held) =
                        stranger.connect((thread..connections).step_by(THREADS), targets, most);
                    (made, held, stranger.heard, stranger.answers)
                })
            })
            .collect();
        for thread in threads {
            let (by_kind, held, bytes, said) = thread.join().expect("a stranger does not panic");
            made.iter_mut().zip(by_kind).for_each(|(sum, count)| *sum += count);
            kept.extend(held);
            (heard, answers) = (heard + bytes, answers + said);
        }
    });
    let total: usize = made.iter().sum();
    let kinds: Vec<_> = KINDS.iter().zip(made).map(|((name, _), count)| format!("{count} {name}")).collect();
    println!("{total} made: {}; {answers} answers, {} held", kinds.join(", "), kept.len());
    if heard > 0 {
        bail!("the job has said {heard} bytes to strangers");
    }
    Ok(())
}

impl Stranger<'_> {
    /// Opens these connections; gives how many there were of each kind, and those that are held.
    fn connect(
        &mut self,
        numbers: impl Iterator<Item = usize>,
        targets: &[SocketAddr],
        most: usize,
    ) -> ([usize; KINDS.len()], VecDeque<TcpStream>) {
        let (mut made, mut held) = ([0; KINDS.len()], VecDeque::new());
        for number in numbers {
            // The numbers of a thread are some multiple apart: each thread is to do everything, everywhere.
            let kind = self.random.below(KINDS.len());
            self.target = targets[number / THREADS % targets.len()];
            let Ok(mut socket) = TcpStream::connect_timeout(&self.target, 4 * HEARING) else { continue };
            made[kind] += 1;
            let limits = socket.set_read_timeout(Some(HEARING)).and(socket.set_write_timeout(Some(HEARING)));
            // The other end may close at any time.
            if limits.and_then(|()| KINDS[kind].1(self, &mut socket)).unwrap_or(false) {
                held.push_back(socket);
                if held.len() > most {
                    held.pop_front();
                }
            }
        }
        (made, held)
    }

    /// Reads to the end, or until nothing has come for a while: what comes is too much.
    fn hear_nothing(&mut self, socket: &mut TcpStream) {
        let mut bytes = [0; 256];
        while let Ok(read @ 1..) = socket.read(&mut bytes) {
            self.heard += read;
        }
    }

    fn random_bytes(&mut self, socket: &mut TcpStream) -> std::io::Result<bool> {
        let length = 1 + self.random.below(300);
        let bytes: Vec<u8> = (0..length).map(|_| self.random.word() as u8).collect();
        socket.write_all(&bytes)?;
        socket.shutdown(Shutdown::Write)?;
        self.hear_nothing(socket);
        Ok(false)
    }

    /// A recorded handshake, at the port where it was made or at another one.
    fn replay(&mut self, socket: &mut TcpStream) -> std::io::Result<bool> {
        let here: Vec<&Recorded> = self.recorded.iter().filter(|one| one.to == self.target).collect();
        let recorded = match here[..] {
            [] => &self.recorded[self.random.below(self.recorded.len())],
            _ => here[self.random.below(here.len())],
        };
        socket.write_all(&recorded.opening)?;
        let mut length = [0; 2];
        if socket.read_exact(&mut length).is_ok() {
            socket.read_exact(&mut vec![0; u16::from_le_bytes(length).into()])?;
            self.answers += 1;
        }
        socket.write_all(&recorded.proof)?;
        self.hear_nothing(socket);
        Ok(false)
    }

    fn opening(&mut self) -> std::io::Result<Vec<u8>> {
        let secret = std::array::from_fn(|_| self.random.word() as u8);
        let [from, to] = [0, 1].map(|_| Peer(self.random.below(6) as u32));
        let (job, attempt, features) = (self.random.word(), 1, Features::NONE);
        let hello = Hello { job, from, to, stream: 0, attempt, features, answer: Answer::Accept };
        let made = Handshake::connect(&secret, hello).map_err(std::io::Error::other)?;
        Ok(made.1)
    }

    fn wrong_secret(&mut self, socket: &mut TcpStream) -> std::io::Result<bool> {
        socket.write_all(&self.opening()?)?;
        self.hear_nothing(socket);
        Ok(false)
    }

    fn half(&mut self, socket: &mut TcpStream) -> std::io::Result<bool> {
        let opening = self.opening()?;
        socket.write_all(&opening[..1 + self.random.below(opening.len() - 1)])?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of TCP over this version of IP.
    fn packet(version: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let ip = match version {
            4 => {
                let mut ip = vec![0x45, 0, 0, (40 + body.len()) as u8, 0, 0, 0, 0, 64, 6, 0, 0];
                ip.extend([10, 77, 0, 1, 10, 77, 0, 2]);
                ip
            }
            _ => {
                let mut ip = vec![0x60, 0, 0, 0, 0, (20 + body.len()) as u8, 6, 64];
                for last in [1, 2] {
                    ip.extend(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last).octets());
                }
                ip
            }
        };
        let mut tcp = vec![0; 20];
        tcp[..4].copy_from_slice(&[0x13, 0x88, 0x17, 0x70]);
        (tcp[12], tcp[13]) = (5 << 4, flags);
        [ip, tcp, body.to_vec()].concat()
    }

    #[test]
    fn a_handshake_that_passes_by_is_recorded_once() {
        for (version, to) in [(4, "10.77.0.2:6000"), (6, "[fd77::2]:6000")] {
            let mut flows = Flows::new();
            let mut pass = |flags, body: &[u8]| {
                let packet = packet(version, flags, body);
                // As on the loopback.
                let (first, second) = (Segment::read(&packet).unwrap(), Segment::read(&packet).unwrap());
                let both = [first.note(&mut flows), second.note(&mut flows)];
                both.into_iter().flatten().collect::<Vec<_>>()
            };
            assert!(pass(2, &[]).is_empty() && pass(0x10, &[]).is_empty());
            assert!(pass(0x18, &[3, 0, 1, 2, 3]).is_empty());
            let found = pass(0x18, &[1, 0, 9]);
            let [one] = &found[..] else { panic!("{} handshakes", found.len()) };
            assert_eq!(one.line(), format!("{to} 0300010203 010009\n"));
            let again = Recorded::read(one.line().trim_end()).unwrap();
            assert_eq!(
                (again.to, again.opening, again.proof),
                (one.to, one.opening.clone(), one.proof.clone())
            );
            assert!(pass(0x18, &[1, 0, 9]).is_empty(), "frames follow");
            // Another protocol.
            assert!(pass(2, &[]).is_empty() && pass(0x18, b"SSH-2.0").is_empty());
            assert!(pass(0x18, &[1, 0, 9]).is_empty());
        }
        assert!(Segment::read(&[]).is_none() && Segment::read(&[0x45, 0, 0]).is_none());
    }
}
