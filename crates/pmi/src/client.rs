//! The rank's side: [`attach`] and [`Client`].

use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use thiserror::Error;

use crate::foreign::foreign_launcher;
use crate::frame::{Job, MAX_BUSINESS_CARD, Reply, Request, VERSION, cut};
use crate::inherit::{
    FD_VARIABLE, Relation, SocketRef, adopt_memory, adopt_socket, is_privileged, is_socket,
    keep_pmi1_from_children, relation_to_job,
};
use crate::last_word::LastWord;
use crate::status::{self, StatusLine};
use crate::wire::{Channel, WireError};

/// If this variable is 1, the process is rank 0 of 1 whatever started it.
const SINGLETON_VARIABLE: &str = "BANYAN_SINGLETON";

/// Why a process cannot join its job, or has lost its agent.
#[derive(Debug, Error)]
pub enum Error {
    /// Another launcher started this process.
    #[error(
        "this program was started by {0}, which this MPI cannot join: start it with Banyan's mpirun, \
         or set {SINGLETON_VARIABLE}=1 to run it as rank 0 of 1"
    )]
    ForeignLauncher(String),
    /// The program has rights that the process that started it does not have.
    #[error(
        "this program has rights of its own (setuid, setgid or file capabilities), so it does not join a job that its \
         environment names: who set {FD_VARIABLE} would be trusted with them. Run it without these rights, or set \
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
}

/// Joins the job that the launcher's variables name. `None`: no launcher started this process, it is rank 0 of 1.
///
/// From here on the bootstrap descriptors close on exec. [`JOB_VARIABLES`](crate::JOB_VARIABLES) stay in the environment.
///
/// # Errors
/// If another launcher started the process, the program is setuid or the like, a descriptor of the job was closed, versions
/// differ, or another process has joined as this rank.
pub fn attach() -> Result<Option<Client>, Error> {
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
    match foreign_launcher(|name| std::env::var_os(name), is_socket) {
        Some(launcher) => Err(Error::ForeignLauncher(launcher)),
        None => Ok(None),
    }
}

/// A rank's connection to its agent.
#[derive(Debug)]
pub struct Client {
    /// Never closed, also after MPI_Finalize: the open socket tells children of this process that it has joined (see
    /// [`relation_to_job`]).
    channel: ManuallyDrop<Channel<Reply, Request>>,
    job: Job,
    memory: Option<OwnedFd>,
    status: Option<OwnedFd>,
    /// Ranks whose business cards have been asked for and have not come.
    lookups: HashSet<u32>,
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
            Reply::BusinessCard { .. } => {
                return Err(Error::Unexpected("a business card before its welcome"));
            }
        };
        let memory = job.memory_fd.and_then(adopt_memory);
        let status = job.status_fd.and_then(adopt_memory);
        Ok(Client { channel: ManuallyDrop::new(channel), job, memory, status, lookups: HashSet::new() })
    }

    /// The job as this rank sees it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The host's shared memory (a zero-filled memfd; `fstat` tells its size), if the agent could make one. To be called
    /// once.
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

    /// Publishes this rank's business card; the agent sends it to all ranks that look it up. To be called once.
    ///
    /// # Errors
    /// If it is longer than [`MAX_BUSINESS_CARD`], or the agent is gone.
    pub fn publish(&mut self, business_card: &[u8]) -> Result<(), Error> {
        if business_card.len() > MAX_BUSINESS_CARD {
            return Err(Error::BusinessCardTooLong(business_card.len()));
        }
        self.send(&Request::Publish { business_card: business_card.to_vec() })
    }

    /// Asks for a rank's business card. [`Client::try_event`] gives it when that rank has published; another lookup
    /// before that sends nothing.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn lookup(&mut self, rank: u32) -> Result<(), Error> {
        if !self.lookups.insert(rank) {
            return Ok(());
        }
        self.send(&Request::Lookup { rank })
    }

    /// The next event that the agent has sent, if one is here. Never waits.
    ///
    /// # Errors
    /// If the agent is gone or breaks the protocol.
    pub fn try_event(&mut self) -> Result<Option<Event>, Error> {
        if self.channel.unsent() > 0 {
            self.channel.flush()?;
        }
        loop {
            match self.channel.receive()? {
                None => return Ok(None),
                Some(Reply::BusinessCard { rank, business_card }) => {
                    self.lookups.remove(&rank);
                    return Ok(Some(Event::BusinessCard { rank, business_card }));
                }
                // Another process tried to join as this rank, and was refused: that concerns only the other process.
                Some(Reply::Refused { .. }) => {}
                Some(Reply::Welcome { .. }) => return Err(Error::Unexpected("a second welcome")),
            }
        }
    }

    /// Tells the agent that MPI_Init is over.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn ready(&mut self) -> Result<(), Error> {
        self.send(&Request::Ready)
    }

    /// Tells the agent that MPI_Finalize is over. The request is in the agent's socket when this returns.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn finalized(&mut self) -> Result<(), Error> {
        self.send(&Request::Finalized)?;
        Ok(self.channel.flush_all()?)
    }

    /// Has mpirun show `text` to the user, once however many ranks send it. Cut to [`MAX_TEXT`](crate::MAX_TEXT) bytes.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn notice(&mut self, text: &str) -> Result<(), Error> {
        self.send(&Request::Notice { text: cut(text).to_owned() })
    }

    /// Ends the job with MPI_Abort's `code`. The request is in the agent's socket when this returns; the caller
    /// flushes its output and exits.
    ///
    /// # Errors
    /// If the agent is gone (then the job ends anyway).
    pub fn abort(&mut self, code: i32, message: &str) -> Result<(), Error> {
        self.channel.flush_all()?;
        self.last_word().abort(code, message);
        Ok(())
    }

    /// A handle that can end the job in any state of this client, as in a signal handler.
    pub fn last_word(&self) -> LastWord {
        LastWord::new(self.channel.socket().clone())
    }

    fn send(&mut self, request: &Request) -> Result<(), Error> {
        Ok(self.channel.send(request)?)
    }
}

impl AsFd for Client {
    /// Readable when [`Client::try_event`] has an event to give (or the agent is gone).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
