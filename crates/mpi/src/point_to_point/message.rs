//! [`Message`]: one that a matched probe has found.

use std::sync::Arc;

use banyan_runtime as rt;

use super::{Status, one, several};
use crate::datatype::{BufferMut, Equivalence, written};
use crate::error::{Result, expect, tried};
use crate::instance;
use crate::request::{Request, Scope};

/// A message that a matched probe has found: it is to be received.
///
/// ```
/// use mpi::point_to_point::Message;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// (1..4).for_each(|number| world.this_process().send(&number));
/// let next = || -> Message { world.any_process().matched_probe().0 };
/// let first = next();
/// assert!(!first.is_no_proc());
/// assert_eq!(first.matched_receive::<i32>().0, 1);
/// let (mut second, mut third) = (0, 0);
/// next().matched_receive_into(&mut second);
/// mpi::request::scope(|scope| {
///     next().immediate_matched_receive_into(scope, &mut third).wait();
/// });
/// assert_eq!((second, third), (2, 3));
/// ```
///
/// # Panics
/// If it is dropped and was not.
#[must_use = "the message is to be received"]
pub struct Message(Option<rt::Message>);

impl Message {
    pub(super) fn new(message: rt::Message) -> Message {
        Message(Some(message))
    }

    /// Receives all values, so many as the probe has told.
    pub(super) fn receive_vec<Msg: Equivalence>(self, probed: Status) -> Result<(Vec<Msg>, Status)> {
        let message = self.take();
        several(probed, |data| message.recv(data))
    }

    fn take(mut self) -> rt::Message {
        instance::enter();
        self.0.take().expect("a message is received once")
    }

    /// Whether it is from no process.
    pub fn is_no_proc(&self) -> bool {
        self.0.as_ref().is_some_and(rt::Message::is_none)
    }

    /// Receives one value.
    ///
    /// # Panics
    /// If the message is not one value long.
    #[track_caller]
    pub fn matched_receive<Msg: Equivalence>(self) -> (Msg, Status) {
        let message = self.take();
        expect(one(|data| message.recv(data)))
    }

    /// Receives into a buffer.
    #[track_caller]
    pub fn matched_receive_into<Buf: BufferMut + ?Sized>(self, buf: &mut Buf) -> Status {
        // SAFETY: the receive is over when it returns.
        Status(expect(self.take().recv(&unsafe { written(buf) }).into_result()))
    }

    /// Starts to receive into a buffer.
    pub fn immediate_matched_receive_into<'a, Sc: Scope<'a>, Buf: BufferMut + ?Sized>(
        self,
        scope: Sc,
        buf: &'a mut Buf,
    ) -> Request<'a, Buf, Sc> {
        let start: *const Buf = buf;
        // SAFETY: the request borrows the buffer.
        let data = unsafe { written(buf) };
        let message = self.take();
        let runtime = message.comm().map_or_else(
            || instance::with(|instance| instance.runtime.clone()),
            |comm| Arc::clone(comm.runtime()),
        );
        // SAFETY: the buffer is borrowed mutably for 'a.
        unsafe { Request::new(message.irecv(&data).hold(&runtime), start, scope) }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if self.0.is_some() && !std::thread::panicking() {
            panic!("a message that a matched probe has found was not received");
        }
    }
}

/// What a matched probe gives, received whole.
///
/// ```
/// use mpi::traits::*;
///
/// fn sum(found: impl MatchedReceiveVec) -> mpi::Result<i32> {
///     Ok(found.try_matched_receive_vec::<i32>()?.0.iter().sum())
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// world.this_process().send(&[1, 2, 3][..]);
/// world.this_process().send(&[4, 5][..]);
/// assert_eq!(sum(world.any_process().matched_probe())?, 6);
/// assert_eq!(world.any_process().matched_probe().matched_receive_vec::<i32>().0, [4, 5]);
/// # Ok::<(), mpi::Error>(())
/// ```
pub trait MatchedReceiveVec: Sized {
    /// Receives all values.
    ///
    /// # Errors
    /// The message's end is within a value, or the sender is gone.
    fn try_matched_receive_vec<Msg: Equivalence>(self) -> Result<(Vec<Msg>, Status)>;

    /// Receives all values.
    #[track_caller]
    fn matched_receive_vec<Msg: Equivalence>(self) -> (Vec<Msg>, Status) {
        expect(self.try_matched_receive_vec())
    }
}

impl MatchedReceiveVec for (Message, Status) {
    fn try_matched_receive_vec<Msg: Equivalence>(self) -> Result<(Vec<Msg>, Status)> {
        tried(|| self.0.receive_vec(self.1))
    }
}
