//! Collectives of a communicator: from a checked call to a running schedule (MPI 5.0, chapter 6).

use std::sync::Arc;

use banyan_coll::{Asked, Call, Kind, Lists, Memory};
use banyan_datatype::{Datatype, TypeArc};

use crate::comm::Comm;
use crate::engine::{CollId, Engine};
use crate::error::{Class, Error, Result};
use crate::request::{Recipe, Request};
use crate::slow;
use crate::team::Team;

/// Tells the contexts of persistent collectives from those of communicators.
const PERSISTENT: u64 = 0x9e25 << 32;

impl Comm {
    /// MPI_Barrier.
    pub fn barrier(&self) -> Result<Call> {
        Ok(Call::barrier())
    }

    /// Checks the root of a collective on one group.
    #[inline(always)]
    pub fn root(&self, root: i32) -> Result<u32> {
        match u32::try_from(root).ok().filter(|&root| root < self.size()) {
            Some(root) => Ok(root),
            None => Err(self.no_root(root)),
        }
    }

    #[cold]
    fn no_root(&self, root: i32) -> Error {
        let (name, last) = (self.name_or_kind(), self.size() - 1);
        Error::new(Class::ERR_ROOT, format!("root is {root}, but {name} has ranks 0 to {last}"))
    }

    /// Runs a collective to its end.
    #[inline(always)]
    pub fn run(&self, call: Call) -> Result<()> {
        self.one_group()?;
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

    /// Starts a collective.
    #[inline(never)]
    pub fn start(self: &Arc<Self>, call: Call) -> Result<Request> {
        self.one_group()?;
        Ok(Request::coll(self, self.team().launch(call, None, false)?))
    }

    /// A persistent collective. It gets a context of its own: all ranks make their persistent collectives in
    /// one order, but may start them in any (MPI 5.0, 6.13).
    pub fn persist(self: &Arc<Self>, call: Call) -> Result<Request> {
        self.one_group()?;
        let ctx = self.child_context(PERSISTENT);
        self.runtime().open_context(ctx);
        let team = Arc::new(Team::new(self.runtime(), ctx, self.group().clone()));
        Ok(Request::persistent(self, Recipe::Coll { call: Box::new(call), team }))
    }

    #[inline(always)]
    fn one_group(&self) -> Result<()> {
        if self.is_inter() { Err(not_built()) } else { Ok(()) }
    }

    /// The same number of bytes from every rank, in rank order: for the making of communicators.
    pub(crate) fn allgather_bytes(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let send = banyan_memory::Scratch::copy_of(mine);
        let recv = banyan_memory::Scratch::zeroed(mine.len() * self.size() as usize);
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
}

#[cold]
fn not_built() -> Error {
    let what = "collectives on intercommunicators are not built yet";
    Error::new(Class::ERR_UNSUPPORTED_OPERATION, what)
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
