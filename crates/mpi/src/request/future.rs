//! Requests as futures, and [`ReceiveFuture`]: a receive with the memory for its value.

use std::fmt;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use banyan_datatype::Data;
use banyan_runtime as rt;

use super::{Request, Scope, given_up};
use crate::datatype::{Equivalence, uninitialized};
use crate::error::{Result, expect};
use crate::instance;
use crate::point_to_point::Status;

// Nothing of a request is pinned: its buffers are behind references.
impl<'a, D: ?Sized, S: Scope<'a>> Unpin for Request<'a, D, S> {}

/// A request is over when its operation is. It may be polled by the threads that may wait for it, and its task is woken by a thread that
/// sleeps on the doorbell of this rank, from the first request on that is awaited. A future that is dropped or forgotten is a request
/// that is dropped or leaked.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (given, mut got) = (7, 0);
/// let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// mpi::request::scope(|scope| {
///     runtime.block_on(async {
///         let receive = world.any_process().immediate_receive_into(scope, &mut got);
///         world.this_process().immediate_send(scope, &given).await?;
///         receive.await
///     })
/// })
/// .unwrap();
/// assert_eq!(got, 7);
/// ```
impl<'a, D: ?Sized, S: Scope<'a>> Future for Request<'a, D, S> {
    type Output = Result<Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.request().poll(context.waker()).map(|outcome| {
            self.request = None;
            outcome.into_result().map(Status)
        })
    }
}

/// A receive of one value, with the memory for it. It is a future of the value and its status; [`ReceiveFuture::get`] waits for them.
///
/// ```
/// use mpi::point_to_point::ReceiveFuture;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let first: ReceiveFuture<i32> = world.any_process().immediate_receive();
/// let first = first.r#try().expect_err("nothing was sent");
/// world.this_process().send(&7);
/// assert_eq!(first.get().0, 7);
/// ```
#[must_use = "a receive that is dropped is taken back"]
pub struct ReceiveFuture<T> {
    /// `None` once it is over.
    request: Option<rt::Request>,
    value: *mut T,
}

impl<T> fmt::Debug for ReceiveFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiveFuture")
    }
}

impl<T: Equivalence> ReceiveFuture<T> {
    /// A receive into a value of its own, as `start` starts it.
    pub(crate) fn new(start: impl FnOnce(&Data) -> rt::Request) -> Self {
        let value = Box::into_raw(Box::<T>::new_uninit()).cast::<T>();
        // SAFETY: the value is freed only when the receive is over or taken back.
        let data = unsafe { uninitialized(value, 1) };
        ReceiveFuture { request: Some(start(&data)), value }
    }

    fn request(&self) -> &rt::Request {
        instance::enter();
        self.request.as_ref().expect("a receive is gone once it is completed")
    }

    fn over(&mut self, outcome: rt::Outcome) -> Result<(T, Status)> {
        self.request = None;
        let status = Status(outcome.into_result()?);
        status.is_one::<T>()?;
        // SAFETY: all of the value was received. It is moved out of its box, which is freed without it.
        Ok((unsafe { self.value.read() }, status))
    }

    /// Waits for the value.
    ///
    /// # Panics
    /// If the message has less than a value.
    #[track_caller]
    pub fn get(mut self) -> (T, Status) {
        let outcome = self.request().wait();
        expect(self.over(outcome))
    }

    /// The value, if it is there.
    ///
    /// # Errors
    /// This future, if it is not.
    ///
    /// # Panics
    /// If the message has less than a value.
    #[track_caller]
    pub fn r#try(mut self) -> Result<(T, Status), Self> {
        match self.request().test() {
            Some(outcome) => Ok(expect(self.over(outcome))),
            None => Err(self),
        }
    }
}

impl<T: Equivalence> Future for ReceiveFuture<T> {
    type Output = Result<(T, Status)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.request().poll(context.waker()).map(|outcome| self.over(outcome))
    }
}

impl<T> Drop for ReceiveFuture<T> {
    fn drop(&mut self) {
        if self.request.take().is_none_or(given_up) {
            // SAFETY: it comes from a box, and nothing writes it any more.
            drop(unsafe { Box::from_raw(self.value.cast::<MaybeUninit<T>>()) });
        }
    }
}
