//! Pieces of long messages between memory of a device and frames, by way of bounce buffers ([`Buffer::bounce_buffer`]): the device copies some while
//! frames carry others. Nothing here waits: a piece whose copy is not over stays pending, and whoever makes progress asks again.
//!
//! Where the peer reaches memory of this process's that is for that ([`Port::handover`]), a piece goes there instead, and no frame carries it: the memory is
//! handed over. So it is with pieces from the host to a device, which the processor copies there.
//!
//! Where all of these are in use a sender takes other memory, one piece at a time, and a receiver has bytes copied as they come, which is
//! waited for: a sender may hold bounce buffers until its receiver comes, so nobody waits for one. What a device fails in ends the message, and
//! not the call that finds out.

use std::collections::VecDeque;
use std::ops::Range;

use banyan_datatype::Data;
use banyan_datatype::device::Copies;
use banyan_memory::{BOUNCE_BUFFER, Buffer, DeviceFailure, HeapBuffer, bounce_buffers_left};
use banyan_transport::{Handover, Peer, Port};

use crate::payload;

/// Bounce buffers of one message at a time: the device fills one, another one is full, and frames leave from a third.
const MOST: usize = 3;
/// Those that it has where they are handed over, with those that its receiver has not returned.
const MOST_HANDED: usize = 2 * MOST;
/// The fewest bytes that a device copies at a time, where the message has so many: each copy costs some microseconds.
const LEAST: u64 = 1 << 16;
/// Bounce buffers that messages leave to others while their receivers have not answered.
const SPARE: usize = 32;
const PAGE: u64 = 4096;

/// How many bytes of a message of `total` are copied at a time: a quarter, so that copies and frames overlap.
fn unit(total: u64) -> u64 {
    (total / 4).next_multiple_of(PAGE).clamp(LEAST, BOUNCE_BUFFER as u64)
}

/// Whether the bytes of a message go by bounce buffers.
#[inline(always)]
pub(crate) fn is_staged(data: &Data) -> bool {
    !data.buffer().kind().is_host_accessible()
}

/// The bounce buffer that bytes of `data` go through.
fn bounce_buffer(data: &Data) -> Option<Buffer> {
    data.buffer().bounce_buffer()
}

/// Bytes of a message that are fetched from a device ahead of the frames that carry them.
#[derive(Debug)]
pub(crate) struct Outgoing {
    failed: Option<DeviceFailure>,
    /// Without gaps.
    pieces: VecDeque<Piece>,
    /// What the receiver has and has not returned.
    handed: Vec<Handover>,
    /// What one copy brings.
    unit: u64,
}

/// Bytes that are in a bounce buffer, or are on the way there.
#[derive(Debug)]
struct Piece {
    at: u64,
    len: u64,
    bounce: Data,
    /// What that lies in, if it is to be handed over.
    handover: Option<Handover>,
    copies: Copies,
    /// All is there.
    over: bool,
}

/// A copy in memory of the host of a short message of a device, which is waited for.
///
/// # Errors
/// The device has failed.
pub(crate) fn at_once(data: &Data) -> Result<Data, DeviceFailure> {
    let len = data.len();
    let bounce = bounce_buffer(data).filter(|bounce| bounce.len() as u64 >= len);
    let copy = Data::bytes(bounce.unwrap_or_else(|| HeapBuffer::zeroed(len as usize)).slice(0, len as usize));
    DeviceFailure::caught(|| copy.copy_part(0, data, 0, len)).map(|()| copy)
}

/// Where the next bytes of a message are sent from.
pub(crate) enum Next<'a> {
    /// A bounce buffer, in which so many of them follow this byte.
    Staged(&'a Data, u64, u64),
    /// All of this memory's first bytes, which is to be handed over ([`Outgoing::handed_over`]).
    HandOver(&'a Handover, u64),
    /// The receiver has as much as it may have at a time.
    Handed,
    /// The device copies them.
    Pending,
    /// The device has not copied them.
    Failed(DeviceFailure),
    /// The memory of the message.
    Direct,
}

impl Outgoing {
    /// Nothing is fetched of a message of `total` bytes.
    pub(crate) fn new(total: u64) -> Box<Outgoing> {
        let pieces = VecDeque::with_capacity(MOST);
        Box::new(Outgoing { failed: None, pieces, handed: Vec::new(), unit: unit(total) })
    }

    /// Nothing comes of a message, for this reason, and its memory is not touched.
    pub(crate) fn failed(failure: DeviceFailure) -> Box<Outgoing> {
        Box::new(Outgoing { failed: Some(failure), ..*Self::new(0) })
    }

    /// Fetches the first bytes of a message before its receiver has asked for them, unless too many do that.
    pub(crate) fn begin(&mut self, port: &mut impl Port, peer: Peer, data: &Data) {
        let mut handover = port.handover(peer, data.buffer()).filter(|handover| !handover.scarce);
        if handover.is_some() || bounce_buffers_left() > SPARE {
            self.fetch(data, (0, data.len()), 1, &mut || handover.take());
        }
    }

    /// Fetches bytes from `at` on, up to `end`, into memory to be handed over or bounce buffers, of which `most` are in use at a time.
    fn fetch(
        &mut self,
        data: &Data,
        (at, end): (u64, u64),
        most: usize,
        handover: &mut dyn FnMut() -> Option<Handover>,
    ) {
        while self.pieces.len() < most && self.pieces.len() + self.handed.len() < MOST_HANDED {
            let at = self.pieces.back().map_or(at, |last| last.at + last.len);
            let len = self.unit.min(end.saturating_sub(at));
            if len == 0 {
                return;
            }
            let handover = handover();
            let bounce = match &handover {
                Some(handover) => handover.memory.clone(),
                None if !is_staged(data) => return,
                None => match bounce_buffer(data) {
                    Some(bounce) => bounce,
                    None if self.pieces.is_empty() => HeapBuffer::zeroed(len as usize),
                    None => return,
                },
            };
            let bounce = Data::bytes(bounce.slice(0, len as usize));
            match DeviceFailure::caught(|| bounce.start_copy(0, data, at, len)) {
                Ok(copies) => self.pieces.push_back(Piece { at, len, bounce, handover, copies, over: false }),
                Err(failure) => return self.failed = Some(failure),
            }
        }
    }

    /// Where the bytes from `at` on come from, of which all up to `end` are wanted. What lies before them is not asked for again.
    pub(crate) fn next(
        &mut self,
        port: &mut impl Port,
        peer: Peer,
        data: &Data,
        (at, end): (u64, u64),
    ) -> Next<'_> {
        while self.pieces.front().is_some_and(|first| first.at + first.len <= at) {
            self.pieces.pop_front();
        }
        self.handed.retain(|handover| !port.is_returned(peer, handover.number));
        if self.failed.is_none() {
            // What the processor copies is over at once, so that the receiver is to have it before more is copied.
            let most = if is_staged(data) { MOST } else { 1 };
            self.fetch(data, (at, end), most, &mut || port.handover(peer, data.buffer()));
        }
        let front = self.pieces.front_mut().filter(|first| !first.over);
        match front.map_or(Ok(()), |first| {
            DeviceFailure::caught(|| first.copies.are_over()).map(|over| first.over = over)
        }) {
            Ok(()) => {}
            Err(failure) => self.failed = Some(failure),
        }
        match (self.pieces.front(), self.failed.take()) {
            (_, Some(failure)) => Next::Failed(failure),
            (Some(first), None) if first.over => match &first.handover {
                Some(handover) if first.at == at => Next::HandOver(handover, first.len.min(end - at)),
                _ => Next::Staged(&first.bounce, at - first.at, first.at + first.len - at),
            },
            (Some(_), None) => Next::Pending,
            (None, None) if self.handed.is_empty() => Next::Direct,
            (None, None) => Next::Handed,
        }
    }

    /// The receiver has been told of the first of the pieces.
    pub(crate) fn handed_over(&mut self) {
        let handover = self.pieces.pop_front().and_then(|first| first.handover);
        self.handed.extend(handover);
    }
}

/// Bytes of a message that have come, and that a device still copies to where they belong.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// What a device has a part in.
    parts: Option<Box<Parts>>,
    /// Bodies of frames are copied past the caches.
    past: bool,
}

/// What there is of them, once there is something.
#[derive(Debug, Default)]
struct Parts {
    runs: Vec<Run>,
    copies: Vec<Copies>,
    /// Pieces that count as here, and lie in memory that has not been looked at yet.
    handed: usize,
    /// Why a device has not copied all; the first reason.
    failed: Option<DeviceFailure>,
}

/// Bytes that gather in a bounce buffer until they are worth a copy: those of the message from byte `at` on, as they come. Frames may overtake
/// each other, so that some are missing before others.
#[derive(Debug)]
struct Run {
    at: u64,
    /// The last byte that is here or is about to come ends here, counted from `at`.
    len: u64,
    /// Which bytes are here, counted from `at`: those that came one after the other are one part.
    here: Vec<Range<u64>>,
    bounce: Buffer,
}

impl Run {
    /// True if no bytes are missing or about to come.
    fn is_whole(&self) -> bool {
        self.here.iter().map(|part| part.end - part.start).sum::<u64>() >= self.len
    }

    /// Bytes are here, from byte `at` of the message on.
    fn add(&mut self, at: u64, len: usize) {
        let (from, to) = (at - self.at, at - self.at + len as u64);
        match self.here.iter_mut().find(|part| part.end == from) {
            Some(part) => part.end = to,
            None => self.here.push(from..to),
        }
    }

    /// The memory for these bytes.
    fn room(&self, at: u64, len: usize) -> Option<Buffer> {
        let fits = at >= self.at && at.checked_add(len as u64)? - self.at <= BOUNCE_BUFFER as u64;
        fits.then(|| self.bounce.slice((at - self.at) as isize, len))
    }
}

impl Incoming {
    /// The bodies of frames are copied past the caches, or not, where no device has a part in it.
    pub(crate) fn copied(past: bool) -> Self {
        Incoming { parts: None, past }
    }

    fn parts(&mut self) -> &mut Parts {
        self.parts.get_or_insert_default()
    }

    /// True if no device has a part in it, so that all that has come is where it belongs.
    pub(crate) fn is_none(&self) -> bool {
        self.parts.is_none()
    }

    /// True if all that has come is where it belongs, or a device has failed.
    pub(crate) fn is_over(&mut self) -> bool {
        self.parts.as_mut().is_none_or(|parts| parts.is_over())
    }

    /// Why a device has not copied all.
    pub(crate) fn take_failure(&mut self) -> Option<DeviceFailure> {
        self.parts.as_mut()?.failed.take()
    }

    /// True if as many bounce buffers as a message may have are in use.
    pub(crate) fn is_full(&mut self) -> bool {
        self.parts.as_mut().is_some_and(|parts| parts.is_full())
    }

    /// Writes bytes of a message of `total`, from its byte `at` on, to `data`; at once where that is memory of the host.
    pub(crate) fn place(&mut self, data: &Data, total: u64, at: u64, bytes: &[u8]) {
        if is_staged(data) {
            return self.parts().place(data, total, at, bytes);
        }
        payload::unpack_by(self.past, data, at, bytes);
    }

    /// Room in a bounce buffer for bytes that are about to come: the same for the same bytes. `None`: there is no room, or they are too many.
    pub(crate) fn reserve(&mut self, data: &Data, at: u64, len: usize) -> Option<Buffer> {
        self.parts().reserve(data, at, len)
    }

    /// Bytes of a message of `total` are in the memory that [`Incoming::reserve`] gave for them, if it gave any.
    pub(crate) fn landed(&mut self, data: &Data, total: u64, at: u64, len: usize) {
        if let Some(parts) = &mut self.parts {
            parts.landed(data, total, at, len);
        }
    }

    /// All bytes of the message are here: what is in bounce buffers is copied.
    pub(crate) fn finish(&mut self, data: &Data) {
        if let Some(parts) = &mut self.parts {
            parts.copy_runs(data, |_| true);
        }
    }

    /// A piece is here in memory that was handed over, which [`Incoming::take`] is to bring.
    pub(crate) fn await_handed(&mut self) {
        self.parts().handed += 1;
    }

    /// Copies that piece to `data`, from its byte `at` on, or starts to.
    pub(crate) fn take(&mut self, data: &Data, at: u64, piece: &Buffer) {
        let parts = self.parts();
        parts.handed -= 1;
        match is_staged(data) {
            true => parts.copy(data, at, piece, piece.len() as u64),
            false => payload::unpack_from(data, at, piece),
        }
    }

    /// Starts to copy the first `len` bytes of memory of the host to `data`, from its byte `at` on.
    pub(crate) fn copy(&mut self, data: &Data, at: u64, from: &Buffer, len: u64) {
        self.parts().copy(data, at, from, len);
    }
}

impl Parts {
    fn is_over(&mut self) -> bool {
        let mut copies = std::mem::take(&mut self.copies);
        copies.retain_mut(|copy| {
            let over = DeviceFailure::caught(|| copy.are_over());
            !over.unwrap_or_else(|failure| self.fails(failure))
        });
        self.copies = copies;
        self.copies.is_empty() && self.runs.is_empty() && self.handed == 0
    }

    fn is_full(&mut self) -> bool {
        self.is_over();
        self.copies.len() + self.runs.len() >= MOST
    }

    fn place(&mut self, data: &Data, total: u64, at: u64, bytes: &[u8]) {
        match self.reserve(data, at, bytes.len()) {
            None => {
                if let Err(failure) = DeviceFailure::caught(|| payload::unpack(data, at, bytes)) {
                    self.fails(failure);
                }
            }
            Some(room) => {
                room.write(0, bytes);
                self.landed(data, total, at, bytes.len());
            }
        }
    }

    fn reserve(&mut self, data: &Data, at: u64, len: usize) -> Option<Buffer> {
        let found = self.runs.iter_mut().find_map(|run| Some((run.room(at, len)?, run)));
        if let Some((room, run)) = found {
            run.len = run.len.max(at + len as u64 - run.at);
            return Some(room);
        }
        if len > BOUNCE_BUFFER {
            return None;
        }
        if self.is_full() {
            self.copy_runs(data, Run::is_whole);
            return None;
        }
        let run = Run { at, len: len as u64, here: Vec::with_capacity(1), bounce: bounce_buffer(data)? };
        let room = run.bounce.slice(0, len);
        // Those that are asked for again are found in the same run, as it is the first one that they fit in.
        self.runs.push(run);
        Some(room)
    }

    fn landed(&mut self, data: &Data, total: u64, at: u64, len: usize) {
        let Some(run) = self.runs.iter_mut().find(|run| run.room(at, len).is_some()) else { return };
        run.add(at, len);
        self.copy_runs(data, |run| run.len >= unit(total) && run.is_whole());
    }

    /// Copies those of the runs, which then end.
    fn copy_runs(&mut self, data: &Data, which: impl Fn(&Run) -> bool) {
        let runs: Vec<Run> = self.runs.extract_if(.., |run| which(run)).collect();
        for (run, part) in runs.iter().flat_map(|run| run.here.iter().map(move |part| (run, part))) {
            let len = part.end - part.start;
            let from = run.bounce.slice(part.start as isize, len as usize);
            self.copy(data, run.at + part.start, &from, len);
        }
    }

    fn copy(&mut self, data: &Data, at: u64, from: &Buffer, len: u64) {
        let from = Data::bytes(from.slice(0, len as usize));
        match DeviceFailure::caught(|| data.start_copy(at, &from, 0, len)) {
            Ok(copies) => self.copies.push(copies),
            Err(failure) => {
                self.fails(failure);
            }
        }
    }

    /// A copy is over, as it has failed.
    fn fails(&mut self, failure: DeviceFailure) -> bool {
        self.failed.get_or_insert(failure);
        true
    }
}
