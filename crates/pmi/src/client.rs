//! The rank's side: [`attach`] and [`Client`].

use std::collections::{HashSet, VecDeque};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use thiserror::Error;

use crate::foreign::{Misfit, Way, foreign_launcher};
use crate::frame::{Job, MAX_BUSINESS_CARD, MAX_MEASURED, Reply, Request, VERSION, cut};
use crate::inherit::{
    FD_VARIABLE, Relation, SocketRef, adopt_foreign_socket, adopt_memory, adopt_socket, is_privileged,
    is_socket, keep_pmi1_from_children, relation_to_job,
};
use crate::kvs::{Kvs, get_bytes, put_bytes};
use crate::last_word::LastWord;
use crate::pmi1_kvs::{Pmi1, Pmi1Error};
use crate::pmix::{Pmix, PmixError};
use crate::status::{self, StatusLine};
use crate::wire::{Channel, WireError};
use crate::wire_up::{self, Begun, Here, Unheard};

/// If this variable is 1, the process is rank 0 of 1 whatever started it.
const SINGLETON_VARIABLE: &str = "BANYAN_SINGLETON";

/// What a rank's business card is called in another launcher's store.
const CARD: &str = "card";

/// Why a process cannot join its job, or has lost its agent.
#[derive(Debug, Error)]
pub enum Error {
    /// Another launcher started this process, and left it no way to join.
    #[error(
        "this program was started by {launcher}, whose job it cannot join: {why}. Way out: {remedy}; or set \
         {SINGLETON_VARIABLE}=1 to run it as rank 0 of 1"
    )]
    ForeignLauncher {
        /// The launcher, with the evidence.
        launcher: String,
        /// The reason.
        why: &'static str,
        /// What the user can do.
        remedy: &'static str,
    },
    /// A server of PMI-1 and this library do not understand each other.
    #[error("the launcher that started this program cannot be joined by PMI-1: {0}")]
    Pmi1(#[from] Pmi1Error),
    /// There is no library of PMIx, or it refuses.
    #[error(
        "the launcher that started this program (PMIX_NAMESPACE) cannot be joined by PMIx: {0}. Way out: the folder of \
         libpmix.so.2 in LD_LIBRARY_PATH, `srun --mpi=pmi2`, or Banyan's mpirun"
    )]
    Pmix(#[from] PmixError),
    /// A rank put something into the launcher's store that ranks of this library do not put, or nothing.
    #[error(
        "rank {rank} left no \"{what}\" that can be read in the launcher's key-value store: link all ranks with this library"
    )]
    Record {
        /// That rank.
        rank: u32,
        /// The name of the record.
        what: &'static str,
    },
    /// A record that is too long for the launcher's store.
    #[error("{0} bytes are too many for the launcher's key-value store")]
    RecordTooLong(usize),
    /// A rank has another version of this library.
    #[error(
        "rank {rank} speaks version {version} of the bootstrap protocol, this rank {VERSION}: link all ranks with one library"
    )]
    RankVersion {
        /// That rank.
        rank: u32,
        /// Its version.
        version: u32,
    },
    /// Rank 0 cannot say what holds for all ranks.
    #[error("{0}")]
    Setting(String),
    /// The program has rights that the process that started it does not have.
    #[error(
        "this program has rights of its own (setuid, setgid or file capabilities), so it does not join a job that its \
         environment names: who set its variables would be trusted with them. Run it without these rights, or set \
         {SINGLETON_VARIABLE}=1 to run it as rank 0 of 1"
    )]
    Privileged,
    /// A wrapper between launcher and program closed the bootstrap socket.
    #[error(
        "a wrapper between mpirun and this program closed descriptor {0}, which leads to the job: let the \
         wrapper keep it open (Python: subprocess with close_fds=False), or set {SINGLETON_VARIABLE}=1 to run \
         as rank 0 of 1"
    )]
    WrapperClosedSocket(i32),
    /// The process that mpirun started closed the bootstrap socket before MPI_Init.
    #[error(
        "mpirun started this program as a rank, but descriptor {0}, which leads to the job, was closed before MPI_Init: by \
         the program itself, or by a wrapper that became it (exec). Let it stay open (its number is the first in \
         {FD_VARIABLE}), or set {SINGLETON_VARIABLE}=1 to run as rank 0 of 1"
    )]
    SocketClosed(i32),
    /// The descriptor of the host's shared memory was closed on the way; the other ranks rely on this rank having it.
    #[error(
        "descriptor {0}, the memory that the ranks of this host share, was closed before MPI_Init by this program or a \
         wrapper: let it stay open (Python: subprocess with close_fds=False), or give all ranks BANYAN_FABRICS=tcp to do without"
    )]
    MemoryClosed(i32),
    /// mpirun and library speak different versions of the protocol.
    #[error(
        "mpirun speaks version {agent} of the bootstrap protocol, this library {VERSION}: use those of one installation"
    )]
    Version {
        /// The version that mpirun speaks.
        agent: u32,
    },
    /// Another process has joined the job as this rank.
    #[error("{0}")]
    Refused(String),
    /// A business card over [`MAX_BUSINESS_CARD`] bytes.
    #[error("a business card of {0} bytes (at most {MAX_BUSINESS_CARD} are allowed)")]
    BusinessCardTooLong(usize),
    /// The agent is gone, or sent bytes that are no frame.
    #[error("the launcher cannot be reached: {0}")]
    Agent(#[from] WireError),
    /// The agent sent a frame that it never sends at this point: which one.
    #[error("the launcher broke the bootstrap protocol: it sent {0}")]
    Unexpected(&'static str),
}

/// An event that the agent sends to a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The answer to [`Client::lookup`].
    BusinessCard {
        /// The rank whose business card this is.
        rank: u32,
        /// The business card, as that rank published it.
        business_card: Vec<u8>,
    },
    /// The process of a rank has ended.
    Gone {
        /// That rank.
        rank: u32,
        /// Why, for people; a sentence in which "it" is the process.
        cause: String,
        /// It has failed, and the job goes on without it.
        failed: bool,
    },
}

/// Joins the job that the launcher's variables name; `here` is for that of a launcher that is not ours. `None`: no launcher
/// started this process, it is rank 0 of 1.
///
/// From here on the bootstrap descriptors close on exec. [`JOB_VARIABLES`](crate::JOB_VARIABLES) stay in the environment.
///
/// # Errors
/// If another launcher started the process whose job it cannot join, the program is setuid or the like, a descriptor of the job was
/// closed, versions differ, or another process has joined as this rank.
pub fn attach(here: impl FnOnce() -> Here) -> Result<Option<Client>, Error> {
    if std::env::var_os(SINGLETON_VARIABLE).is_some_and(|value| value == "1") {
        return Ok(None);
    }
    if let Some(socket_ref) = std::env::var_os(FD_VARIABLE).and_then(|value| SocketRef::parse(&value)) {
        if is_privileged() {
            return Err(Error::Privileged);
        }
        if let Some(socket) = adopt_socket(socket_ref) {
            keep_pmi1_from_children();
            return Client::join(socket).map(Some);
        }
        return match relation_to_job(socket_ref) {
            Relation::Wrapped => Err(Error::WrapperClosedSocket(socket_ref.fd)),
            Relation::Closed => Err(Error::SocketClosed(socket_ref.fd)),
            // The variable is left over in the environment: this process is a job of its own.
            Relation::Child | Relation::Unrelated => Ok(None),
        };
    }
    let misfit = |Misfit { launcher, why, remedy }| Error::ForeignLauncher { launcher, why, remedy };
    let Some(way) = foreign_launcher(|name| std::env::var_os(name), is_socket).map_err(misfit)? else {
        return Ok(None);
    };
    if is_privileged() {
        return Err(Error::Privileged);
    }
    let client = match way {
        Way::Pmi1Socket { fd, rank, size } => {
            let socket = adopt_foreign_socket(fd).ok_or(Error::SocketClosed(fd))?;
            Client::join_by_pmi1(socket, rank, size, &here())
        }
        Way::Pmi1Port { port, id } => Client::join_by_pmi1_port(&port, id, &here()),
        Way::Pmix => Client::join_by(Box::new(Pmix::join()?), &here()),
    };
    client.map(Some)
}

/// A rank's connection to its launcher.
#[derive(Debug)]
pub struct Client {
    line: Line,
    job: Job,
    memory: Option<OwnedFd>,
    status: Option<OwnedFd>,
}

/// The launcher.
#[derive(Debug)]
enum Line {
    Agent {
        /// Never closed, also after MPI_Finalize: the open socket tells children of this process that it has joined (see
        /// [`relation_to_job`]).
        channel: ManuallyDrop<Channel<Reply, Request>>,
        /// Ranks whose business cards have been asked for and have not come.
        lookups: HashSet<u32>,
    },
    /// Another one. What is asked of it is answered at once.
    Foreign {
        kvs: ManuallyDrop<Box<dyn Kvs>>,
        events: VecDeque<Event>,
        /// What is to be heard of other nodes when MPI_Init ends.
        unheard: Option<Unheard>,
        /// This rank has put a business card since the last fence, as all ranks have.
        published: bool,
    },
}

impl Client {
    /// Joins over `socket`.
    ///
    /// # Errors
    /// If the agent is gone or breaks the protocol, versions differ, or another process has joined as this rank.
    pub fn join(socket: OwnedFd) -> Result<Client, Error> {
        let mut channel = Channel::new(socket);
        let pid = std::process::id();
        channel.send(&Request::Hello { version: VERSION, pid })?;
        channel.flush_all()?;
        let job = match channel.receive_blocking()? {
            Reply::Welcome { version, .. } if version != VERSION => {
                return Err(Error::Version { agent: version });
            }
            Reply::Welcome { job, .. } if job.is_sound() => *job,
            Reply::Welcome { .. } => {
                return Err(Error::Unexpected("a job description that contradicts itself"));
            }
            Reply::Refused { reason, .. } => return Err(Error::Refused(reason)),
            Reply::BusinessCard { .. } | Reply::Gone { .. } => {
                return Err(Error::Unexpected("something else before its welcome"));
            }
        };
        let memory = job.memory_fd.and_then(adopt_memory);
        let status = job.status_fd.and_then(adopt_memory);
        let line = Line::Agent { channel: ManuallyDrop::new(channel), lookups: HashSet::new() };
        Ok(Client { line, job, memory, status })
    }

    /// Joins the job of a server of PMI-1 over `socket`, as `rank` of `size`. Meets the other ranks.
    ///
    /// # Errors
    /// If the server is gone, speaks something else, or ranks do not fit together.
    pub fn join_by_pmi1(socket: OwnedFd, rank: u32, size: u32, here: &Here) -> Result<Client, Error> {
        Self::join_by(Box::new(Pmi1::join(socket, rank, size)?), here)
    }

    /// Joins the job of a server of PMI-1 which listens at `port`, `HOST:PORT`, as its process `id`. Meets the other ranks.
    ///
    /// # Errors
    /// If the server cannot be reached or is gone, speaks something else, or ranks do not fit together.
    pub fn join_by_pmi1_port(port: &str, id: u32, here: &Here) -> Result<Client, Error> {
        Self::join_by(Box::new(Pmi1::connect(port, id)?), here)
    }

    fn join_by(mut kvs: Box<dyn Kvs>, here: &Here) -> Result<Client, Error> {
        match wire_up::begin(&mut *kvs, here) {
            Ok(Begun { job, memory, unheard }) => {
                let (kvs, events) = (ManuallyDrop::new(kvs), VecDeque::new());
                let line = Line::Foreign { kvs, events, unheard, published: false };
                Ok(Client { line, job, memory, status: None })
            }
            Err(error) => {
                // The others wait for this rank, which some launchers would let them do for ever.
                kvs.last_word().abort(1, &format!("MPI cannot start: {error}"));
                Err(error)
            }
        }
    }

    /// The job as this rank sees it. Under a foreign launcher all other nodes are in it as one until this rank is
    /// [ready](Client::ready).
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The host's shared memory (a zero-filled memfd; `fstat` tells its size), if the agent, or the first rank of the node,
    /// could make one. To be called once.
    ///
    /// # Errors
    /// If its descriptor was closed on the way: the other ranks have the memory, and rely on this rank having it.
    pub fn take_node_memory(&mut self) -> Result<Option<OwnedFd>, Error> {
        match (self.job.memory_fd, self.memory.take()) {
            (Some(fd), None) => Err(Error::MemoryClosed(fd)),
            (_, memory) => Ok(memory),
        }
    }

    /// Writes this rank's status line, or erases it (`None`). Never waits.
    pub fn tell(&self, line: Option<&StatusLine>) {
        if let Some(file) = &self.status {
            status::write(file, self.job.local_rank, line);
        }
    }

    /// Publishes this rank's business card, for the ranks that look it up. To be called once, before [`Client::ready`].
    ///
    /// # Errors
    /// If it is longer than [`MAX_BUSINESS_CARD`], or the launcher is gone.
    pub fn publish(&mut self, business_card: &[u8]) -> Result<(), Error> {
        if business_card.len() > MAX_BUSINESS_CARD {
            return Err(Error::BusinessCardTooLong(business_card.len()));
        }
        match &mut self.line {
            Line::Agent { channel, .. } => {
                Ok(channel.send(&Request::Publish { business_card: business_card.to_vec() })?)
            }
            Line::Foreign { kvs, published, .. } => {
                *published = true;
                put_bytes(&mut ***kvs, CARD, business_card)
            }
        }
    }

    /// Asks for a rank's business card. [`Client::try_event`] gives it when that rank has published; another lookup
    /// before that sends nothing.
    ///
    /// # Errors
    /// If the launcher is gone.
    pub fn lookup(&mut self, rank: u32) -> Result<(), Error> {
        match &mut self.line {
            Line::Agent { channel, lookups } => {
                if lookups.insert(rank) {
                    channel.send(&Request::Lookup { rank })?;
                }
            }
            Line::Foreign { kvs, events, .. } => {
                let card = get_bytes(&mut ***kvs, rank, CARD);
                // A card that cannot be had names no address.
                let business_card = card.as_ref().ok().cloned().flatten().unwrap_or_default();
                events.push_back(Event::BusinessCard { rank, business_card });
                card?;
            }
        }
        Ok(())
    }

    /// Says that a rank cannot be reached. [`Client::try_event`] tells if its process ends, or has ended. Other launchers are not
    /// asked.
    ///
    /// # Errors
    /// If the launcher is gone.
    pub fn report_unreached(&mut self, rank: u32) -> Result<(), Error> {
        match &mut self.line {
            Line::Agent { channel, .. } => Ok(channel.send(&Request::Unreached { rank })?),
            Line::Foreign { .. } => Ok(()),
        }
    }

    /// True if a business card was looked up that [`Client::try_event`] has not given yet.
    pub fn awaits_card(&self) -> bool {
        match &self.line {
            Line::Agent { lookups, .. } => !lookups.is_empty(),
            Line::Foreign { events, .. } => !events.is_empty(),
        }
    }

    /// The next event that the launcher has sent, if one is here. Never waits.
    ///
    /// # Errors
    /// If the agent is gone or breaks the protocol.
    pub fn try_event(&mut self) -> Result<Option<Event>, Error> {
        let (channel, lookups) = match &mut self.line {
            Line::Agent { channel, lookups } => (channel, lookups),
            Line::Foreign { events, .. } => return Ok(events.pop_front()),
        };
        if channel.unsent() > 0 {
            channel.flush()?;
        }
        loop {
            match channel.receive()? {
                None => return Ok(None),
                Some(Reply::BusinessCard { rank, business_card }) => {
                    lookups.remove(&rank);
                    return Ok(Some(Event::BusinessCard { rank, business_card }));
                }
                Some(Reply::Gone { rank, cause, failed }) => {
                    // It may have gone without a card.
                    lookups.remove(&rank);
                    return Ok(Some(Event::Gone { rank, cause, failed }));
                }
                // Another process tried to join as this rank, and was refused: that concerns only the other process.
                Some(Reply::Refused { .. }) => {}
                Some(Reply::Welcome { .. }) => return Err(Error::Unexpected("a second welcome")),
            }
        }
    }

    /// Tells the launcher that MPI_Init is over. Under a foreign launcher ranks meet here if there is something to hear of others, and
    /// [`Client::job`] is complete from here on.
    ///
    /// # Errors
    /// If the launcher is gone.
    pub fn ready(&mut self) -> Result<(), Error> {
        match &mut self.line {
            Line::Agent { channel, .. } => Ok(channel.send(&Request::Ready)?),
            Line::Foreign { kvs, unheard, published, .. } => {
                if std::mem::take(published) || unheard.is_some() {
                    kvs.fence()?;
                }
                if let Some(unheard) = unheard.take() {
                    self.job.places = wire_up::hear(&mut ***kvs, unheard)?;
                }
                Ok(())
            }
        }
    }

    /// Tells the launcher that MPI_Finalize is over: no rank needs this one any more. The launcher knows it when this returns.
    ///
    /// # Errors
    /// If the launcher is gone.
    pub fn finalized(&mut self) -> Result<(), Error> {
        match &mut self.line {
            Line::Agent { channel, .. } => {
                channel.send(&Request::Finalized)?;
                Ok(channel.flush_all()?)
            }
            Line::Foreign { kvs, .. } => kvs.leave(),
        }
    }

    /// Hands on what this rank has measured of the ways of long messages, for the next job. More than [`MAX_MEASURED`] bytes are not sent;
    /// other launchers are not told.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn measured(&mut self, ways: String) -> Result<(), Error> {
        match &mut self.line {
            Line::Agent { channel, .. } if ways.len() <= MAX_MEASURED => {
                Ok(channel.send(&Request::Measured { ways })?)
            }
            _ => Ok(()),
        }
    }

    /// Has mpirun show `text` to the user, once however many ranks send it. Cut to [`MAX_TEXT`](crate::MAX_TEXT) bytes.
    /// False if the launcher shows no texts.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn notice(&mut self, text: &str) -> Result<bool, Error> {
        let Line::Agent { channel, .. } = &mut self.line else { return Ok(false) };
        channel.send(&Request::Notice { text: cut(text).to_owned() })?;
        Ok(true)
    }

    /// Ends the job with MPI_Abort's `code`. The request is on its way when this returns; the caller
    /// flushes its output and exits.
    ///
    /// # Errors
    /// If the agent is gone (then the job ends anyway).
    pub fn abort(&mut self, code: i32, message: &str) -> Result<(), Error> {
        if let Line::Agent { channel, .. } = &mut self.line {
            channel.flush_all()?;
        }
        self.last_word().abort(code, message);
        Ok(())
    }

    /// A handle that can end the job in any state of this client, as in a signal handler.
    pub fn last_word(&self) -> LastWord {
        match &self.line {
            Line::Agent { channel, .. } => LastWord::to_agent(channel.socket().clone()),
            Line::Foreign { kvs, .. } => kvs.last_word(),
        }
    }

    /// Readable when [`Client::try_event`] has an event to give (or the agent is gone); `None` where a lookup has its event at
    /// once.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        match &self.line {
            Line::Agent { channel, .. } => Some(channel.as_fd()),
            Line::Foreign { .. } => None,
        }
    }
}
