//! Eager credit: a receiver lends each sender the right to send so much without asking, out of one budget.
//!
//! A message costs its payload and its envelope, in [`UNIT`]s. The sender pays before it sends; the credit
//! is returned when the message has left the receiver's memory, on the next frame that goes the other
//! way, or in one of its own once a quarter of the loan is owed. Any two processes start with the same
//! small loan. A sender that runs out says so in its RTS and is lent more, while the budget lasts;
//! after that, peers that were lent more and are quiet are asked to return it.

use crate::matching::Unexpected;
use crate::request::{Message, SHORT};
use crate::slab::Slab;
use crate::types::Config;

/// The most credit that a process lends to another one, units.
pub(crate) const MOST_CREDIT: u32 = 1 << 28;

/// Bytes of one unit of credit.
pub(crate) const UNIT: usize = 64;

/// Units that the envelope of a message takes: its value in the slab of messages, in which a short payload lies, too, and
/// its entry in the queue of its context.
const ENVELOPE: u32 = 2;
const _: () = assert!(Slab::<Message>::EACH + Unexpected::EACH <= ENVELOPE as usize * UNIT);

/// Units for a message of so many bytes: its payload and its envelope.
#[inline]
pub(crate) fn cost(bytes: usize) -> u32 {
    if bytes <= SHORT { ENVELOPE } else { ENVELOPE + bytes.div_ceil(UNIT) as u32 }
}

/// The smallest window of announcements: a few rendezvous have to be under way at once.
const LEAST_WINDOW: u32 = 16;
/// The largest window of announcements: more are never needed.
const MOST_WINDOW: u32 = 1024;

/// All credit that this process lends.
#[derive(Debug)]
pub(crate) struct CreditPool {
    /// Units that may be lent.
    budget: u32,
    /// Units lent to all peers together.
    lent: u32,
    /// The initial loan of any two processes, units.
    initial: u32,
    /// Units kept back for the initial loans of peers not heard of yet.
    reserve: u32,
    /// Messages that this process announces to a peer before one is answered, or the peer asks for more.
    window: u32,
}

/// What this process lends to one peer, in units. `out + owed`, and what the peer's messages in this process's memory cost,
/// add up to `lent`.
#[derive(Debug)]
pub(crate) struct Loan {
    lent: u32,
    /// Credit that the peer has, or has spent on messages under way.
    out: u32,
    /// Credit of messages that have left memory, not returned yet.
    owed: u32,
    /// The peer sent something since it was last passed over for a recall.
    pub(crate) active: bool,
}

impl CreditPool {
    pub(crate) fn new(config: &Config) -> Self {
        let units = |bytes: usize| u32::try_from(bytes / UNIT).unwrap_or(u32::MAX / 4).min(u32::MAX / 4);
        let (budget, initial) = (units(config.budget), units(config.initial_credit));
        let window = (initial / 4 / ENVELOPE).clamp(LEAST_WINDOW, MOST_WINDOW);
        Self { budget, lent: 0, initial, reserve: budget / 2, window }
    }

    /// Messages with tags that may be announced to a peer before one is answered. Their envelopes together take about a
    /// quarter of the initial credit, within bounds.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// The initial loan of any two processes, units.
    pub(crate) fn initial(&self) -> u32 {
        self.initial
    }

    /// The loan of a new peer.
    pub(crate) fn open(&mut self) -> Loan {
        self.lent = self.lent.saturating_add(self.initial);
        self.reserve = self.reserve.saturating_sub(self.initial);
        Loan { lent: self.initial, out: self.initial, owed: 0, active: false }
    }

    /// Lends as much again (at least 64 KiB), or what the budget allows. False if that is nothing.
    pub(crate) fn grow(&mut self, loan: &mut Loan) -> bool {
        let free = self.budget.saturating_sub(self.lent).saturating_sub(self.reserve);
        let more = loan.lent.max((64 << 10) / UNIT as u32).min(free).min(self.budget / 4);
        loan.lent += more;
        loan.owed += more;
        self.lent += more;
        more > 0
    }

    /// The peer returned `units`. False if it did not have them.
    #[must_use]
    pub(crate) fn take_back(&mut self, loan: &mut Loan, units: u32) -> bool {
        if units > loan.out || units > loan.lent {
            return false;
        }
        loan.out -= units;
        loan.lent -= units;
        self.lent -= units;
        true
    }

    /// The peer is gone: its loan ends, but for what its messages in memory cost.
    pub(crate) fn close(&mut self, loan: &mut Loan) {
        let gone = loan.out + loan.owed;
        loan.lent -= gone;
        self.lent -= gone;
        (loan.out, loan.owed) = (0, 0);
    }

    /// A message of a peer that is gone, which cost `units`, left memory.
    pub(crate) fn write_off(&mut self, loan: &mut Loan, units: u32) {
        loan.lent -= units;
        self.lent -= units;
    }
}

impl Loan {
    /// Whether the peer may send what costs so much.
    pub(crate) fn covers(&self, units: u32) -> bool {
        units <= self.out
    }

    /// A message that cost `units` arrived. False if the peer did not have that much.
    #[inline]
    #[must_use]
    pub(crate) fn pay(&mut self, units: u32) -> bool {
        self.active = true;
        match self.out.checked_sub(units) {
            Some(out) => {
                self.out = out;
                true
            }
            None => false,
        }
    }

    /// A message that cost `units` left memory.
    #[inline]
    pub(crate) fn used(&mut self, units: u32) {
        self.owed += units;
    }

    /// Units that the next frame to the peer can take along.
    #[inline]
    pub(crate) fn returnable(&self) -> u32 {
        self.owed.min(u16::MAX.into())
    }

    /// `units` of credit left with a frame.
    #[inline]
    pub(crate) fn returned(&mut self, units: u32) {
        self.owed -= units;
        self.out += units;
    }

    /// Whether so much is owed that a frame of its own is worth it.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        (self.owed > 0) & (self.owed >= self.lent / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_budget_is_lent() {
        let mut credit_pool = CreditPool::new(&Config::new(1 << 20, 4));
        let mut loans: Vec<_> = (0..4).map(|_| credit_pool.open()).collect();
        assert_eq!(loans[0].out as usize * UNIT, 1 << 17);
        while loans.iter_mut().any(|loan| credit_pool.grow(loan)) {}
        assert_eq!(loans.iter().map(|l| l.lent as usize).sum::<usize>() * UNIT, 1 << 20);
        let loan = &mut loans[0];
        assert!(!loan.pay(loan.out + 1));
        assert!(loan.pay(100));
        loan.used(100);
        let units = loan.returnable();
        loan.returned(units);
        assert!(!credit_pool.take_back(loan, loan.out + 1));
        assert!(credit_pool.take_back(loan, loan.out - credit_pool.initial()));
        assert!(credit_pool.grow(&mut loans[1]));
    }

    #[test]
    fn a_message_costs_its_envelope_too() {
        assert_eq!([0, 23, 24, 64, 65].map(cost), [2, 2, 3, 3, 4]);
    }
}
