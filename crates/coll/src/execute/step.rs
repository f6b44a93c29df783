//! What each step means: [`step`] carries one out over [`Operands`], packed or in one piece. Messages alone are elsewhere
//! (`ExecutionState::send` and `receive`), as only an execution can keep them.

use banyan_memory::Buffer;

use super::SeqWindow;
use super::seqs::Passes;
use crate::sections::Allotment;
use crate::{Fault, Form, Merge, Published, SharedBuffers, Step, SubBuffer};

/// What became of trying a step.
pub(super) enum Tried<J> {
    Over,
    NotYet,
    /// The owner has to run a function of the user's.
    UserReduction(J),
}

/// The memory behind the ranges of steps.
pub(super) trait Operands {
    /// How steps name a part of a buffer.
    type Range: Copy;
    /// What the owner has to run.
    type UserReduction;

    /// Bytes of so many units, in which ranges and places in publications are counted.
    fn bytes(&self, units: u64) -> u64;
    /// Units of a range.
    fn units(range: Self::Range) -> u64;
    /// Publishes the packed bytes of a range.
    fn publish(&mut self, from: Self::Range, seq: u64, shared: &mut impl SharedBuffers);
    /// Exposes the packed bytes of a range, which stay where they are until this collective is over.
    fn expose(&mut self, from: Self::Range, seq: u64, shared: &mut impl SharedBuffers);
    /// Copies the packed bytes of a range to the start of a buffer that is as long.
    fn pack(&mut self, from: Self::Range, into: &Buffer);
    /// Copies packed bytes from offset `at` of a buffer to a range.
    fn unpack(&mut self, into: Self::Range, from: &Buffer, at: isize);
    /// Copies packed bytes to a range: those that a rank exposed under a sequence number, from some byte on. False if the
    /// system refuses.
    fn get(&mut self, place: (u32, u64, u64), into: Self::Range, shared: &mut impl SharedBuffers) -> bool;
    /// Offers a range, of which this rank gives the packed bytes or gets others, by that byte of its cell of a sequence number.
    fn offer(&mut self, range: (Self::Range, bool), seq: u64, at: u64, shared: &mut impl SharedBuffers);
    /// Copies to a range the packed bytes that a rank offers by that byte of its cell of a sequence number. False if the system refuses.
    fn take(&mut self, place: (u32, u64, u64), into: Self::Range, shared: &mut impl SharedBuffers) -> bool;
    /// Puts the packed bytes of a range where a rank offers it, by that byte of its cell of a sequence number, if it does, and publishes
    /// that.
    fn put(&mut self, place: (u32, u64, Option<u64>), from: Self::Range, shared: &mut impl SharedBuffers);
    /// The packed bytes of a range that was offered are there.
    fn landed(&mut self, into: Self::Range);
    /// Combines packed elements with a range: those in a publication, or those that a rank exposed, from some byte on.
    fn get_reduce(
        &mut self,
        inline: Option<&Buffer>,
        place: (u32, u64, u64),
        merge: Merge<Self::Range>,
        shared: &mut impl SharedBuffers,
    ) -> Result<Tried<Self::UserReduction>, Fault>;
    /// `into = from`.
    fn copy(&mut self, from: Self::Range, into: Self::Range) -> Tried<Self::UserReduction>;
    /// `into = from op into`.
    fn reduce(&mut self, from: Self::Range, into: Self::Range) -> Result<Tried<Self::UserReduction>, Fault>;
}

/// Carries out a step that is no message, if it can be now.
#[inline(always)]
pub(super) fn step<O: Operands>(
    step: &Step<O::Range>,
    operands: &mut O,
    (seqs, allotment): (&mut SeqWindow, &Allotment),
    shared: &mut impl SharedBuffers,
) -> Result<Tried<O::UserReduction>, Fault> {
    let cells = match *step {
        Step::Publish { from, form: Form::Inline, .. } => shared.cells_for(operands.bytes(O::units(from))),
        _ => shared.cells(),
    };
    // A message that was sent after a publication is not to be judged before it.
    let beside_messages =
        matches!(step, Step::Unpack { .. } | Step::Take { .. } | Step::Put { .. } | Step::AwaitPut { .. });
    match seqs.passes(step.guard(), (cells, beside_messages), allotment, shared) {
        Passes::NotYet => Ok(Tried::NotYet),
        Passes::Published(published) => read(step, &published, operands, seqs, shared),
        Passes::Now => write(step, operands, seqs, shared),
    }
}

/// Carries out a step that reads what another rank has published.
#[inline(always)]
fn read<O: Operands>(
    step: &Step<O::Range>,
    published: &Published,
    operands: &mut O,
    seqs: &SeqWindow,
    shared: &mut impl SharedBuffers,
) -> Result<Tried<O::UserReduction>, Fault> {
    match *step {
        Step::Unpack { rank, phase, sub_buffer, into } => {
            let len = operands.bytes(O::units(into));
            match sub_buffer {
                None => operands.unpack(into, whole(published, (rank, seqs.tagged(phase)), len)?, 0),
                Some(sub_buffer) => {
                    let place = (rank, seqs.tagged(phase));
                    if let Some(inside) = packed_bytes(published, place, sub_buffer, len)? {
                        operands.unpack(into, &inside, 0);
                    }
                }
            }
        }
        Step::Get { rank, phase, at, into } => {
            let (at, len) = (operands.bytes(at), operands.bytes(O::units(into)));
            match inline(published, rank, at + len)? {
                Some(inline) => operands.unpack(into, inline, at as isize),
                None if len == 0 || operands.get((rank, seqs.tagged(phase), at), into, shared) => {}
                None => return Err(Fault::Unreadable { rank }),
            }
        }
        Step::GetReduce { rank, phase, at, merge } => {
            let (at, len) = (operands.bytes(at), operands.bytes(O::units(merge.into)));
            let inline = inline(published, rank, at + len)?;
            if len > 0 {
                return operands.get_reduce(inline, (rank, seqs.tagged(phase), at), merge, shared);
            }
        }
        Step::Take { rank, phase, sub_buffer, into } => {
            let len = operands.bytes(O::units(into));
            let place = (rank, seqs.tagged(phase));
            packed_bytes(published, place, sub_buffer, len)?;
            if len > 0 && !operands.take((rank, place.1, sub_buffer.offer()), into, shared) {
                return Err(Fault::Unreadable { rank });
            }
        }
        Step::Put { rank, phase, sub_buffer, from } => {
            let (place, len) = ((rank, seqs.tagged(phase)), operands.bytes(O::units(from)));
            let offer = packed_bytes(published, place, sub_buffer, len).is_ok().then_some(sub_buffer.offer());
            operands.put((rank, place.1, offer), from, shared);
        }
        Step::AwaitPut { rank, phase, into } => {
            let (place, room) = ((rank, seqs.tagged(phase), 0), operands.bytes(O::units(into)));
            match published {
                Published::Inline(none) if none.is_empty() => operands.landed(into),
                other @ Published::Inline(_) => {
                    return Err(Fault::Length { from: rank, sent: sent_instead(other, place.1), room });
                }
                &Published::Exposed(sent) if sent != room => {
                    return Err(Fault::Length { from: rank, sent, room });
                }
                Published::Exposed(_) if operands.get(place, into, shared) => {}
                Published::Exposed(_) => return Err(Fault::Unreadable { rank }),
            }
        }
        // That it is there is all that an await is for.
        _ => {}
    }
    Ok(Tried::Over)
}

/// Carries out any other step.
#[inline(always)]
fn write<O: Operands>(
    step: &Step<O::Range>,
    operands: &mut O,
    seqs: &SeqWindow,
    shared: &mut impl SharedBuffers,
) -> Result<Tried<O::UserReduction>, Fault> {
    match *step {
        Step::Publish { from, phase, form } => {
            let seq = seqs.tagged(phase);
            match form {
                Form::Inline => operands.publish(from, seq, shared),
                Form::Exposed => operands.expose(from, seq, shared),
                Form::Packed => shared.publish_cell(seq),
            }
        }
        Step::Pack { from, phase, sub_buffer } => {
            let seq = seqs.tagged(phase);
            let len = operands.bytes(O::units(from));
            if let Some(inside) = enter(&shared.cell(seq), seq, sub_buffer, len) {
                operands.pack(from, &inside);
            }
        }
        Step::Offer { range, gives, phase, sub_buffer } => {
            let (seq, len) = (seqs.tagged(phase), operands.bytes(O::units(range)));
            enter(&shared.cell(seq), seq, sub_buffer, len);
            operands.offer((range, gives), seq, sub_buffer.offer(), shared);
        }
        Step::Ack { phase } => shared.ack(seqs.of(phase)),
        Step::WaitAck { .. } | Step::WaitReuse { .. } => {}
        _ => return local(step, operands),
    }
    Ok(Tried::Over)
}

/// Carries out a step within this rank.
pub(super) fn local<O: Operands>(
    step: &Step<O::Range>,
    operands: &mut O,
) -> Result<Tried<O::UserReduction>, Fault> {
    match *step {
        Step::Copy { from, into } => Ok(operands.copy(from, into)),
        Step::Reduce { from, into } => operands.reduce(from, into),
        _ => unreachable!("messages are the execution's own"),
    }
}

/// The bytes in shared memory that a rank published, if it has not exposed them; they must be as many as are `needed`.
#[inline(always)]
fn inline(published: &Published, rank: u32, needed: u64) -> Result<Option<&Buffer>, Fault> {
    let (sent, inline) = match published {
        Published::Inline(buffer) => (buffer.len() as u64, Some(buffer)),
        Published::Exposed(len) => (*len, None),
    };
    if sent < needed { Err(Fault::Length { from: rank, sent, room: needed }) } else { Ok(inline) }
}

/// All the bytes that a rank published; they must be `len`.
#[inline(always)]
fn whole(published: &Published, (rank, seq): (u32, u64), len: u64) -> Result<&Buffer, Fault> {
    match published {
        Published::Inline(block) if block.len() as u64 == len => Ok(block),
        other => Err(Fault::Length { from: rank, sent: sent_instead(other, seq), room: len }),
    }
}

/// The length of a block that is not as long as expected: it may have been too long to be published alone.
#[cold]
fn sent_instead(published: &Published, seq: u64) -> u64 {
    match published {
        Published::Exposed(sent) => *sent,
        Published::Inline(cell) => match filled_with(cell, 0, seq) {
            Some(sent) => sent,
            None => cell.len() as u64,
        },
    }
}

/// The length of the block that the sub-buffer at offset `at` of a cell was filled with under this sequence number, if it was.
fn filled_with(cell: &Buffer, at: isize, seq: u64) -> Option<u64> {
    let mut there = [0; SubBuffer::HEAD as usize];
    if cell.len() < there.len() {
        return None;
    }
    cell.read(cell.lo() + at, &mut there);
    let there = u64::from_ne_bytes(there);
    (there >> 32 == seq & u64::from(u32::MAX)).then_some(there & u64::from(u32::MAX))
}

/// The length in a sub-buffer, which tells a sub-buffer that was not filled under this sequence number from one that was.
fn head(seq: u64, len: u64) -> u64 {
    seq << 32 | len.min(u64::from(u32::MAX))
}

/// Puts a length into a sub-buffer, and returns where the bytes themselves go, if they do.
#[inline]
fn enter(cell: &Buffer, seq: u64, sub_buffer: SubBuffer, len: u64) -> Option<Buffer> {
    cell.write(sub_buffer.at as isize, &head(seq, len).to_ne_bytes());
    sub_buffer.holds(len).then(|| cell.slice((sub_buffer.at + SubBuffer::HEAD) as isize, len as usize))
}

/// The bytes in a sub-buffer, if they are there; it must have been filled with so many.
#[inline]
fn packed_bytes(
    published: &Published,
    (rank, seq): (u32, u64),
    sub_buffer: SubBuffer,
    len: u64,
) -> Result<Option<Buffer>, Fault> {
    let wrong = |sent: u64| Err(Fault::Length { from: rank, sent, room: len });
    let cell = match published {
        Published::Inline(cell) if cell.len() as u64 >= sub_buffer.at + SubBuffer::HEAD + sub_buffer.room => {
            cell
        }
        Published::Inline(cell) => return wrong(cell.len() as u64),
        Published::Exposed(sent) => return wrong(*sent),
    };
    let filled = filled_with(cell, sub_buffer.at as isize, seq);
    if filled != Some(len.min(u64::from(u32::MAX))) {
        return wrong(filled.unwrap_or(0));
    }
    let at = cell.lo() + (sub_buffer.at + SubBuffer::HEAD) as isize;
    Ok(sub_buffer.holds(len).then(|| cell.slice(at, len as usize)))
}
