//! The frames that the agents of a job's hosts send to each other: orders go down the tree of agents, events go up.
//!
//! A frame is a length (u32, little-endian), the number of the host that it goes to or comes from (u32), and a body in
//! postcard. Agents on the way pass frames on without reading most of them; see [`crate::tree`].

use std::path::PathBuf;
use std::time::Duration;

use banyan_pmi::{Offer, Places, Reply, Request};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::binding::Binding;
use crate::files::Files;
use crate::plan::{App, HostPlan};
use crate::pmi1::{Down, Up};
use crate::report::RankState;
use crate::tree::Cards;
use crate::verdict::End;

/// Version of the protocol between agents.
const VERSION: u32 = 2;

/// The host number of a frame that goes to all agents of a subtree.
pub(crate) const ALL: u32 = u32::MAX;

/// Most bytes of a body: room for the environment and the places of 100,000 ranks.
const MAX_BODY: usize = 16 << 20;

/// Bytes before the body.
pub(crate) const HEAD: usize = 8;

/// How the line begins by which a new agent says that it is there. What comes before that line is the remote shell's.
const MARK: &str = "banyan-agent ";

/// The line by which an agent of this installation says that it is there.
pub(crate) fn mark() -> String {
    format!("\n{MARK}{}.{VERSION}.{}\n", env!("CARGO_PKG_VERSION"), banyan_pmi::VERSION)
}

/// What becomes of the bytes that come before the first frame.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    /// The agent has not spoken yet.
    NotYet,
    /// It is there, and its frames begin at this byte.
    There(usize),
    /// It is of another version.
    Version(String),
}

/// Looks for an agent's [`mark`].
pub(crate) fn greeting(bytes: &[u8]) -> Greeting {
    let mut at = 0;
    while let Some(length) = bytes[at..].iter().position(|&byte| byte == b'\n') {
        let line = String::from_utf8_lossy(&bytes[at..at + length]).into_owned();
        at += length + 1;
        if let Some(version) = line.strip_prefix(MARK) {
            return match mark().trim() == line.trim_end() {
                true => Greeting::There(at),
                false => Greeting::Version(version.trim_end().to_owned()),
            };
        }
    }
    Greeting::NotYet
}

/// A frame on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// The host that it goes to or comes from; [`ALL`].
    pub(crate) host: u32,
    pub(crate) body: Vec<u8>,
}

impl Frame {
    /// The frame of an order or event. Its body is empty if postcard cannot write it, which is so for paths that are no text.
    pub(crate) fn new<T: Serialize>(host: u32, what: &T) -> Frame {
        Frame { host, body: postcard::to_allocvec(what).unwrap_or_default() }
    }

    /// True if agents take the frame.
    pub(crate) fn is_sound(&self) -> bool {
        (1..=MAX_BODY).contains(&self.body.len())
    }

    /// What the frame says; `None` if it is no frame of this protocol.
    pub(crate) fn open<T: DeserializeOwned>(&self) -> Option<T> {
        match postcard::take_from_bytes(&self.body) {
            Ok((what, [])) => Some(what),
            _ => None,
        }
    }

    /// Appends the frame to what is to be sent.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.body.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.host.to_le_bytes());
        out.extend_from_slice(&self.body);
    }

    /// The first frame of `bytes` and its length; `None` if it is not complete yet.
    ///
    /// # Errors
    /// If the bytes can never become a frame.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Frame, usize)>, String> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [length, host] =
            [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        if length as usize > MAX_BODY {
            return Err(format!("a frame of {length} bytes, at most {MAX_BODY} are allowed"));
        }
        let body = rest.get(..length as usize);
        Ok(body.map(|body| (Frame { host, body: body.to_vec() }, HEAD + body.len())))
    }
}

/// Any bytes are an agent's greeting, frames, orders and events, or none; what is read can be written.
#[cfg(any(test, fuzzing))]
pub fn any_bytes(bytes: &[u8]) {
    fn again<T: Serialize + DeserializeOwned>(frame: &Frame) {
        if let Some(what) = frame.open::<T>() {
            let written = Frame::new(frame.host, &what);
            let read: T = written.open().expect("what was written can be read");
            assert_eq!(Frame::new(frame.host, &read), written);
        }
    }
    let frames = match greeting(bytes) {
        Greeting::There(at) => &bytes[at..],
        _ => bytes,
    };
    let mut frame = Frame { host: 0, body: bytes.to_vec() };
    if let Ok(Some((first, length))) = Frame::read(frames) {
        assert!(length <= frames.len());
        frame = first;
    }
    again::<Order>(&frame);
    again::<Event>(&frame);
}

/// What agents need to start the agents below them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Reach {
    /// The command that runs another on a host, and its arguments before the host's name.
    pub(crate) ssh: Vec<String>,
    /// The path of mpirun on the other hosts.
    pub(crate) agent: String,
    /// Most agents that one agent starts.
    pub(crate) radix: u32,
    /// How long the other end of a connection may be silent.
    pub(crate) patience: Duration,
}

/// All that agents are told of a job before it starts.
#[derive(Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) job_id: u64,
    pub(crate) secret: [u8; 32],
    /// Which ranks belong to which agent.
    pub(crate) places: Places,
    pub(crate) size: u32,
    /// mpirun's working directory, from which paths start.
    pub(crate) folder: PathBuf,
    pub(crate) apps: Vec<App>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) files: Files,
    pub(crate) binding: Binding,
    /// Whether rank 0 reads mpirun's input.
    pub(crate) input: bool,
    /// Rows and columns of the terminal that ranks are to have.
    pub(crate) terminal: Option<(u16, u16)>,
    pub(crate) umask: u32,
    /// Numbers of resources and their soft limits.
    pub(crate) limits: Vec<(u32, u64)>,
    /// Bytes of output that a host may send before it is told that they are written.
    pub(crate) window: u32,
    pub(crate) reach: Reach,
}

impl Launch {
    /// A job without ranks, by which hosts are asked whether they are there.
    pub(crate) fn question(reach: Reach) -> Launch {
        Launch {
            job_id: 0,
            secret: [0; 32],
            places: Places::default(),
            size: 0,
            folder: PathBuf::from("/"),
            apps: Vec::new(),
            settings: Vec::new(),
            files: Files::none(),
            binding: Binding::default(),
            input: false,
            terminal: None,
            umask: 0o77,
            limits: Vec::new(),
            window: 1,
            reach,
        }
    }
}

/// From mpirun's own agent to that of another host.
#[derive(Serialize, Deserialize)]
pub(crate) enum Order {
    /// The number of the agent, and the names of the hosts of its subtree as the user wrote them, its own first: from its parent,
    /// before all else.
    You { number: u32, hosts: Vec<String> },
    /// The job; answered by [`Event::Here`] or [`Event::Lost`].
    Begin(Box<Launch>),
    /// Are these agents, all of them before this one, on its machine? Answered by [`Event::Met`].
    Meet(Vec<(u32, Offer)>),
    /// The ranks of the host are these of so many, and no others; answered by [`Event::Here`].
    Ranks { size: u32, ranks: Vec<u32> },
    /// Start the ranks. They belong to these agents, and are at these places of these nodes.
    Start { agents: Places, places: Places },
    /// A frame for a rank.
    Reply { rank: u32, reply: Reply },
    /// Of business cards.
    Cards(Cards),
    /// For the server of PMI-1.
    Pmi(Down),
    /// The job goes on without a rank, which has failed: all others are told.
    Failed { rank: u32, cause: String },
    /// Kill a rank.
    KillRank { rank: u32 },
    /// A signal to all ranks.
    Signal(i32),
    /// A signal that asks all ranks but one to end.
    EndBut { spared: Option<u32>, signal: i32 },
    /// Kill all that is left; with `tell`, name it.
    Kill { tell: bool },
    /// Answered by [`Event::States`].
    States { stopped: bool },
    /// So many bytes of standard output or standard error are written.
    Credit { err: bool, bytes: u32 },
    /// Nobody reads standard output or standard error any more.
    HangUp { err: bool },
    /// Input for rank 0; empty at its end.
    Input(Vec<u8>),
    /// The parent is there.
    Pulse,
    /// The job is over.
    Exit,
}

/// What a host's agent tells mpirun's own.
#[derive(Serialize, Deserialize)]
pub(crate) enum Event {
    /// The host is ready.
    Here(Here),
    /// The first of the agents that it was asked about which is on its machine.
    Met { first: Option<u32> },
    /// A sentence for the user.
    Said(String),
    /// A rank was started as this process.
    Started { rank: u32, pid: u32 },
    /// All ranks of the host that can be started have been; the CPUs that each of its ranks is bound to, if they are.
    AllStarted { cpus: Vec<String> },
    /// A rank could not be started; mpirun's status for that.
    NotStarted { rank: u32, status: u8, why: String },
    /// A process has joined the job as a rank.
    Joined { rank: u32 },
    /// A rank's request.
    Request { rank: u32, request: Request },
    /// Of business cards.
    Cards(Cards),
    /// For the job's part of the server of PMI-1.
    Pmi(Up),
    /// A rank has broken the bootstrap protocol.
    Broken { rank: u32, why: String },
    /// Processes of ranks have ended.
    Ended(Vec<Ended>),
    /// The process that joined as a rank is gone, and the process that was started for the rank is not.
    JoinedGone { rank: u32, pid: u32 },
    /// Output of a rank.
    Output { rank: u32, err: bool, text: Vec<u8> },
    /// What the host's ranks do; `now` is its clock, as in `pmi::status`.
    States { now: u64, states: Vec<(u32, RankState)> },
    /// Processes that are about to be killed, by name.
    Left(Vec<String>),
    /// Processes that cannot be killed.
    Unkillable(Vec<u32>),
    /// So many bytes of input were taken.
    InputTaken(u32),
    /// A rank that is in MPI was stopped by a signal, or goes on.
    Stopped { rank: u32, stopped: bool },
    /// The host is there; `quiet`: all of its ranks wait or have ended.
    Pulse { quiet: bool },
    /// No process of the job is left on the host; `written`: nor any output.
    Empty { written: bool },
    /// The agents from `first` to `end` cannot be reached.
    Lost { first: u32, end: u32, why: String },
}

/// What a host is.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Here {
    /// Its own name.
    pub(crate) host: String,
    pub(crate) cores: u32,
    /// On which socket and cache each of its ranks is to run, if they are bound.
    pub(crate) bound: Vec<(u32, u32)>,
    /// How many ranks it takes, where they are counted by its parts (`ppr`).
    pub(crate) room: Option<u32>,
    /// How other agents find out whether they are on the same machine.
    pub(crate) meeting: Option<Meeting>,
}

impl Here {
    /// The host that has this plan.
    pub(crate) fn new(plan: &HostPlan, meeting: Option<Meeting>) -> Here {
        let bound = plan.bound.iter().map(|bound| (bound.socket, bound.cache)).collect();
        Here { host: plan.host.clone(), cores: plan.cores, bound, room: plan.room(), meeting }
    }
}

/// What agents on one machine find each other by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Meeting {
    /// Equal at agents that are worth asking.
    pub(crate) whereabouts: String,
    pub(crate) offer: Offer,
}

/// The end of a rank's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) rank: u32,
    pub(crate) end: End,
    /// The kernel has killed a process of the host because memory ran out.
    pub(crate) out_of_memory: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_agent_is_known_whatever_its_shell_says_before() {
        let noise = "Welcome!\nbanyan-agents are fine\nlast login: never";
        let bytes = format!("{noise}{}frames", mark());
        let Greeting::There(at) = greeting(bytes.as_bytes()) else { panic!("{bytes}") };
        assert_eq!(&bytes[at..], "frames");
        // It comes in pieces.
        for cut in 0..at {
            assert_eq!(greeting(&bytes.as_bytes()[..cut]), Greeting::NotYet, "{cut}");
        }
        let other = format!("{noise}\n{MARK}0.0.7.1.1\n");
        assert_eq!(greeting(other.as_bytes()), Greeting::Version("0.0.7.1.1".to_owned()));
    }

    #[test]
    fn frames_that_are_too_long_are_refused() {
        let length = (MAX_BODY as u32 + 1).to_le_bytes();
        assert!(Frame::read(&[length, [0; 4]].concat()).is_err());
        assert!(!Frame { host: 0, body: Vec::new() }.is_sound());
    }

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written(frames in prop::collection::vec((any::<u32>(), any::<Vec<u8>>()), 0..5)) {
            let frames: Vec<Frame> = frames.into_iter().map(|(host, body)| Frame { host, body }).collect();
            let mut bytes = Vec::new();
            frames.iter().for_each(|frame| frame.write(&mut bytes));
            let mut at = 0;
            for frame in &frames {
                let (read, length) = Frame::read(&bytes[at..]).unwrap().unwrap();
                prop_assert_eq!(&read, frame);
                prop_assert_eq!(Frame::read(&bytes[at..at + length - 1]), Ok(None));
                at += length;
            }
            prop_assert_eq!(at, bytes.len());
        }

        #[test]
        fn any_bytes_are_frames_or_refused(bytes: Vec<u8>) {
            any_bytes(&bytes);
        }

        #[test]
        fn a_job_is_told_as_it_is(rank: u32, text in ".{0,40}", code: i32) {
            let event = Event::Request { rank, request: Request::Abort { code, message: text.clone() } };
            let read = Frame::new(3, &event).open();
            let Some(Event::Request { rank: of, request: Request::Abort { code: read, message } }) = read else {
                return Err(TestCaseError::fail("another event"));
            };
            prop_assert_eq!((of, read, message), (rank, code, text));
        }
    }
}
