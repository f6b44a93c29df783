//! [`Sending`]: the slots that frames and short transfers leave from, of two lengths. A frame stays in its slot until it has arrived.

use std::sync::Arc;

use crate::frames::SLOT;
use crate::verbs::{Device, Local, Slots};

/// Slots of a frame's full length, and short ones with their length.
const LONG: usize = 64;
const SHORT: usize = 512;
const SHORT_BYTES: usize = 128;
/// Bytes of all slots.
pub(crate) const BYTES: usize = LONG * SLOT + SHORT * SHORT_BYTES;

/// The slots. The short ones have the numbers behind the long ones.
pub(crate) struct Sending {
    long: Slots,
    short: Slots,
    free_long: Vec<u32>,
    free_short: Vec<u32>,
}

impl Sending {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Sending, String> {
        Ok(Sending {
            long: Slots::new(device, LONG, SLOT)?,
            short: Slots::new(device, SHORT, SHORT_BYTES)?,
            free_long: (0..LONG as u32).collect(),
            free_short: (LONG as u32..(LONG + SHORT) as u32).collect(),
        })
    }

    /// A free slot for so many bytes.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<u32> {
        if len <= SHORT_BYTES { self.free_short.pop() } else { self.free_long.pop() }
    }

    /// Gives a slot back.
    #[inline]
    pub(crate) fn give(&mut self, slot: u32) {
        if (slot as usize) < LONG { self.free_long.push(slot) } else { self.free_short.push(slot) }
    }

    /// The first `len` bytes of a slot.
    #[inline(always)]
    pub(crate) fn bytes(&self, slot: u32, len: usize) -> &[u8] {
        match (slot as usize).checked_sub(LONG) {
            None => self.long.bytes(slot as usize, len),
            Some(short) => self.short.bytes(short, len),
        }
    }

    /// The same, to write to.
    #[inline(always)]
    pub(crate) fn bytes_mut(&mut self, slot: u32, len: usize) -> &mut [u8] {
        self.frame(slot, len).0
    }

    /// The same, with the key of that memory: what a frame is written to, and posted from.
    #[inline(always)]
    pub(crate) fn frame(&mut self, slot: u32, len: usize) -> (&mut [u8], u32) {
        match (slot as usize).checked_sub(LONG) {
            None => {
                let lkey = self.long.lkey();
                (self.long.bytes_mut(slot as usize, len), lkey)
            }
            Some(short) => {
                let lkey = self.short.lkey();
                (self.short.bytes_mut(short, len), lkey)
            }
        }
    }

    /// The same, for work that is posted here.
    #[inline(always)]
    pub(crate) fn local(&self, slot: u32, len: usize) -> Local<'static> {
        match (slot as usize).checked_sub(LONG) {
            None => self.long.local(slot as usize, len),
            Some(short) => self.short.local(short, len),
        }
    }
}
