//! [`Windows`]: the buffers that frames arrive in, a window of them for each connection that stands. Those of connections that have ended
//! stay in the shared queue until frames have come by them, and are then spare, for the next one. A few more see to it that buffers can be
//! posted anew several at a time: there is one for each credit also while some that have been emptied wait for others.

use std::sync::Arc;

use crate::credit::{RESERVE, WINDOW};
use crate::frames::{Id, SLOT};
use crate::verbs::{Device, Receives, Slots};

/// Bytes of a window, and of the reserve.
pub(crate) const BYTES: usize = WINDOW as usize * SLOT;
pub(crate) const RESERVE_BYTES: usize = RESERVE as usize * SLOT;

/// All buffers for frames. Those of the reserve have the first numbers, then come the windows.
pub(crate) struct Windows {
    reserve: Slots,
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
    /// The reserve alone, which the first window is posted with.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Windows, String> {
        Ok(Windows {
            reserve: Slots::new(device, RESERVE.into(), SLOT)?,
            all: Vec::new(),
            empty: (0..RESERVE.into()).collect(),
            spare: Vec::new(),
            surplus: 0,
            in_use: 0,
        })
    }

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
            let first = u32::from(RESERVE) + self.all.len() as u32 * u32::from(WINDOW);
            self.all.push(Slots::new(device, WINDOW.into(), SLOT)?);
            self.spare.extend(first..first + u32::from(WINDOW));
        }
        self.surplus -= posted;
        self.empty.extend(self.spare.drain(self.spare.len() - needed..));
        self.in_use += 1;
        self.post_all(receives)
    }

    /// A connection has ended: it needs its window no more.
    pub(crate) fn give_back(&mut self) {
        self.surplus += usize::from(WINDOW);
        self.in_use -= 1;
    }

    /// The first `len` bytes of a slot in which a frame has come.
    pub(crate) fn bytes(&self, slot: u32, len: usize) -> &[u8] {
        let (slots, slot) = self.place(slot);
        slots.bytes(slot, len)
    }

    /// Where a slot is.
    fn place(&self, slot: u32) -> (&Slots, usize) {
        match slot.checked_sub(RESERVE.into()) {
            None => (&self.reserve, slot as usize),
            Some(slot) => {
                let window = u32::from(WINDOW);
                (&self.all[(slot / window) as usize], (slot % window) as usize)
            }
        }
    }

    /// What has come in a slot has been looked at.
    #[inline]
    pub(crate) fn emptied(&mut self, slot: u32) {
        self.empty.push(slot);
    }

    /// Posts the slots that have been emptied once they are as many as the reserve; if nothing else is to be done now (`idle`), once they are half as
    /// many, so that a message that is waited for seldom waits for it.
    #[inline(always)]
    pub(crate) fn post(&mut self, receives: &Receives, idle: bool) -> Result<(), String> {
        let enough = usize::from(if idle { RESERVE / 2 } else { RESERVE });
        if self.empty.len() < enough { Ok(()) } else { self.post_all(receives) }
    }

    /// Posts the slots that have been emptied, as far as connections need them.
    fn post_all(&mut self, receives: &Receives) -> Result<(), String> {
        let unneeded = self.surplus.min(self.empty.len());
        self.surplus -= unneeded;
        self.spare.extend(self.empty.drain(self.empty.len() - unneeded..));
        let posted = receives.post(self.empty.iter().map(|&slot| {
            let (slots, number) = self.place(slot);
            (Id::Receive(slot).into(), slots.whole(number))
        }));
        self.empty.clear();
        posted
    }
}
