//! An encrypted connection: the bytes of the stream travel in records.

use std::io::{IoSlice, Read};

use banyan_transport::{Peer, Sink, Token};

use super::sending::write;
use super::{Break, Received, Stream};
use crate::frame::Malformed;
use crate::pool::Pool;
use crate::seal::{Keys, MAX_RECORD};

/// What an encrypted connection needs.
pub(super) struct Sealing {
    keys: Box<Keys>,
    /// The record that is being written, and the part of it that the socket has not taken.
    record: Box<[u8]>,
    unwritten: std::ops::Range<usize>,
    /// The beginning of a record whose rest has not come.
    input: Vec<u8>,
}

impl Sealing {
    pub(super) fn new(keys: Box<Keys>) -> Box<Sealing> {
        let record = vec![0; MAX_RECORD].into_boxed_slice();
        Box::new(Sealing { keys, record, unwritten: 0..0, input: Vec::new() })
    }

    /// Bytes of a record that the socket has not taken.
    pub(super) fn unwritten(&self) -> usize {
        self.unwritten.len()
    }
}

impl Stream {
    /// Writes what is queued in records, as far as the socket takes it; gives the token of what was lent, once all of it is in records
    /// and need not be kept.
    pub(super) fn flush_sealed(&mut self, pool: &mut Pool) -> Option<Token> {
        let mut over = None;
        while !self.blocked
            && self.broken.is_none()
            && let Some(sealing) = &mut self.sealing
        {
            if sealing.unwritten.is_empty() {
                if self.queue.unwritten() == 0 {
                    break;
                }
                let size = sealing.keys.seal.seal(&mut sealing.record, |out| self.queue.take(out));
                sealing.unwritten = 0..size;
                if !self.resumable {
                    over = over.or(self.queue.forget_written(pool));
                }
            }
            let written = write(&self.socket, &[IoSlice::new(&sealing.record[sealing.unwritten.clone()])]);
            match self.judge(written) {
                Ok(0) => self.blocked = true,
                Ok(written) => self.sealing.iter_mut().for_each(|one| one.unwritten.start += written),
                Err(_) => self.sealing.iter_mut().for_each(|one| one.unwritten = 0..0),
            }
        }
        over
    }

    /// Reads once from the socket, and hands all whole frames of whole records to `sink`.
    pub(super) fn receive_sealed(
        &mut self,
        peer: Peer,
        read_buffer: &mut [u8],
        pool: &mut Pool,
        sink: &mut impl Sink,
    ) -> Received {
        let Some(mut sealing) = self.sealing.take() else { return Received::Nothing };
        let kept = sealing.input.len();
        read_buffer[..kept].copy_from_slice(&sealing.input);
        let read = self.socket.read(&mut read_buffer[kept..]);
        let received = self.judge_read(read).map(|read| {
            let (mut at, end, mut frames) = (0, kept + read, 0);
            let received = loop {
                match sealing.keys.open.open(&mut read_buffer[at..end]) {
                    Ok(None) => break Received::Frames(frames),
                    Ok(Some((plain, size))) => match self.digest(peer, plain, pool, sink) {
                        Ok(more) => (frames, at) = (frames + more, at + size),
                        Err(why) => break Received::Malformed(format!("{} sent {why}", self.remote)),
                    },
                    Err(forged) => {
                        let cause = format!("{}: {forged}", self.remote);
                        break Received::Broken(Break { cause, silent: false });
                    }
                }
            };
            sealing.input.clear();
            sealing.input.extend(&read_buffer[at..end]);
            received
        });
        self.sealing = Some(sealing);
        received.unwrap_or_else(|nothing| nothing)
    }

    /// Takes bytes of the stream; gives the number of frames that they complete.
    fn digest(
        &mut self,
        peer: Peer,
        mut plain: &[u8],
        pool: &mut Pool,
        sink: &mut impl Sink,
    ) -> Result<usize, Malformed> {
        self.arrivals.count(plain.len());
        let mut frames = 0;
        if let Some(landing) = &self.landing {
            let (now, later) = plain.split_at(plain.len().min(landing.len - landing.done));
            if let Some(memory) = sink.landing(peer, &landing.head, landing.len) {
                memory.write(landing.done as isize, now);
            }
            frames += self.land(peer, now.len(), sink);
            plain = later;
        }
        Ok(frames + self.deliver(peer, plain, pool, sink)?)
    }
}
