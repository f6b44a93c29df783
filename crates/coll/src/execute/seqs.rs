//! [`SeqWindow`]: the sequence numbers of one collective, and what is known of how far other ranks are.

use crate::ledger::AT_TAG;
use crate::schedule::Guard;
use crate::sections::Allotment;
use crate::{Published, SharedBuffers};

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
}

/// Whether a step can be carried out now.
pub(super) enum Passes {
    Now,
    /// With what the other rank has published.
    Published(Published),
    NotYet,
}

impl SeqWindow {
    /// From `first` on, with the call's tag; all ranks are known to have acknowledged `floor`.
    pub(crate) fn new((rank, ranks): (u32, u32), (first, tag): (u64, u64), floor: u64) -> SeqWindow {
        SeqWindow { rank, ranks, first, tagged: first | tag, floor, seen: 0 }
    }

    /// These, with what is known of the acknowledgements from those `before` them.
    pub(super) fn after(self, before: &SeqWindow) -> SeqWindow {
        SeqWindow { floor: self.floor.max(before.floor), ..self }
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
    pub(super) fn turn(&self, shared: &mut impl SharedBuffers) -> bool {
        shared.acked(self.rank) + 1 >= self.first
    }

    /// Gives up a collective of so many phases at this rank: its exposed ranges are taken back, its sequence numbers are
    /// acknowledged so that later collectives do not wait for them, and, where an acknowledgement says that work on the
    /// `scratch` is done, are void, so that no rank takes them for that.
    pub(super) fn give_up(&self, phases: u32, scratch: bool, shared: &mut impl SharedBuffers) {
        let Some(last) = phases.checked_sub(1) else { return };
        shared.revoke_exposed(self.tagged(0), self.tagged(last));
        if shared.acked(self.rank) >= self.of(last) {
            // Only messages were left of it, and the next collective may have begun.
            return;
        }
        if scratch {
            shared.void(self.of(0), self.of(last));
        }
        shared.ack(self.of(last));
    }

    /// What the guard of a step that needs shared buffers says now, when it is this rank's turn. If the step publishes, what it publishes is in one of
    /// so many `cells`; if it reads, it may have to see `at_once` what is published. Its chunks have that `allotment`.
    #[inline(always)]
    pub(super) fn passes(
        &mut self,
        guard: Guard,
        (cells, at_once): (u64, bool),
        allotment: &Allotment,
        shared: &mut impl SharedBuffers,
    ) -> Passes {
        let held = match guard {
            Guard::Published(rank, phase) => {
                let published = self.poll(rank, phase, at_once, shared);
                return published.map_or(Passes::NotYet, Passes::Published);
            }
            Guard::CellFree(phase) => self.all_acked(self.of(phase).saturating_sub(cells), shared),
            Guard::Acked(rank, phase) => shared.reached(rank, self.of(phase)),
            Guard::Reusable(chunk) => self.all_acked(allotment.used(chunk), shared),
            Guard::Free | Guard::Turn | Guard::Message(_) => true,
        };
        if held { Passes::Now } else { Passes::NotYet }
    }

    /// What a rank has published, if it has. A schedule polls each rank with success only once in a phase.
    #[inline(always)]
    fn poll(
        &mut self,
        rank: u32,
        phase: u32,
        at_once: bool,
        shared: &mut impl SharedBuffers,
    ) -> Option<Published> {
        let published = shared.poll(rank, self.tagged(phase), at_once)?;
        if phase == 0 && rank != self.rank {
            self.seen += 1;
            if self.seen + 1 == self.ranks {
                // All ranks have begun this collective, so they have acknowledged all before it.
                self.floor = self.floor.max(self.first - 1);
            }
        }
        Some(published)
    }

    #[inline(always)]
    fn all_acked(&mut self, seq: u64, shared: &mut impl SharedBuffers) -> bool {
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
