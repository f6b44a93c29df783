//! [`Windows`]: the buffers that frames arrive in, a window of them for each connection that stands. Those of connections that have ended
//! stay in the shared queue until frames have come by them, and are then spare, for the next one.

use std::sync::Arc;

use crate::credit::WINDOW;
use crate::frames::{Id, SLOT};
use crate::verbs::{Device, Receives, Slots};

/// All buffers for frames. Slot `s` is one of window `s / WINDOW`.
#[derive(Default)]
pub(crate) struct Windows {
    all: Vec<Slots>,
    /// Slots that are to be posted anew.
    empty: Vec<u32>,
    /// Slots that no connection needs, and that are not posted.
    spare: Vec<u32>,
    /// Slots that are posted, or to be posted, and that no connection needs.
    surplus: usize,
    in_use: usize,
}

impl Windows {
    /// Number of windows that connections have.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Posts a window of buffers for one more connection.
    pub(crate) fn take(&mut self, device: &Arc<Device>, receives: &Receives) -> Result<(), String> {
        let mut needed = usize::from(WINDOW);
        let posted = needed.min(self.surplus);
        needed -= posted;
        if self.spare.len() < needed {
            let first = self.all.len() as u32 * u32::from(WINDOW);
            self.all.push(Slots::new(device, WINDOW.into(), SLOT)?);
            self.spare.extend(first..first + u32::from(WINDOW));
        }
        self.surplus -= posted;
        self.empty.extend(self.spare.drain(self.spare.len() - needed..));
        self.in_use += 1;
        self.post(receives)
    }

    /// A connection has ended: it needs its window no more.
    pub(crate) fn give_back(&mut self) {
        self.surplus += usize::from(WINDOW);
        self.in_use -= 1;
    }

    /// The first `len` bytes of a slot in which a frame has come.
    pub(crate) fn bytes(&self, slot: u32, len: usize) -> &[u8] {
        self.all[(slot / u32::from(WINDOW)) as usize].bytes((slot % u32::from(WINDOW)) as usize, len)
    }

    /// What has come in a slot has been looked at.
    #[inline]
    pub(crate) fn emptied(&mut self, slot: u32) {
        self.empty.push(slot);
    }

    /// Posts the slots that have been emptied, as far as connections need them.
    pub(crate) fn post(&mut self, receives: &Receives) -> Result<(), String> {
        let unneeded = self.surplus.min(self.empty.len());
        self.surplus -= unneeded;
        self.spare.extend(self.empty.drain(self.empty.len() - unneeded..));
        if self.empty.is_empty() {
            return Ok(());
        }
        let all = &self.all;
        let place =
            |slot: u32| all[(slot / u32::from(WINDOW)) as usize].whole((slot % u32::from(WINDOW)) as usize);
        receives.post(self.empty.drain(..).map(|slot| (Id::Receive(slot).into(), place(slot))))
    }
}
