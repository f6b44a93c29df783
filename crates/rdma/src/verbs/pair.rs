//! Queue pairs: reliable connections, and the one for datagrams.

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;

use rdma_sys::{
    atomic_t, ibv_access_flags, ibv_ah, ibv_ah_attr, ibv_create_ah, ibv_create_qp, ibv_destroy_ah,
    ibv_destroy_qp, ibv_modify_qp, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge,
    ibv_wr_opcode, rdma_t, ud_t,
};

use super::{Completions, Device, Object, Receives, checked, cm};
use crate::frames::Id;
use crate::greeting::{Path, Wire};

/// Work that one queue pair has under way at most.
const DEPTH: u32 = 64;
/// Bytes that work may carry in itself: the first of these that the device can do.
const INLINE: [u32; 3] = [128, 64, 0];
/// What datagrams of ours are marked with.
const QKEY: u32 = 0x2b61_6e79;
/// An acknowledgement that is late is asked for again, seven times.
const RETRIES: u8 = 7;
/// What a pair is for: how often it tries again where the other side was not ready.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Use {
    /// Never: credits see to it that there is a buffer for each frame.
    Frames = 0,
    /// Always (7 stands for that): software devices say so when they cannot send what is read just now.
    Transfers = 7,
}

/// Memory of this side that work uses.
#[derive(Clone, Copy)]
pub(crate) enum Local<'a> {
    /// Bytes that leave with the work itself.
    Inline(&'a [u8]),
    /// A part of a region.
    Registered { addr: u64, len: u32, lkey: u32 },
}

impl Local<'_> {
    pub(super) fn place(&self) -> ibv_sge {
        match *self {
            Local::Inline(bytes) => ibv_sge {
                addr: bytes.as_ptr().expose_provenance() as u64,
                length: bytes.len() as u32,
                lkey: 0,
            },
            Local::Registered { addr, len, lkey } => ibv_sge { addr, length: len, lkey },
        }
    }
}

/// Memory of the peer that work uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// What work does.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Send,
    Read(Remote),
    Write(Remote),
    Add(Remote, u64),
    CompareSwap(Remote, u64, u64),
}

/// Work to be posted. What it is told of as, unless it is one of several of which the last is told of.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) id: u64,
    pub(crate) told: bool,
    pub(crate) local: Local<'a>,
    pub(crate) op: Op,
}

impl Work<'_> {
    /// The work in the library's form, with the place of its memory.
    #[inline(always)]
    fn raw(&self, place: &mut ibv_sge) -> ibv_send_wr {
        // SAFETY: the struct holds numbers, and pointers that may be null.
        let mut raw: ibv_send_wr = unsafe { zeroed() };
        (raw.wr_id, raw.sg_list, raw.num_sge) = (self.id, place, 1);
        let inline = matches!(self.local, Local::Inline(_));
        let flag = |condition: bool, flag: ibv_send_flags| if condition { flag.0 } else { 0 };
        raw.send_flags = flag(self.told, ibv_send_flags::IBV_SEND_SIGNALED);
        raw.send_flags |= flag(inline, ibv_send_flags::IBV_SEND_INLINE);
        let rdma = |Remote { addr, rkey }| rdma_t { remote_addr: addr, rkey };
        let atomic = |Remote { addr, rkey }, compare_add, swap| atomic_t {
            remote_addr: addr,
            compare_add,
            swap,
            rkey,
        };
        match self.op {
            Op::Send => raw.opcode = ibv_wr_opcode::IBV_WR_SEND,
            Op::Read(from) => (raw.opcode, raw.wr.rdma) = (ibv_wr_opcode::IBV_WR_RDMA_READ, rdma(from)),
            Op::Write(to) => (raw.opcode, raw.wr.rdma) = (ibv_wr_opcode::IBV_WR_RDMA_WRITE, rdma(to)),
            Op::Add(word, operand) => {
                raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                raw.wr.atomic = atomic(word, operand, 0);
            }
            Op::CompareSwap(word, old, new) => {
                raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                raw.wr.atomic = atomic(word, old, new);
            }
        }
        raw
    }
}

/// A queue pair of either kind.
struct Queue {
    qp: Object<ibv_qp>,
    inline: usize,
    _completions: Arc<Completions>,
    receives: Option<Arc<Receives>>,
    device: Arc<Device>,
}

impl Queue {
    /// A queue pair that may receive: by the shared queue, or else a few datagrams.
    fn new(
        device: &Arc<Device>,
        completions: &Arc<Completions>,
        receives: Option<&Arc<Receives>>,
    ) -> Result<Queue, String> {
        // SAFETY: the struct holds numbers, and pointers that may be null.
        let mut how: ibv_qp_init_attr = unsafe { zeroed() };
        (how.send_cq, how.recv_cq) = (completions.raw(), completions.raw());
        how.srq = receives.map_or(null_mut(), |receives| receives.raw());
        how.qp_type = if receives.is_some() { ibv_qp_type::IBV_QPT_RC } else { ibv_qp_type::IBV_QPT_UD };
        (how.cap.max_send_wr, how.cap.max_send_sge, how.cap.max_recv_sge) = (DEPTH, 1, 1);
        how.cap.max_recv_wr = DEPTH;
        how.cap.max_send_wr *= device.works_each();
        let qp = INLINE.into_iter().map(|bytes| {
            how.cap.max_inline_data = bytes;
            // SAFETY: an open device, its queues, and what the pair is to be like.
            unsafe { ibv_create_qp(device.domain(), &mut how) }
        });
        let qp = qp.into_iter().find(|qp| !qp.is_null()).unwrap_or_else(null_mut);
        // SAFETY: it was just made here.
        let qp = unsafe { Object::new("queue pair", qp, ibv_destroy_qp)? };
        let (_completions, receives) = (completions.clone(), receives.cloned());
        let queue = Queue {
            qp,
            inline: how.cap.max_inline_data as usize,
            _completions,
            receives,
            device: device.clone(),
        };
        queue.begin()?;
        Ok(queue)
    }

    /// Brings a pair that is new, or was reset, into its first state of use.
    fn begin(&self) -> Result<(), String> {
        self.change("a queue pair's start", ibv_qp_state::IBV_QPS_INIT, |to| {
            (to.port_num, to.pkey_index) = (self.device.port, self.device.pkey_index);
            let partition = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX;
            let partition = if self.device.wire == Wire::Iwarp { ibv_qp_attr_mask(0) } else { partition };
            let fixed = partition | ibv_qp_attr_mask::IBV_QP_PORT;
            if self.receives.is_some() {
                let all =
                    ibv_access_flags::IBV_ACCESS_REMOTE_READ | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
                let atomic = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
                to.qp_access_flags = if self.device.atomics { all | atomic } else { all }.0;
                fixed | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS
            } else {
                to.qkey = QKEY;
                fixed | ibv_qp_attr_mask::IBV_QP_QKEY
            }
        })
    }

    /// Brings the pair into a state, with what `fill` fills in and names.
    fn change(
        &self,
        what: &str,
        state: ibv_qp_state::Type,
        fill: impl FnOnce(&mut ibv_qp_attr) -> ibv_qp_attr_mask,
    ) -> Result<(), String> {
        // SAFETY: the struct holds numbers alone.
        let mut to: ibv_qp_attr = unsafe { zeroed() };
        to.qp_state = state;
        let named = (fill(&mut to) | ibv_qp_attr_mask::IBV_QP_STATE).0;
        // SAFETY: a queue pair, and the struct in which the named parts are filled.
        checked(what, unsafe { ibv_modify_qp(self.qp.get(), &mut to, named.cast_signed()) })
    }

    fn number(&self) -> u32 {
        // SAFETY: the object is there while this is.
        unsafe { (*self.qp.get()).qp_num }
    }

    #[inline(always)]
    fn post(&self, raw: &mut ibv_send_wr) -> Result<(), String> {
        let mut bad = null_mut();
        // SAFETY: work in the library's form, read before this returns. Registered memory is safe by its keys.
        checked("posting work", unsafe { ibv_post_send(self.qp.get(), raw, &mut bad) })
    }
}

/// The way to a port, for a connection or a datagram.
fn address(device: &Device, path: &Path) -> Result<ibv_ah_attr, String> {
    // SAFETY: the struct holds numbers alone.
    let mut to: ibv_ah_attr = unsafe { zeroed() };
    (to.dlid, to.port_num, to.sl) = (path.lid, device.port, device.sl);
    if device.wire == Wire::Ethernet {
        to.is_global = 1;
        to.grh.dgid.raw = path.to.octets();
        (to.grh.sgid_index, to.grh.hop_limit) = (device.gid_index(path.from)?, 64);
        to.grh.traffic_class = device.traffic_class;
    }
    Ok(to)
}

/// One end of a reliable connection. It is connected by hand ([`Pair::connect`]), or, on iWARP, by rdma_cm: one side reaches for the other
/// one and asks ([`Pair::reach`], [`Pair::ask`]), which accepts.
pub(crate) struct Pair {
    /// What rdma_cm has of it.
    way: Option<cm::End>,
    confirming: Confirming,
    sends: Sends,
    queue: Queue,
}

/// A send of a frame in the library's form. It is the same each time, but for some parts that are filled in, and longer than all else that a
/// send has to write.
struct Sends(ibv_send_wr);

// SAFETY: numbers, and pointers that are followed while one is posted, and not else.
unsafe impl Send for Sends {}

impl Sends {
    fn new() -> Sends {
        // SAFETY: the struct holds numbers, and pointers that may be null.
        let mut raw: ibv_send_wr = unsafe { zeroed() };
        (raw.num_sge, raw.opcode) = (1, ibv_wr_opcode::IBV_WR_SEND);
        Sends(raw)
    }
}

/// What stands behind work whose own completion does not tell that it was carried out.
enum Confirming {
    Nothing,
    /// Behind what sends or writes a read, on iWARP, where only that tells what has arrived.
    Read(Local<'static>, Remote),
    /// Behind what reads a write of no bytes: the driver of RoCE in software (rxe, Linux 6.1) tells that a read is well over where a packet of the
    /// answer is out of order, and ends the pair then, so that what stands behind that read is told to have failed.
    Write,
}

impl Pair {
    /// An end that is not connected.
    pub(crate) fn new(
        device: &Arc<Device>,
        completions: &Arc<Completions>,
        receives: &Arc<Receives>,
    ) -> Result<Pair, String> {
        let confirming = if device.misreports_reads() { Confirming::Write } else { Confirming::Nothing };
        let queue = Queue::new(device, completions, Some(receives))?;
        Ok(Pair { way: None, confirming, sends: Sends::new(), queue })
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.queue.number()
    }

    /// Work that it has under way at most.
    pub(crate) const DEPTH: usize = DEPTH as usize;

    /// Connects it to the peer's pair of this number, whose first packet has the number `theirs`; its own has `ours`. An acknowledgement
    /// is late after 4.096 us * 2^`late`.
    pub(crate) fn connect(
        &self,
        usage: Use,
        path: &Path,
        pair: u32,
        (ours, theirs): (u32, u32),
        late: u8,
    ) -> Result<(), String> {
        let (device, mask) = (&self.queue.device, ibv_qp_attr_mask::IBV_QP_AV);
        let address = address(device, path)?;
        self.queue.change("a connection's way to the peer", ibv_qp_state::IBV_QPS_RTR, |to| {
            to.ah_attr = address;
            to.path_mtu = u32::from(path.mtu.min(device.mtu));
            (to.dest_qp_num, to.rq_psn) = (pair, theirs);
            (to.max_dest_rd_atomic, to.min_rnr_timer) = (device.reads, 1);
            mask | ibv_qp_attr_mask::IBV_QP_PATH_MTU
                | ibv_qp_attr_mask::IBV_QP_DEST_QPN
                | ibv_qp_attr_mask::IBV_QP_RQ_PSN
                | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER
        })?;
        self.queue.change("a connection's start", ibv_qp_state::IBV_QPS_RTS, |to| {
            (to.timeout, to.retry_cnt, to.rnr_retry) = (late, RETRIES, usage as u8);
            (to.sq_psn, to.max_rd_atomic) = (ours, self.reads(path));
            ibv_qp_attr_mask::IBV_QP_TIMEOUT
                | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
                | ibv_qp_attr_mask::IBV_QP_SQ_PSN
                | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC
        })
    }

    /// Ends it: all work under way comes back, and no more is done.
    pub(crate) fn fail(&self) {
        // Fails where the device is gone, or the pair has never been connected: then nothing is under way.
        let _ =
            self.queue.change("a pair's end", ibv_qp_state::IBV_QPS_ERR, |_| ibv_qp_attr_mask::IBV_QP_STATE);
    }

    /// Looks for the way to the peer, to ask for a connection; an event tells that it is known.
    pub(crate) fn reach(&mut self, manager: &cm::Manager, path: &Path) -> Result<(), String> {
        let [_, listens] = path.sockets();
        self.way = Some(manager.reach(self.number(), listens)?);
        Ok(())
    }

    /// Asks for the connection, and says something.
    pub(crate) fn ask(&self, path: &Path, say: &[u8]) -> Result<(), String> {
        let way = self.way.as_ref().ok_or("a connection that nobody has reached for")?;
        way.ask(self.number(), self.reads(path), say)
    }

    /// Accepts the connection that the peer has asked for, unless there is one.
    pub(crate) fn accept(&mut self, path: &Path, asked: cm::End) -> Result<(), String> {
        if self.way.is_some() {
            return Err("the peer asks for a connection that it has".into());
        }
        asked.accept(self.number(), self.reads(path))?;
        self.way = Some(asked);
        Ok(())
    }

    /// Reads that both sides answer at a time.
    fn reads(&self, path: &Path) -> u8 {
        path.reads.min(self.queue.device.reads)
    }

    /// Has a read into this memory stand behind all work that sends or writes.
    pub(crate) fn confirm_by(&mut self, into: Local<'static>, from: Remote) {
        self.confirming = Confirming::Read(into, from);
    }

    /// Posts the send of bytes in memory that has this key; few of them leave with the work itself.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, id: u64, bytes: &[u8], lkey: u32) -> Result<(), String> {
        let (addr, len) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u32);
        let inline = bytes.len() <= self.queue.inline;
        if let Confirming::Read(into, from) = self.confirming {
            let local = if inline { Local::Inline(bytes) } else { Local::Registered { addr, len, lkey } };
            let work = Work { id, told: true, local, op: Op::Send };
            return self.post_confirmed(work, into, Op::Read(from));
        }
        // What leaves with the work itself needs no key, and may have one.
        let mut place = ibv_sge { addr, length: len, lkey };
        let raw = &mut self.sends.0;
        (raw.wr_id, raw.sg_list) = (id, &mut place);
        raw.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        raw.send_flags |= if inline { ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 };
        self.queue.post(raw)
    }

    /// Posts work. Its completion tells that it was carried out at the peer, if need be by other work that stands behind it.
    #[inline(always)]
    pub(crate) fn post(&self, work: Work<'_>) -> Result<(), String> {
        match (&self.confirming, work.op) {
            (Confirming::Nothing, _)
            | (Confirming::Read(..), Op::Read(_))
            | (Confirming::Write, Op::Send | Op::Write(_) | Op::Add(..) | Op::CompareSwap(..)) => {
                let mut place = work.local.place();
                self.queue.post(&mut work.raw(&mut place))
            }
            (Confirming::Read(local, from), _) => self.post_confirmed(work, *local, Op::Read(*from)),
            (Confirming::Write, Op::Read(from)) => {
                self.post_confirmed(work, Local::Inline(&[]), Op::Write(from))
            }
        }
    }

    /// Posts work, and other work behind it that tells of both.
    #[cold]
    fn post_confirmed(&self, work: Work<'_>, local: Local<'static>, op: Op) -> Result<(), String> {
        let behind = Work { local, op, ..work };
        let ahead = Work { id: Id::ahead_of(work.id).into(), told: false, ..work };
        let (mut first, mut second) = (ahead.local.place(), behind.local.place());
        let (mut ahead, mut behind) = (ahead.raw(&mut first), behind.raw(&mut second));
        ahead.next = &mut behind;
        self.queue.post(&mut ahead)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // rdma_cm waits for what is under way, unless that has failed.
        if self.way.is_some() {
            self.fail();
        }
    }
}

/// The queue pair that receives and sends datagrams.
pub(crate) struct Datagrams(Queue);

/// Where datagrams to a peer go.
pub(crate) struct AddressHandle {
    ah: Object<ibv_ah>,
    pair: u32,
}

impl Datagrams {
    /// Bytes that stand before a datagram where it has arrived.
    pub(crate) const BEFORE: usize = 40;

    /// A pair that receives as soon as it has buffers.
    pub(crate) fn new(device: &Arc<Device>, completions: &Arc<Completions>) -> Result<Datagrams, String> {
        let datagrams = Datagrams(Queue::new(device, completions, None)?);
        datagrams.start()?;
        Ok(datagrams)
    }

    fn start(&self) -> Result<(), String> {
        let nothing = ibv_qp_attr_mask::IBV_QP_STATE;
        self.0.change("the start of datagrams", ibv_qp_state::IBV_QPS_RTR, |_| nothing)?;
        self.0.change("the start of datagrams", ibv_qp_state::IBV_QPS_RTS, |to| {
            to.sq_psn = 0;
            ibv_qp_attr_mask::IBV_QP_SQ_PSN
        })
    }

    /// Starts it again under its number, without buffers.
    pub(crate) fn restart(&self) -> Result<(), String> {
        let nothing = ibv_qp_attr_mask::IBV_QP_STATE;
        self.0.change("a new start of datagrams", ibv_qp_state::IBV_QPS_RESET, |_| nothing)?;
        self.0.begin()?;
        self.start()
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.0.number()
    }

    /// Posts a buffer, with what its completion says.
    pub(crate) fn receive(&self, id: u64, local: Local<'_>) -> Result<(), String> {
        let mut place = local.place();
        let mut work = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut place, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: a place in registered memory; the work is read before this returns.
        checked("posting a buffer", unsafe { ibv_post_recv(self.0.qp.get(), &mut work, &mut bad) })
    }

    /// The handle of the pair that a path leads to.
    pub(crate) fn handle(&self, path: &Path) -> Result<AddressHandle, String> {
        let device = &self.0.device;
        let mut address = address(device, path)?;
        // SAFETY: an open device, and an address.
        let ah = unsafe { ibv_create_ah(device.domain(), &mut address) };
        // SAFETY: it was just made here.
        let ah = unsafe { Object::new("address handle", ah, ibv_destroy_ah)? };
        Ok(AddressHandle { ah, pair: path.datagrams })
    }

    /// Sends a datagram.
    pub(crate) fn send(&self, to: &AddressHandle, id: u64, local: Local<'_>) -> Result<(), String> {
        let mut place = local.place();
        let mut raw = Work { id, told: true, local, op: Op::Send }.raw(&mut place);
        raw.wr.ud = ud_t { ah: to.ah.get(), remote_qpn: to.pair, remote_qkey: QKEY };
        self.0.post(&mut raw)
    }
}
