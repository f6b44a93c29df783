//! Collectives of a communicator: from a checked call to a running schedule (MPI 5.0, chapter 6).

use std::sync::Arc;

use banyan_coll::{Asked, Call, Kind, Lists, Memory};
use banyan_datatype::{Datatype, TypeArc};

use crate::bail;
use crate::comm::Comm;
use crate::engine::{CollId, Engine};
use crate::error::{Class, Error, Result};
use crate::request::{Recipe, Request};
use crate::runtime::Purpose;
use crate::slow;
use crate::status::{PROC_NULL, ROOT};

/// What this rank is in a collective with a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// The root, as schedules number ranks.
    pub rank: u32,
    /// This rank is the root.
    pub here: bool,
    /// This rank has data of its own: any rank of one group; of two, those of the group that the root is not in.
    pub leaf: bool,
}

impl Root {
    /// The call of a rank beside the root of an intercommunicator (MPI_PROC_NULL), which takes no part.
    #[inline(always)]
    pub fn beside(self, kind: Kind) -> Option<Call> {
        (!self.here && !self.leaf).then(|| Call::moving(kind, Memory::Nothing, Memory::Nothing, self.rank))
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
        let (team, size, me) = (self.team(), self.size(), self.rank());
        match root {
            ROOT => Ok(Root { rank: team.number(me, true), here: true, leaf: false }),
            PROC_NULL if size > 1 => {
                // Which other one does not matter: nothing goes there.
                Ok(Root { rank: team.number((me + 1) % size, true), here: false, leaf: false })
            }
            PROC_NULL => bail!(
                ERR_ROOT,
                "root is MPI_PROC_NULL, but this rank is alone in its group of the intercommunicator: the root itself \
                 gives MPI_ROOT, and all ranks of the other group give its rank"
            ),
            _ => match u32::try_from(root).ok().filter(|&rank| rank < self.blocks()) {
                Some(rank) => Ok(Root { rank: team.number(rank, false), here: false, leaf: true }),
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

    /// Refuses a collective that there is not between two groups.
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
        self.await_launched(self.team().launch(call, None, true)?)
    }

    /// Runs a collective of one group to its end: what was `asked`, which makes a call.
    #[inline(always)]
    pub fn run_asked(
        &self,
        asked: Asked,
        lists: &impl Lists,
        call: impl FnOnce() -> Result<Call>,
    ) -> Result<()> {
        let launched = match self.team().repeat(asked, lists) {
            Some(launched) => launched?,
            None => self.team().launch(call()?, Some((asked, lists)), true)?,
        };
        self.await_launched(launched)
    }

    #[inline(always)]
    fn await_launched(&self, launched: Option<CollId>) -> Result<()> {
        match launched {
            None => Ok(()),
            Some(id) => self.await_coll(id),
        }
    }

    #[inline(never)]
    fn await_coll(&self, id: CollId) -> Result<()> {
        let rt = self.runtime();
        let what = |engine: &Engine| slow::first(engine.coll_item(id).into_iter());
        rt.wait_for(rt.gate.enter(), |engine| engine.coll_done(id), &what)
    }

    /// Starts a collective, which is numbered apart from the blocking ones.
    #[inline(never)]
    pub fn start(self: &Arc<Self>, call: Call) -> Result<Request> {
        Ok(Request::coll(self, self.aside().launch(call, None, false)?))
    }

    /// A persistent collective. It gets a context of its own: all ranks make their persistent collectives in
    /// one order, but may start them in any (MPI 5.0, 6.13).
    pub fn persist(self: &Arc<Self>, call: Call) -> Result<Request> {
        let ctx = self.child_context(Purpose::Persistent, 0);
        self.runtime().open_context(ctx);
        let team = Arc::new(self.team().again(ctx));
        Ok(Request::persistent(self, Recipe::Coll { call: Box::new(call), team }))
    }

    /// The same number of bytes from every rank (of the other group, if there is one), in rank order: for the making of
    /// communicators.
    pub(crate) fn allgather_bytes(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let send = banyan_memory::Scratch::copy_of(mine);
        let recv = banyan_memory::Scratch::zeroed(mine.len() * self.blocks() as usize);
        let count = mine.len() as u64;
        self.run(Call::moving(
            Kind::Allgather,
            Memory::Uniform { base: send, count, ty: byte() },
            Memory::Uniform { base: recv.clone(), count, ty: byte() },
            0,
        ))?;
        Ok(bytes_of(&recv))
    }

    /// Bytes from `root` to all; `mine` matters at the root, its length everywhere.
    pub(crate) fn bcast_bytes(&self, mine: &[u8], root: u32) -> Result<Vec<u8>> {
        let data = banyan_memory::Scratch::copy_of(mine);
        self.run(Call::bcast(
            Memory::Uniform { base: data.clone(), count: mine.len() as u64, ty: byte() },
            root,
        ))?;
        Ok(bytes_of(&data))
    }

    /// What the other group's first rank says, of `len` bytes, while this group's says `mine`.
    pub(crate) fn swap_bytes(&self, mine: &[u8], len: usize) -> Result<Vec<u8>> {
        let first = self.team().number(0, true) == 0;
        let mut theirs = vec![0; len];
        for giving in [first, !first] {
            let root = self.root(match (giving, self.rank()) {
                (true, 0) => ROOT,
                (true, _) => PROC_NULL,
                (false, _) => 0,
            })?;
            match root.beside(Kind::Bcast) {
                Some(call) => self.run(call)?,
                None if giving => drop(self.bcast_bytes(mine, root.rank)?),
                None => theirs = self.bcast_bytes(&theirs, root.rank)?,
            }
        }
        Ok(theirs)
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
