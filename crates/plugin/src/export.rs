//! The library's side: a [`Table`] of functions that call a fabric's methods.
//!
//! Functions of C end the process where a panic would leave them.

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::time::Duration;

use banyan_memory::Buffer;
use banyan_transport::{
    Access, Atomic, Caps, DeviceMoves, Fabric, Head, Joining, Member, NotStarted, Order, Outcome, Peer,
    Remote, Sent, Sink, Token, Transfer, Wake,
};

use crate::table::{
    Begun, Bytes, Edition, Events, Fill, Handle, Memory, Posted, Registered, Say, Start, Table, Terms, Until,
};

impl Table {
    /// The table of a type of fabrics, of which a job starts one.
    pub const fn of<F: Member + Send>() -> Table {
        Table { start: start::<F>, ..Table::of_started::<F>() }
    }

    /// The same, without the start.
    pub(crate) const fn of_started<F: Fabric + Send>() -> Table {
        Table {
            edition: Edition::OURS,
            start: no_start,
            end: end::<F>,
            caps: caps::<F>,
            send_short: send_short::<F>,
            send_bcopy: send_bcopy::<F>,
            send_from: send_from::<F>,
            register: register::<F>,
            withdraw: withdraw::<F>,
            revoke: revoke::<F>,
            get: get::<F>,
            put: put::<F>,
            atomic: atomic::<F>,
            device_moves: device_moves::<F>,
            reclaim: reclaim::<F>,
            reaches: reaches::<F>,
            connect: connect::<F>,
            peer_died: peer_died::<F>,
            poll: poll::<F>,
            linger: linger::<F>,
            by_kernel: by_kernel::<F>,
            unsent: unsent::<F>,
            arm: arm::<F>,
            disarm: disarm::<F>,
            has_news: has_news::<F>,
            sleep: sleep::<F>,
            descriptor: descriptor::<F>,
            next_deadline: next_deadline::<F>,
            account: account::<F>,
        }
    }
}

/// # Safety
/// The handle is one that [`start`] gave for this type, and no other reference to it is in use: the other side calls as methods that
/// take `&mut self` are called.
unsafe fn of<'a, F>(fabric: Handle) -> &'a mut F {
    // SAFETY: by the caller.
    unsafe { &mut *fabric.cast() }
}

unsafe extern "C" fn start<F: Member>(terms: &Terms<'_>, card: Say, why: Say) -> Begun {
    // SAFETY: slices of the other side, which are there until this returns.
    let (node, nics, rdma, topology) = unsafe {
        let node = std::slice::from_raw_parts(terms.node, terms.node_len);
        (node, terms.nics.text(), terms.rdma.text(), terms.topology.text())
    };
    let started = F::start(Joining {
        me: terms.me,
        size: terms.size,
        job: terms.job,
        secret: *terms.secret,
        node: node.to_vec(),
        nodes: terms.nodes,
        crowded: terms.crowded,
        single_copy: false,
        streams: 0,
        nics: &nics,
        rdma: &rdma,
        turn: 0,
        topology: &topology,
        ports: None,
        patience: Duration::from_nanos(terms.patience),
        encrypt: false,
        reached: false,
        node_memory: &mut || Ok(None),
    });
    let not = |how, said: &str| {
        // SAFETY: inside the call that it came with.
        unsafe { why.say(said.as_bytes()) };
        Begun { fabric: std::ptr::null_mut(), how }
    };
    match started {
        Ok(Some((fabric, business_card))) => {
            // SAFETY: as above.
            unsafe { card.say(&business_card) };
            Begun { fabric: Box::into_raw(Box::new(fabric)).cast(), how: Start::Started }
        }
        Ok(None) => not(Start::Unused, ""),
        Err(NotStarted::Absent(said)) => not(Start::Absent, &said),
        Err(NotStarted::Broken(said)) => not(Start::Broken, &said),
        Err(NotStarted::Fatal(said)) => not(Start::Fatal, &said),
    }
}

unsafe extern "C" fn no_start(_terms: &Terms<'_>, _card: Say, _why: Say) -> Begun {
    Begun { fabric: std::ptr::null_mut(), how: Start::Unused }
}

unsafe extern "C" fn end<F: Fabric>(fabric: Handle) {
    // SAFETY: made by `start` of a box of this type, and ended once.
    drop(unsafe { Box::from_raw(fabric.cast::<F>()) });
}

/// Makes functions that call the method of their name with arguments that cross as they are.
macro_rules! plain {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)+) => {
        $(unsafe extern "C" fn $name<F: Fabric>(fabric: Handle $(, $argument: $type)*) $(-> $result)? {
            // SAFETY: the other side's promise.
            #[allow(clippy::useless_conversion, reason = "of those values that need one")]
            unsafe { of::<F>(fabric) }.$name($($argument.into()),*).into()
        })+
    };
}

plain! {
    caps(peer: Peer) -> Caps;
    withdraw(peer: Peer, remote: Remote);
    revoke(peer: Peer, remote: Remote);
    device_moves(peer: Peer) -> DeviceMoves;
    reclaim(peer: Peer, token: Token);
    reaches(peer: Peer) -> bool;
    by_kernel() -> bool;
    unsent() -> bool;
    arm(wake: Wake);
    disarm();
    has_news() -> bool;
    sleep(deadline: Until);
    next_deadline() -> Until;
}

unsafe extern "C" fn send_short<F: Fabric>(fabric: Handle, peer: Peer, head: &Head, body: Bytes) -> Posted {
    // SAFETY: the other side's promise; the slice is there until this returns.
    let (fabric, body) = unsafe { (of::<F>(fabric), body.get()) };
    fabric.send_short(peer, head, body).map(|()| Sent::Done).into()
}

unsafe extern "C" fn send_bcopy<F: Fabric>(
    fabric: Handle,
    peer: Peer,
    head: &Head,
    len: usize,
    fill: Fill,
) -> Posted {
    // SAFETY: the other side's promise.
    let fabric = unsafe { of::<F>(fabric) };
    // SAFETY: inside the call that it came with, once, with a slice.
    let mut filled = |body: &mut [u8]| unsafe { (fill.fill)(fill.by, body.as_mut_ptr(), body.len()) };
    fabric.send_bcopy(peer, head, len, &mut filled).map(|()| Sent::Done).into()
}

unsafe extern "C" fn send_from<F: Fabric>(
    fabric: Handle,
    peer: Peer,
    head: &Head,
    memory: Memory,
    token: Option<&Token>,
    order: Order,
) -> Posted {
    // SAFETY: the other side's promise; it keeps the memory for as long as the contract says.
    let (fabric, memory) = unsafe { (of::<F>(fabric), memory.buffer()) };
    fabric.send_from(peer, head, (&memory, 0, memory.len()), token.copied(), order).into()
}

unsafe extern "C" fn register<F: Fabric>(
    fabric: Handle,
    peer: Peer,
    memory: Memory,
    access: Access,
    remote: &mut Remote,
) -> Registered {
    // SAFETY: as above.
    let (fabric, memory) = unsafe { (of::<F>(fabric), memory.buffer()) };
    match fabric.register(peer, &memory, access) {
        Ok(registered) => {
            *remote = registered;
            Registered::Done
        }
        Err(error) => error.into(),
    }
}

/// # Safety
/// The other side keeps the memory of all these buffers for as long as the contract says.
unsafe fn buffers(first: *const Memory, number: usize) -> Vec<Buffer> {
    // SAFETY: a slice of the other side, there until the call returns; the rest by the caller.
    unsafe { std::slice::from_raw_parts(first, number).iter().map(|memory| memory.buffer()).collect() }
}

unsafe extern "C" fn get<F: Fabric>(
    fabric: Handle,
    peer: Peer,
    remote: Remote,
    local: *const Memory,
    number: usize,
    token: Token,
) -> Transfer {
    // SAFETY: the other side's promise.
    let (fabric, local) = unsafe { (of::<F>(fabric), buffers(local, number)) };
    fabric.get(peer, remote, &local, token)
}

unsafe extern "C" fn put<F: Fabric>(
    fabric: Handle,
    peer: Peer,
    remote: Remote,
    local: *const Memory,
    number: usize,
    token: Token,
) -> Transfer {
    // SAFETY: the other side's promise.
    let (fabric, local) = unsafe { (of::<F>(fabric), buffers(local, number)) };
    fabric.put(peer, remote, &local, token)
}

unsafe extern "C" fn atomic<F: Fabric>(
    fabric: Handle,
    peer: Peer,
    word: Remote,
    op: &Atomic,
    result: Memory,
    token: Token,
) -> Transfer {
    // SAFETY: the other side's promise; it keeps the memory for as long as the contract says.
    let (fabric, result) = unsafe { (of::<F>(fabric), result.buffer()) };
    fabric.atomic(peer, word, *op, &result, token)
}

unsafe extern "C" fn connect<F: Fabric>(fabric: Handle, peer: Peer, card: Bytes, why: Say) -> bool {
    // SAFETY: the other side's promise; the slice is there until this returns.
    let (fabric, card) = unsafe { (of::<F>(fabric), card.get()) };
    let connected = fabric.connect(peer, card);
    if let Err(said) = &connected {
        // SAFETY: inside the call that it came with.
        unsafe { why.say(said.as_bytes()) };
    }
    connected.is_ok()
}

unsafe extern "C" fn peer_died<F: Fabric>(fabric: Handle, peer: Peer, cause: Bytes) {
    // SAFETY: the other side's promise; the slice is there until this returns.
    let (fabric, cause) = unsafe { (of::<F>(fabric), cause.text()) };
    fabric.peer_died(peer, &cause);
}

unsafe extern "C" fn descriptor<F: Fabric>(fabric: Handle) -> c_int {
    // SAFETY: the other side's promise.
    match unsafe { of::<F>(fabric) }.descriptor() {
        Ok(descriptor) => descriptor.into_raw_fd(),
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}

unsafe extern "C" fn account<F: Fabric>(fabric: Handle, say: Say) {
    // SAFETY: the other side's promise.
    if let Some(text) = unsafe { of::<F>(fabric) }.account() {
        // SAFETY: inside the call that it came with.
        unsafe { say.say(text.as_bytes()) };
    }
}

unsafe extern "C" fn poll<F: Fabric>(fabric: Handle, to: *mut c_void, events: &Events) -> usize {
    // SAFETY: the other side's promise.
    unsafe { of::<F>(fabric) }.poll(&mut Elsewhere { to, events })
}

unsafe extern "C" fn linger<F: Fabric>(
    fabric: Handle,
    looks: u32,
    to: *mut c_void,
    events: &Events,
) -> usize {
    // SAFETY: the other side's promise.
    unsafe { of::<F>(fabric) }.linger(looks, &mut Elsewhere { to, events })
}

/// The sink of the other side, inside a poll.
struct Elsewhere<'a> {
    to: *mut c_void,
    events: &'a Events,
}

impl Sink for Elsewhere<'_> {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        // SAFETY: the sink that came with the poll, and its function.
        unsafe { (self.events.frame)(self.to, peer, head, body.into()) };
    }

    fn sent(&mut self, token: Token) {
        // SAFETY: as above.
        unsafe { (self.events.sent)(self.to, token) };
    }

    fn completed(&mut self, token: Token, outcome: Outcome) {
        // SAFETY: as above.
        unsafe { (self.events.completed)(self.to, token, outcome) };
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        // SAFETY: as above.
        unsafe { (self.events.down)(self.to, peer, cause.as_bytes().into()) };
    }

    fn wanted(&mut self, peer: Peer) {
        // SAFETY: as above.
        unsafe { (self.events.wanted)(self.to, peer) };
    }

    fn unreached(&mut self, peer: Peer) {
        // SAFETY: as above.
        unsafe { (self.events.unreached)(self.to, peer) };
    }
}
