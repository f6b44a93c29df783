//! Steps over shared slots: publishing, looking, pulling.

use banyan_datatype::Data;
use banyan_memory::Buffer;

use super::merge::Came;
use super::{Running, Tried};
use crate::ledger::AT_TAG;
use crate::sections::Taken;
use crate::{Fault, Form, Merge, Op, Pocket, Published, Slots, Span, Step};

/// Where an execution is in the order of stamps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamps {
    rank: u32,
    ranks: u32,
    /// That of phase 0, as it is released.
    first: u64,
    /// The same with the tag of the call, as something is published under it.
    tagged: u64,
    /// All ranks have released the stamps up to this one, as far as is known here.
    pub(crate) floor: u64,
    /// Other ranks seen to have published phase 0.
    seen: u32,
    pub(super) taken: Taken,
}

impl Stamps {
    /// From `first` on, with a tag, when all that is known is that all have released `floor`.
    pub(crate) fn new(
        (rank, ranks): (u32, u32),
        (first, tag): (u64, u64),
        floor: u64,
        taken: Taken,
    ) -> Stamps {
        Stamps { rank, ranks, first, tagged: first | tag, floor, seen: 0, taken }
    }

    /// The stamp of a phase, as it is released.
    #[inline]
    pub(super) fn of(&self, phase: u32) -> u64 {
        self.first + u64::from(phase)
    }

    /// The same, as something is published under it: with the tag.
    #[inline]
    pub(super) fn named(&self, phase: u32) -> u64 {
        self.tagged + u64::from(phase)
    }

    /// This rank, and how many there are.
    pub(super) fn ranks(&self) -> (u32, u32) {
        (self.rank, self.ranks)
    }

    /// The tag, as a number.
    pub(super) fn tag(&self) -> u32 {
        (self.tagged >> AT_TAG) as u32
    }

    /// This rank is through with all collectives before this one. What others may conclude from a stamp rests
    /// on it.
    #[inline(always)]
    pub(super) fn turn(&self, slots: &mut (impl Slots + ?Sized)) -> bool {
        slots.released(self.rank) + 1 >= self.first
    }

    /// This rank gives up a collective of so many phases: what it published is not to be read any more, the communicator's
    /// later collectives must not wait for it, and nobody is to take it that it has got there, where on the `board` releases
    /// say that.
    pub(super) fn give_up(&self, phases: u32, board: bool, slots: &mut (impl Slots + ?Sized)) {
        let Some(last) = phases.checked_sub(1) else { return };
        slots.revoke_regions(self.named(0), self.named(last));
        if board {
            slots.void(self.of(0), self.of(last));
        }
        slots.release(self.of(last));
    }

    /// All ranks are through with what went through the place of a chunk before.
    #[inline]
    pub(super) fn settled(&mut self, chunk: u32, slots: &mut (impl Slots + ?Sized)) -> bool {
        self.all_released(self.taken.used(chunk), slots)
    }

    /// Looks at what a rank published. Schedules look at each rank once in a phase.
    #[inline(always)]
    pub(super) fn look(
        &mut self,
        rank: u32,
        phase: u32,
        slots: &mut (impl Slots + ?Sized),
    ) -> Option<Published> {
        let published = slots.look(rank, self.named(phase))?;
        if phase == 0 && rank != self.rank {
            self.seen += 1;
            if self.seen + 1 == self.ranks {
                // They all are through with what was before this collective.
                self.floor = self.floor.max(self.first - 1);
            }
        }
        Some(published)
    }

    /// True if everybody has released what the bank held before.
    #[inline(always)]
    pub(super) fn clear(&mut self, phase: u32, slots: &mut (impl Slots + ?Sized)) -> bool {
        self.all_released(self.of(phase).saturating_sub(slots.banks()), slots)
    }

    #[inline(always)]
    fn all_released(&mut self, stamp: u64, slots: &mut (impl Slots + ?Sized)) -> bool {
        if self.floor < stamp {
            let mut all = u64::MAX;
            for rank in 0..self.ranks {
                all = all.min(slots.released(rank));
            }
            self.floor = all;
        }
        self.floor >= stamp
    }
}

impl Running {
    pub(super) fn shared(&mut self, index: usize, step: Step, slots: &mut dyn Slots) -> Result<Tried, Fault> {
        let stamps = self.begun.stamps;
        let stamp = |phase: u32| stamps.named(phase);
        let over = |yes: bool| if yes { Ok(Tried::Over) } else { Ok(Tried::NotYet) };
        match step {
            Step::Publish { from, phase, form } => over(self.publish(from, phase, form, slots)),
            Step::Lay { from, phase, pocket } => {
                let clear = self.begun.stamps.clear(phase, slots);
                if clear {
                    let stamp = stamp(phase);
                    let (buf, range) = self.range(from);
                    if let Some(inside) = lay(&slots.bank(stamp), stamp, pocket, from.len) {
                        self.places[buf].pack(range, &inside);
                    }
                }
                over(clear)
            }
            Step::Fetch { rank, phase, pocket, into } => {
                let stamp = stamp(phase);
                let Some(published) = self.begun.stamps.look(rank, phase, slots) else {
                    return Ok(Tried::NotYet);
                };
                if let Some(inside) = inside(&published, (rank, stamp), pocket, into.len)? {
                    let (buf, range) = self.range(into);
                    self.places[buf].unpack(range, &inside);
                }
                Ok(Tried::Over)
            }
            Step::Await { rank, phase } => over(self.begun.stamps.look(rank, phase, slots).is_some()),
            Step::Pull { rank, phase, at, into } => {
                let stamp = stamp(phase);
                let Some(published) = self.begun.stamps.look(rank, phase, slots) else {
                    return Ok(Tried::NotYet);
                };
                self.pull(published, (rank, stamp, at), into, slots)?;
                Ok(Tried::Over)
            }
            Step::PullReduce { rank, phase, at, merge } => {
                let stamp = stamp(phase);
                let Some(published) = self.begun.stamps.look(rank, phase, slots) else {
                    return Ok(Tried::NotYet);
                };
                self.pull_reduce(index, published, (rank, stamp, at), merge, slots)
            }
            Step::Release { phase } => {
                slots.release(stamps.of(phase));
                Ok(Tried::Over)
            }
            Step::Drain { rank, phase } => over(slots.reached(rank, stamps.of(phase))),
            Step::Settle { chunk } => over(self.begun.stamps.settled(chunk, slots)),
            _ => unreachable!("messages and local steps are tried elsewhere"),
        }
    }

    /// False if not everybody has released what the bank held before.
    fn publish(&mut self, from: Span, phase: u32, form: Form, slots: &mut dyn Slots) -> bool {
        if !self.begun.stamps.clear(phase, slots) {
            return false;
        }
        let stamp = self.begun.stamps.named(phase);
        if form == Form::Laid {
            slots.publish_bank(stamp);
            return true;
        }
        let (buf, range) = self.range(from);
        let direct = self.places[buf].data(range).and_then(|data| data.contiguous());
        let packed = match direct {
            Some(buffer) => buffer,
            None => {
                let bytes = from.len * self.shape.unit;
                let stage = self.work.spare.take(bytes);
                self.places[buf].pack(range, &stage);
                // A region stays published to the end.
                if form == Form::Region {
                    self.work.kept.push(stage.clone());
                    stage.slice(0, bytes as usize)
                } else {
                    let packed = stage.slice(0, bytes as usize);
                    self.work.spare.give(stage);
                    packed
                }
            }
        };
        match form == Form::Region {
            true => slots.publish_region(stamp, &packed),
            false => slots.publish(stamp, &packed, packed.lo(), packed.len()),
        }
        true
    }

    /// Packed bytes from unit `at` on, for `into`.
    fn pull(
        &mut self,
        published: Published,
        (rank, stamp, at): (u32, u64, u64),
        into: Span,
        slots: &mut dyn Slots,
    ) -> Result<(), Fault> {
        let (buf, range) = self.range(into);
        let (at, bytes) = (at * self.shape.unit, into.len * self.shape.unit);
        let whole = self.check(&published, rank, at + bytes)?;
        if into.len == 0 {
            return Ok(());
        }
        if let Some(inline) = whole {
            self.places[buf].unpack(range, &inline.slice(inline.lo() + at as isize, bytes as usize));
            return Ok(());
        }
        let direct = self.places[buf].data(range).and_then(|data| data.contiguous());
        let refused = Fault::Unreadable { rank };
        if let Some(memory) = direct {
            return if slots.pull(rank, stamp, at, &memory) { Ok(()) } else { Err(refused) };
        }
        let stage = self.work.spare.take(bytes);
        if !slots.pull(rank, stamp, at, &stage.slice(0, bytes as usize)) {
            return Err(refused);
        }
        self.places[buf].unpack(range, &stage);
        self.work.spare.give(stage);
        Ok(())
    }

    /// The inline bytes, if they are; an error if there is less than `needed`.
    fn check(&self, published: &Published, rank: u32, needed: u64) -> Result<Option<Buffer>, Fault> {
        let (sent, inline) = match published {
            Published::Inline(buffer) => (buffer.len() as u64, Some(buffer.clone())),
            Published::Region(len) => (*len, None),
        };
        if sent < needed {
            return Err(Fault::Length { from: rank, sent, room: needed });
        }
        Ok(inline)
    }

    fn pull_reduce(
        &mut self,
        index: usize,
        published: Published,
        (rank, stamp, at): (u32, u64, u64),
        merge: Merge,
        slots: &mut dyn Slots,
    ) -> Result<Tried, Fault> {
        let unit = self.shape.unit;
        let (at, count) = (at * unit, merge.into.len);
        let inline = self.check(&published, rank, at + count * unit)?;
        let builtin = matches!(self.op, Some((Op::Builtin(_), _)));
        let whole_units = builtin && self.element_type().is_dense() && !self.lands_right(&merge);
        match inline {
            _ if count == 0 => Ok(Tried::Over),
            // Straight out of shared memory; but that is not shown to a user's function.
            Some(inline) if whole_units => {
                let here = inline.slice(inline.lo() + at as isize, (count * unit) as usize);
                self.merge(index, merge, Came::Seen(here))
            }
            // In pieces that stay in the cache between copy and reduction.
            None if whole_units => {
                let piece = (PIECE / unit).max(1);
                for first in (0..count).step_by(piece as usize) {
                    let part =
                        |span: Span| Span { at: span.at + first, len: piece.min(count - first), ..span };
                    let merge = Merge { with: part(merge.with), into: part(merge.into), ..merge };
                    let came = self.fetch(rank, stamp, at + first * unit, None, &merge, slots)?;
                    self.merge(index, merge, came)?;
                }
                Ok(Tried::Over)
            }
            inline => {
                let came = self.fetch(rank, stamp, at, inline, &merge, slots)?;
                self.merge(index, merge, came)
            }
        }
    }

    /// Copies what a rank published, packed bytes from `at` on, to where it is combined.
    fn fetch(
        &mut self,
        rank: u32,
        stamp: u64,
        at: u64,
        inline: Option<Buffer>,
        merge: &Merge,
        slots: &mut dyn Slots,
    ) -> Result<Came, Fault> {
        let (place, landing) = self.landing(merge.into, Some(*merge));
        let bytes = merge.into.len * self.shape.unit;
        let refused = Fault::Unreadable { rank };
        if let Some(inline) = inline {
            place.copy_from(&Data::bytes(inline.slice(inline.lo() + at as isize, bytes as usize)));
        } else if let Some(memory) = place.contiguous() {
            if !slots.pull(rank, stamp, at, &memory) {
                return Err(refused);
            }
        } else {
            let stage = self.work.spare.take(bytes);
            let packed = stage.slice(0, bytes as usize);
            if !slots.pull(rank, stamp, at, &packed) {
                return Err(refused);
            }
            place.copy_from(&Data::bytes(packed));
            self.work.spare.give(stage);
        }
        Ok(landing.map_or(Came::InPlace, Came::Landed))
    }
}

/// The length in a pocket, which tells a pocket that was not filled for this stamp from one that was.
fn head(stamp: u64, len: u64) -> u64 {
    stamp << 32 | len.min(u64::from(u32::MAX))
}

/// Puts a length into a pocket, and returns where the bytes themselves go, if they do.
#[inline]
pub(super) fn lay(bank: &Buffer, stamp: u64, pocket: Pocket, len: u64) -> Option<Buffer> {
    bank.write(pocket.at as isize, &head(stamp, len).to_ne_bytes());
    pocket.holds(len).then(|| bank.slice((pocket.at + Pocket::HEAD) as isize, len as usize))
}

/// The bytes in a pocket, if they are there; it must have been filled with so many.
#[inline]
pub(super) fn inside(
    published: &Published,
    (rank, stamp): (u32, u64),
    pocket: Pocket,
    len: u64,
) -> Result<Option<Buffer>, Fault> {
    let wrong = |sent: u64| Err(Fault::Length { from: rank, sent, room: len });
    let bank = match published {
        Published::Inline(bank) if bank.len() as u64 >= pocket.at + Pocket::HEAD + pocket.room => bank,
        Published::Inline(bank) => return wrong(bank.len() as u64),
        Published::Region(sent) => return wrong(*sent),
    };
    let mut there = [0; Pocket::HEAD as usize];
    bank.read(bank.lo() + pocket.at as isize, &mut there);
    let there = u64::from_ne_bytes(there);
    if there != head(stamp, len) {
        return wrong(if there >> 32 == stamp & u64::from(u32::MAX) {
            there & u64::from(u32::MAX)
        } else {
            0
        });
    }
    let at = bank.lo() + (pocket.at + Pocket::HEAD) as isize;
    Ok(pocket.holds(len).then(|| bank.slice(at, len as usize)))
}

/// Bytes pulled and reduced at a time.
const PIECE: u64 = 1 << 16;
