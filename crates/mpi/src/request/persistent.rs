//! [`PersistentRequest`]: an operation whose arguments are kept, and which is started again and again.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use banyan_runtime::{Comm, Operation};

use super::{Request, Scope};
use crate::datatype::FixedBuffer;
use crate::error::{Result, expect, tried};
use crate::instance;

/// An operation whose arguments are kept: a message, from the methods `..._init` of a process, or a collective, which all processes make
/// in one order by those of the communicator or the root.
///
/// [`PersistentRequest::start`] starts it, and gives a [`Request`] that is completed like any other. Until the end of its scope that
/// borrows this value. Between two scopes [`PersistentRequest::data`] lends the buffer.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (mut given, mut got) = ([0; 3], [0; 3]);
/// let mut send = world.this_process().send_init(&mut given);
/// let mut receive = world.any_process().receive_init(&mut got);
/// for round in 0..5 {
///     *send.data() = [round; 3];
///     mpi::request::scope(|scope| {
///         let requests = [receive.start(scope), send.try_start(scope).unwrap()];
///         requests.map(|request| request.wait());
///     });
///     assert_eq!(*receive.data(), [round; 3]);
/// }
/// ```
///
/// While the operation is under way, the buffer cannot be used, and the operation not be started: that does not compile.
///
/// When it is forgotten, its buffers are borrowed no longer, but nothing can start it any more. What it has started is a request, which
/// keeps its scope from ending.
pub struct PersistentRequest<'a, D: ?Sized, G: ?Sized = ()> {
    comm: Arc<Comm>,
    operation: Operation,
    data: *mut D,
    given: *mut G,
    borrowed: PhantomData<(&'a mut D, &'a mut G)>,
}

impl<D: ?Sized, G: ?Sized> fmt::Debug for PersistentRequest<'_, D, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PersistentRequest")
    }
}

impl<'a, D: ?Sized> PersistentRequest<'a, D> {
    /// A persistent operation on the memory of `data`.
    ///
    /// # Safety
    /// All memory of the operation is borrowed mutably for `'a`.
    pub(crate) unsafe fn new(comm: &Arc<Comm>, operation: Operation, data: *mut D) -> Self {
        let given = std::ptr::NonNull::dangling().as_ptr();
        PersistentRequest { comm: comm.clone(), operation, data, given, borrowed: PhantomData }
    }

    /// That of a collective which also reads another buffer.
    ///
    /// # Safety
    /// As for [`PersistentRequest::new`].
    pub(crate) unsafe fn giving<G: ?Sized>(self, given: *mut G) -> PersistentRequest<'a, D, G> {
        let PersistentRequest { comm, operation, data, .. } = self;
        PersistentRequest { comm, operation, data, given, borrowed: PhantomData }
    }
}

impl<D: ?Sized, G: ?Sized> PersistentRequest<'_, D, G> {
    /// Starts the operation.
    ///
    /// # Errors
    /// The peer is gone, or the library has no room for the message of a buffered send.
    pub fn try_start<'r, S: Scope<'r>>(&'r mut self, scope: S) -> Result<Request<'r, D, S>> {
        tried(|| self.begin(scope))
    }

    fn begin<'r, S: Scope<'r>>(&'r mut self, scope: S) -> Result<Request<'r, D, S>> {
        instance::enter();
        self.operation.start()?;
        let started = self.operation.clone().held_by(self.comm.runtime());
        // SAFETY: all buffers are borrowed for longer than 'r, and so is their only way out, this value.
        Ok(unsafe { Request::new(started, self.data, scope) })
    }

    /// Starts the operation.
    #[track_caller]
    pub fn start<'r, S: Scope<'r>>(&'r mut self, scope: S) -> Request<'r, D, S> {
        expect(self.begin(scope))
    }

    /// What is sent or received; of a collective with two buffers what is received.
    pub fn data(&mut self) -> &mut D::Data
    where
        D: FixedBuffer,
    {
        // SAFETY: the buffer is borrowed for as long as this value, and nothing is under way: a request would borrow this value.
        unsafe { &mut *self.data }.data()
    }

    /// What a collective with two buffers sends.
    pub fn given(&mut self) -> &mut G::Data
    where
        G: FixedBuffer,
    {
        // SAFETY: as above, for the other buffer.
        unsafe { &mut *self.given }.data()
    }
}
