//! Completing several requests in one call (MPI 5.0, 3.7.5).

use banyan_pmi::status::Item;

use crate::engine::Engine;
use crate::request::{Form, Operation};
use crate::runtime::Runtime;
use crate::slow;
use crate::status::Outcome;

impl Runtime {
    /// Waits for all requests (MPI_Waitall). `each` gets the index and outcome of each, and must not call MPI.
    #[inline]
    pub fn wait_all(&self, requests: &[impl AsRef<Operation>], mut each: impl FnMut(usize, Outcome)) {
        let (mut next, mut any_stateful) = (0, false);
        let done = |engine: &mut Engine| {
            while let Some(request) = requests.get(next) {
                let outcome = request.as_ref().settled(engine)?;
                match &request.as_ref().0 {
                    Form::Stateful(_) => any_stateful = true,
                    _ => each(next, outcome),
                }
                next += 1;
            }
            Some(())
        };
        self.wait_for(self.engine_lock.enter(), done, &|engine| items(requests, engine));
        if !any_stateful {
            return;
        }
        for (at, request) in requests.iter().enumerate() {
            if let Form::Stateful(stateful) = &request.as_ref().0 {
                each(at, stateful.take());
            }
        }
    }

    /// Waits until `look` gives something: it is called first, and again after each poll. It must not call MPI. `left` are the requests that are
    /// waited for.
    #[inline(always)]
    pub fn wait_until<T>(
        &self,
        mut look: impl FnMut(Settling<'_>) -> Option<T>,
        left: impl Fn() -> Vec<Operation>,
    ) -> T {
        let what = |engine: &Engine| items(&left(), engine);
        self.wait_for(self.engine_lock.enter(), |engine| look(Settling(engine)), &what)
    }

    /// Does what [`Runtime::wait_all`] does if all requests are over; otherwise nothing changes (MPI_Testall). Gives whether
    /// they are.
    pub fn test_all(&self, requests: &[impl AsRef<Operation>], each: impl FnMut(usize, Outcome)) -> bool {
        let over = self.poll_once(|engine| {
            requests.iter().all(|request| request.as_ref().is_over(engine)).then_some(())
        });
        if over.is_some() {
            self.wait_all(requests, each);
        }
        over.is_some()
    }

    /// The indices of the requests that are over or inactive, after one poll of the fabrics; none if `all` of them should be
    /// and are not (MPI_Request_get_status_all and its kin).
    pub fn over(&self, requests: &[impl AsRef<Operation>], all: bool) -> Vec<usize> {
        let found = self.poll_once(|engine| {
            let indices = 0..requests.len();
            let over: Vec<usize> = indices.filter(|&at| requests[at].as_ref().is_over(engine)).collect();
            Some(over).filter(|over| if all { over.len() == requests.len() } else { !over.is_empty() })
        });
        found.unwrap_or_default()
    }

    /// Waits until at least one of the active requests is over and takes its outcome (MPI_Waitany); `None` if none is active. `place`
    /// is where a request stands in the program's list; it rises.
    pub fn wait_any<R: AsRef<Operation>>(
        &self,
        requests: &[R],
        place: impl Fn(&R) -> usize,
    ) -> Option<(usize, Outcome)> {
        if requests.iter().all(|request| !request.as_ref().is_active()) {
            return None;
        }
        let what = |engine: &Engine| items(requests, engine);
        let ready = |engine: &mut Engine| ready(requests, &place, engine);
        let (at, outcome) = self.wait_for(self.engine_lock.enter(), ready, &what);
        Some((at, requests[at].as_ref().completed(outcome)))
    }

    /// Takes the outcome of one request that is over, if any is (MPI_Testany). `Err(())` if none is active. `place` as in
    /// [`Runtime::wait_any`].
    #[allow(clippy::result_unit_err, reason = "there is nothing more to say than that none is active")]
    pub fn test_any<R: AsRef<Operation>>(
        &self,
        requests: &[R],
        place: impl Fn(&R) -> usize,
    ) -> Result<Option<(usize, Outcome)>, ()> {
        if requests.iter().all(|request| !request.as_ref().is_active()) {
            return Err(());
        }
        let found = self.poll_once(|engine| ready(requests, &place, engine));
        Ok(found.map(|(at, outcome)| (at, requests[at].as_ref().completed(outcome))))
    }

    /// Whether all requests that a program tests are under way, as `f` says after one poll of the fabrics; if not, the caller
    /// polls for them next. `f` must not call MPI.
    #[inline]
    pub fn all_under_way(&self, f: impl FnOnce(UnderWay<'_>) -> bool) -> bool {
        let mut engine = self.engine_lock.enter();
        engine.progress();
        let all = f(UnderWay(&engine.p2p));
        self.end_poll(engine, all.then_some(true));
        all
    }

    /// Takes the outcomes of all requests that are over, after waiting for at least one if `block` (MPI_Waitsome, MPI_Testsome).
    /// `None` if none is active.
    pub fn some(&self, requests: &[impl AsRef<Operation>], block: bool) -> Option<Vec<(usize, Outcome)>> {
        let active = |at: &usize| requests[*at].as_ref().is_active();
        let active: Vec<usize> = (0..requests.len()).filter(active).collect();
        if active.is_empty() {
            return None;
        }
        let over = |engine: &mut Engine| -> Option<Vec<(usize, Outcome)>> {
            let settled = |&at: &usize| Some((at, requests[at].as_ref().settled(engine)?));
            Some(active.iter().filter_map(settled).collect()).filter(|found: &Vec<_>| !found.is_empty())
        };
        let found = match block {
            true => self.wait_for(self.engine_lock.enter(), over, &|engine| items(requests, engine)),
            false => self.poll_once(over).unwrap_or_default(),
        };
        let completed = |(at, outcome): (usize, Outcome)| (at, requests[at].as_ref().completed(outcome));
        Some(found.into_iter().map(completed).collect())
    }
}

/// Completes messages, inside the engine lock.
pub struct Settling<'a>(&'a mut Engine);

/// What a look at a request finds.
pub enum Settled {
    /// It is a message, and over: this is its outcome, and the request is of no more use.
    Over(Outcome),
    /// It is a message that is under way.
    UnderWay,
    /// It has a state of its own, and is completed by itself.
    Stateful,
}

impl Settling<'_> {
    /// Takes the outcome of a message, if it is over.
    #[inline(always)]
    pub fn settle(&mut self, request: &Operation) -> Settled {
        match &request.0 {
            Form::Over(status) => Settled::Over(Outcome::ok(*status)),
            Form::Message(posted) => posted.settled(self.0).map_or(Settled::UnderWay, Settled::Over),
            Form::Stateful(_) => Settled::Stateful,
        }
    }
}

/// The messages that are under way, inside the engine lock.
pub struct UnderWay<'a>(&'a banyan_p2p::P2p);

impl UnderWay<'_> {
    /// Whether the request is a message that is under way.
    #[inline(always)]
    pub fn has(&self, request: &Operation) -> bool {
        matches!(&request.0, Form::Message(posted) if self.0.is_pending(posted.id))
    }
}

/// The index and outcome of an active request that is over: the first one behind the place where one was found last, else the first.
/// A program that starts each anew thus hears of messages in the order in which they were matched. HPCC needs that: the word of its last
/// peer that no more will come ends a loop, whatever else of its list is over.
fn ready<R: AsRef<Operation>>(
    requests: &[R],
    place: impl Fn(&R) -> usize,
    engine: &mut Engine,
) -> Option<(usize, Outcome)> {
    let from = requests.partition_point(|request| place(request) < engine.any_from);
    let mut active = (from..requests.len()).chain(0..from).filter(|&at| requests[at].as_ref().is_active());
    let found = active.find_map(|at| Some((at, requests[at].as_ref().settled(engine)?)))?;
    engine.any_from = place(&requests[found.0]) + 1;
    Some(found)
}

/// What the active requests wait for.
fn items(requests: &[impl AsRef<Operation>], engine: &Engine) -> (Vec<Item>, usize) {
    slow::first(requests.iter().filter_map(|request| request.as_ref().item(engine)))
}
