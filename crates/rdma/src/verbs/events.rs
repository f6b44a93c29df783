//! What a device tells by itself: its asynchronous events.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rdma_sys::{
    ibv_ack_async_event, ibv_async_event, ibv_event_type, ibv_event_type_str, ibv_get_async_event,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::Device;

/// An event.
pub(crate) struct Event {
    pub(crate) about: About,
    /// In the library's words.
    pub(crate) says: String,
}

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum About {
    /// The device, or a queue of all connections: it is of no use any more.
    Device,
    /// The port that is used: its state or its addresses have changed.
    Port,
    /// The queue pair of this number: it is of no use any more.
    Pair(u32),
    /// Nothing that matters here.
    Other,
}

impl Device {
    /// Has [`Device::event`] not wait.
    pub(super) fn do_not_wait_for_events(&self) -> io::Result<()> {
        let flags = fcntl_getfl(self.events())?;
        Ok(fcntl_setfl(self.events(), flags | OFlags::NONBLOCK)?)
    }

    /// The descriptor that events make readable.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: an open device, whose descriptor is open as long.
        unsafe { BorrowedFd::borrow_raw((*self.context()).async_fd) }
    }

    /// Takes the next event, if there is one.
    pub(crate) fn event(&self) -> Option<Event> {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: an open device, whose descriptor does not block, and a place for the event.
        if unsafe { ibv_get_async_event(self.context(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        let taken = self.read(&event);
        // SAFETY: an event that was taken, once.
        unsafe { ibv_ack_async_event(event.as_mut_ptr()) };
        Some(taken)
    }

    fn read(&self, event: &MaybeUninit<ibv_async_event>) -> Event {
        // A kernel may be newer than the library, and its event none of those that the type knows: it is looked at as a number.
        // SAFETY: the library has filled the event; its kind is a number of this size.
        let number = unsafe { (&raw const (*event.as_ptr()).event_type).cast::<u32>().read() };
        let Some(&(kind, part)) = KINDS.iter().find(|(kind, _)| *kind as u32 == number) else {
            return Event { about: About::Other, says: format!("event {number}") };
        };
        // SAFETY: which part of the union is filled follows from the kind.
        let element = unsafe { &(*event.as_ptr()).element };
        let about = match part {
            Part::Device => About::Device,
            // SAFETY: of this kind it is the number of a port.
            Part::Port if unsafe { element.port_num } != i32::from(self.port) => About::Other,
            Part::Port => About::Port,
            // SAFETY: of this kind it is a queue pair, which is there until the event is acknowledged.
            Part::Pair => About::Pair(unsafe { (*element.qp).qp_num }),
        };
        // SAFETY: the library has a text for each kind.
        let says = unsafe { CStr::from_ptr(ibv_event_type_str(kind)) };
        Event { about, says: says.to_string_lossy().into_owned() }
    }
}

/// What a kind of event is about, and so what comes with it.
#[derive(Clone, Copy)]
enum Part {
    Device,
    Port,
    Pair,
}

/// The kinds that matter. A device may not end a completion queue or a shared receive queue: all connections use these.
const KINDS: [(ibv_event_type, Part); 13] = [
    (ibv_event_type::IBV_EVENT_DEVICE_FATAL, Part::Device),
    (ibv_event_type::IBV_EVENT_CQ_ERR, Part::Device),
    (ibv_event_type::IBV_EVENT_SRQ_ERR, Part::Device),
    (ibv_event_type::IBV_EVENT_QP_FATAL, Part::Pair),
    (ibv_event_type::IBV_EVENT_QP_REQ_ERR, Part::Pair),
    (ibv_event_type::IBV_EVENT_QP_ACCESS_ERR, Part::Pair),
    (ibv_event_type::IBV_EVENT_PORT_ACTIVE, Part::Port),
    (ibv_event_type::IBV_EVENT_PORT_ERR, Part::Port),
    (ibv_event_type::IBV_EVENT_LID_CHANGE, Part::Port),
    (ibv_event_type::IBV_EVENT_PKEY_CHANGE, Part::Port),
    (ibv_event_type::IBV_EVENT_SM_CHANGE, Part::Port),
    (ibv_event_type::IBV_EVENT_CLIENT_REREGISTER, Part::Port),
    (ibv_event_type::IBV_EVENT_GID_CHANGE, Part::Port),
];
