//! [`Queue`]: bytes accepted for sending, until they are written and, where the stream outlives its connections, until the peer has
//! acknowledged them; and [`Arrivals`], the count of what has come, from which acknowledgements are made. Pure: no socket, no clock.
//!
//! The bytes of a stream have numbers, from 0, which go on from one connection to the next. A peer acknowledges by the number of
//! bytes that it has received. When a connection is made again, both sides say that number, and each sends what follows the
//! other's.

use std::collections::VecDeque;
use std::io::IoSlice;

use banyan_memory::Buffer;
use banyan_transport::Token;

use crate::frame;
use crate::pool::{Chunk, Pool};

/// Frames with larger bodies may leave from the user's memory, bytes; smaller ones are copied where they have to be kept.
pub(crate) const MAX_COPIED: usize = 64 * 1024;

/// An acknowledgement is due after this many bytes at the latest.
const ACK_EVERY: usize = 256 * 1024;

/// Most pieces of one write.
const PIECES: usize = 8;

/// Bytes of a stream from the first one that is kept. See the [module](self).
#[derive(Default)]
pub(crate) struct Queue {
    segments: VecDeque<Segment>,
    /// Number of the first byte that is kept.
    kept: u64,
    /// Number of the first byte that is not written.
    written: u64,
    /// Number of bytes accepted.
    end: u64,
    /// Number of bytes accepted up to the last one that is not of an acknowledgement.
    needed: u64,
    /// The segment that `written` lies in, and the bytes of it before that.
    at: usize,
    within: usize,
}

enum Segment {
    Copied(Chunk),
    /// Memory that is the user's again when it need not be kept any more.
    Lent(Lent),
}

struct Lent {
    memory: Buffer,
    at: isize,
    len: usize,
    token: Token,
}

/// What is to be written next.
pub(crate) enum Next<'a> {
    /// These pieces, of which so many are meant.
    Copied([IoSlice<'a>; PIECES], usize),
    /// A piece, and so many bytes at this offset of a user's memory.
    Lent(&'a [u8], &'a Buffer, isize, usize),
}

/// The peer speaks of bytes that it cannot have received, or has acknowledged before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Impossible;

impl Segment {
    fn len(&self) -> usize {
        match self {
            Segment::Copied(chunk) => chunk.used().len(),
            Segment::Lent(lent) => lent.len,
        }
    }

    fn skip(&mut self, bytes: usize) {
        match self {
            Segment::Copied(chunk) => chunk.skip(bytes),
            Segment::Lent(lent) => (lent.at, lent.len) = (lent.at + bytes as isize, lent.len - bytes),
        }
    }
}

impl Queue {
    /// Number of bytes to be written.
    #[inline]
    pub(crate) fn unwritten(&self) -> usize {
        (self.end - self.written) as usize
    }

    /// Number of bytes that are kept.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        (self.end - self.kept) as usize
    }

    /// True if something is kept besides acknowledgements, which are not acknowledged for their own sake.
    pub(crate) fn awaits_ack(&self) -> bool {
        self.kept < self.needed
    }

    /// Some of the bytes to be written are lent. Nothing is accepted behind them.
    pub(crate) fn has_lent_to_write(&self) -> bool {
        self.unwritten() > 0 && matches!(self.segments.back(), Some(Segment::Lent(_)))
    }

    /// Adds `len` bytes (at most one largest frame) in one piece, to be written by the caller.
    pub(crate) fn add(&mut self, len: usize, pool: &mut Pool) -> &mut [u8] {
        self.end += len as u64;
        self.needed = self.end;
        if !matches!(self.segments.back(), Some(Segment::Copied(last)) if last.room() >= len) {
            self.segments.push_back(Segment::Copied(pool.take()));
        }
        match self.segments.back_mut() {
            Some(Segment::Copied(last)) => last.add(len),
            _ => unreachable!("it was looked at, or pushed, just now"),
        }
    }

    /// Adds a copy of `bytes` (at most one largest frame).
    pub(crate) fn append(&mut self, bytes: &[u8], pool: &mut Pool) {
        self.add(bytes.len(), pool).copy_from_slice(bytes);
    }

    /// Adds an acknowledgement.
    pub(crate) fn append_ack(&mut self, ack: &[u8; frame::ACK], pool: &mut Pool) {
        let needed = self.needed;
        self.append(ack, pool);
        self.needed = needed;
    }

    /// Adds `len` bytes of a user's memory, which must stay as they are until [`Queue::forget`] gives the token.
    pub(crate) fn lend(&mut self, memory: Buffer, at: isize, len: usize, token: Token) {
        self.end += len as u64;
        self.needed = self.end;
        self.segments.push_back(Segment::Lent(Lent { memory, at, len, token }));
    }

    /// What is lent under this token is the user's again: a copy takes its place.
    pub(crate) fn reclaim(&mut self, token: Token, pool: &mut Pool) {
        for segment in &mut self.segments {
            if let Segment::Lent(lent) = segment
                && lent.token == token
            {
                let mut copy = pool.take();
                lent.memory.read(lent.at, copy.add(lent.len));
                *segment = Segment::Copied(copy);
            }
        }
    }

    /// What is to be written next; `None` if all is written.
    pub(crate) fn next(&mut self) -> Option<Next<'_>> {
        if self.written == self.end {
            return None;
        }
        while self.within == self.segments[self.at].len() {
            (self.at, self.within) = (self.at + 1, 0);
        }
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let (mut count, mut before): (usize, &[u8]) = (0, &[]);
        for (number, segment) in self.segments.range(self.at..).enumerate().take(PIECES) {
            let skipped = if number == 0 { self.within } else { 0 };
            match segment {
                Segment::Copied(chunk) => {
                    before = &chunk.used()[skipped..];
                    pieces[count] = IoSlice::new(before);
                    count += 1;
                }
                Segment::Lent(lent) if count <= 1 => {
                    let at = lent.at + skipped as isize;
                    return Some(Next::Lent(before, &lent.memory, at, lent.len - skipped));
                }
                Segment::Lent(_) => break,
            }
        }
        Some(Next::Copied(pieces, count))
    }

    /// Copies the bytes that are to be written next to `out`, as many as there are or fit, and counts them as written.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> usize {
        let mut taken = 0;
        while taken < out.len()
            && let Some(next) = self.next()
        {
            let mut room = &mut out[taken..];
            let before = room.len();
            let mut copy = |piece: &[u8]| {
                let len = piece.len().min(room.len());
                let (now, later) = std::mem::take(&mut room).split_at_mut(len);
                now.copy_from_slice(&piece[..len]);
                room = later;
            };
            match next {
                Next::Copied(pieces, count) => pieces[..count].iter().for_each(|piece| copy(piece)),
                Next::Lent(first, memory, at, len) => {
                    copy(first);
                    let now = len.min(room.len());
                    memory.read(at, &mut room[..now]);
                    room = &mut room[now..];
                }
            }
            let step = before - room.len();
            self.advance(step);
            taken += step;
        }
        taken
    }

    /// Counts bytes that were written, of those that [`Queue::next`] gave.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        self.written += bytes as u64;
        loop {
            let step = bytes.min(self.segments[self.at].len() - self.within);
            (self.within, bytes) = (self.within + step, bytes - step);
            if bytes == 0 {
                return;
            }
            (self.at, self.within) = (self.at + 1, 0);
        }
    }

    /// Drops what is written, which the stream need not keep: gives the token of what was lent, if it ends here.
    pub(crate) fn forget_written(&mut self, pool: &mut Pool) -> Option<Token> {
        let mut token = None;
        // What was written is there.
        let _ = self.forget(self.written, pool, |done| token = Some(done));
        token
    }

    /// Drops the bytes before number `to`, which the peer has received; `done` gets the tokens of what was lent.
    pub(crate) fn forget(
        &mut self,
        to: u64,
        pool: &mut Pool,
        mut done: impl FnMut(Token),
    ) -> Result<(), Impossible> {
        if to > self.written {
            return Err(Impossible);
        }
        // An older number tells nothing new: what was acknowledged on a connection before comes again.
        let mut bytes = to.saturating_sub(self.kept) as usize;
        self.kept += bytes as u64;
        while bytes > 0 || self.segments.front().is_some_and(|first| first.len() == 0) {
            let first = &mut self.segments[0];
            let step = bytes.min(first.len());
            first.skip(step);
            bytes -= step;
            if self.at == 0 {
                self.within -= step;
            }
            if first.len() > 0 {
                break;
            }
            match self.segments.pop_front() {
                Some(Segment::Copied(chunk)) => pool.give(chunk),
                Some(Segment::Lent(lent)) => done(lent.token),
                None => {}
            }
            self.at = self.at.saturating_sub(1);
        }
        Ok(())
    }

    /// A connection was made again, whose peer has received the bytes before number `to`: those from there on are to be written.
    pub(crate) fn rewind(
        &mut self,
        to: u64,
        pool: &mut Pool,
        done: impl FnMut(Token),
    ) -> Result<(), Impossible> {
        if to < self.kept {
            return Err(Impossible);
        }
        self.forget(to, pool, done)?;
        (self.written, self.at, self.within) = (to, 0, 0);
        Ok(())
    }

    /// Drops all bytes.
    pub(crate) fn clear(&mut self) {
        let end = self.end;
        *self = Queue { kept: end, written: end, end, needed: end, ..Queue::default() };
    }
}

/// What has come on a stream.
#[derive(Default)]
pub(crate) struct Arrivals {
    bytes: u64,
    /// Bytes of whole frames since the last acknowledgement. Acknowledgements do not count: they would answer each other.
    news: usize,
    /// The peer waits for an acknowledgement, or may soon.
    due: bool,
}

impl Arrivals {
    /// Counts bytes of any kind.
    #[inline]
    pub(crate) fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Number of bytes that have come.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A frame of `size` bytes is complete.
    #[inline]
    pub(crate) fn note(&mut self, size: usize) {
        self.news += size;
        self.due |= size > MAX_COPIED || self.news >= ACK_EVERY;
    }

    /// There is something to acknowledge.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news > 0
    }

    /// It is to be acknowledged at once.
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// The acknowledgement of all that has come, to be sent.
    pub(crate) fn acknowledge(&mut self) -> [u8; frame::ACK] {
        (self.news, self.due) = (0, false);
        frame::ack(self.bytes)
    }
}

#[cfg(test)]
mod tests;
