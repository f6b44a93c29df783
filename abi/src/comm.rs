//! Communicators (MPI 5.0, 7): handles, what is attached to them, and the calls that make them.

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::p2p::dest_of;
use crate::pointer::Ptr;
use crate::serial::{Promise, Serial};
use crate::stream::Stream;
use crate::{group, info, request};
use banyan_runtime::{Attributes, Comm, Errhandler, Info, Operation, Result, SplitType, Status, bail};
use std::cell::UnsafeCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A communicator with the attributes that the user cached on it.
pub(crate) struct Object {
    comm: Arc<Comm>,
    pub(crate) attributes: Attributes,
    /// The stream that operations on it are enqueued on.
    stream: Option<Arc<Stream>>,
}

impl Object {
    /// The stream that operations on it are enqueued on.
    pub(crate) fn stream(&self) -> Option<&Arc<Stream>> {
        self.stream.as_ref()
    }
}

impl Deref for Object {
    type Target = Arc<Comm>;

    #[inline]
    fn deref(&self) -> &Arc<Comm> {
        &self.comm
    }
}

/// What is kept of communicators besides their table.
pub(crate) struct Comms {
    /// MPI_COMM_WORLD, and whether the program gave it an error handler.
    world: Predefined,
    /// MPI_COMM_SELF, and whether the program gave it an error handler.
    itself: Predefined,
    /// How often communicators were freed: an entry of a cache is good as long as this stays.
    freed: AtomicU32,
    /// The caches of all threads that are alive.
    thread_caches: Mutex<Vec<Arc<RegisteredCache>>>,
    /// The one cache of all threads, where their calls come one after the other.
    serial_cache: Serial<CommCache>,
}

struct Predefined {
    object: RwLock<Option<Arc<Object>>>,
    handled: AtomicBool,
}

thread_local! {
    /// The cache of this thread, used unless calls come one after the other.
    static THREAD_CACHE: ThreadCache = ThreadCache::new();
}

/// The cache of one thread, which the thread that ends MPI finds in [`Comms`]: the thread may live on, and must not
/// keep the memory and the sockets of the job.
struct ThreadCache(Arc<RegisteredCache>);

struct RegisteredCache(CommCache);

// SAFETY: MPI_Finalize may be called only when all other threads have completed their calls (MPI 5.0, 11.2.2), so
// `close` is alone with the caches of all threads; before, only its own thread uses a cache in its calls. The end of
// a thread, which is no call, holds the lock that `close` holds.
unsafe impl Send for RegisteredCache {}
// SAFETY: as above.
unsafe impl Sync for RegisteredCache {}

impl ThreadCache {
    fn new() -> ThreadCache {
        let cache = Arc::new(RegisteredCache(CommCache::new()));
        INSTANCE.comms.thread_caches().push(cache.clone());
        ThreadCache(cache)
    }
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        let mut caches = INSTANCE.comms.thread_caches();
        caches.retain(|other| !Arc::ptr_eq(other, &self.0));
        self.0.0.clear();
    }
}

/// A cache of the communicators that were used last, so that the next call on them touches no lock and no shared count. References to what
/// is in it end before anything else runs: no cell needs to count them.
struct CommCache([UnsafeCell<Option<Rc<CachedComm>>>; CommCache::COUNT]);

struct CachedComm {
    object: Arc<Object>,
    handle: MPI_Comm,
    freed: u32,
}

impl CommCache {
    const COUNT: usize = 4;

    const fn new() -> CommCache {
        CommCache([const { UnsafeCell::new(None) }; CommCache::COUNT])
    }

    #[inline(always)]
    fn find(&self, comm: MPI_Comm, freed: u32) -> Option<Found> {
        // SAFETY: one thread at a time uses a cache, and this only looks, and counts one more.
        let entry = unsafe { &*self.0[comm.0 % Self::COUNT].get() };
        entry.as_ref().filter(|cached| (cached.handle == comm) & (cached.freed == freed)).cloned().map(Found)
    }

    fn keep(&self, cached: &Rc<CachedComm>) {
        self.replace(cached.handle.0 % Self::COUNT, Some(cached.clone()));
    }

    fn clear(&self) {
        (0..Self::COUNT).for_each(|at| self.replace(at, None));
    }

    /// What was there ends behind the exchange, as its end may run anything.
    fn replace(&self, at: usize, by: Option<Rc<CachedComm>>) {
        // SAFETY: as in `find`: this only exchanges two pointers.
        let old = unsafe { std::mem::replace(&mut *self.0[at].get(), by) };
        drop(old);
    }
}

/// A communicator in use by a call of this thread.
pub(crate) struct Found(Rc<CachedComm>);

impl Found {
    /// Its handle, as the call named it.
    #[inline(always)]
    pub(crate) fn handle(&self) -> MPI_Comm {
        self.0.handle
    }
}

impl Deref for Found {
    type Target = Object;

    #[inline]
    fn deref(&self) -> &Object {
        &self.0.object
    }
}

/// The communicator of a handle, for calls between initialization and finalization.
#[inline(always)]
pub(crate) fn lookup(comm: MPI_Comm) -> Result<Found> {
    let freed = INSTANCE.comms.freed.load(Ordering::Acquire);
    match INSTANCE.comms.serial_cache.get().and_then(|cache| cache.find(comm, freed)) {
        Some(found) => Ok(found),
        None => lookup_elsewhere(comm, freed),
    }
}

/// The communicator of a handle, unless calls come one after the other and the cache of all threads has it.
#[inline(never)]
fn lookup_elsewhere(comm: MPI_Comm, freed: u32) -> Result<Found> {
    // Where calls come one after the other no thread makes a cache of its own.
    let cached = match INSTANCE.comms.serial_cache.get() {
        Some(_) => None,
        None => THREAD_CACHE.try_with(|cache| cache.0.0.find(comm, freed)).ok().flatten(),
    };
    match cached {
        Some(found) => Ok(found),
        None => search_and_keep(comm, freed),
    }
}

/// Finds the communicator of a handle in the table, and keeps it in the cache.
#[cold]
fn search_and_keep(comm: MPI_Comm, freed: u32) -> Result<Found> {
    let cached = Rc::new(CachedComm { object: search(comm)?, handle: comm, freed });
    match INSTANCE.comms.serial_cache.get() {
        Some(cache) => cache.keep(&cached),
        // A thread that ends has no cache any more.
        None => drop(THREAD_CACHE.try_with(|cache| cache.0.0.keep(&cached))),
    }
    Ok(Found(cached))
}

fn search(comm: MPI_Comm) -> Result<Arc<Object>> {
    match comm {
        MPI_COMM_WORLD => INSTANCE.comms.world.get(),
        MPI_COMM_SELF => INSTANCE.comms.itself.get(),
        MPI_COMM_NULL => bail!(ERR_COMM, "the communicator is MPI_COMM_NULL"),
        MPI_Comm(number) => INSTANCE.handles.comms.lookup(number),
    }
}

/// Checks that a handle is that of a communicator.
pub(crate) fn check_handle(comm: MPI_Comm) -> Result<()> {
    lookup(comm).map(drop)
}

impl Predefined {
    const fn none() -> Predefined {
        Predefined { object: RwLock::new(None), handled: AtomicBool::new(false) }
    }

    fn get(&self) -> Result<Arc<Object>> {
        match &*self.object.read().unwrap_or_else(PoisonError::into_inner) {
            Some(object) => Ok(object.clone()),
            None => bail!(ERR_COMM, "MPI is not initialized"),
        }
    }

    fn set(&self, object: Option<Arc<Object>>) {
        let old =
            std::mem::replace(&mut *self.object.write().unwrap_or_else(PoisonError::into_inner), object);
        drop(old);
    }
}

impl Comms {
    pub(crate) const fn new(promise: &'static Promise) -> Comms {
        Comms {
            world: Predefined::none(),
            itself: Predefined::none(),
            freed: AtomicU32::new(0),
            thread_caches: Mutex::new(Vec::new()),
            serial_cache: Serial::new(CommCache::new(), promise),
        }
    }

    fn thread_caches(&self) -> MutexGuard<'_, Vec<Arc<RegisteredCache>>> {
        self.thread_caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets MPI_COMM_WORLD and MPI_COMM_SELF.
    pub(crate) fn open(&self, world: Arc<Comm>, itself: Arc<Comm>) {
        for (slot, comm) in [(&self.world, world), (&self.itself, itself)] {
            slot.set(Some(Arc::new(Object { comm, attributes: Attributes::new(), stream: None })));
        }
    }

    /// Forgets MPI_COMM_WORLD, MPI_COMM_SELF, and what threads remember of communicators.
    pub(crate) fn close(&self) {
        self.freed.fetch_add(1, Ordering::Release);
        match self.serial_cache.get() {
            Some(cache) => cache.clear(),
            None => self.thread_caches().iter().for_each(|cache| cache.0.clear()),
        }
        self.world.set(None);
        self.itself.set(None);
    }
}

/// The error handler of a communicator, if there is such a communicator.
pub(crate) fn errhandler_of(comm: MPI_Comm) -> Option<Errhandler> {
    search(comm).ok().map(|object| object.errhandler())
}

/// Attaches an error handler.
pub(crate) fn set_errhandler(comm: MPI_Comm, errhandler: Errhandler) -> Result<()> {
    lookup(comm)?.set_errhandler(errhandler);
    match comm {
        MPI_COMM_WORLD => INSTANCE.comms.world.handled.store(true, Ordering::Relaxed),
        MPI_COMM_SELF => INSTANCE.comms.itself.handled.store(true, Ordering::Relaxed),
        _ => {}
    }
    Ok(())
}

/// True if the program set an error handler on MPI_COMM_WORLD and none on MPI_COMM_SELF.
pub(crate) fn only_world_has_errhandler() -> bool {
    INSTANCE.comms.world.handled.load(Ordering::Relaxed)
        && !INSTANCE.comms.itself.handled.load(Ordering::Relaxed)
}

/// The communicator in words.
pub(crate) fn describe(comm: MPI_Comm) -> String {
    search(comm).map_or_else(|_| "no communicator".to_string(), |object| object.name_or_kind())
}

/// Rank of this process in MPI_COMM_WORLD, and the number of its processes.
pub(crate) fn world_rank_and_size() -> Option<(u32, u32)> {
    INSTANCE.comms.world.get().ok().map(|world| (world.rank(), world.size()))
}

/// Gives the user a new communicator.
fn give(to: Ptr<MPI_Comm>, comm: Arc<Comm>, attributes: Attributes) -> Result<()> {
    give_with_stream(to, comm, attributes, None)
}

/// Gives the user a communicator whose operations can be enqueued on a stream.
pub(crate) fn give_with_stream(
    to: Ptr<MPI_Comm>,
    comm: Arc<Comm>,
    attributes: Attributes,
    stream: Option<Arc<Stream>>,
) -> Result<()> {
    to.set(MPI_Comm(INSTANCE.handles.comms.insert(Arc::new(Object { comm, attributes, stream }))?))
}

/// Gives the user a new communicator without attributes, or MPI_COMM_NULL.
pub(crate) fn give_or_null(to: Ptr<MPI_Comm>, comm: Option<Arc<Comm>>) -> Result<()> {
    match comm {
        Some(comm) => give(to, comm, Attributes::new()),
        None => to.set(MPI_COMM_NULL),
    }
}

fn dup(comm: MPI_Comm, newcomm: Ptr<MPI_Comm>, make: impl FnOnce(&Comm) -> Result<Arc<Comm>>) -> Result<()> {
    newcomm.set(MPI_COMM_NULL)?;
    let old = lookup(comm)?;
    // The new context first: all members must count it, also where an attribute's callback then fails.
    let new = make(&old)?;
    let attributes = old.attributes.copies(comm.0)?;
    give(newcomm, new, attributes)
}

fn idup(
    comm: MPI_Comm,
    newcomm: Ptr<MPI_Comm>,
    to: Ptr<MPI_Request>,
    make: impl FnOnce(&Comm) -> Result<(Arc<Comm>, Operation)>,
) -> Result<()> {
    let mut operation = None;
    dup(comm, newcomm, |old| {
        let (new, started) = make(old)?;
        operation = Some(started);
        Ok(new)
    })?;
    request::give(to, operation.unwrap_or(Operation::done(Status::EMPTY)), comm)
}

fn free(comm: Ptr<MPI_Comm>) -> Result<()> {
    let handle = comm.get()?;
    let object = lookup(handle)?;
    if handle.0 < 0x1000 {
        bail!(ERR_COMM, "{} cannot be freed", object.name());
    }
    object.attributes.delete_all(handle.0)?;
    INSTANCE.handles.comms.remove(handle.0)?;
    INSTANCE.comms.freed.fetch_add(1, Ordering::Release);
    comm.set(MPI_COMM_NULL)
}

fn split_kind(split_type: c_int, hints: &Info) -> Result<Option<SplitType>> {
    Ok(Some(match split_type {
        MPI_COMM_TYPE_SHARED => SplitType::Shared,
        MPI_COMM_TYPE_HW_GUIDED | MPI_COMM_TYPE_RESOURCE_GUIDED => {
            match hints.text("mpi_hw_resource_type").as_deref() {
                Some("mpi_shared_memory") => SplitType::Shared,
                _ => SplitType::Other,
            }
        }
        MPI_COMM_TYPE_HW_UNGUIDED => SplitType::Other,
        MPI_UNDEFINED => return Ok(None),
        other => bail!(ERR_ARG, "split_type is {other}, not one of MPI_COMM_TYPE_X or MPI_UNDEFINED"),
    }))
}

mpi! {
    fn MPI_Comm_size(comm, size) on comm {
        size.set(lookup(comm)?.size() as c_int)
    }

    fn MPI_Comm_rank(comm, rank) on comm {
        rank.set(lookup(comm)?.rank() as c_int)
    }

    fn MPI_Comm_compare(comm1, comm2, result) on comm1 {
        let (a, b) = (lookup(comm1)?, lookup(comm2)?);
        result.set(a.compare(&b) as c_int)
    }

    fn MPI_Comm_group(comm, group) on comm gives group {
        group::give(group, lookup(comm)?.group().clone())
    }

    fn MPI_Comm_dup(comm, newcomm) on comm gives newcomm {
        dup(comm, newcomm, Comm::dup)
    }

    fn MPI_Comm_dup_with_info(comm, info, newcomm) on comm gives newcomm {
        let info = info::optional(info)?.unwrap_or_default();
        dup(comm, newcomm, |old| old.dup_with_info(&info))
    }

    fn MPI_Comm_idup(comm, newcomm, request) on comm gives newcomm, request {
        // Members derive the new context without a message, so it is done at once.
        idup(comm, newcomm, request, |old| Ok((old.dup()?, Operation::done(Status::EMPTY))))
    }

    fn MPI_Comm_idup_with_info(comm, info, newcomm, request) on comm gives newcomm, request {
        let info = info::optional(info)?.unwrap_or_default();
        idup(comm, newcomm, request, |old| old.idup_with_info(&info))
    }

    fn MPI_Comm_create(comm, group, newcomm) on comm gives newcomm {
        newcomm.set(MPI_COMM_NULL)?;
        let old = lookup(comm)?;
        give_or_null(newcomm, old.create(&group::lookup(group)?)?)
    }

    fn MPI_Comm_create_group(comm, group, tag, newcomm) on comm gives newcomm {
        newcomm.set(MPI_COMM_NULL)?;
        let old = lookup(comm)?;
        give_or_null(newcomm, old.create_group(&group::lookup(group)?, tag)?)
    }

    fn MPI_Comm_split(comm, color, key, newcomm) on comm gives newcomm {
        newcomm.set(MPI_COMM_NULL)?;
        give_or_null(newcomm, lookup(comm)?.split((color != MPI_UNDEFINED).then_some(color), key)?)
    }

    fn MPI_Comm_split_type(comm, split_type, key, info, newcomm) on comm gives newcomm {
        newcomm.set(MPI_COMM_NULL)?;
        let old = lookup(comm)?;
        let hints = info::optional(info)?.unwrap_or_default();
        give_or_null(newcomm, old.split_type(split_kind(split_type, &hints)?, key, &hints)?)
    }

    fn MPI_Comm_free(comm) on comm {
        free(comm)
    }

    fn MPI_Comm_disconnect(comm) on comm {
        free(comm)
    }

    fn MPI_Comm_set_name(comm, comm_name) on comm {
        let object = lookup(comm)?;
        let mut name = comm_name.text()?;
        while name.len() >= MPI_MAX_OBJECT_NAME as usize {
            name.pop();
        }
        object.set_name(&name);
        Ok(())
    }

    fn MPI_Comm_get_name(comm, comm_name, resultlen) on comm {
        let name = match comm {
            MPI_COMM_NULL => "MPI_COMM_NULL".to_string(),
            comm => lookup(comm)?.name(),
        };
        let len = comm_name.write(name.as_bytes(), MPI_MAX_OBJECT_NAME as usize)?;
        resultlen.set(len as c_int)
    }

    fn MPI_Comm_set_info(comm, info) on comm {
        let object = lookup(comm)?;
        object.set_info(&*info::lookup(info)?)
    }

    fn MPI_Comm_get_info(comm, info_used) on comm gives info_used {
        let comm = lookup(comm)?;
        let used = comm.info();
        comm.runtime().add_memory_kinds(&used)?;
        info::give(info_used, used)
    }

    fn MPI_Comm_get_parent(parent) on SelfComm gives parent {
        parent.set(MPI_COMM_NULL)
    }

    fn MPI_Comm_test_inter(comm, flag) on comm {
        flag.set(lookup(comm)?.is_inter().into())
    }

    fn MPI_Comm_remote_size(comm, size) on comm {
        match lookup(comm)?.remote_group() {
            Some(remote) => size.set(remote.size() as c_int),
            None => bail!(ERR_COMM, "the communicator is not an intercommunicator"),
        }
    }

    fn MPI_Comm_remote_group(comm, group) on comm gives group {
        match lookup(comm)?.remote_group() {
            Some(remote) => group::give(group, remote.clone()),
            None => bail!(ERR_COMM, "the communicator is not an intercommunicator"),
        }
    }

    fn MPI_Intercomm_create(
        local_comm, local_leader, peer_comm, remote_leader, tag, newintercomm,
    ) on local_comm gives newintercomm {
        newintercomm.set(MPI_COMM_NULL)?;
        let local = lookup(local_comm)?;
        // The peer communicator and the remote leader matter at the local leader only.
        let bridge = match local.rank() as c_int == local_leader {
            true => Some(lookup(peer_comm)?),
            false => None,
        };
        let bridge = bridge.as_ref().map(|object| (&****object, dest_of(remote_leader)));
        give_or_null(newintercomm, Some(local.intercomm_create(local_leader, bridge, tag)?))
    }

    fn MPI_Intercomm_merge(intercomm, high, newintracomm) on intercomm gives newintracomm {
        newintracomm.set(MPI_COMM_NULL)?;
        give_or_null(newintracomm, Some(lookup(intercomm)?.intercomm_merge(high != 0)?))
    }
}
