//! [`Loaded`]: a fabric behind a library's table, as the process that loaded it has it.

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use banyan_memory::{Buffer, settle};
use banyan_transport::{
    Access, Atomic, Caps, DeviceMoves, Fabric, Head, Joining, Kinds, Member, NotStarted, Order, Outcome,
    Peer, Port, Refusal, RegisterError, Remote, Sent, Sink, Token, Transfer, Wake,
};

use crate::library::{self, Library};
use crate::table::{Bytes, Events, Fill, Handle, Memory, Posted, Registered, Say, Start, Table, Terms};

/// What a panic left with.
type Panic = Box<dyn Any + Send>;

/// A fabric of a library. Of memory of devices this side tells it what their drivers say.
pub struct Loaded<L> {
    table: &'static Table,
    fabric: Handle,
    /// The peer that was asked for last, and what can be done towards it, once one was.
    asked: Cell<Option<Peer>>,
    caps: Cell<Caps>,
    lent: Lent,
    library: PhantomData<fn() -> L>,
}

// SAFETY: a fabric that may go to another thread (`Table::of`), and has one owner; the table is a static.
unsafe impl<L> Send for Loaded<L> {}

/// Memory that the library uses and that would end with the last buffer on it: it has buffers of its own, which keep none.
#[derive(Default)]
struct Lent {
    by_token: HashMap<Token, Vec<(Peer, Vec<Buffer>)>>,
    registered: Vec<(u64, Buffer)>,
}

impl Lent {
    fn lend(&mut self, peer: Peer, token: Token, memory: &[Buffer]) {
        let kept: Vec<Buffer> = memory.iter().filter(|buffer| buffer.keeps_memory()).cloned().collect();
        if !kept.is_empty() {
            self.by_token.entry(token).or_default().push((peer, kept));
        }
    }

    /// One operation of this token is over; gives its memory.
    fn over(&mut self, token: Token) -> Vec<Buffer> {
        let Some(kept) = self.by_token.get_mut(&token) else { return Vec::new() };
        let (_, memory) = kept.remove(0);
        if kept.is_empty() {
            self.by_token.remove(&token);
        }
        memory
    }

    /// All operations towards a peer are over, or those of one token.
    fn end(&mut self, peer: Peer, only: Option<Token>) {
        self.by_token.retain(|&token, kept| {
            if only.is_none_or(|only| only == token) {
                kept.retain(|(other, _)| *other != peer);
            }
            !kept.is_empty()
        });
    }

    fn withdraw(&mut self, key: u64) {
        if let Some(at) = self.registered.iter().position(|(other, _)| *other == key) {
            self.registered.swap_remove(at);
        }
    }
}

impl<L> Loaded<L> {
    /// A fabric of this table, unless it has not started.
    ///
    /// # Errors
    /// As its start.
    pub fn start_by(
        table: &'static Table,
        joining: &Joining<'_>,
        nics: &str,
    ) -> Result<Option<(Self, Vec<u8>)>, NotStarted> {
        let terms = Terms {
            me: joining.me,
            size: joining.size,
            job: joining.job,
            secret: &joining.secret,
            node: joining.node.as_ptr(),
            node_len: joining.node.len(),
            nodes: joining.nodes,
            crowded: joining.crowded,
            nics: nics.as_bytes().into(),
            rdma: joining.rdma.as_bytes().into(),
            topology: joining.topology.as_bytes().into(),
            patience: joining.patience.as_nanos().try_into().unwrap_or(u64::MAX),
        };
        let (mut card, mut why) = (Vec::new(), Vec::new());
        // SAFETY: all of it is there until the call returns.
        let begun = unsafe { (table.start)(&terms, Say::into(&mut card), Say::into(&mut why)) };
        let why = String::from_utf8_lossy(&why).into_owned();
        match begun.how {
            Start::Started => Ok(Some((Self::of(table, begun.fabric), card))),
            Start::Unused => Ok(None),
            Start::Absent => Err(NotStarted::Absent(why)),
            Start::Broken => Err(NotStarted::Broken(why)),
            Start::Fatal => Err(NotStarted::Fatal(why)),
        }
    }

    /// A fabric of this process behind a table, for tests.
    pub fn around<F: Fabric + Send>(fabric: F) -> Self {
        let table = const { &Table::of_started::<F>() };
        let fabric = Box::into_raw(Box::new(fabric)).cast();
        Self::of(table, fabric)
    }

    /// A fabric that has started.
    fn of(table: &'static Table, fabric: Handle) -> Self {
        let (asked, caps) = (Cell::new(None), Cell::new(Caps::NONE));
        Loaded { table, fabric, asked, caps, lent: Lent::default(), library: PhantomData }
    }

    /// Asks what can be done towards a peer, and keeps it.
    #[cold]
    fn ask_caps(&self, peer: Peer) {
        // SAFETY: the fabric; the function takes it as a shared reference would.
        let caps = unsafe { (self.table.caps)(self.fabric, peer) };
        let host = |kinds: Kinds| kinds.and(Kinds::HOST);
        self.caps.set(Caps { get: host(caps.get), put: host(caps.put), atomics: host(caps.atomics), ..caps });
        self.asked.set(Some(peer));
    }

    /// Starts a transfer between the peer's memory and this process's, by one of the table's functions.
    fn transfer(
        &mut self,
        (peer, remote, token): (Peer, Remote, Token),
        local: &[Buffer],
        function: unsafe extern "C" fn(Handle, Peer, Remote, *const Memory, usize, Token) -> Transfer,
    ) -> Transfer {
        let device = local.iter().find(|memory| !is_of_host(memory));
        if device.is_some() && self.device_moves(peer) == DeviceMoves::Never {
            return Transfer::Impossible;
        }
        let memory: Vec<Memory> = local.iter().map(Memory::from).collect();
        // SAFETY: the fabric; the memory is there until the transfer is over, by the contract, or as it is lent.
        let transfer = unsafe { function(self.fabric, peer, remote, memory.as_ptr(), memory.len(), token) };
        if transfer == Transfer::Started {
            self.lent.lend(peer, token, local);
        }
        if transfer == Transfer::Impossible {
            device.iter().for_each(|memory| memory.count_network(false));
        }
        transfer
    }
}

fn is_of_host(memory: &Buffer) -> bool {
    memory.kind().is_host_accessible()
}

impl<L> Drop for Loaded<L> {
    fn drop(&mut self) {
        // SAFETY: the fabric, which is not used any more.
        unsafe { (self.table.end)(self.fabric) };
    }
}

impl<L: Library> Member for Loaded<L> {
    fn start(joining: Joining<'_>) -> Result<Option<(Self, Vec<u8>)>, NotStarted> {
        let Some(nics) = L::nics(&joining)? else { return Ok(None) };
        let table = library::load::<L>().map_err(NotStarted::Broken)?;
        Self::start_by(table, &joining, &nics)
    }
}

/// Goes on with a panic on this side of the table.
fn go_on(panic: Option<Panic>) {
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// What fills a body, and the panic that it ended with.
struct Filling<'a> {
    fill: &'a mut dyn FnMut(&mut [u8]),
    panic: Option<Panic>,
}

unsafe extern "C" fn fill(by: *mut c_void, start: *mut u8, len: usize) {
    // SAFETY: what `send_bcopy` made, inside its call; and a slice of the library's, which nobody else uses meanwhile.
    let (filling, body) =
        unsafe { (&mut *by.cast::<Filling<'_>>(), std::slice::from_raw_parts_mut(start, len)) };
    filling.panic = catch_unwind(AssertUnwindSafe(|| (filling.fill)(body))).err();
}

impl<L> Port for Loaded<L> {
    #[inline]
    fn caps(&self, peer: Peer) -> Caps {
        if self.asked.get() != Some(peer) {
            self.ask_caps(peer);
        }
        self.caps.get()
    }

    #[inline]
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        // SAFETY: the fabric, and what is there until the call returns.
        let posted = unsafe { (self.table.send_short)(self.fabric, peer, head, body.into()) };
        Result::from(posted).map(drop)
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill_body: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        let mut filling = Filling { fill: fill_body, panic: None };
        let by = Fill { by: (&raw mut filling).cast(), fill };
        // SAFETY: as above.
        let posted = unsafe { (self.table.send_bcopy)(self.fabric, peer, head, len, by) };
        go_on(filling.panic);
        Result::from(posted).map(drop)
    }

    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        (memory, at, len): (&Buffer, isize, usize),
        token: Option<Token>,
        order: Order,
    ) -> Result<Sent, Refusal> {
        if !is_of_host(memory) {
            return self.send_bcopy(peer, head, len, &mut |body| memory.read(at, body)).map(|()| Sent::Done);
        }
        let part = memory.slice(at, len);
        // SAFETY: the fabric; the memory is there until it is sent, by the contract, or as it is lent.
        let posted = unsafe {
            (self.table.send_from)(self.fabric, peer, head, Memory::from(&part), token.as_ref(), order)
        };
        if let (Posted::Started, Some(token)) = (posted, token) {
            self.lent.lend(peer, token, &[part]);
        }
        posted.into()
    }

    fn register(&mut self, peer: Peer, memory: &Buffer, access: Access) -> Result<Remote, RegisterError> {
        let mut remote = Remote { addr: 0, len: 0, key: 0 };
        // SAFETY: the fabric; the memory is there until it is withdrawn, by the contract, or as it is lent.
        let registered =
            unsafe { (self.table.register)(self.fabric, peer, memory.into(), access, &mut remote) };
        if !is_of_host(memory) {
            memory.count_network(matches!(registered, Registered::Done));
        }
        match registered {
            Registered::Done => {
                if memory.keeps_memory() {
                    self.lent.registered.push((remote.key, memory.clone()));
                }
                Ok(remote)
            }
            Registered::Unsupported => Err(RegisterError::Unsupported),
            Registered::NoRoom => Err(RegisterError::NoRoom),
        }
    }

    fn withdraw(&mut self, peer: Peer, remote: Remote) {
        // SAFETY: the fabric.
        unsafe { (self.table.withdraw)(self.fabric, peer, remote) };
        self.lent.withdraw(remote.key);
    }

    fn revoke(&mut self, peer: Peer, remote: Remote) {
        // SAFETY: the fabric.
        unsafe { (self.table.revoke)(self.fabric, peer, remote) };
        self.lent.withdraw(remote.key);
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.transfer((peer, remote, token), local, self.table.get)
    }

    fn device_moves(&mut self, peer: Peer) -> DeviceMoves {
        // SAFETY: the fabric.
        unsafe { (self.table.device_moves)(self.fabric, peer) }
    }

    fn put(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.transfer((peer, remote, token), local, self.table.put)
    }

    fn atomic(&mut self, peer: Peer, word: Remote, op: Atomic, result: &Buffer, token: Token) -> Transfer {
        if !is_of_host(result) {
            return Transfer::Impossible;
        }
        // SAFETY: as for `transfer`.
        let transfer = unsafe { (self.table.atomic)(self.fabric, peer, word, &op, result.into(), token) };
        if transfer == Transfer::Started {
            self.lent.lend(peer, token, std::slice::from_ref(result));
        }
        transfer
    }

    fn reclaim(&mut self, peer: Peer, token: Token) {
        // SAFETY: the fabric.
        unsafe { (self.table.reclaim)(self.fabric, peer, token) };
        self.lent.end(peer, Some(token));
    }
}

impl<L> Fabric for Loaded<L> {
    fn reaches(&self, peer: Peer) -> bool {
        // SAFETY: the fabric, as by a shared reference.
        unsafe { (self.table.reaches)(self.fabric, peer) }
    }

    fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<(), String> {
        let mut why = Vec::new();
        // SAFETY: the fabric, and what is there until the call returns.
        let connected =
            unsafe { (self.table.connect)(self.fabric, peer, business_card.into(), Say::into(&mut why)) };
        if connected { Ok(()) } else { Err(String::from_utf8_lossy(&why).into_owned()) }
    }

    fn peer_died(&mut self, peer: Peer, cause: &str) {
        // SAFETY: the fabric, and what is there until the call returns.
        unsafe { (self.table.peer_died)(self.fabric, peer, cause.as_bytes().into()) };
    }

    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        let mut hearing = Hearing { sink, lent: &mut self.lent, panic: None };
        let events = events_of(&hearing);
        // SAFETY: the fabric, and a sink with its own functions.
        let work = unsafe { (self.table.poll)(self.fabric, (&raw mut hearing).cast(), events) };
        go_on(hearing.panic);
        work
    }

    fn linger(&mut self, looks: u32, sink: &mut impl Sink) -> usize {
        let mut hearing = Hearing { sink, lent: &mut self.lent, panic: None };
        let events = events_of(&hearing);
        // SAFETY: as above.
        let work = unsafe { (self.table.linger)(self.fabric, looks, (&raw mut hearing).cast(), events) };
        go_on(hearing.panic);
        work
    }

    fn by_kernel(&self) -> bool {
        // SAFETY: the fabric, as by a shared reference.
        unsafe { (self.table.by_kernel)(self.fabric) }
    }

    fn unsent(&self) -> bool {
        // SAFETY: as above.
        unsafe { (self.table.unsent)(self.fabric) }
    }

    fn arm(&mut self, wake: Wake) {
        // SAFETY: the fabric.
        unsafe { (self.table.arm)(self.fabric, wake) };
    }

    fn disarm(&mut self) {
        // SAFETY: the fabric.
        unsafe { (self.table.disarm)(self.fabric) };
    }

    fn has_news(&mut self) -> bool {
        // SAFETY: the fabric.
        unsafe { (self.table.has_news)(self.fabric) }
    }

    fn sleep(&mut self, deadline: Option<Instant>) {
        // SAFETY: the fabric.
        unsafe { (self.table.sleep)(self.fabric, deadline.into()) };
    }

    fn descriptor(&mut self) -> io::Result<OwnedFd> {
        // SAFETY: the fabric.
        match unsafe { (self.table.descriptor)(self.fabric) } {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            // SAFETY: a descriptor that the library gives away.
            descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        // SAFETY: the fabric, as by a shared reference.
        unsafe { (self.table.next_deadline)(self.fabric) }.into()
    }

    fn account(&self) -> Option<String> {
        let mut said = Vec::new();
        // SAFETY: as above, and what is there until the call returns.
        unsafe { (self.table.account)(self.fabric, Say::into(&mut said)) };
        (!said.is_empty()).then(|| String::from_utf8_lossy(&said).into_owned())
    }
}

/// The functions of this very sink.
fn events_of<S: Sink>(_: &Hearing<'_, S>) -> &'static Events {
    const { &Hearing::<S>::EVENTS }
}

/// The sink of a poll, and the panic that one of its methods ended with: it hears nothing more then.
struct Hearing<'a, S> {
    sink: &'a mut S,
    lent: &'a mut Lent,
    panic: Option<Panic>,
}

impl<S: Sink> Hearing<'_, S> {
    /// The functions of a sink like this one. They are a constant, as a look that finds nothing should cost little.
    const EVENTS: Events = Events {
        frame: frame::<S>,
        sent: sent::<S>,
        completed: completed::<S>,
        down: down::<S>,
        wanted: wanted::<S>,
        unreached: unreached::<S>,
    };

    /// # Safety
    /// `to` is what a poll with these functions was given, and the poll is under way.
    unsafe fn tell(to: *mut c_void, tell: impl FnOnce(&mut S, &mut Lent)) {
        // SAFETY: by the caller; nobody else has a reference to it meanwhile.
        let hearing = unsafe { &mut *to.cast::<Hearing<'_, S>>() };
        if hearing.panic.is_none() {
            // Written where there is one alone: an assignment has to look what was there.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| tell(hearing.sink, hearing.lent))) {
                hearing.panic = Some(panic);
            }
        }
    }
}

unsafe extern "C" fn frame<S: Sink>(to: *mut c_void, peer: Peer, head: &Head, body: Bytes) {
    // SAFETY: inside a poll; the slice is there until this returns.
    unsafe { Hearing::<S>::tell(to, |sink, _| sink.frame(peer, head, body.get())) };
}

unsafe extern "C" fn sent<S: Sink>(to: *mut c_void, token: Token) {
    let told = |sink: &mut S, lent: &mut Lent| {
        lent.over(token);
        sink.sent(token);
    };
    // SAFETY: inside a poll.
    unsafe { Hearing::<S>::tell(to, told) };
}

unsafe extern "C" fn completed<S: Sink>(to: *mut c_void, token: Token, outcome: Outcome) {
    let told = |sink: &mut S, lent: &mut Lent| {
        let memory = lent.over(token);
        // Where a device may not see what has come, it has to come in another way.
        let outcome = match outcome {
            Outcome::Done if settle(&memory).is_err() => Outcome::Impossible,
            outcome => outcome,
        };
        sink.completed(token, outcome);
    };
    // SAFETY: inside a poll.
    unsafe { Hearing::<S>::tell(to, told) };
}

unsafe extern "C" fn down<S: Sink>(to: *mut c_void, peer: Peer, cause: Bytes) {
    // SAFETY: inside a poll; the slice is there until this returns.
    let cause = unsafe { cause.text() };
    let told = |sink: &mut S, lent: &mut Lent| {
        lent.end(peer, None);
        sink.down(peer, &cause);
    };
    // SAFETY: as above.
    unsafe { Hearing::<S>::tell(to, told) };
}

unsafe extern "C" fn wanted<S: Sink>(to: *mut c_void, peer: Peer) {
    // SAFETY: inside a poll.
    unsafe { Hearing::<S>::tell(to, |sink, _| sink.wanted(peer)) };
}

unsafe extern "C" fn unreached<S: Sink>(to: *mut c_void, peer: Peer) {
    // SAFETY: inside a poll.
    unsafe { Hearing::<S>::tell(to, |sink, _| sink.unreached(peer)) };
}
