//! What ranks tell each other of collectives that do not go on: the engine's part of `coll`'s ledger. A note is one frame of
//! class Control. A note that a fabric refuses is lost: a rank that waits asks again.

use std::time::{Duration, Instant};

use banyan_coll::{self as coll, Note};
use banyan_transport::{Class, Head, Peer, Port};

use crate::coll_state::CollState;
use crate::error::Error;
use crate::messenger::Messages;
use crate::ports::Ports;
use crate::running::{RunningColl, RunningColls};
use crate::subsystem::Messaging;

/// How long a collective waits before it first asks.
const FIRST: Duration = Duration::from_millis(20);
/// Ranks that it asks at a time at most, in turn: a pair's first message takes shared memory or a connection.
const ASKED_AT_A_TIME: usize = 8;
/// How often it asks at this interval. From then on the interval doubles each time.
const STEADY: u32 = 8;
/// The interval doubles so many times at most: to some 80 s.
const DOUBLINGS: u32 = 12;

/// Notes that are kept until they are read; more are dropped.
const MOST_NOTES: usize = 4096;

/// Notes that have come: sender and context of each.
#[derive(Default)]
pub(crate) struct Inbox(Vec<(Peer, u64, Note)>);

impl Inbox {
    /// Keeps the note in a frame, if it is one and there are not too many.
    pub(crate) fn keep(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        if self.0.len() < MOST_NOTES {
            self.0.extend(Note::decode(body).map(|note| (peer, head.ctx, note)));
        }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// When a collective under way asks the ranks that it waits for.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Inquiry {
    /// When it asks next, once the clock has been read.
    next: Option<Instant>,
    times: u32,
    /// The collective fails for a reason that another rank has told all ranks.
    pub(crate) others_told: bool,
}

impl Inquiry {
    /// Of a collective that fails, if all ranks have been told that it does; or one that asks when it has waited.
    pub(crate) fn of(others_told: bool) -> Inquiry {
        Inquiry { others_told, ..Inquiry::default() }
    }

    /// True if it is time to ask.
    fn is_due(&mut self, now: Instant) -> bool {
        let next = *self.next.get_or_insert(now + FIRST);
        if now < next {
            return false;
        }
        self.times = self.times.saturating_add(1);
        self.next = Some(now + FIRST * (1 << self.times.saturating_sub(STEADY).min(DOUBLINGS)));
        true
    }

    /// The awaited ranks whose turn it is to be asked.
    fn next_to_ask(&self, mut awaited: Vec<u32>) -> Vec<u32> {
        awaited.sort_unstable();
        awaited.dedup();
        let begin = ASKED_AT_A_TIME * (self.times as usize - 1) % awaited.len().max(1);
        awaited.rotate_left(begin);
        awaited.truncate(ASKED_AT_A_TIME);
        awaited
    }
}

impl RunningColls {
    /// Asks on behalf of collectives that have waited for long. Returns when it should be called again.
    pub(crate) fn inquire(&mut self, ports: &mut Ports) -> Option<Instant> {
        if self.active == 0 {
            return None;
        }
        let (now, mut next) = (Instant::now(), None);
        for index in 0..self.all.len() {
            let Some(running) = self.all[index].as_mut().filter(|running| !running.in_user_op) else {
                continue;
            };
            let Some(execution) = &running.execution else { continue };
            let due = running.inquiry.is_due(now);
            next = next.into_iter().chain(running.inquiry.next).min();
            if due {
                let (coll_state, number, mut awaited) =
                    (running.coll_state.clone(), execution.number(), vec![]);
                execution.awaits(&mut |rank| awaited.push(rank));
                let awaited = running.inquiry.next_to_ask(awaited);
                if let Some(ledger) = self.sequences.ledger(coll_state.ctx) {
                    let note = ledger.ask(number);
                    awaited.into_iter().for_each(|rank| send_to_rank(ports, &coll_state, rank, &note));
                }
            }
        }
        next
    }

    /// A collective has failed here: tells all its ranks. Returns the error for the user.
    #[cold]
    pub(crate) fn fail_for_all(
        &mut self,
        coll_state: &CollState,
        number: Option<u64>,
        fault: &coll::Fault,
        ports: &mut Ports,
    ) -> Error {
        let (note, error) = self.record_failure(coll_state, number, fault);
        if let Some(note) = note {
            let me = coll_state.group.rank();
            (0..coll_state.group.size())
                .filter(|&rank| Some(rank) != me)
                .for_each(|rank| send_to_rank(ports, coll_state, rank, &note));
        }
        error
    }

    /// A collective has failed here, for a reason that all its ranks know already (`others_told`) or are told of. Returns the
    /// error for the user.
    pub(crate) fn fail(
        &mut self,
        coll_state: &CollState,
        number: Option<u64>,
        fault: &coll::Fault,
        others_told: bool,
        ports: &mut Ports,
    ) -> Error {
        match others_told {
            true => self.record_failure(coll_state, number, fault).1,
            false => self.fail_for_all(coll_state, number, fault, ports),
        }
    }

    /// Records in the ledger that a collective has failed here; without a `number` the last one. Returns the note for the other
    /// ranks, and the error for the user.
    pub(crate) fn record_failure(
        &mut self,
        coll_state: &CollState,
        number: Option<u64>,
        fault: &coll::Fault,
    ) -> (Option<Note>, Error) {
        let ledger = self.sequences.ledger(coll_state.ctx);
        let note = ledger.map(|ledger| ledger.fail(number.unwrap_or(ledger.last()), fault));
        (note, coll_state.error(fault))
    }

    /// Acts on the notes of other ranks. Returns how many things happened.
    #[cold]
    pub(crate) fn read_notes(&mut self, net: &mut Messaging<'_>) -> usize {
        let notes = std::mem::take(&mut self.inbox.0);
        notes.into_iter().map(|(peer, ctx, note)| self.read_note(peer, ctx, note, net)).sum()
    }

    /// Fails all collectives under way in a context after that number. Returns how many things happened.
    fn fail_later(&mut self, ctx: u64, number: u64, fault: &coll::Fault, net: &mut Messaging<'_>) -> usize {
        let mut failed = 0;
        for index in 0..self.all.len() {
            let Some(running) = self.all[index].as_mut().filter(|running| running.coll_state.ctx == ctx)
            else {
                continue;
            };
            let Some(execution) = running.execution.as_mut().filter(|execution| execution.number() > number)
            else {
                continue;
            };
            execution.refuse(fault.clone());
            failed += self.advance(index, net);
        }
        failed
    }

    fn read_note(&mut self, peer: Peer, ctx: u64, note: Note, net: &mut Messaging<'_>) -> usize {
        let is_it = |running: &RunningColl| {
            running.coll_state.ctx == ctx
                && running.execution.as_ref().is_some_and(|execution| execution.number() == note.number())
        };
        let index = self.all.iter().position(|running| running.as_ref().is_some_and(is_it));
        // There is no answer for a communicator that this rank has not made yet, or has forgotten.
        let Some(ledger) = self.sequences.ledger(ctx) else { return 0 };
        let heard = ledger.hear(note, index.is_some());
        if let Some(answer) = heard.answer {
            send(net.ports, peer, ctx, &answer);
        }
        if let Some(fault) = heard.later {
            return self.fail_later(ctx, note.number(), &fault, net);
        }
        let Some(index) = index else { return 0 };
        let Some(running) = self.all[index].as_mut() else { return 0 };
        let RunningColl { coll_state, execution: Some(execution), inquiry, .. } = running else { return 0 };
        let silent = heard.silent.and_then(|rank| {
            let mut messages = Messages::new(net, &mut self.ready, coll_state);
            execution.unanswered(rank, &mut messages)
        });
        let Some(fault) = heard.fault.or(silent) else { return 0 };
        inquiry.others_told |= heard.others_told;
        execution.refuse(fault);
        self.advance(index, net)
    }
}

fn send_to_rank(ports: &mut Ports, coll_state: &CollState, rank: u32, note: &Note) {
    if let Some(peer) = coll_state.group.peer(rank) {
        send(ports, peer, coll_state.ctx, note);
    }
}

fn send(ports: &mut Ports, peer: Peer, ctx: u64, note: &Note) {
    let head = Head { class: Class::Control, kind: 0, aux: 0, a: 0, b: 0, ctx };
    let body = note.encode();
    let _ = ports.send_bcopy(peer, &head, body.len(), &mut |out| out.copy_from_slice(&body));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inbox_keeps_notes_and_is_bounded() {
        let head = Head { class: Class::Control, kind: 0, aux: 0, a: 0, b: 0, ctx: 5 };
        let (mut inbox, question) = (Inbox::default(), [0; 64]);
        inbox.keep(Peer(1), &head, b"no note");
        assert_eq!(inbox.len(), 0);
        for _ in 0..MOST_NOTES + 10 {
            inbox.keep(Peer(1), &head, &question);
        }
        assert_eq!(inbox.len(), MOST_NOTES);
        assert_eq!((inbox.0[0].0, inbox.0[0].1, inbox.0[0].2.number()), (Peer(1), 5, 0));
    }
}
