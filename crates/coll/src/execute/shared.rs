//! Steps through shared buffers: publish and pack, poll and unpack, get, acknowledge.

use banyan_datatype::Data;
use banyan_memory::Buffer;

use super::merge::Incoming;
use super::{ExecutionState, Tried};
use crate::ledger::AT_TAG;
use crate::sections::Allotment;
use crate::{Fault, Form, Merge, Op, Published, SharedBuffers, Span, Step, SubBuffer};

/// The sequence numbers of one collective, and what it knows of those that the ranks have acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeqWindow {
    rank: u32,
    ranks: u32,
    /// The sequence number of phase 0, without a tag: so it is acknowledged.
    first: u64,
    /// The sequence number of phase 0 with the tag of the call: so it is published under.
    tagged: u64,
    /// All ranks are known to have acknowledged the sequence numbers up to this one.
    pub(crate) floor: u64,
    /// How many other ranks have been seen to have published phase 0.
    seen: u32,
    pub(super) allotment: Allotment,
}

impl SeqWindow {
    /// From `first` on, with the call's tag; all ranks are known to have acknowledged `floor`.
    pub(crate) fn new(
        (rank, ranks): (u32, u32),
        (first, tag): (u64, u64),
        floor: u64,
        allotment: Allotment,
    ) -> SeqWindow {
        SeqWindow { rank, ranks, first, tagged: first | tag, floor, seen: 0, allotment }
    }

    /// The sequence number of a phase without the tag: so it is acknowledged.
    #[inline]
    pub(super) fn of(&self, phase: u32) -> u64 {
        self.first + u64::from(phase)
    }

    /// The sequence number of a phase with the tag: so it is published under.
    #[inline]
    pub(super) fn tagged(&self, phase: u32) -> u64 {
        self.tagged + u64::from(phase)
    }

    /// This rank, and the number of ranks.
    pub(super) fn ranks(&self) -> (u32, u32) {
        (self.rank, self.ranks)
    }

    /// The tag, as a number.
    pub(super) fn tag(&self) -> u32 {
        (self.tagged >> AT_TAG) as u32
    }

    /// True if this rank is through with all collectives before this one. Other ranks draw conclusions from a sequence number
    /// that rest on this order.
    #[inline(always)]
    pub(super) fn turn(&self, shared: &mut (impl SharedBuffers + ?Sized)) -> bool {
        shared.acked(self.rank) + 1 >= self.first
    }

    /// Gives up a collective of so many phases at this rank: its exposed ranges are taken back, its sequence numbers are
    /// acknowledged so that later collectives do not wait for them, and, where an acknowledgement says that work on the
    /// `scratch` is done, are void, so that no rank takes them for that.
    pub(super) fn give_up(&self, phases: u32, scratch: bool, shared: &mut (impl SharedBuffers + ?Sized)) {
        let Some(last) = phases.checked_sub(1) else { return };
        shared.revoke_exposed(self.tagged(0), self.tagged(last));
        if scratch {
            shared.void(self.of(0), self.of(last));
        }
        shared.ack(self.of(last));
    }

    /// True if all ranks are through with what was on the shared scratch before, where chunk 0 or 1 goes.
    #[inline]
    pub(super) fn reusable(&mut self, chunk: u32, shared: &mut (impl SharedBuffers + ?Sized)) -> bool {
        self.all_acked(self.allotment.used(chunk), shared)
    }

    /// What a rank has published, if it has. A schedule polls each rank with success only once in a phase.
    #[inline(always)]
    pub(super) fn poll(
        &mut self,
        rank: u32,
        phase: u32,
        shared: &mut (impl SharedBuffers + ?Sized),
    ) -> Option<Published> {
        let published = shared.poll(rank, self.tagged(phase))?;
        if phase == 0 && rank != self.rank {
            self.seen += 1;
            if self.seen + 1 == self.ranks {
                // All ranks have begun this collective, so they have acknowledged all before it.
                self.floor = self.floor.max(self.first - 1);
            }
        }
        Some(published)
    }

    /// True if all ranks have acknowledged what the phase's cell held before.
    #[inline(always)]
    pub(super) fn cell_free(&mut self, phase: u32, shared: &mut (impl SharedBuffers + ?Sized)) -> bool {
        self.all_acked(self.of(phase).saturating_sub(shared.cells()), shared)
    }

    #[inline(always)]
    fn all_acked(&mut self, seq: u64, shared: &mut (impl SharedBuffers + ?Sized)) -> bool {
        if self.floor < seq {
            let mut all = u64::MAX;
            for rank in 0..self.ranks {
                all = all.min(shared.acked(rank));
            }
            self.floor = all;
        }
        self.floor >= seq
    }
}

impl ExecutionState {
    pub(super) fn shared_step(
        &mut self,
        index: usize,
        step: Step,
        shared: &mut dyn SharedBuffers,
    ) -> Result<Tried, Fault> {
        let seqs = self.cursor.seqs;
        let seq = |phase: u32| seqs.tagged(phase);
        let over = |yes: bool| if yes { Ok(Tried::Over) } else { Ok(Tried::NotYet) };
        match step {
            Step::Publish { from, phase, form } => over(self.publish(from, phase, form, shared)),
            Step::Pack { from, phase, sub_buffer } => {
                let free = self.cursor.seqs.cell_free(phase, shared);
                if free {
                    let seq = seq(phase);
                    let (buf, range) = self.range(from);
                    if let Some(room) = pack_into(&shared.cell(seq), seq, sub_buffer, from.len) {
                        self.views[buf].pack(range, &room);
                    }
                }
                over(free)
            }
            Step::Unpack { rank, phase, sub_buffer, into } => {
                let seq = seq(phase);
                let Some(published) = self.cursor.seqs.poll(rank, phase, shared) else {
                    return Ok(Tried::NotYet);
                };
                if let Some(bytes) = packed_bytes(&published, (rank, seq), sub_buffer, into.len)? {
                    let (buf, range) = self.range(into);
                    self.views[buf].unpack(range, &bytes);
                }
                Ok(Tried::Over)
            }
            Step::Await { rank, phase } => over(self.cursor.seqs.poll(rank, phase, shared).is_some()),
            Step::Get { rank, phase, at, into } => {
                let seq = seq(phase);
                let Some(published) = self.cursor.seqs.poll(rank, phase, shared) else {
                    return Ok(Tried::NotYet);
                };
                self.get(published, (rank, seq, at), into, shared)?;
                Ok(Tried::Over)
            }
            Step::GetReduce { rank, phase, at, merge } => {
                let seq = seq(phase);
                let Some(published) = self.cursor.seqs.poll(rank, phase, shared) else {
                    return Ok(Tried::NotYet);
                };
                self.get_reduce(index, published, (rank, seq, at), merge, shared)
            }
            Step::Ack { phase } => {
                shared.ack(seqs.of(phase));
                Ok(Tried::Over)
            }
            Step::WaitAck { rank, phase } => over(shared.reached(rank, seqs.of(phase))),
            Step::WaitReuse { chunk } => over(self.cursor.seqs.reusable(chunk, shared)),
            _ => unreachable!("messages and local steps are tried elsewhere"),
        }
    }

    /// Publishes a range; false if some rank has not acknowledged yet what the cell held before.
    fn publish(&mut self, from: Span, phase: u32, form: Form, shared: &mut dyn SharedBuffers) -> bool {
        if !self.cursor.seqs.cell_free(phase, shared) {
            return false;
        }
        let seq = self.cursor.seqs.tagged(phase);
        if form == Form::Packed {
            shared.publish_cell(seq);
            return true;
        }
        let (buf, range) = self.range(from);
        let direct = self.views[buf].data(range).and_then(|data| data.contiguous());
        let packed = match direct {
            Some(buffer) => buffer,
            None => {
                let bytes = from.len * self.shape.unit;
                let stage = self.work.spare.take(bytes);
                self.views[buf].pack(range, &stage);
                // The memory behind an exposed range must stay to the end.
                if form == Form::Exposed {
                    self.work.kept.push(stage.clone());
                    stage.slice(0, bytes as usize)
                } else {
                    let packed = stage.slice(0, bytes as usize);
                    self.work.spare.give(stage);
                    packed
                }
            }
        };
        match form == Form::Exposed {
            true => shared.expose(seq, &packed),
            false => shared.publish(seq, &packed, packed.lo(), packed.len()),
        }
        true
    }

    /// Copies what a rank published, from its unit `at` on, to `into`.
    fn get(
        &mut self,
        published: Published,
        (rank, seq, at): (u32, u64, u64),
        into: Span,
        shared: &mut dyn SharedBuffers,
    ) -> Result<(), Fault> {
        let (buf, range) = self.range(into);
        let (at, bytes) = (at * self.shape.unit, into.len * self.shape.unit);
        let whole = self.check(&published, rank, at + bytes)?;
        if into.len == 0 {
            return Ok(());
        }
        if let Some(inline) = whole {
            self.views[buf].unpack(range, &inline.slice(inline.lo() + at as isize, bytes as usize));
            return Ok(());
        }
        let direct = self.views[buf].data(range).and_then(|data| data.contiguous());
        let refused = Fault::Unreadable { rank };
        if let Some(memory) = direct {
            return if shared.get(rank, seq, at, &memory) { Ok(()) } else { Err(refused) };
        }
        let stage = self.work.spare.take(bytes);
        if !shared.get(rank, seq, at, &stage.slice(0, bytes as usize)) {
            return Err(refused);
        }
        self.views[buf].unpack(range, &stage);
        self.work.spare.give(stage);
        Ok(())
    }

    /// The bytes, if they were published inline; an error if there are fewer than `needed`.
    fn check(&self, published: &Published, rank: u32, needed: u64) -> Result<Option<Buffer>, Fault> {
        let (sent, inline) = match published {
            Published::Inline(buffer) => (buffer.len() as u64, Some(buffer.clone())),
            Published::Exposed(len) => (*len, None),
        };
        if sent < needed {
            return Err(Fault::Length { from: rank, sent, room: needed });
        }
        Ok(inline)
    }

    fn get_reduce(
        &mut self,
        index: usize,
        published: Published,
        (rank, seq, at): (u32, u64, u64),
        merge: Merge,
        shared: &mut dyn SharedBuffers,
    ) -> Result<Tried, Fault> {
        let unit = self.shape.unit;
        let (at, count) = (at * unit, merge.into.len);
        let inline = self.check(&published, rank, at + count * unit)?;
        let builtin = matches!(self.op, Some((Op::Builtin(_), _)));
        let whole_units = builtin && self.element_type().is_dense() && !self.lands_right(&merge);
        match inline {
            _ if count == 0 => Ok(Tried::Over),
            // Reduced straight out of shared memory; but a user's function must not see that memory.
            Some(inline) if whole_units => {
                let here = inline.slice(inline.lo() + at as isize, (count * unit) as usize);
                self.merge(index, merge, Incoming::ReadOnly(here))
            }
            // Got and reduced in pieces that stay in the cache between the two.
            None if whole_units => {
                let piece = (PIECE / unit).max(1);
                for first in (0..count).step_by(piece as usize) {
                    let part =
                        |span: Span| Span { at: span.at + first, len: piece.min(count - first), ..span };
                    let merge = Merge { with: part(merge.with), into: part(merge.into), ..merge };
                    let incoming = self.get_operand(rank, seq, at + first * unit, None, &merge, shared)?;
                    self.merge(index, merge, incoming)?;
                }
                Ok(Tried::Over)
            }
            inline => {
                let incoming = self.get_operand(rank, seq, at, inline, &merge, shared)?;
                self.merge(index, merge, incoming)
            }
        }
    }

    /// Copies what a rank published, its packed bytes from `at` on, to where they are combined.
    fn get_operand(
        &mut self,
        rank: u32,
        seq: u64,
        at: u64,
        inline: Option<Buffer>,
        merge: &Merge,
        shared: &mut dyn SharedBuffers,
    ) -> Result<Incoming, Fault> {
        let (view, landing) = self.landing(merge.into, Some(*merge));
        let bytes = merge.into.len * self.shape.unit;
        let refused = Fault::Unreadable { rank };
        if let Some(inline) = inline {
            view.copy_from(&Data::bytes(inline.slice(inline.lo() + at as isize, bytes as usize)));
        } else if let Some(memory) = view.contiguous() {
            if !shared.get(rank, seq, at, &memory) {
                return Err(refused);
            }
        } else {
            let stage = self.work.spare.take(bytes);
            let packed = stage.slice(0, bytes as usize);
            if !shared.get(rank, seq, at, &packed) {
                return Err(refused);
            }
            view.copy_from(&Data::bytes(packed));
            self.work.spare.give(stage);
        }
        Ok(landing.map_or(Incoming::InPlace, Incoming::Landed))
    }
}

/// The first word of a sub-buffer: the length, and the sequence number that the sub-buffer was filled for.
fn head(seq: u64, len: u64) -> u64 {
    seq << 32 | len.min(u64::from(u32::MAX))
}

/// Writes a length into a sub-buffer; returns where the bytes themselves go, if it holds so many.
#[inline]
pub(super) fn pack_into(cell: &Buffer, seq: u64, sub_buffer: SubBuffer, len: u64) -> Option<Buffer> {
    cell.write(sub_buffer.at as isize, &head(seq, len).to_ne_bytes());
    sub_buffer.holds(len).then(|| cell.slice((sub_buffer.at + SubBuffer::HEAD) as isize, len as usize))
}

/// The bytes in a sub-buffer, if it holds so many; an error if its owner packed another length.
#[inline]
pub(super) fn packed_bytes(
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
    let mut there = [0; SubBuffer::HEAD as usize];
    cell.read(cell.lo() + sub_buffer.at as isize, &mut there);
    let there = u64::from_ne_bytes(there);
    if there != head(seq, len) {
        return wrong(if there >> 32 == seq & u64::from(u32::MAX) { there & u64::from(u32::MAX) } else { 0 });
    }
    let at = cell.lo() + (sub_buffer.at + SubBuffer::HEAD) as isize;
    Ok(sub_buffer.holds(len).then(|| cell.slice(at, len as usize)))
}

/// How many bytes are got and reduced at a time.
const PIECE: u64 = 1 << 16;
