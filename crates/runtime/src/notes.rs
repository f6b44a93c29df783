//! What ranks tell each other of collectives that do not go on: the engine's part of `coll`'s ledger. A note is one frame of
//! class Control; one that a fabric refuses is lost, as who waits asks again.

use std::time::{Duration, Instant};

use banyan_coll::{self as coll, Note};
use banyan_p2p::Port;
use banyan_transport::{Class, Head, Peer};

use crate::engine::{Engine, Running, sooner};
use crate::error::Error;
use crate::messenger::Messages;
use crate::team::Team;

/// How long a collective waits before it asks.
const FIRST: Duration = Duration::from_millis(20);
/// As many it asks at a time at most, in turn: a pair that has never talked takes shared memory or a connection to do so.
const ASKED: usize = 8;
/// So many times it asks at this interval, and then each time at twice the one before,
const STEADY: u32 = 8;
/// but no longer than so many doublings: some 80 s.
const DOUBLINGS: u32 = 12;

/// The patience of a collective under way.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Patience {
    /// When it asks next, once the clock has been looked at.
    next: Option<Instant>,
    times: u32,
    /// It fails for what another rank has told everybody.
    pub(crate) told: bool,
}

impl Patience {
    /// True if it is time to ask.
    fn is_over(&mut self, now: Instant) -> bool {
        let next = *self.next.get_or_insert(now + FIRST);
        if now < next {
            return false;
        }
        self.times = self.times.saturating_add(1);
        self.next = Some(now + FIRST * (1 << self.times.saturating_sub(STEADY).min(DOUBLINGS)));
        true
    }

    /// Whose turn it is of those awaited.
    fn turn(&self, mut awaited: Vec<u32>) -> Vec<u32> {
        awaited.sort_unstable();
        awaited.dedup();
        let begin = ASKED * (self.times as usize - 1) % awaited.len().max(1);
        awaited.rotate_left(begin);
        awaited.truncate(ASKED);
        awaited
    }
}

impl Engine {
    /// Asks on behalf of collectives that have waited for long; when it should be called again.
    pub(crate) fn inquire(&mut self) -> Option<Instant> {
        if self.active == 0 {
            return None;
        }
        let (now, mut next) = (Instant::now(), None);
        for index in 0..self.colls.len() {
            let Some(running) = self.colls[index].as_mut().filter(|running| !running.away) else { continue };
            let Some(execution) = &running.execution else { continue };
            let asks = running.patience.is_over(now);
            next = sooner(next, running.patience.next);
            if asks {
                let (team, number, mut awaited) = (running.team.clone(), execution.number(), vec![]);
                execution.awaits(&mut |rank| awaited.push(rank));
                let awaited = running.patience.turn(awaited);
                if let Some(ledger) = self.sequences.ledger(team.ctx) {
                    let note = ledger.ask(number);
                    awaited.into_iter().for_each(|rank| self.tell(&team, rank, &note));
                }
            }
        }
        next
    }

    /// A collective of the team has failed here: all its ranks are told. The error for the user.
    #[cold]
    pub(crate) fn gave_up(&mut self, team: &Team, number: Option<u64>, fault: &coll::Fault) -> Error {
        let (note, error) = self.noted(team, number, fault);
        if let Some(note) = note {
            let me = team.group.rank();
            (0..team.group.size())
                .filter(|&rank| Some(rank) != me)
                .for_each(|rank| self.tell(team, rank, &note));
        }
        error
    }

    /// The same without the telling: what is to be told. Without a number it is the last one.
    pub(crate) fn noted(
        &mut self,
        team: &Team,
        number: Option<u64>,
        fault: &coll::Fault,
    ) -> (Option<Note>, Error) {
        let ledger = self.sequences.ledger(team.ctx);
        let note = ledger.map(|ledger| ledger.fail(number.unwrap_or(ledger.last()), fault));
        (note, team.error(fault))
    }

    fn tell(&mut self, team: &Team, rank: u32, note: &Note) {
        if let Some(peer) = team.group.peer(rank) {
            self.say(peer, team.ctx, note);
        }
    }

    fn say(&mut self, peer: Peer, ctx: u64, note: &Note) {
        let head = Head { class: Class::Control, kind: 0, aux: 0, a: 0, b: 0, ctx };
        let body = note.encode();
        let _ = self.ports.send_bcopy(peer, &head, body.len(), &mut |out| out.copy_from_slice(&body));
    }

    /// Hears what others say; how many things happened.
    #[cold]
    pub(crate) fn listen(&mut self) -> usize {
        let controls = self.p2p.take_controls();
        let notes =
            controls.into_iter().filter_map(|(peer, ctx, body)| Some((peer, ctx, Note::decode(&body)?)));
        notes.map(|(peer, ctx, note)| self.hear(peer, ctx, note)).sum()
    }

    /// Fails all collectives under way in a context after that number; how many there are.
    fn fail_later(&mut self, ctx: u64, number: u64, fault: &coll::Fault) -> usize {
        let mut failed = 0;
        for index in 0..self.colls.len() {
            let Some(running) = self.colls[index].as_mut().filter(|running| running.team.ctx == ctx) else {
                continue;
            };
            let Some(execution) = running.execution.as_mut().filter(|execution| execution.number() > number)
            else {
                continue;
            };
            execution.refuse(fault.clone());
            failed += self.advance(index);
        }
        failed
    }

    fn hear(&mut self, peer: Peer, ctx: u64, note: Note) -> usize {
        let is_it = |running: &Running| {
            running.team.ctx == ctx
                && running.execution.as_ref().is_some_and(|execution| execution.number() == note.number())
        };
        let index = self.colls.iter().position(|running| running.as_ref().is_some_and(is_it));
        // Of a communicator that is not here yet, or no longer, there is nothing to say.
        let Some(ledger) = self.sequences.ledger(ctx) else { return 0 };
        let heard = ledger.hear(note, index.is_some());
        if let Some(answer) = heard.answer {
            self.say(peer, ctx, &answer);
        }
        if let Some(fault) = heard.later {
            return self.fail_later(ctx, note.number(), &fault);
        }
        let Some(index) = index else { return 0 };
        let Some(running) = self.colls[index].as_mut() else { return 0 };
        let Running { team, execution: Some(execution), patience, .. } = running else { return 0 };
        let silent = heard.silent.and_then(|rank| {
            let mut messages = Messages::new(&mut self.p2p, &mut self.ports, &mut self.early, team);
            execution.unanswered(rank, &mut messages)
        });
        let Some(fault) = heard.fault.or(silent) else { return 0 };
        patience.told |= heard.known;
        execution.refuse(fault);
        self.advance(index)
    }
}
