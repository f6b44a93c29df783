//! Collectives of a communicator: from a checked call to a running schedule (MPI 5.0, chapter 6).

use std::sync::Arc;

use banyan_coll::{Call, Kind, Lists, Signature};
use banyan_datatype::{Datatype, TypeArc};
use banyan_memory::{Bounds, Buffer};

use crate::coll_state::PersistentCall;
use crate::collective::Root;
use crate::comm::Comm;
use crate::context::Purpose;
use crate::engine::Engine;
use crate::error::Result;
use crate::request::Operation;
use crate::running::CollId;
use crate::runtime::Runtime;
use crate::slow;
use crate::stateful::Persistent;

impl Comm {
    /// Runs a collective to its end.
    #[inline(always)]
    pub fn run(&self, call: Call) -> Result<()> {
        self.await_launched(self.coll_state().launch(call, None, true)?)
    }

    /// Runs a collective to its end: by the plan of an earlier call with this signature, or else as `call` says.
    #[inline(always)]
    pub fn run_signed(
        &self,
        signature: Signature,
        lists: &impl Lists,
        buffers: impl FnOnce([Bounds; 2]) -> [Buffer; 2],
        call: impl FnOnce() -> Result<Call>,
    ) -> Result<()> {
        self.await_launched(self.coll_state().launch_signed::<true>(signature, lists, buffers, call)?)
    }

    #[inline(always)]
    fn await_launched(&self, launched: Option<CollId>) -> Result<()> {
        match launched {
            None => Ok(()),
            Some(id) => self.runtime().wait_for_coll(id),
        }
    }

    /// Starts a nonblocking collective. These are numbered apart from the blocking ones.
    #[inline(never)]
    pub fn start(&self, call: Call) -> Result<Operation> {
        Ok(Operation::coll(self.runtime(), self.nonblocking_coll_state().launch(call, None, false)?))
    }

    /// Starts a nonblocking collective as [`Comm::run_signed`] does.
    #[inline(always)]
    pub fn start_signed(
        &self,
        signature: Signature,
        lists: &impl Lists,
        buffers: impl FnOnce([Bounds; 2]) -> [Buffer; 2],
        call: impl FnOnce() -> Result<Call>,
    ) -> Result<Operation> {
        let state = self.nonblocking_coll_state();
        let launched = state.launch_signed::<false>(signature, lists, buffers, call)?;
        Ok(Operation::coll(self.runtime(), launched))
    }

    /// A persistent collective. It gets a context of its own: all ranks make their persistent collectives in
    /// one order, but may start them in any (MPI 5.0, 6.13).
    pub fn persist(self: &Arc<Self>, call: Call) -> Result<Operation> {
        let ctx = self.child_context(Purpose::Persistent, 0);
        self.runtime().open_context(ctx);
        let coll_state = Arc::new(self.coll_state().in_context(ctx));
        Ok(Operation::persistent(self, Persistent::Coll(Box::new(PersistentCall::new(call, coll_state)))))
    }

    /// Gathers the bytes `mine` of every rank (of the other group, if there is one) in rank order; all ranks give as many. For
    /// the making of communicators.
    pub(crate) fn allgather_bytes(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let (call, recv) = self.gathering(mine)?;
        self.run(call)?;
        Ok(bytes_of(&recv))
    }

    /// The call of [`Comm::allgather_bytes`], and where the bytes of all will be.
    pub(crate) fn gathering(&self, mine: &[u8]) -> Result<(Call, Buffer)> {
        let send = banyan_memory::HeapBuffer::copy_of(mine);
        let recv = banyan_memory::HeapBuffer::zeroed(mine.len() * self.blocks() as usize);
        let count = mine.len() as u64;
        let given = (recv.clone(), count, byte());
        Ok((self.data_movement(Kind::Allgather, None, &(send, count, byte()), &given)?, recv))
    }

    /// Bytes from `root` to all; `mine` matters at the root, its length everywhere.
    pub(crate) fn bcast_bytes(&self, mine: &[u8], root: Root) -> Result<Vec<u8>> {
        let data = banyan_memory::HeapBuffer::copy_of(mine);
        self.run(self.bcast(root, &(data.clone(), mine.len() as u64, byte()))?)?;
        Ok(bytes_of(&data))
    }

    /// The `len` bytes of the other group's rank 0, in exchange for `mine` of this group's rank 0.
    pub(crate) fn swap_bytes(&self, mine: &[u8], len: usize) -> Result<Vec<u8>> {
        let first = self.coll_state().schedule_rank(0, true) == 0;
        let mut theirs = vec![0; len];
        for giving in [first, !first] {
            match (giving, self.rank()) {
                (true, 0) => drop(self.bcast_bytes(mine, Root::Here)?),
                (true, _) => drop(self.bcast_bytes(&[], Root::ProcNull)?),
                (false, _) => theirs = self.bcast_bytes(&theirs, Root::Rank(0))?,
            }
        }
        Ok(theirs)
    }
}

impl Runtime {
    /// Waits for a collective that is under way.
    #[inline(never)]
    pub(crate) fn wait_for_coll(&self, id: CollId) -> Result<()> {
        let what = |engine: &Engine| slow::first(engine.colls.item(id).into_iter());
        self.wait_for(self.engine_lock.enter(), |engine| engine.colls.take_outcome(id), &what)
    }
}

fn byte() -> TypeArc {
    /// MPI_BYTE in the ABI.
    const MPI_BYTE: u16 = 0x247;
    builtin(MPI_BYTE)
}

/// A type of the ABI, by its handle there.
pub(crate) fn builtin(handle: u16) -> TypeArc {
    TypeArc::Predefined(Datatype::builtin(handle).expect("it is built in"))
}

pub(crate) fn bytes_of(buffer: &banyan_memory::Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(0, &mut out);
    out
}
