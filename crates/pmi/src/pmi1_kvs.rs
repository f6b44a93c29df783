//! The rank's side of PMI-1: requests and answers over the socket that the launcher left open, or that this process opens.
//!
//! What servers forced: the version is exactly 1.1; each request is one write of at most [`MAX_LINE`](crate::pmi1::MAX_LINE)
//! bytes, and the next one follows its answer; values are at most [`MAX_VALUE`] bytes; whoever has said `init` says `finalize`.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use thiserror::Error;

use crate::client;
use crate::kvs::{Kvs, Place};
use crate::last_word::LastWord;
use crate::pmi1::{Line, LineError, MAX_VALUE};
use crate::process_mapping;

/// Most bytes of an answer that are waited for.
const LONGEST_ANSWER: usize = 64 << 10;

/// What went wrong with a server of PMI-1.
#[derive(Debug, Error)]
pub enum Pmi1Error {
    /// The server closed the connection.
    #[error("it has closed the connection")]
    Closed,
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line that cannot be written, or was not understood.
    #[error(transparent)]
    Line(#[from] LineError),
    /// Another answer than the one to the request, or none of PMI-1.
    #[error("to \"{asked}\" it answered \"{answer}\"")]
    Answer {
        /// The command of the request.
        asked: String,
        /// The line that came.
        answer: String,
    },
    /// The launcher's variables say no place in the job.
    #[error("PMI_RANK and PMI_SIZE, or PMI_ID, do not say which rank this is")]
    NoPlace,
}

impl From<Errno> for Pmi1Error {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Pmi1Error::Closed,
            other => Pmi1Error::Io(other.into()),
        }
    }
}

/// A connection to a server of PMI-1.
#[derive(Debug)]
pub(crate) struct Pmi1 {
    server: Server,
    place: Place,
    /// The name of the job's store.
    store: String,
    longest_value: usize,
}

/// The socket, with what has come and was not read yet.
#[derive(Debug)]
struct Server {
    socket: Arc<OwnedFd>,
    inbox: Vec<u8>,
}

impl Server {
    /// Sends a request by one write.
    fn send(&self, request: &Line) -> Result<(), Pmi1Error> {
        let text = request.encode()?;
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            match send(&*self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(other) => return Err(other.into()),
            }
        }
        Ok(())
    }

    /// Waits for a line.
    fn receive(&mut self, asked: &str) -> Result<Line, Pmi1Error> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = self.inbox.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.inbox.drain(..=end).collect();
                let text = String::from_utf8_lossy(&line);
                let wrong = |_| Pmi1Error::Answer { asked: asked.to_owned(), answer: text.trim().to_owned() };
                return Line::parse(&text).map_err(wrong);
            }
            if self.inbox.len() > LONGEST_ANSWER {
                return Err(LineError::TooLong(self.inbox.len(), LONGEST_ANSWER).into());
            }
            match recv(&*self.socket, &mut chunk, RecvFlags::empty()).map(|(count, _)| count) {
                Ok(0) => return Err(Pmi1Error::Closed),
                Ok(count) => self.inbox.extend_from_slice(&chunk[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(other) => return Err(other.into()),
            }
        }
    }

    fn wait(&self, flags: PollFlags) -> Result<(), Pmi1Error> {
        match poll(&mut [PollFd::new(&self.socket, flags)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }

    /// Sends a request and waits for its answer, of command `answer`.
    fn ask(&mut self, request: &Line, answer: &str) -> Result<Line, Pmi1Error> {
        self.send(request)?;
        let line = self.receive(&request.command)?;
        if line.command == answer { Ok(line) } else { Err(wrong(request, &line)) }
    }

    /// Sends a request that must succeed.
    fn ask_for(&mut self, request: &Line, answer: &str) -> Result<Line, Pmi1Error> {
        let line = self.ask(request, answer)?;
        if line.succeeded() { Ok(line) } else { Err(wrong(request, &line)) }
    }
}

fn wrong(request: &Line, line: &Line) -> Pmi1Error {
    let attributes = line.attributes.iter().map(|(key, value)| format!(" {key}={value}"));
    let answer = format!("cmd={}{}", line.command, attributes.collect::<String>());
    Pmi1Error::Answer { asked: request.command.clone(), answer }
}

impl Pmi1 {
    /// Joins as `rank` of `size` over the socket that the launcher left open.
    ///
    /// # Errors
    /// If the server is gone, or speaks something else.
    pub(crate) fn join(socket: OwnedFd, rank: u32, size: u32) -> Result<Pmi1, Pmi1Error> {
        Self::init(Server { socket: Arc::new(socket), inbox: Vec::new() }, rank, size)
    }

    /// Joins as process `id` by way of the server's port, `HOST:PORT`.
    ///
    /// # Errors
    /// If the server cannot be reached, or speaks something else.
    pub(crate) fn connect(port: &str, id: u32) -> Result<Pmi1, Pmi1Error> {
        let stream = TcpStream::connect(port)?;
        stream.set_nodelay(true)?;
        let mut server = Server { socket: Arc::new(stream.into()), inbox: Vec::new() };
        let request = Line::new("initack").with("pmiid", id);
        let answer = server.ask_for(&request, "initack")?;
        let (mut rank, mut size) = (None, None);
        // Three lines: size, rank, and how much the server wants to hear.
        for _ in 0..3 {
            let line = server.receive("initack")?;
            if line.command != "set" {
                return Err(wrong(&request, &line));
            }
            rank = rank.or(line.number("rank"));
            size = size.or(line.number("size"));
        }
        let (Some(rank), Some(size)) = (rank, size) else { return Err(wrong(&request, &answer)) };
        Self::init(server, rank, size)
    }

    fn init(mut server: Server, rank: u32, size: u32) -> Result<Pmi1, Pmi1Error> {
        if rank >= size {
            return Err(Pmi1Error::NoPlace);
        }
        let init = Line::new("init").with("pmi_version", 1).with("pmi_subversion", 1);
        server.ask_for(&init, "response_to_init")?;
        let most = server.ask_for(&Line::new("get_maxes"), "maxes")?;
        let longest_value = most.number("vallen_max").map_or(MAX_VALUE, |most: usize| most.saturating_sub(1));
        // Slurm says -1 for the number of the program, Hydra for the size of the universe.
        let appnum = server.ask(&Line::new("get_appnum"), "appnum")?.number("appnum").unwrap_or(0);
        let room = server.ask(&Line::new("get_universe_size"), "universe_size")?.number("size");
        let name = server.ask_for(&Line::new("get_my_kvsname"), "my_kvsname")?;
        let store = name.get("kvsname").unwrap_or_default().to_owned();
        let place = Place { rank, size, appnum, universe_size: room.unwrap_or(size).max(size) };
        Ok(Pmi1 { server, place, store, longest_value: longest_value.min(MAX_VALUE) })
    }

    fn value_of(&mut self, key: &str) -> Result<Option<String>, client::Error> {
        let request = Line::new("get").with("kvsname", &self.store).with("key", key);
        let line = self.server.ask(&request, "get_result")?;
        Ok(line.get("value").filter(|_| line.succeeded()).map(str::to_owned))
    }
}

impl Kvs for Pmi1 {
    fn place(&self) -> Place {
        self.place
    }

    fn nodes(&mut self) -> Result<Option<Vec<u32>>, client::Error> {
        let mapping = self.value_of("PMI_process_mapping")?;
        Ok(mapping.and_then(|text| process_mapping::parse(&text, self.place.size)))
    }

    /// Hydra tells them; others know no such key.
    fn memory_alloc_kinds(&mut self) -> Result<Option<String>, client::Error> {
        self.value_of("PMI_mpi_memory_alloc_kinds")
    }

    fn longest_value(&self) -> usize {
        self.longest_value
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), client::Error> {
        let request = Line::new("put").with("kvsname", &self.store).with("key", key).with("value", value);
        self.server.ask_for(&request, "put_result")?;
        Ok(())
    }

    fn fence(&mut self) -> Result<(), client::Error> {
        self.server.ask_for(&Line::new("barrier_in"), "barrier_out")?;
        Ok(())
    }

    fn get(&mut self, _rank: u32, key: &str) -> Result<Option<String>, client::Error> {
        self.value_of(key)
    }

    fn leave(&mut self) -> Result<(), client::Error> {
        self.server.ask(&Line::new("finalize"), "finalize_ack")?;
        Ok(())
    }

    fn last_word(&self) -> LastWord {
        LastWord::by_pmi1(self.place.rank, self.server.socket.clone())
    }
}
