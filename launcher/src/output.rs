//! The output of ranks: from their pipes, as whole lines, to mpirun's own output, with back-pressure.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::lines::{Label, PartialLine, Writer};
use crate::sink::Sink;

/// Bytes read from a rank at once.
const CHUNK: usize = 64 << 10;

/// Which of a rank's outputs a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamKind {
    Out = 0,
    Err = 1,
}

impl StreamKind {
    /// Standard error or standard output.
    pub(crate) fn of(err: bool) -> StreamKind {
        if err { StreamKind::Err } else { StreamKind::Out }
    }
}

/// One output of one rank.
struct Stream {
    rank: u32,
    kind: StreamKind,
    pipe: Option<OwnedFd>,
    line: PartialLine,
    /// The stream is in [`Output`]'s list of unfinished lines.
    listed: bool,
    /// Not read from, because the sink is full.
    paused: bool,
}

/// The output of the whole job.
pub(crate) struct Output {
    /// stdout and stderr, or one for both if they are the same file.
    sinks: Vec<Sink>,
    /// For each sink whether epoll watches it.
    watched: Vec<bool>,
    /// All streams that were added: at most two per rank.
    streams: Vec<Stream>,
    /// Streams with an unfinished line.
    unfinished: Vec<usize>,
    /// Streams that are not read from, because their sink is full.
    paused: Vec<usize>,
    buffer: Vec<u8>,
    /// The first write error, other than that the reader is gone.
    trouble: Option<io::Error>,
    stream_token: fn(usize) -> u64,
    sink_token: fn(usize) -> u64,
}

impl Output {
    /// The output to this process's stdout and stderr. The functions make the epoll tokens of streams and sinks.
    pub(crate) fn new(
        label: Label,
        stream_token: fn(usize) -> u64,
        sink_token: fn(usize) -> u64,
    ) -> io::Result<Output> {
        let (out, err) = (io::stdout(), io::stderr());
        let (one, other) = (fstat(&out)?, fstat(&err)?);
        let mut sinks = vec![Sink::new(out.as_fd(), label)?];
        if (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino) {
            sinks.push(Sink::new(err.as_fd(), label)?);
        }
        Ok(Output::to(sinks, stream_token, sink_token))
    }

    /// The output of a host's ranks to the agent of the first host, which at most `window` bytes of each kind may be on their
    /// way to.
    pub(crate) fn upwards(
        window: usize,
        stream_token: fn(usize) -> u64,
        sink_token: fn(usize) -> u64,
    ) -> Output {
        Output::to(vec![Sink::upwards(window), Sink::upwards(window)], stream_token, sink_token)
    }

    fn to(sinks: Vec<Sink>, stream_token: fn(usize) -> u64, sink_token: fn(usize) -> u64) -> Output {
        Output {
            watched: vec![false; sinks.len()],
            sinks,
            streams: Vec::new(),
            unfinished: Vec::new(),
            paused: Vec::new(),
            buffer: Vec::with_capacity(CHUNK),
            trouble: None,
            stream_token,
            sink_token,
        }
    }

    /// Takes output of a rank of another host.
    pub(crate) fn take(&mut self, epoll: &OwnedFd, rank: u32, kind: StreamKind, text: &[u8]) {
        let sink = self.sink_of(kind);
        self.sinks[sink].add(Writer::Rank(rank), text);
        self.flush(epoll, sink);
    }

    /// Whether output of this kind is dropped, as nobody reads it; `None` while it has to wait for a reader.
    pub(crate) fn has_room(&self, kind: StreamKind) -> Option<bool> {
        let sink = &self.sinks[self.sink_of(kind)];
        (!sink.is_full()).then_some(sink.is_broken())
    }

    /// What the first host is to write: of each piece the rank, its kind and the text.
    pub(crate) fn take_pieces(&mut self) -> Vec<(u32, StreamKind, Vec<u8>)> {
        let kinds = self.sinks.iter_mut().zip([StreamKind::Out, StreamKind::Err]);
        kinds
            .flat_map(|(sink, kind)| {
                sink.take_pieces().into_iter().map(move |(rank, text)| (rank, kind, text))
            })
            .collect()
    }

    /// The first host has written so many bytes.
    pub(crate) fn credit(&mut self, epoll: &OwnedFd, kind: StreamKind, bytes: usize) {
        let sink = self.sink_of(kind);
        self.sinks[sink].credit(bytes);
        self.flush(epoll, sink);
    }

    /// Nobody reads output of this kind any more.
    pub(crate) fn nobody_reads(&mut self, epoll: &OwnedFd, kind: StreamKind) {
        let sink = self.sink_of(kind);
        if !self.sinks[sink].is_broken() {
            self.sinks[sink].give_up();
            self.hang_up(epoll, sink);
        }
    }

    /// Adds the read end of a pipe that `rank` writes to. It must be non-blocking.
    pub(crate) fn add(
        &mut self,
        epoll: &OwnedFd,
        rank: u32,
        kind: StreamKind,
        pipe: OwnedFd,
    ) -> io::Result<()> {
        let token = EventData::new_u64((self.stream_token)(self.streams.len()));
        epoll::add(epoll, &pipe, token, EventFlags::IN)?;
        let line = PartialLine::default();
        self.streams.push(Stream { rank, kind, pipe: Some(pipe), line, listed: false, paused: false });
        Ok(())
    }

    /// Writes one line of the launcher's own to stderr.
    pub(crate) fn say(&mut self, epoll: &OwnedFd, text: &str) {
        self.show(epoll, &format!("mpirun: {text}\n"));
    }

    /// Writes a text of several lines to stderr, unchanged.
    pub(crate) fn show(&mut self, epoll: &OwnedFd, text: &str) {
        let last = self.sinks.len() - 1;
        self.sinks[last].add(Writer::Launcher, text.as_bytes());
        self.flush(epoll, last);
    }

    /// Reads once from stream `at`.
    pub(crate) fn read(&mut self, epoll: &OwnedFd, at: usize, now: Instant) {
        self.read_some(epoll, at, now);
    }

    /// Reads all that is there from the streams of `rank`, as far as the sinks take it.
    pub(crate) fn pump(&mut self, epoll: &OwnedFd, rank: u32, now: Instant) {
        for at in 0..self.streams.len() {
            if self.streams[at].rank == rank {
                while self.read_some(epoll, at, now) {}
            }
        }
    }

    /// Reads what is left in the pipes, when no process can write any more; true if all output is written. To be repeated
    /// until it is.
    pub(crate) fn drain(&mut self, epoll: &OwnedFd, now: Instant) -> bool {
        for at in 0..self.streams.len() {
            while self.read_some(epoll, at, now) {}
            if !self.streams[at].paused {
                self.close(epoll, at);
            }
        }
        let written = self.sinks.iter().all(Sink::is_empty);
        written && self.streams.iter().all(|stream| stream.pipe.is_none())
    }

    /// Bytes that have gone out so far.
    pub(crate) fn written(&self) -> u64 {
        self.sinks.iter().map(Sink::written).sum()
    }

    /// Sink `at` can be written to.
    pub(crate) fn writable(&mut self, epoll: &OwnedFd, at: usize) {
        self.flush(epoll, at);
    }

    /// Shows unfinished lines that are due.
    pub(crate) fn tick(&mut self, epoll: &OwnedFd, now: Instant) {
        for at in std::mem::take(&mut self.unfinished) {
            let stream = &mut self.streams[at];
            stream.listed = false;
            match stream.line.due() {
                Some(due) if due <= now && !stream.paused => self.finish_line(epoll, at),
                Some(_) => {
                    stream.listed = true;
                    self.unfinished.push(at);
                }
                None => {}
            }
        }
    }

    /// When [`Output::tick`] is to be called.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let streams = self.unfinished.iter().map(|&at| &self.streams[at]);
        streams.filter(|stream| !stream.paused).filter_map(|stream| stream.line.due()).min()
    }

    /// The error by which output was lost, once.
    pub(crate) fn take_trouble(&mut self) -> Option<io::Error> {
        self.trouble.take()
    }

    fn sink_of(&self, kind: StreamKind) -> usize {
        (kind as usize).min(self.sinks.len() - 1)
    }

    /// Reads once from stream `at`, unless its sink is full; true if there may be more to read now.
    fn read_some(&mut self, epoll: &OwnedFd, at: usize, now: Instant) -> bool {
        let stream = &mut self.streams[at];
        let sink = (stream.kind as usize).min(self.sinks.len() - 1);
        let Some(pipe) = &stream.pipe else { return false };
        if self.sinks[sink].is_full() {
            if !stream.paused {
                stream.paused = true;
                self.paused.push(at);
                // Removed from epoll, which would report again and again that the last writer is gone.
                let _ = epoll::delete(epoll, pipe);
            }
            return false;
        }
        self.buffer.clear();
        match rustix::io::read(pipe, spare_capacity(&mut self.buffer)) {
            Ok(1..) => {
                let (writer, target) = (Writer::Rank(stream.rank), &mut self.sinks[sink]);
                stream.line.feed(&self.buffer, now, |lines| target.add(writer, lines));
                if stream.line.due().is_some() && !stream.listed {
                    stream.listed = true;
                    self.unfinished.push(at);
                }
                self.flush(epoll, sink);
                true
            }
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok(0) | Err(_) => {
                self.close(epoll, at);
                false
            }
        }
    }

    fn finish_line(&mut self, epoll: &OwnedFd, at: usize) {
        let rest = self.streams[at].line.take();
        let sink = self.sink_of(self.streams[at].kind);
        self.sinks[sink].add(Writer::Rank(self.streams[at].rank), &rest);
        self.flush(epoll, sink);
    }

    fn close(&mut self, epoll: &OwnedFd, at: usize) {
        let Some(pipe) = self.streams[at].pipe.take() else { return };
        let _ = epoll::delete(epoll, &pipe);
        drop(pipe);
        self.finish_line(epoll, at);
    }

    fn flush(&mut self, epoll: &OwnedFd, at: usize) {
        let was_broken = self.sinks[at].is_broken();
        if let Err(error) = self.sinks[at].flush()
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.trouble.get_or_insert(error);
        }
        if self.sinks[at].is_broken() && !was_broken {
            self.hang_up(epoll, at);
        }
        self.watch(epoll, at);
        if !self.sinks[at].is_full() {
            self.resume(epoll, at);
        }
    }

    /// Closes the streams of a sink that nobody reads any more: ranks that write to it get SIGPIPE, as without mpirun.
    fn hang_up(&mut self, epoll: &OwnedFd, sink: usize) {
        for at in 0..self.streams.len() {
            if self.sink_of(self.streams[at].kind) == sink
                && let Some(pipe) = self.streams[at].pipe.take()
            {
                let _ = epoll::delete(epoll, &pipe);
                let _ = self.streams[at].line.take();
            }
        }
    }

    /// Has epoll watch a sink while something is left to write.
    fn watch(&mut self, epoll: &OwnedFd, at: usize) {
        let wanted = !self.sinks[at].is_empty();
        let Some(fd) = self.sinks[at].waits_on().filter(|_| wanted != self.watched[at]) else { return };
        let token = EventData::new_u64((self.sink_token)(at));
        let done = match wanted {
            true => epoll::add(epoll, fd, token, EventFlags::OUT),
            false => epoll::delete(epoll, fd),
        };
        self.watched[at] = wanted && done.is_ok();
    }

    fn resume(&mut self, epoll: &OwnedFd, sink: usize) {
        for at in std::mem::take(&mut self.paused) {
            if self.sink_of(self.streams[at].kind) != sink {
                self.paused.push(at);
                continue;
            }
            self.streams[at].paused = false;
            if let Some(pipe) = &self.streams[at].pipe {
                let token = EventData::new_u64((self.stream_token)(at));
                let _ = epoll::add(epoll, pipe, token, EventFlags::IN);
            }
        }
    }
}
