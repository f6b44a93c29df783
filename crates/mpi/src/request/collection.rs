//! Many requests at once.

use std::marker::PhantomData;
use std::sync::Arc;

use banyan_runtime::{self as rt, Operation, Outcome, Runtime};

use super::{LocalScope, Request, Scope, given_up};
use crate::error::expect;
use crate::instance;
use crate::point_to_point::Status;

/// A request, and its place in the list that it is from.
struct At<'r>(usize, &'r rt::Request);

impl AsRef<Operation> for At<'_> {
    fn as_ref(&self) -> &Operation {
        self.1.as_ref()
    }
}

fn runtime() -> Arc<Runtime> {
    instance::with(|instance| instance.runtime.clone())
}

#[track_caller]
fn status(outcome: Outcome) -> Status {
    Status(expect(outcome.into_result()))
}

/// Waits until one of the requests is over, takes it out of the list, and gives its place and status; `None` if the list is empty.
///
/// ```
/// use mpi::request::wait_any;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut got = [0; 3];
/// mpi::request::scope(|scope| {
///     let (any, mut left) = (world.any_process(), vec![]);
///     for (number, tag) in got.iter_mut().zip(0..) {
///         left.push(any.immediate_receive_into_with_tag(scope, number, tag));
///     }
///     (0..3).for_each(|tag| world.this_process().send_with_tag(&tag, tag));
///     while let Some((_, status)) = wait_any(&mut left) {
///         println!("{} is there", status.tag());
///     }
/// });
/// assert_eq!(got, [0, 1, 2]);
/// ```
#[track_caller]
pub fn wait_any<'a, D: ?Sized, S: Scope<'a>>(
    requests: &mut Vec<Request<'a, D, S>>,
) -> Option<(usize, Status)> {
    let all: Vec<At<'_>> =
        requests.iter().enumerate().map(|(at, request)| At(at, request.request())).collect();
    let (at, outcome) = runtime().wait_any(&all, |at| at.0)?;
    requests.remove(at).completed();
    Some((at, status(outcome)))
}

/// Calls the function with a scope for requests and a collection that takes them, with room for so many.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut numbers = [0; 4];
/// mpi::request::multiple_scope(4, |scope, requests| {
///     for number in &mut numbers {
///         requests.add(world.any_process().immediate_receive_into(scope, number));
///     }
///     (1..5).for_each(|number| world.this_process().send(&number));
///     requests.wait_all(&mut vec![]);
/// });
/// assert_eq!(numbers, [1, 2, 3, 4]);
/// ```
pub fn multiple_scope<'a, F, R, D>(reserve: usize, f: F) -> R
where
    D: 'a + ?Sized,
    F: FnOnce(&LocalScope<'a>, &mut RequestCollection<'a, D>) -> R,
{
    let entries = Vec::with_capacity(reserve);
    f(&LocalScope::new(), &mut RequestCollection { entries, borrowed: PhantomData })
}

/// Requests that are completed together. Each has the index that [`RequestCollection::add`] gave.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let given = [1, 2, 3];
/// mpi::request::multiple_scope(3, |scope, requests| {
///     for number in &given {
///         requests.add(world.this_process().immediate_send(scope, number));
///     }
///     for number in given {
///         assert_eq!(world.this_process().receive::<i32>().0, number);
///     }
///     let mut over = vec![];
///     requests.wait_all(&mut over);
///     assert_eq!(over.iter().map(|(_, _, number)| **number).sum::<i32>(), 6);
/// });
/// ```
///
/// Waits and tests for one, some or all:
/// ```
/// use mpi::request::RequestCollection;
/// use mpi::traits::*;
///
/// /// Completes what is over by now.
/// fn tidy(requests: &mut RequestCollection<'_, i32>) -> usize {
///     let mut over = vec![];
///     requests.test_some(&mut over);
///     over.len() + usize::from(requests.test_any().is_some())
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut numbers = [0; 3];
/// mpi::request::multiple_scope(3, |scope, requests| {
///     for number in &mut numbers {
///         requests.add(world.any_process().immediate_receive_into(scope, number));
///     }
///     assert_eq!(tidy(requests), 0);
///     let mut over = vec![];
///     world.this_process().send(&5);
///     let (index, _, number) = requests.wait_any().unwrap();
///     assert_eq!((index, *number, requests.incomplete()), (0, 5, 2));
///     world.this_process().send(&6);
///     requests.wait_some(&mut over);
///     assert_eq!(over.len(), 1);
///     assert!(!requests.test_all(&mut over));
///     world.this_process().send(&7);
///     while !requests.test_all(&mut over) {}
///     assert_eq!(*over[0].2, 7);
/// });
/// ```
pub struct RequestCollection<'a, D: ?Sized> {
    /// The requests by their indices; `None` once completed.
    entries: Vec<Option<(rt::Request, *const D)>>,
    borrowed: PhantomData<std::cell::Cell<&'a D>>,
}

impl<'a, D: ?Sized> RequestCollection<'a, D> {
    /// How many requests are not completed.
    pub fn incomplete(&self) -> usize {
        self.entries.iter().flatten().count()
    }

    /// Takes a request, and gives its index.
    pub fn add<S: Scope<'a>>(&mut self, req: Request<'a, D, S>) -> usize {
        // SAFETY: the request is completed, or taken back, before this collection goes, which lives no longer than 'a.
        self.entries.push(Some(unsafe { req.into_parts() }));
        self.entries.len() - 1
    }

    fn active(&self) -> Vec<At<'_>> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(at, entry)| entry.as_ref().map(|(request, _)| At(at, request))).collect()
    }

    /// Forgets a request that is over.
    fn completed(&mut self, at: usize) -> &'a D {
        let (_, data) = self.entries[at].take().expect("only requests that are there are completed");
        // SAFETY: the data are borrowed for 'a, and nothing writes them any more.
        unsafe { &*data }
    }

    #[track_caller]
    fn all_completed(&mut self, over: Vec<(usize, Outcome)>, result: &mut Vec<(usize, Status, &'a D)>) {
        let over: Vec<_> = over.into_iter().map(|(at, outcome)| (at, outcome, self.completed(at))).collect();
        result.clear();
        result.extend(over.into_iter().map(|(at, outcome, data)| (at, status(outcome), data)));
    }

    fn any(&mut self, found: Option<(usize, Outcome)>) -> Option<(usize, Status, &'a D)> {
        found.map(|(at, outcome)| {
            let data = self.completed(at);
            (at, status(outcome), data)
        })
    }

    /// Waits until one request is over; `None` if none is left.
    pub fn wait_any(&mut self) -> Option<(usize, Status, &'a D)> {
        let active = self.active();
        let found = runtime().wait_any(&active, |at| at.0).map(|(index, outcome)| (active[index].0, outcome));
        self.any(found)
    }

    /// One request that is over, if any is.
    pub fn test_any(&mut self) -> Option<(usize, Status, &'a D)> {
        let active = self.active();
        let found = runtime().test_any(&active, |at| at.0).ok().flatten();
        let found = found.map(|(index, outcome)| (active[index].0, outcome));
        self.any(found)
    }

    fn some(&mut self, block: bool, result: &mut Vec<(usize, Status, &'a D)>) {
        let active = self.active();
        let found = runtime().some(&active, block).unwrap_or_default();
        let found = found.into_iter().map(|(index, outcome)| (active[index].0, outcome)).collect();
        self.all_completed(found, result);
    }

    /// Waits until at least one request is over, and gives all that are.
    pub fn wait_some(&mut self, result: &mut Vec<(usize, Status, &'a D)>) {
        self.some(true, result);
    }

    /// All requests that are over.
    pub fn test_some(&mut self, result: &mut Vec<(usize, Status, &'a D)>) {
        self.some(false, result);
    }

    /// Waits until all requests are over.
    pub fn wait_all(&mut self, result: &mut Vec<(usize, Status, &'a D)>) {
        let (active, mut over) = (self.active(), vec![]);
        runtime().wait_all(&active, |index, outcome| over.push((active[index].0, outcome)));
        self.all_completed(over, result);
    }

    /// Gives all requests if all of them are over; otherwise nothing changes. Tells whether they are.
    pub fn test_all(&mut self, result: &mut Vec<(usize, Status, &'a D)>) -> bool {
        let (active, mut over) = (self.active(), vec![]);
        let all = runtime().test_all(&active, |index, outcome| over.push((active[index].0, outcome)));
        result.clear();
        if all {
            self.all_completed(over, result);
        }
        all
    }
}

impl<D: ?Sized> Drop for RequestCollection<'_, D> {
    fn drop(&mut self) {
        for (request, _) in self.entries.drain(..).flatten() {
            if !given_up(request) {
                instance::abort(
                    "a panic leaves requests under way: their buffers must not go before they are over",
                );
            }
        }
    }
}
