//! Collectives of a communicator: from a checked call to a running schedule (MPI 5.0, chapter 6).

use std::sync::Arc;

use banyan_coll::{Call, Kind, Lists, Operand, Signature};
use banyan_datatype::{Datatype, TypeArc};
use banyan_memory::{Bounds, Buffer};

use crate::bail;
use crate::comm::Comm;
use crate::engine::{CollId, Engine};
use crate::error::{Class, Error, Result};
use crate::request::{Operation, PersistentArgs};
use crate::runtime::{Purpose, Runtime};
use crate::slow;
use crate::status::{PROC_NULL, ROOT};

/// The part of this rank in a collective with a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// The root, as schedules number ranks.
    pub rank: u32,
    /// This rank is the root.
    pub here: bool,
    /// This rank gives or gets data besides the root: every rank of an intracommunicator; in an intercommunicator those of the
    /// group that the root is not in.
    pub leaf: bool,
}

impl Root {
    /// The call of a bystander: a rank of the root's group of an intercommunicator that is not the root (it gives
    /// MPI_PROC_NULL, and takes no part). `None` for all other ranks.
    #[inline(always)]
    pub fn bystander(self, kind: Kind) -> Option<Call> {
        (!self.here && !self.leaf)
            .then(|| Call::data_movement(kind, Operand::Nothing, Operand::Nothing, self.rank))
    }
}

impl Comm {
    /// MPI_Barrier.
    pub fn barrier(&self) -> Result<Call> {
        Ok(Call::barrier())
    }

    /// Checks the root of a collective (MPI 5.0, 6.2.3).
    #[inline(always)]
    pub fn root(&self, root: i32) -> Result<Root> {
        match u32::try_from(root).ok().filter(|&root| root < self.size() && !self.is_inter()) {
            Some(rank) => Ok(Root { rank, here: rank == self.rank(), leaf: true }),
            None if self.is_inter() => self.root_between(root),
            None => Err(self.no_root(root)),
        }
    }

    #[cold]
    fn root_between(&self, root: i32) -> Result<Root> {
        let (coll_state, size, me) = (self.coll_state(), self.size(), self.rank());
        match root {
            ROOT => Ok(Root { rank: coll_state.schedule_rank(me, true), here: true, leaf: false }),
            PROC_NULL if size > 1 => {
                // Any other rank will do: nothing is sent there.
                Ok(Root { rank: coll_state.schedule_rank((me + 1) % size, true), here: false, leaf: false })
            }
            PROC_NULL => bail!(
                ERR_ROOT,
                "root is MPI_PROC_NULL, but this rank is alone in its group of the intercommunicator: the root itself \
                 gives MPI_ROOT, and all ranks of the other group give its rank"
            ),
            _ => match u32::try_from(root).ok().filter(|&rank| rank < self.blocks()) {
                Some(rank) => {
                    Ok(Root { rank: coll_state.schedule_rank(rank, false), here: false, leaf: true })
                }
                None => bail!(
                    ERR_ROOT,
                    "root is {root}, but the other group of the intercommunicator has ranks 0 to {}; in the root's own \
                     group the root gives MPI_ROOT, and the others MPI_PROC_NULL",
                    self.blocks() - 1
                ),
            },
        }
    }

    #[cold]
    fn no_root(&self, root: i32) -> Error {
        let (name, last) = (self.name_or_kind(), self.size() - 1);
        let what = match root {
            ROOT => "MPI_ROOT, which is for intercommunicators".to_string(),
            PROC_NULL => "MPI_PROC_NULL, which is for intercommunicators".to_string(),
            root => root.to_string(),
        };
        Error::new(Class::ERR_ROOT, format!("root is {what}, but {name} has ranks 0 to {last}"))
    }

    /// Refuses a collective that MPI does not define on intercommunicators, if this is one.
    #[inline(always)]
    pub fn allows(&self, kind: Kind) -> Result<()> {
        if self.is_inter() { self.allows_between(kind) } else { Ok(()) }
    }

    #[cold]
    fn allows_between(&self, kind: Kind) -> Result<()> {
        if banyan_coll::between(kind).is_none() {
            bail!(ERR_COMM, "MPI has no {} on intercommunicators: merge its groups first", kind.name());
        }
        Ok(())
    }

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
        let launched = match self.coll_state().replay(signature, lists, buffers) {
            Some(launched) => launched?,
            None => self.coll_state().launch(call()?, Some((signature, lists)), true)?,
        };
        self.await_launched(launched)
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
    pub fn start(self: &Arc<Self>, call: Call) -> Result<Operation> {
        Ok(Operation::coll(self, self.nonblocking_coll_state().launch(call, None, false)?))
    }

    /// A persistent collective. It gets a context of its own: all ranks make their persistent collectives in
    /// one order, but may start them in any (MPI 5.0, 6.13).
    pub fn persist(self: &Arc<Self>, call: Call) -> Result<Operation> {
        let ctx = self.child_context(Purpose::Persistent, 0);
        self.runtime().open_context(ctx);
        let coll_state = Arc::new(self.coll_state().in_context(ctx));
        Ok(Operation::persistent(self, PersistentArgs::Coll { call: Box::new(call), coll_state }))
    }

    /// Gathers the bytes `mine` of every rank (of the other group, if there is one) in rank order; all ranks give as many. For
    /// the making of communicators.
    pub(crate) fn allgather_bytes(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let send = banyan_memory::HeapBuffer::copy_of(mine);
        let recv = banyan_memory::HeapBuffer::zeroed(mine.len() * self.blocks() as usize);
        let count = mine.len() as u64;
        self.run(Call::data_movement(
            Kind::Allgather,
            Operand::Uniform { base: send, count, ty: byte() },
            Operand::Uniform { base: recv.clone(), count, ty: byte() },
            0,
        ))?;
        Ok(bytes_of(&recv))
    }

    /// Bytes from `root` to all; `mine` matters at the root, its length everywhere.
    pub(crate) fn bcast_bytes(&self, mine: &[u8], root: u32) -> Result<Vec<u8>> {
        let data = banyan_memory::HeapBuffer::copy_of(mine);
        self.run(Call::bcast(
            Operand::Uniform { base: data.clone(), count: mine.len() as u64, ty: byte() },
            root,
        ))?;
        Ok(bytes_of(&data))
    }

    /// The `len` bytes of the other group's rank 0, in exchange for `mine` of this group's rank 0.
    pub(crate) fn swap_bytes(&self, mine: &[u8], len: usize) -> Result<Vec<u8>> {
        let first = self.coll_state().schedule_rank(0, true) == 0;
        let mut theirs = vec![0; len];
        for giving in [first, !first] {
            let root = self.root(match (giving, self.rank()) {
                (true, 0) => ROOT,
                (true, _) => PROC_NULL,
                (false, _) => 0,
            })?;
            match root.bystander(Kind::Bcast) {
                Some(call) => self.run(call)?,
                None if giving => drop(self.bcast_bytes(mine, root.rank)?),
                None => theirs = self.bcast_bytes(&theirs, root.rank)?,
            }
        }
        Ok(theirs)
    }
}

impl Runtime {
    /// Waits for a collective that is under way.
    #[inline(never)]
    pub(crate) fn wait_for_coll(&self, id: CollId) -> Result<()> {
        let what = |engine: &Engine| slow::first(engine.coll_item(id).into_iter());
        self.wait_for(self.engine_lock.enter(), |engine| engine.coll_done(id), &what)
    }
}

fn byte() -> TypeArc {
    /// MPI_BYTE in the ABI.
    const MPI_BYTE: u16 = 0x247;
    TypeArc::Predefined(Datatype::builtin(MPI_BYTE).expect("MPI_BYTE is built in"))
}

fn bytes_of(buffer: &banyan_memory::Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(0, &mut out);
    out
}
