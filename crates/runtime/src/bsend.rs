//! Buffers attached for buffered sends (MPI 5.0, 3.6).
//!
//! The attached memory bounds what may be under way; the copies themselves are made by the runtime, so a
//! buffer that the user breaks cannot break a message.

use std::sync::{Arc, Mutex};

use banyan_datatype::Data;
use banyan_p2p::{P2p, ReqId};
use banyan_transport::Peer;

use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::Result;
use crate::p2p::SendMode;
use crate::request::{Posted, Started};
use crate::runtime::Runtime;
use crate::status::{Outcome, Status};
use crate::subsystem::Subsystem;
use crate::{bail, lock};

/// Bytes of attached buffer that each message takes besides its data (MPI_BSEND_OVERHEAD).
pub const BSEND_OVERHEAD: usize = 512;

/// An attached buffer.
#[derive(Debug)]
pub struct Attached {
    address: usize,
    /// `None`: as much as is needed.
    size: Option<u64>,
    used: Mutex<u64>,
}

impl Attached {
    /// A buffer of `size` bytes at `address` (handed back by detach, never touched).
    pub fn new(address: usize, size: u64) -> Self {
        Self { address, size: Some(size), used: Mutex::new(0) }
    }

    /// MPI_BUFFER_AUTOMATIC: a buffer without a limit.
    pub fn automatic(address: usize) -> Self {
        Self { address, size: None, used: Mutex::new(0) }
    }

    /// Address and size in bytes, as they were attached.
    pub fn parts(&self) -> (usize, u64) {
        (self.address, self.size.unwrap_or(0))
    }

    /// Takes room for a message of `bytes`.
    fn take(self: &Arc<Self>, bytes: u64) -> Result<Room> {
        let Some(size) = self.size else { return Ok(Room { of: self.clone(), bytes: 0 }) };
        let need = bytes.saturating_add(BSEND_OVERHEAD as u64);
        let mut used = lock(&self.used);
        let left = size - *used;
        if need > left {
            bail!(
                ERR_BUFFER,
                "the attached buffer of {size} bytes has {left} left, the message takes {need} (data plus MPI_BSEND_OVERHEAD); \
                 attach a larger one"
            );
        }
        *used += need;
        Ok(Room { of: self.clone(), bytes: need })
    }

    /// Waits for the buffered sends that it has room for.
    fn drain(&self, rt: &Runtime) {
        let drained = |engine: &mut Engine| {
            engine.bsends.0.iter().all(|(_, room)| !std::ptr::eq(&*room.of, self)).then_some(())
        };
        rt.wait(rt.engine_lock.enter(), drained);
    }
}

/// What a message takes of an attached buffer, until this is dropped: also where a device fails as the message leaves.
#[derive(Debug)]
struct Room {
    of: Arc<Attached>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        *lock(&self.of.used) -= self.bytes;
    }
}

/// Buffered sends that are still on their way, with the room that each takes in an attached buffer.
#[derive(Default)]
pub(crate) struct BufferedSends(Vec<(ReqId, Room)>);

impl Subsystem for BufferedSends {
    type Below<'a> = &'a mut P2p;

    #[inline(always)]
    fn has_work(&self) -> bool {
        !self.0.is_empty()
    }

    #[inline(always)]
    fn progress(&mut self, p2p: &mut P2p) -> usize {
        if self.has_work() {
            self.reap(p2p);
        }
        0
    }
}

impl BufferedSends {
    /// Forgets those that are over, and frees their room in the attached buffers.
    #[cold]
    fn reap(&mut self, p2p: &mut P2p) {
        self.0.retain(|(id, _)| p2p.test(*id).is_none());
    }
}

impl Comm {
    /// Starts a buffered send. It is over at once: what does not leave now leaves from a copy, which takes room in the
    /// attached buffer until it has left.
    #[cold]
    pub(crate) fn start_bsend(
        &self,
        engine: &mut Engine,
        data: &Data,
        peer: Peer,
        tag: i32,
    ) -> Result<Started<Posted>> {
        let attached = self.attachment.buffer().or_else(|| self.runtime().attachment.buffer());
        let Some(attached) = attached else {
            bail!(ERR_BUFFER, "no buffer is attached for buffered sends; call MPI_Buffer_attach first")
        };
        let room = attached.take(data.len()).or_else(|_| {
            // Sends that are over free their room as the engine progresses.
            engine.progress();
            attached.take(data.len())
        })?;
        Ok(Started::Done(match self.post_send(engine, data, peer, tag, SendMode::Buffered) {
            Started::Done(outcome) => outcome,
            Started::Pending(sent) => sent.settled(engine).unwrap_or_else(|| {
                engine.bsends.0.push((sent.id, room));
                Outcome::ok(Status::EMPTY)
            }),
        }))
    }
}

/// The place where a buffer is attached: a communicator has one, and the process.
#[derive(Default, Debug)]
pub struct Attachment(Mutex<Option<Arc<Attached>>>);

impl Attachment {
    fn buffer(&self) -> Option<Arc<Attached>> {
        lock(&self.0).clone()
    }

    /// Attaches a buffer for buffered sends (MPI_Buffer_attach, MPI_Comm_attach_buffer).
    pub fn attach(&self, buffer: Attached) -> Result<()> {
        let mut attached = lock(&self.0);
        if attached.is_some() {
            bail!(ERR_BUFFER, "a buffer is attached already; detach it first");
        }
        *attached = Some(Arc::new(buffer));
        Ok(())
    }

    /// Waits for the buffered sends of the buffer, and takes it back (MPI_Buffer_detach, MPI_Comm_detach_buffer).
    pub fn detach(&self, rt: &Runtime) -> Option<Arc<Attached>> {
        let attached = lock(&self.0).take();
        attached.inspect(|attached| attached.drain(rt))
    }

    /// Waits for the buffered sends of the buffer (MPI_Buffer_flush, MPI_Comm_flush_buffer).
    pub fn flush(&self, rt: &Runtime) {
        if let Some(attached) = self.buffer() {
            attached.drain(rt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Class;

    #[test]
    fn an_attached_buffer_bounds_what_is_under_way() {
        let attached = Arc::new(Attached::new(0, 2 * BSEND_OVERHEAD as u64 + 100));
        let first = attached.take(60).unwrap();
        assert_eq!(attached.take(60).unwrap_err().class, Class::ERR_BUFFER);
        let second = attached.take(40).unwrap();
        drop((first, second));
        assert!(attached.take(60).is_ok());
        assert!(Arc::new(Attached::automatic(0)).take(u64::MAX).is_ok());
    }
}
