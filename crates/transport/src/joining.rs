//! [`Member`]: how a fabric starts when its process joins a job.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::{Fabric, Peer};

/// What a process knows of the job that it joins.
pub struct Joining<'a> {
    /// This process.
    pub me: Peer,
    /// Number of processes of the job.
    pub size: u32,
    /// The job's number.
    pub job: u64,
    /// 32 random bytes that only processes of the job know.
    pub secret: [u8; 32],
    /// The peers of this node, this process among them, by their numbers there.
    pub node: Vec<Peer>,
    /// Number of nodes of the job.
    pub nodes: u32,
    /// The node has more processes than cores.
    pub crowded: bool,
    /// Processes of the node may read each other's memory.
    pub single_copy: bool,
    /// Number of streams to each peer, for fabrics that make connections; 0: as they think best.
    pub streams: u8,
    /// The network interfaces that peers on other nodes may use, as the user names them; empty: those that are best.
    pub nics: &'a str,
    /// How connections by RDMA devices are to be, as the user says; empty: as devices have it.
    pub rdma: &'a str,
    /// How many processes of the node come before this one that may use the same socket.
    pub turn: u32,
    /// The text of a topology file that tells where NICs are, in the place of what the system tells; empty: there is none.
    pub topology: &'a str,
    /// The ports that may be listened at; `None`: any.
    pub ports: Option<RangeInclusive<u16>>,
    /// How long a peer may be out of reach before it counts as gone.
    pub patience: Duration,
    /// What goes over networks is encrypted.
    pub encrypt: bool,
    /// The fabrics that have started before surely reach all peers.
    pub reached: bool,
    /// Gives the memory that the processes of the node share, if there is any. To be called once.
    pub node_memory: &'a mut dyn FnMut() -> Result<Option<OwnedFd>, String>,
}

/// Why a fabric has not started, as a sentence for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotStarted {
    /// This host lacks what the fabric runs on. Users are told only where no other fabric reaches a peer.
    Absent(String),
    /// Something is wrong with it here. Other fabrics carry its peers, if they reach them, and users are told.
    Broken(String),
    /// What the user asks for is wrong, or other processes rely on the fabric: the job cannot run.
    Fatal(String),
}

impl From<String> for NotStarted {
    fn from(why: String) -> NotStarted {
        NotStarted::Fatal(why)
    }
}

/// A fabric of the runtime's list, which its crate starts.
pub trait Member: Fabric + Sized {
    /// Starts the fabric if the job has a use for it, and gives its business card, which is empty if it surely reaches the peers
    /// that it names ([`Fabric::reaches`]). With a card it reaches those that have one, too.
    ///
    /// # Errors
    /// If it should start and cannot.
    fn start(joining: Joining<'_>) -> Result<Option<(Self, Vec<u8>)>, NotStarted>;
}
