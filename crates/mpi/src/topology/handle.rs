//! What all kinds of communicators are inside.

use std::sync::Arc;

use banyan_runtime::Comm;

use crate::attribute::Attributes;
use crate::instance;

/// A communicator of the runtime, with what is attached to it.
#[derive(Clone)]
pub struct Handle(Arc<(Arc<Comm>, Attributes)>);

impl Handle {
    pub(crate) fn new(comm: Arc<Comm>) -> Handle {
        Handle::with(comm, Attributes::default())
    }

    pub(crate) fn with(comm: Arc<Comm>, attributes: Attributes) -> Handle {
        Handle(Arc::new((comm, attributes)))
    }

    /// The communicator, for a thread that may call MPI. All calls come by here.
    #[track_caller]
    #[inline(always)]
    pub(crate) fn comm(&self) -> &Arc<Comm> {
        instance::enter();
        &self.0.0
    }

    pub(crate) fn attributes(&self) -> &Attributes {
        &self.0.1
    }
}

/// What has a communicator of the runtime.
pub trait AsHandle {
    #[doc(hidden)]
    fn as_handle(&self) -> &Handle;
}
