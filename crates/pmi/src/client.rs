//! The rank's side: [`attach`] and [`Client`].

use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use thiserror::Error;

use crate::foreign::foreign_launcher;
use crate::frame::{Job, MAX_CARD, Reply, Request, VERSION, cut};
use crate::inherit::{FD_VARIABLE, Handed, Kin, adopt_memory, adopt_socket, is_privileged, is_socket, kin};
use crate::last_word::LastWord;
use crate::status::{self, Line};
use crate::wire::{Channel, WireError};

/// Set to 1, a process is rank 0 of 1 whatever started it.
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
    /// The program has rights that whoever started it has not.
    #[error(
        "this program has rights of its own (setuid, setgid or file capabilities), so it does not join a job that its \
         environment names: who set {FD_VARIABLE} would be trusted with them. Run it without these rights, or set \
         {SINGLETON_VARIABLE}=1 to run it as rank 0 of 1"
    )]
    Privileged,
    /// A wrapper stands between launcher and program, and closed what the program needs.
    #[error(
        "a wrapper between mpirun and this program closed descriptor {0}, which leads to the job: let the \
         wrapper keep it open (Python: subprocess with close_fds=False), or set {SINGLETON_VARIABLE}=1 to run \
         as rank 0 of 1"
    )]
    WrapperClosedSocket(i32),
    /// The process that mpirun started has closed what it needs.
    #[error(
        "mpirun started this program as a rank, but descriptor {0}, which leads to the job, was closed before MPI_Init: by \
         the program itself, or by a wrapper that became it (exec). Let it stay open (its number is the first in \
         {FD_VARIABLE}), or set {SINGLETON_VARIABLE}=1 to run as rank 0 of 1"
    )]
    SocketClosed(i32),
    /// The memory of the host was closed on the way, which other ranks count on.
    #[error(
        "descriptor {0}, the memory that the ranks of this host share, was closed before MPI_Init by this program or a \
         wrapper: let it stay open (Python: subprocess with close_fds=False), or give all ranks BANYAN_FABRICS=tcp to do without"
    )]
    MemoryClosed(i32),
    /// mpirun and library are of different versions.
    #[error(
        "mpirun speaks version {agent} of the bootstrap protocol, this library {VERSION}: use those of one installation"
    )]
    Version {
        /// What mpirun speaks.
        agent: u32,
    },
    /// The rank's place has been taken by another process.
    #[error("{0}")]
    Refused(String),
    /// A card over [`MAX_CARD`] bytes.
    #[error("a card of {0} bytes (at most {MAX_CARD} are allowed)")]
    CardTooLong(usize),
    /// The agent is gone or talks nonsense.
    #[error("the launcher cannot be reached: {0}")]
    Agent(#[from] WireError),
    /// The agent sent a frame that it never sends at this point.
    #[error("the launcher sent a frame that does not belong here")]
    Unexpected,
}

/// What the agent tells a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The answer to [`Client::lookup`].
    Card {
        /// Whose.
        rank: u32,
        /// What it published.
        card: Vec<u8>,
    },
}

/// Joins the job that the launcher's variables name. `None`: nobody launched this process, it is rank 0 of 1.
///
/// From here on the bootstrap descriptors close on exec. [`JOB_VARIABLES`](crate::JOB_VARIABLES) stay in the environment.
///
/// # Errors
/// If another launcher or a wrapper stands in the way, the program is setuid or the like, what leads to the job was closed, versions differ, or the rank has been
/// taken.
pub fn attach() -> Result<Option<Client>, Error> {
    if std::env::var_os(SINGLETON_VARIABLE).is_some_and(|value| value == "1") {
        return Ok(None);
    }
    if let Some(handed) = std::env::var_os(FD_VARIABLE).and_then(|value| Handed::parse(&value)) {
        if is_privileged() {
            return Err(Error::Privileged);
        }
        if let Some(socket) = adopt_socket(handed) {
            return Client::join(socket).map(Some);
        }
        return match kin(handed) {
            Kin::Wrapped => Err(Error::WrapperClosedSocket(handed.fd)),
            Kin::Closed => Err(Error::SocketClosed(handed.fd)),
            // Left over in the environment: a job of its own.
            Kin::Child | Kin::Stranger => Ok(None),
        };
    }
    match foreign_launcher(|name| std::env::var_os(name), is_socket) {
        Some(launcher) => Err(Error::ForeignLauncher(launcher)),
        None => Ok(None),
    }
}

/// A rank's line to its agent.
#[derive(Debug)]
pub struct Client {
    /// Never closed: by the socket the children of this process see that it has joined (see [`kin`]), also after MPI_Finalize.
    channel: ManuallyDrop<Channel<Reply, Request>>,
    job: Job,
    memory: Option<OwnedFd>,
    status: Option<OwnedFd>,
    asked: HashSet<u32>,
}

impl Client {
    /// Joins over `socket`.
    ///
    /// # Errors
    /// As [`attach`].
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
            Reply::Refused { reason, .. } => return Err(Error::Refused(reason)),
            _ => return Err(Error::Unexpected),
        };
        let memory = job.memory_fd.and_then(adopt_memory);
        let status = job.status_fd.and_then(adopt_memory);
        Ok(Client { channel: ManuallyDrop::new(channel), job, memory, status, asked: HashSet::new() })
    }

    /// The job as this rank sees it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The host's shared memory (a zero-filled memfd; `fstat` tells its size), if the agent could make one. To be called once.
    ///
    /// # Errors
    /// If its descriptor was closed on the way: the other ranks have it, and count on this one to have it.
    pub fn take_node_memory(&mut self) -> Result<Option<OwnedFd>, Error> {
        match (self.job.memory_fd, self.memory.take()) {
            (Some(fd), None) => Err(Error::MemoryClosed(fd)),
            (_, memory) => Ok(memory),
        }
    }

    /// Writes this rank's status line, or takes it back. Never waits.
    pub fn tell(&self, line: Option<&Line>) {
        if let Some(file) = &self.status {
            status::write(file, self.job.rank, line);
        }
    }

    /// Publishes this rank's card; whoever looked it up gets it. To be called once.
    ///
    /// # Errors
    /// If it is longer than [`MAX_CARD`], or the agent is gone.
    pub fn publish(&mut self, card: &[u8]) -> Result<(), Error> {
        if card.len() > MAX_CARD {
            return Err(Error::CardTooLong(card.len()));
        }
        self.say(&Request::Publish { card: card.to_vec() })
    }

    /// Asks for a rank's card. [`Client::try_event`] brings it when that rank has published; asking again
    /// before that costs nothing.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn lookup(&mut self, rank: u32) -> Result<(), Error> {
        if !self.asked.insert(rank) {
            return Ok(());
        }
        self.say(&Request::Lookup { rank })
    }

    /// What the agent has to tell now, if anything. Never waits.
    ///
    /// # Errors
    /// If the agent is gone or talks nonsense.
    pub fn try_event(&mut self) -> Result<Option<Event>, Error> {
        if self.channel.unsent() > 0 {
            self.channel.flush()?;
        }
        loop {
            match self.channel.receive()? {
                None => return Ok(None),
                Some(Reply::Card { rank, card }) => {
                    self.asked.remove(&rank);
                    return Ok(Some(Event::Card { rank, card }));
                }
                // Another process tried to take this rank's place; that is its trouble.
                Some(Reply::Refused { .. }) => {}
                Some(Reply::Welcome { .. }) => return Err(Error::Unexpected),
            }
        }
    }

    /// MPI_Init is over.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn ready(&mut self) -> Result<(), Error> {
        self.say(&Request::Ready)
    }

    /// MPI_Finalize is over. The agent has it in its socket when this returns.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn finalized(&mut self) -> Result<(), Error> {
        self.say(&Request::Finalized)?;
        Ok(self.channel.flush_all()?)
    }

    /// Tells the user something that other ranks may say, too. Cut to [`MAX_TEXT`](crate::MAX_TEXT) bytes.
    ///
    /// # Errors
    /// If the agent is gone.
    pub fn notice(&mut self, text: &str) -> Result<(), Error> {
        self.say(&Request::Notice { text: cut(text).to_owned() })
    }

    /// Ends the job with MPI_Abort's `code`. The agent has it in its socket when this returns; the caller
    /// flushes its output and exits.
    ///
    /// # Errors
    /// If the agent is gone (then the job ends anyway).
    pub fn abort(&mut self, code: i32, message: &str) -> Result<(), Error> {
        self.channel.flush_all()?;
        self.last_word().abort(code, message);
        Ok(())
    }

    /// What ends the job from anywhere.
    pub fn last_word(&self) -> LastWord {
        LastWord::new(self.channel.socket().clone())
    }

    fn say(&mut self, request: &Request) -> Result<(), Error> {
        Ok(self.channel.send(request)?)
    }
}

impl AsFd for Client {
    /// Readable when [`Client::try_event`] has something to tell (or the agent is gone).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
