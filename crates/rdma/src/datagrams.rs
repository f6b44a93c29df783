//! [`Greetings`]: what sends and hears greetings. On iWARP that is a socket ([`crate::iwarp`]), elsewhere a [`Queue`]: the queue pair of
//! datagrams with its buffers. If it fails (it does where there is no way to a peer just now) it is started again, under the number that
//! the business card tells.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::frames::Id;
use crate::greeting::{self, Path, Wire};
use crate::iwarp::Iwarp;
use crate::verbs::{AddressHandle, Completions, Datagrams, Device, Slots};

/// Buffers for greetings that come. More that come at a time are lost, and come again.
pub(crate) const HEARING: usize = 64;
/// Greetings that leave at a time.
pub(crate) const LEAVING: usize = 16;

/// What sends and hears greetings.
pub(crate) enum Greetings {
    Queue(Queue),
    Iwarp(Iwarp),
}

impl Greetings {
    pub(crate) fn new(device: &Arc<Device>, completions: &Arc<Completions>) -> Result<Greetings, String> {
        match device.wire {
            Wire::Iwarp => Iwarp::new(device).map(Greetings::Iwarp),
            _ => Queue::new(device, completions).map(Greetings::Queue),
        }
    }

    /// Number of the queue pair, or of the socket's port.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Greetings::Queue(queue) => queue.datagrams.number(),
            Greetings::Iwarp(iwarp) => iwarp.number().into(),
        }
    }

    /// The port at which rdma_cm listens, if it does.
    pub(crate) fn listens(&self) -> u16 {
        match self {
            Greetings::Queue(_) => 0,
            Greetings::Iwarp(iwarp) => iwarp.listens(),
        }
    }

    /// Memory of this process that answers reads, where that is needed.
    pub(crate) fn mark(&self) -> (u64, u32) {
        match self {
            Greetings::Queue(_) => (0, 0),
            Greetings::Iwarp(iwarp) => iwarp.mark(),
        }
    }

    /// Sends a greeting to the process that a path leads to.
    ///
    /// # Errors
    /// If it cannot leave now.
    pub(crate) fn send(&mut self, to: &Path, bytes: &[u8]) -> Result<(), String> {
        match self {
            Greetings::Queue(queue) => queue.send(to, bytes),
            Greetings::Iwarp(iwarp) => iwarp.send(to, bytes),
        }
    }

    /// The descriptors that are readable when something has come that no completion tells of.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = match self {
            Greetings::Queue(_) => None,
            Greetings::Iwarp(iwarp) => Some(iwarp.descriptors()),
        };
        sockets.into_iter().flatten()
    }

    /// The queue pair of datagrams, where there is one.
    pub(crate) fn queue(&mut self) -> Option<&mut Queue> {
        match self {
            Greetings::Queue(queue) => Some(queue),
            Greetings::Iwarp(_) => None,
        }
    }
}

/// The queue pair of datagrams.
pub(crate) struct Queue {
    datagrams: Datagrams,
    heard: Slots,
    leaving: Slots,
    /// Where those that are leaving go to.
    handles: Vec<Option<AddressHandle>>,
    /// How often it was started again. What was under way before is not waited for.
    life: u32,
    failed: bool,
}

impl Queue {
    fn new(device: &Arc<Device>, completions: &Arc<Completions>) -> Result<Queue, String> {
        let greetings = Queue {
            datagrams: Datagrams::new(device, completions)?,
            heard: Slots::new(device, HEARING, Datagrams::BEFORE + greeting::LONGEST)?,
            leaving: Slots::new(device, LEAVING, greeting::LONGEST)?,
            handles: (0..LEAVING).map(|_| None).collect(),
            life: 0,
            failed: false,
        };
        (0..HEARING as u32).try_for_each(|slot| greetings.listen(slot))?;
        Ok(greetings)
    }

    /// The slot that work of this number uses, if it is of the present life; `ok`: it went well.
    pub(crate) fn slot(&mut self, number: u32, ok: bool) -> Option<u32> {
        let (life, slot) = (number >> 8, number & 0xff);
        let present = life == self.life & 0xff_ffff;
        self.failed |= present && !ok;
        present.then_some(slot)
    }

    fn id(&self, slot: u32) -> u32 {
        self.life << 8 | slot
    }

    /// A greeting has left.
    pub(crate) fn left(&mut self, slot: u32) {
        self.handles[slot as usize] = None;
    }

    /// The greeting that has come in a slot.
    pub(crate) fn heard(&self, slot: u32, len: usize) -> &[u8] {
        self.heard.bytes(slot as usize, len).get(Datagrams::BEFORE..).unwrap_or_default()
    }

    /// Has the next greeting come in a slot.
    pub(crate) fn listen(&self, slot: u32) -> Result<(), String> {
        self.datagrams.receive(Id::Datagram(self.id(slot)).into(), self.heard.whole(slot as usize))
    }

    fn send(&mut self, to: &Path, bytes: &[u8]) -> Result<(), String> {
        if self.failed {
            self.life = self.life.wrapping_add(1);
            self.datagrams.restart()?;
            self.handles.iter_mut().for_each(|handle| *handle = None);
            (0..HEARING as u32).try_for_each(|slot| self.listen(slot))?;
            self.failed = false;
        }
        let free = self.handles.iter().position(Option::is_none).ok_or("all slots are in use")?;
        self.leaving.bytes_mut(free, bytes.len()).copy_from_slice(bytes);
        let handle = self.datagrams.handle(to)?;
        let id = Id::Greeting(self.id(free as u32)).into();
        self.datagrams.send(&handle, id, self.leaving.local(free, bytes.len()))?;
        self.handles[free] = Some(handle);
        Ok(())
    }
}
