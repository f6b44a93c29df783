//! The frames that rank and agent send to each other.

use serde::{Deserialize, Serialize};

use crate::places::Places;

/// Version of this protocol. Both sides are installed together, so they must agree exactly; the number is
/// there to say so when they do not.
pub const VERSION: u32 = 7;

/// Most bytes of a business card (the addresses that a rank publishes).
pub const MAX_BUSINESS_CARD: usize = 64 << 10;

/// Most bytes of what a rank has measured.
pub const MAX_MEASURED: usize = 16 << 10;

/// Most ranks of a job.
pub const MOST_RANKS: u32 = 1 << 20;

/// Most bytes of a message or name; longer ones are cut.
pub const MAX_TEXT: usize = 4 << 10;

/// From rank to agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A process joins the job as this rank.
    Hello {
        /// [`VERSION`] of the rank's library.
        version: u32,
        /// Its process id, as it knows itself.
        pid: u32,
    },
    /// The rank's addresses, for the ranks that look them up. At most [`MAX_BUSINESS_CARD`] bytes; sent once.
    Publish {
        /// Opaque to the agent.
        business_card: Vec<u8>,
    },
    /// Asks for a rank's business card; answered by [`Reply::BusinessCard`] when that rank has published.
    Lookup {
        /// Rank in MPI_COMM_WORLD.
        rank: u32,
    },
    /// MPI_Init is over.
    Ready,
    /// MPI_Finalize is over: the process may end with any status, or go on without MPI.
    Finalized,
    /// The job must end (MPI_Abort, or a fatal error).
    Abort {
        /// MPI_Abort's error code, unchanged.
        code: i32,
        /// For the user; may be empty. Cut to [`MAX_TEXT`] bytes.
        message: String,
    },
    /// A text for the user that other ranks may send, too: it is shown once, with the number of the others.
    Notice {
        /// At most [`MAX_TEXT`] bytes. Ranks with the same cause must send equal texts.
        text: String,
    },
    /// What the rank has measured of the ways of long messages, for the next job: lines of the file of a machine's profile.
    Measured {
        /// At most [`MAX_MEASURED`] bytes.
        ways: String,
    },
    /// This rank cannot reach another one at present; answered by [`Reply::Gone`] when that one has ended.
    Unreached {
        /// Rank in MPI_COMM_WORLD.
        rank: u32,
    },
}

/// From agent to rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The description of the job for this rank. Always the first frame.
    Welcome {
        /// [`VERSION`] of the agent.
        version: u32,
        /// The job as this rank sees it.
        job: Box<Job>,
    },
    /// A process said hello for a rank as which another process has joined.
    Refused {
        /// The process that is refused.
        pid: u32,
        /// Why.
        reason: String,
    },
    /// The business card of a rank that was looked up.
    BusinessCard {
        /// The rank whose business card this is.
        rank: u32,
        /// The business card, as that rank published it.
        business_card: Vec<u8>,
    },
    /// The process of a rank has ended.
    Gone {
        /// Rank in MPI_COMM_WORLD.
        rank: u32,
        /// Why, for people; a sentence in which "it" is the process.
        cause: String,
        /// It has failed, and the job goes on without it: all ranks are told. Otherwise the frame is an answer.
        failed: bool,
    },
}

/// A job as one of its ranks sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Job {
    /// This rank in MPI_COMM_WORLD, below `size`.
    pub rank: u32,
    /// Number of ranks in MPI_COMM_WORLD, at least 1.
    pub size: u32,
    /// This rank among those of its host.
    pub local_rank: u32,
    /// Number of ranks of the job on this host.
    pub local_size: u32,
    /// Which ranks live on which host.
    pub places: Places,
    /// MPI_APPNUM: which of the programs joined by `:` this rank runs.
    pub appnum: u32,
    /// How many programs were joined by `:`.
    pub apps: u32,
    /// Number of ranks that run this rank's program.
    pub app_size: u32,
    /// The program as it was named on the command line (cut to [`MAX_TEXT`] bytes).
    pub command: String,
    /// MPI_UNIVERSE_SIZE: ranks that the launcher expects at most.
    pub universe_size: u32,
    /// Names the job; drawn at random.
    pub job_id: u64,
    /// Known to the job's ranks only: connections between ranks must prove that they know it.
    pub secret: [u8; 32],
    /// Name of this host, for messages.
    pub host: String,
    /// Settings that must be equal at all ranks, as name and value; see [`crate::settings::COMMON`].
    pub settings: Vec<(String, String)>,
    /// Inherited descriptor of the host's shared memory (a memfd, zero-filled), if the agent could make one.
    pub memory_fd: Option<i32>,
    /// Inherited descriptor of the ranks' status lines, if the agent could make them; see [`crate::status`].
    pub status_fd: Option<i32>,
    /// Ranks of this host read each other's memory (process_vm_readv) where messages are large.
    pub single_copy: bool,
}

impl Job {
    /// A job of one process that no launcher started: rank 0 of 1.
    pub fn singleton(cores: u32) -> Job {
        Job {
            rank: 0,
            size: 1,
            local_rank: 0,
            local_size: 1,
            places: Places::on_one_node(cores),
            appnum: 0,
            apps: 1,
            app_size: 1,
            command: String::new(),
            universe_size: 1,
            job_id: 0,
            secret: [0; 32],
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            settings: Vec::new(),
            memory_fd: None,
            status_fd: None,
            single_copy: false,
        }
    }

    /// The value of a setting of the job, if it is set.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// [`Job::setting`], or the default of the setting.
    pub fn setting_or_default(&self, name: &str) -> &str {
        self.setting(name).unwrap_or_else(|| crate::settings::default_of(name))
    }

    /// The host that `rank` lives on.
    pub fn node_of(&self, rank: u32) -> u32 {
        self.places.home(rank).node
    }

    /// How many hosts the job is on.
    pub fn hosts(&self) -> u32 {
        self.places.nodes()
    }

    /// Cores of this host that the job may use.
    pub fn cores(&self) -> u32 {
        self.places.home(self.rank).cores
    }

    /// True if the job meets the conditions that the rest of the library relies on; otherwise the frame is refused.
    pub(crate) fn is_sound(&self) -> bool {
        self.size >= 1
            && self.rank < self.size
            && self.local_size >= 1
            && self.local_size <= self.size
            && self.local_rank < self.local_size
            && self.places.is_sound(self.size)
    }
}

/// At most [`MAX_TEXT`] bytes of `text`, cut between characters.
pub fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}
