//! [`Comm`]: who a communicator is: its groups, its context, and what is attached to it (MPI 5.0, chapter 7).

use std::sync::{Arc, Mutex, OnceLock};

use crate::bsend::Attachment;
use crate::cart::Cart;
use crate::coll_state::{CollState, ScheduleRanks};
use crate::context::{Purpose, derive_context};
use crate::errhandler::Errhandler;
use crate::error::{Error, Result};
use crate::gpu;
use crate::group::{Comparison, Group};
use crate::info::Info;
use crate::lock;
use crate::runtime::Runtime;

/// A communicator. Shared by everything that uses it; its context is closed when the last user lets go.
pub struct Comm {
    rt: Arc<Runtime>,
    ctx: u64,
    local: Group,
    /// The other side of an intercommunicator.
    remote: Option<Group>,
    rank: u32,
    /// Communicators made from this one so far; all members count alike.
    children: Mutex<u64>,
    /// What single members exchange messages on while a communicator is made (`Comm::channel`).
    pub(crate) channels: Mutex<Vec<Arc<Comm>>>,
    coll_state: Arc<CollState>,
    /// The state of nonblocking collectives, from the first one on.
    nonblocking_coll_state: OnceLock<Arc<CollState>>,
    name: Mutex<String>,
    errhandler: Mutex<Errhandler>,
    info: Mutex<Info>,
    cart: Option<Cart>,
    /// Where the buffer for its buffered sends is attached.
    pub attachment: Attachment,
}

/// What a new communicator inherits from its parent, or is given.
#[derive(Default)]
pub(crate) struct Inherited {
    pub(crate) name: &'static str,
    pub(crate) errhandler: Option<Errhandler>,
    pub(crate) cart: Option<Cart>,
}

impl Comm {
    /// Makes a communicator whose context and members all of them know already.
    pub(crate) fn make(
        rt: &Arc<Runtime>,
        ctx: u64,
        (local, remote): (Group, Option<Group>),
        inherited: Inherited,
    ) -> Result<Arc<Comm>> {
        let Some(rank) = local.rank() else {
            return Err(Error::intern("a communicator without this process"));
        };
        rt.open_context(ctx);
        rt.enter_communicator(ctx, remote.as_ref().unwrap_or(&local));
        let coll_state = Arc::new(CollState::new(rt, ctx, ScheduleRanks::of(&local, remote.as_ref())));
        Ok(Arc::new(Comm {
            rt: rt.clone(),
            ctx,
            local,
            remote,
            rank,
            children: Mutex::new(0),
            channels: Mutex::new(Vec::new()),
            coll_state,
            nonblocking_coll_state: OnceLock::new(),
            name: Mutex::new(inherited.name.to_owned()),
            errhandler: Mutex::new(inherited.errhandler.unwrap_or_default()),
            info: Mutex::new(Info::new()),
            cart: inherited.cart,
            attachment: Attachment::default(),
        }))
    }

    /// The runtime it belongs to.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.rt
    }

    /// Rank of this process (in its own group, if there are two).
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Processes in this process's group.
    pub fn size(&self) -> u32 {
        self.local.size()
    }

    /// Processes that each process exchanges blocks with in a collective: those of the other group, if there is one.
    #[inline]
    pub fn blocks(&self) -> u32 {
        self.targets().size()
    }

    /// True if it joins two groups.
    pub fn is_inter(&self) -> bool {
        self.remote.is_some()
    }

    /// The group of this process.
    pub fn group(&self) -> &Group {
        &self.local
    }

    /// The other group of an intercommunicator.
    pub fn remote_group(&self) -> Option<&Group> {
        self.remote.as_ref()
    }

    /// The context id: the same on all members, different from that of any other communicator.
    pub fn context(&self) -> u64 {
        self.ctx
    }

    pub(crate) fn coll_state(&self) -> &Arc<CollState> {
        &self.coll_state
    }

    /// The state of nonblocking collectives, in a context of their own: they are numbered apart from the blocking ones, so
    /// that ranks may call a blocking and a nonblocking one in either order.
    pub(crate) fn nonblocking_coll_state(&self) -> &Arc<CollState> {
        self.nonblocking_coll_state.get_or_init(|| {
            let ctx = derive_context(self.ctx, 0, Purpose::Nonblocking, 0);
            self.rt.open_context(ctx);
            Arc::new(self.coll_state.in_context(ctx))
        })
    }

    /// The name that the user or MPI gave it.
    pub fn name(&self) -> String {
        lock(&self.name).clone()
    }

    /// Names it.
    pub fn set_name(&self, name: &str) {
        *lock(&self.name) = name.to_owned();
        self.rt.engine_lock.enter().names.set(self.ctx, name);
    }

    /// What is done about its errors.
    pub fn errhandler(&self) -> Errhandler {
        lock(&self.errhandler).clone()
    }

    /// Sets what is done about its errors.
    pub fn set_errhandler(&self, errhandler: Errhandler) {
        *lock(&self.errhandler) = errhandler;
    }

    /// Its hints.
    pub fn info(&self) -> Info {
        lock(&self.info).dup()
    }

    /// Adds hints (MPI_Comm_set_info). All processes call it: if the hints say that all buffers are memory of devices, they tell each other of
    /// these, as in [`Comm::dup_with_info`]. For algorithms that counts before the first collective alone.
    pub fn set_info(&self, hints: &Info) -> Result<()> {
        self.keep_info(hints)?;
        if gpu::says_on_devices(hints) {
            // Told beside it, as that would be its first collective.
            let beside = self.dup()?;
            beside.tell_gpus(self, hints)?.map_or(Ok(()), |call| beside.run(call))?;
        }
        Ok(())
    }

    /// Adds those hints that are followed.
    pub(crate) fn keep_info(&self, hints: &Info) -> Result<()> {
        lock(&self.info).update(self.followed(hints)?);
        Ok(())
    }

    /// True once there was a collective whose algorithm was chosen for it.
    pub(crate) fn has_run_collectives(&self) -> bool {
        self.coll_state.has_begun() || self.nonblocking_coll_state.get().is_some()
    }

    /// Its Cartesian topology, if it has one.
    pub fn cart(&self) -> Option<&Cart> {
        self.cart.as_ref()
    }

    /// How two communicators relate (MPI 5.0, 7.4.1).
    pub fn compare(&self, other: &Comm) -> Comparison {
        if self.ctx == other.ctx {
            return Comparison::Ident;
        }
        let local = self.local.compare(&other.local).max(Comparison::Congruent);
        match (&self.remote, &other.remote) {
            (Some(a), Some(b)) => local.max(a.compare(b)),
            (None, None) => local,
            _ => Comparison::Unequal,
        }
    }

    /// The context of the next communicator made from this one; all members derive the same.
    pub(crate) fn child_context(&self, purpose: Purpose, sibling: u32) -> u64 {
        let mut children = lock(&self.children);
        *children += 1;
        derive_context(self.ctx, *children, purpose, sibling)
    }

    /// The group whose ranks point-to-point calls name.
    pub(crate) fn targets(&self) -> &Group {
        self.remote.as_ref().unwrap_or(&self.local)
    }

    /// Its name, or its number of processes if it has none: for error messages.
    pub fn name_or_kind(&self) -> String {
        match lock(&self.name).as_str() {
            "" => format!("a communicator of {} processes", self.local.size()),
            name => name.to_owned(),
        }
    }
}
