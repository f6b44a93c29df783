//! Completion queues with their channel, and shared receive queues.

use std::ffi::CStr;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;

use rdma_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_create_srq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_srq, ibv_get_cq_event, ibv_poll_cq,
    ibv_post_srq_recv, ibv_recv_wr, ibv_req_notify_cq, ibv_sge, ibv_srq, ibv_srq_init_attr, ibv_wc,
    ibv_wc_opcode, ibv_wc_status, ibv_wc_status_str,
};

use super::{Device, Local, Object, checked};

/// Most completions that one look takes.
pub(crate) const BATCH: usize = 64;
/// Most buffers that one call posts.
const CHAIN: usize = 16;

/// What stands for the number of a queue pair that is gone: no pair for connections has it.
pub(crate) const NO_PAIR: u32 = 0;

/// Work that is over.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    /// What the work was posted as.
    pub(crate) id: u64,
    /// Number of the queue pair.
    pub(crate) pair: u32,
    /// Bytes that have come, for receives; or what went wrong.
    pub(crate) result: Result<u32, Failure>,
}

impl Completion {
    /// What the library has told.
    ///
    /// # Safety
    /// Such a struct, in which the library has filled in all that it fills in for this kind of work.
    #[inline]
    unsafe fn told(wc: *const ibv_wc) -> Completion {
        // SAFETY: these are there for all work, and the last two where it has not failed: the kind, and for what has come its length.
        unsafe {
            let result = match (*wc).status {
                ibv_wc_status::IBV_WC_SUCCESS if (*wc).opcode & ibv_wc_opcode::IBV_WC_RECV == 0 => Ok(0),
                ibv_wc_status::IBV_WC_SUCCESS => Ok((*wc).byte_len),
                status => Err(Failure(status)),
            };
            Completion { id: (*wc).wr_id, pair: (*wc).qp_num, result }
        }
    }
}

/// What went wrong with work, as the library numbers it.
#[derive(Clone, Copy)]
pub(crate) struct Failure(ibv_wc_status::Type);

impl Failure {
    /// In the library's words.
    pub(crate) fn why(self) -> String {
        // SAFETY: the library has a text for each number.
        unsafe { CStr::from_ptr(ibv_wc_status_str(self.0)) }.to_string_lossy().into()
    }

    /// True if the peer, or this side's own device, has refused this very work, and did nothing that stands behind it.
    pub(crate) fn is_refusal(self) -> bool {
        use ibv_wc_status as status_is;
        matches!(
            self.0,
            status_is::IBV_WC_REM_ACCESS_ERR
                | status_is::IBV_WC_REM_INV_REQ_ERR
                | status_is::IBV_WC_LOC_PROT_ERR
                | status_is::IBV_WC_LOC_LEN_ERR
        )
    }
}

/// Room for a batch of completions.
pub(crate) struct Room([MaybeUninit<ibv_wc>; BATCH]);

impl Room {
    /// Not filled with zeros first: that would take longer than to see that there is nothing.
    #[inline(always)]
    pub(crate) fn new() -> Room {
        Room([const { MaybeUninit::uninit() }; BATCH])
    }
}

/// A completion queue, and the channel that tells a sleeper of it.
pub(crate) struct Completions {
    cq: Object<ibv_cq>,
    channel: Object<ibv_comp_channel>,
    _device: Arc<Device>,
}

impl Completions {
    /// A queue with room for so many completions.
    pub(crate) fn new(device: &Arc<Device>, room: u32) -> Result<Completions, String> {
        // SAFETY: an open device.
        let channel = unsafe { ibv_create_comp_channel(device.context()) };
        // SAFETY: it was just made here.
        let channel = unsafe { Object::new("completion channel", channel, ibv_destroy_comp_channel)? };
        let room = room.min(device.most_completions).cast_signed();
        // SAFETY: an open device and its channel, which ends after the queue.
        let cq = unsafe { ibv_create_cq(device.context(), room, null_mut(), channel.get(), 0) };
        // SAFETY: it was just made here.
        let cq = unsafe { Object::new("completion queue", cq, ibv_destroy_cq)? };
        let made = Completions { cq, channel, _device: device.clone() };
        let flags = rustix::fs::fcntl_getfl(made.descriptor()).and_then(|flags| {
            rustix::fs::fcntl_setfl(made.descriptor(), flags | rustix::fs::OFlags::NONBLOCK)
        });
        flags.map_err(|error| format!("its completion channel: {error}"))?;
        Ok(made)
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.cq.get()
    }

    /// Takes what is over, as much as there is room for.
    #[inline(always)]
    pub(crate) fn poll<'a>(&self, room: &'a mut Room) -> impl ExactSizeIterator<Item = Completion> + use<'a> {
        // SAFETY: a queue, and room for so many.
        let found = unsafe { ibv_poll_cq(self.raw(), BATCH as i32, room.0.as_mut_ptr().cast()) };
        // SAFETY: the library has told of so many.
        room.0[..found.max(0) as usize].iter().map(|wc| unsafe { Completion::told(wc.as_ptr()) })
    }

    /// Has the next completion make the descriptor readable.
    pub(crate) fn notify(&self) {
        // SAFETY: a queue. It can only fail where the device is gone, of which completions tell.
        unsafe { ibv_req_notify_cq(self.raw(), 0) };
    }

    /// Takes back what made the descriptor readable; true if there was something.
    pub(crate) fn quiet(&self) -> bool {
        let (mut cq, mut context) = (null_mut(), null_mut());
        let mut events = 0;
        // SAFETY: a channel, whose descriptor does not block, and places for what it gives.
        while unsafe { ibv_get_cq_event(self.channel.get(), &mut cq, &mut context) } == 0 {
            events += 1;
        }
        // SAFETY: so many events of this queue, the channel's only one, were taken.
        unsafe { ibv_ack_cq_events(self.raw(), events) };
        events > 0
    }

    /// The channel's descriptor.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open while this is there.
        unsafe { BorrowedFd::borrow_raw((*self.channel.get()).fd) }
    }
}

/// A shared receive queue.
pub(crate) struct Receives {
    srq: Object<ibv_srq>,
    _device: Arc<Device>,
}

impl Receives {
    /// A queue for so many buffers.
    pub(crate) fn new(device: &Arc<Device>, room: u32) -> Result<Receives, String> {
        // SAFETY: the struct holds numbers and a pointer that may be null.
        let mut how: ibv_srq_init_attr = unsafe { zeroed() };
        (how.attr.max_wr, how.attr.max_sge) = (room.min(device.most_receives), 1);
        // SAFETY: an open device, and what the queue is to be like.
        let srq = unsafe { ibv_create_srq(device.domain(), &mut how) };
        // SAFETY: it was just made here.
        let srq = unsafe { Object::new("shared receive queue", srq, ibv_destroy_srq)? };
        Ok(Receives { srq, _device: device.clone() })
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.srq.get()
    }

    /// Posts buffers, each with what its completion says, in as few calls as there are batches.
    pub(crate) fn post<'a>(&self, mut all: impl Iterator<Item = (u64, Local<'a>)>) -> Result<(), String> {
        let nothing = || ibv_sge { addr: 0, length: 0, lkey: 0 };
        let mut places: [ibv_sge; CHAIN] = std::array::from_fn(|_| nothing());
        loop {
            let mut works = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; CHAIN];
            let (mut number, mut next) = (0, null_mut());
            for ((place, work), (id, local)) in places.iter_mut().zip(&mut works).zip(all.by_ref()) {
                *place = local.place();
                next = work.write(ibv_recv_wr { wr_id: id, next, sg_list: place, num_sge: 1 });
                number += 1;
            }
            if number == 0 {
                return Ok(());
            }
            let mut bad = null_mut();
            // SAFETY: a chain of works, each with a place in registered memory; all of it is read before this returns.
            let error = unsafe { ibv_post_srq_recv(self.raw(), next, &mut bad) };
            checked("posting receive buffers", error)?;
        }
    }
}
