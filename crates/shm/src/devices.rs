//! Memory of devices that ranks of a node read from each other. A rank that exposes some writes down how its driver shares it; the key
//! of the range is where that stands (an even number, as keys of the host's memory are odd). A reader fetches it from there, has its own driver map
//! the allocation, once, and copies. Copies are over some time later. Ranks in one process (in tests) do not: drivers map memory of other processes alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_memory::{Buffer, Copying, DeviceFailure, Exported, HeapBuffer, Imported};
use banyan_transport::{Outcome, Peer, Remote, Sink, Token, Transfer};

use crate::attachment::Attachment;

/// What a rank has written down of an allocation. Peers read it as bytes.
#[repr(C)]
struct Exposed {
    magic: u64,
    /// 0 once it was revoked, for good.
    valid: AtomicU64,
    exported: Exported,
}

const MAGIC: u64 = 0x6465_7669_6365_2121;

/// Allocations of peers that are mapped at a time; then the one that was not used for longest goes.
const MOST_IMPORTED: usize = 128;

/// What a rank keeps of memory of devices.
#[derive(Default)]
pub(crate) struct Devices {
    /// This rank's, by the numbers of allocations.
    exposed: HashMap<u64, Box<Exposed>>,
    /// What was revoked stays, as peers may still look at it.
    #[expect(clippy::vec_box, reason = "peers know where it lies")]
    revoked: Vec<Box<Exposed>>,
    /// Peers', by rank and key, with when they were used last.
    imported: HashMap<(usize, u64), (Arc<Mapped>, u64)>,
    uses: u64,
    under_way: Vec<UnderWay>,
}

/// An allocation of a peer.
struct Mapped {
    exported: Exported,
    memory: Imported,
}

struct UnderWay {
    peer: Peer,
    rank: usize,
    key: u64,
    token: Token,
    copies: Vec<Copying>,
    _mapped: Arc<Mapped>,
}

/// True if it is the key of memory of a device.
pub(crate) fn is_key(key: u64) -> bool {
    key & 1 == 0
}

impl Devices {
    /// How peers reach this memory of a device; `None` if they do not.
    pub(crate) fn expose(&mut self, memory: &Buffer) -> Option<Remote> {
        let exported = memory.export()?;
        let new = || Box::new(Exposed { magic: MAGIC, valid: AtomicU64::new(1), exported });
        let exposed = self.exposed.entry(exported.id).or_insert_with(new);
        let key = std::ptr::from_ref::<Exposed>(exposed) as u64;
        Some(Remote { addr: memory.address(memory.lo()) as u64, len: memory.len() as u64, key })
    }

    /// No read of what was exposed under this key counts any more.
    pub(crate) fn revoke(&mut self, key: u64) {
        let gone = self.exposed.extract_if(|_, exposed| std::ptr::from_ref::<Exposed>(exposed) as u64 == key);
        let gone: Vec<_> = gone.map(|(_, exposed)| exposed).collect();
        gone.iter().for_each(|exposed| exposed.valid.store(0, Ordering::SeqCst));
        self.revoked.extend(gone);
    }

    /// True if reads are under way.
    #[inline(always)]
    pub(crate) fn are_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Starts to read memory of a device of `rank`.
    pub(crate) fn read(
        &mut self,
        attachment: &Attachment,
        (peer, rank): (Peer, usize),
        remote: Remote,
        local: &[Buffer],
        token: Token,
    ) -> Transfer {
        let (mapped, there) = match self.there(attachment, rank, remote, local) {
            Some(found) => found,
            None => return Transfer::Impossible,
        };
        let started = DeviceFailure::caught(|| {
            let (mut copies, mut at) = (vec![], 0);
            for local in local {
                copies.extend(local.start_copy_from(local.lo(), &there, at, local.len()));
                at += local.len() as isize;
            }
            copies
        });
        let Ok(copies) = started else { return Transfer::Impossible };
        self.under_way.push(UnderWay { peer, rank, key: remote.key, token, copies, _mapped: mapped });
        Transfer::Started
    }

    /// The memory, as it is mapped here.
    fn there(
        &mut self,
        attachment: &Attachment,
        rank: usize,
        remote: Remote,
        local: &[Buffer],
    ) -> Option<(Arc<Mapped>, Buffer)> {
        self.uses += 1;
        let uses = self.uses;
        if let Some((mapped, used)) = self.imported.get_mut(&(rank, remote.key)) {
            *used = uses;
            let part = mapped.memory.part(&mapped.exported, remote.addr, remote.len)?;
            return Some((mapped.clone(), part));
        }
        let exported = exposed_by(attachment, rank, remote.key)?;
        if self.imported.len() >= MOST_IMPORTED {
            let oldest = self.imported.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key);
            oldest.and_then(|key| self.imported.remove(&key));
        }
        let near = local.first()?;
        let memory = Imported::open(&exported, near).ok()?;
        let mapped = Arc::new(Mapped { exported, memory });
        let part = mapped.memory.part(&exported, remote.addr, remote.len)?;
        self.imported.insert((rank, remote.key), (mapped.clone(), uses));
        Some((mapped, part))
    }

    /// Tells of the reads that are over.
    pub(crate) fn poll(&mut self, attachment: &Attachment, sink: &mut impl Sink) -> usize {
        let mut over = vec![];
        self.under_way.retain_mut(|read| {
            let mut failed = false;
            read.copies.retain(|copy| {
                let over = DeviceFailure::caught(|| copy.is_over());
                failed |= over.is_err();
                over.is_ok_and(|over| !over)
            });
            if read.copies.is_empty() || failed {
                over.push((read.token, read.rank, read.key, failed));
            }
            !read.copies.is_empty() && !failed
        });
        for &(token, rank, key, failed) in &over {
            let counts = !failed && exposed_by(attachment, rank, key).is_some();
            sink.completed(token, if counts { Outcome::Done } else { Outcome::Impossible });
        }
        over.len()
    }

    /// Ends the reads with this token: it waits for their copies.
    pub(crate) fn reclaim(&mut self, peer: Peer, token: Token) {
        self.under_way.retain(|read| read.peer != peer || read.token != token);
    }

    /// A rank is gone, with all that was read from it.
    pub(crate) fn forget(&mut self, rank: usize) {
        self.under_way.retain(|read| read.rank != rank);
        self.imported.retain(|(of, _), _| *of != rank);
    }
}

/// What a rank has written down under a key, if it still counts.
fn exposed_by(attachment: &Attachment, rank: usize, key: u64) -> Option<Exported> {
    let bytes = HeapBuffer::zeroed(size_of::<Exposed>());
    if !attachment.read_bytes(rank as u32, key, &bytes) {
        return None;
    }
    // SAFETY: as many bytes as the type has, all of whose values are good; the memory is aligned for every basic type.
    let exposed = unsafe { bytes.ptr(0, size_of::<Exposed>()).cast::<Exposed>().read() };
    let counts = exposed.magic == MAGIC && exposed.valid.load(Ordering::Relaxed) == 1;
    counts.then_some(exposed.exported)
}
