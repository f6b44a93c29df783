//! The board of a node: a small memfd by which ranks that a foreign launcher started find out that they share memory.
//!
//! Nobody inherits anything there. The first rank of a would-be node makes its memory and the board, and offers both as
//! descriptors of its process ([`Offer`]); the others open them. Who has opened both writes its entry on the board, with the CPUs
//! that it may use. After a fence the first rank reads who is there. What the system refuses is no error: then the ranks do
//! not share a node.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::fstat;
use rustix::io::{pread, pwrite};
use serde::{Deserialize, Serialize};

use crate::inherit::largest_file;
use crate::offer::{NONCE, Offer, open_memfd};

/// CPUs that an entry can name.
const CPUS: usize = 1024;
/// Bytes of an entry: that it is there, the CPU quota, and a bit for each CPU.
const ENTRY: usize = 1 + 4 + CPUS / 8;

/// Where the first rank of a would-be node has its memory and the board.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct NodeOffer {
    board: Offer,
    memory: i32,
    /// The inode of the memory.
    inode: u64,
}

/// What a rank writes about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The CPUs that it may use.
    pub(crate) cpus: Vec<u32>,
    /// How many of them at once.
    pub(crate) quota: u32,
}

/// The board of a node, and its memory.
#[derive(Debug)]
pub(crate) struct Board {
    file: OwnedFd,
    pub(crate) memory: OwnedFd,
}

impl Board {
    /// Makes the board for `ranks` ranks that share `memory`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn make(memory: OwnedFd, ranks: u32) -> io::Result<(Board, NodeOffer)> {
        let (file, board) = Offer::make(ranks as usize * ENTRY)?;
        let offer = NodeOffer { board, memory: memory.as_raw_fd(), inode: fstat(&memory)?.st_ino };
        Ok((Board { file, memory }, offer))
    }

    /// Opens what is offered; `None` if this process cannot, or finds something else there.
    pub(crate) fn open(offer: &NodeOffer) -> Option<Board> {
        let file = offer.board.open()?;
        let memory = open_memfd(offer.board.pid, offer.memory)?;
        (fstat(&memory).ok()?.st_ino == offer.inode).then_some(Board { file, memory })
    }

    /// Writes the entry of rank `index` of the node; false if the system refuses.
    pub(crate) fn write(&self, index: u32, entry: &Entry) -> bool {
        let mut bytes = [0; ENTRY];
        bytes[0] = 1;
        bytes[1..5].copy_from_slice(&entry.quota.to_le_bytes());
        for &cpu in entry.cpus.iter().filter(|&&cpu| (cpu as usize) < CPUS) {
            bytes[5 + cpu as usize / 8] |= 1 << (cpu % 8);
        }
        largest_file() >= position(index) + ENTRY as u64
            && pwrite(&self.file, &bytes, position(index)) == Ok(ENTRY)
    }

    /// The entries of `ranks` ranks; `None` where there is none.
    pub(crate) fn read(&self, ranks: u32) -> Vec<Option<Entry>> {
        let entry = |index| {
            let mut bytes = [0; ENTRY];
            let whole = pread(&self.file, &mut bytes, position(index)) == Ok(ENTRY) && bytes[0] == 1;
            let [_, a, b, c, d, bits @ ..] = bytes;
            whole.then(|| Entry {
                cpus: (0..CPUS as u32).filter(|&cpu| bits[cpu as usize / 8] & 1 << (cpu % 8) != 0).collect(),
                quota: u32::from_le_bytes([a, b, c, d]),
            })
        };
        (0..ranks).map(entry).collect()
    }
}

fn position(index: u32) -> u64 {
    NONCE as u64 + u64::from(index) * ENTRY as u64
}

/// Cores that the ranks with these entries may use between them, at least 1.
pub(crate) fn cores<'a>(entries: impl Iterator<Item = &'a Entry> + Clone) -> u32 {
    let mut cpus: Vec<u32> = entries.clone().flat_map(|entry| entry.cpus.iter().copied()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    // A rank that may use all of its CPUs at once knows of no quota.
    let quotas = entries.filter(|entry| (entry.quota as usize) < entry.cpus.len()).map(|entry| entry.quota);
    quotas.chain([cpus.len() as u32]).min().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn memory() -> OwnedFd {
        memfd_create("banyan", MemfdFlags::CLOEXEC).unwrap()
    }

    fn entry(cpus: &[u32], quota: u32) -> Entry {
        Entry { cpus: cpus.to_vec(), quota }
    }

    #[test]
    fn ranks_meet_on_a_board() {
        let (first, offer) = Board::make(memory(), 3).unwrap();
        let other = Board::open(&offer).expect("a process may open its own files");
        assert_eq!(fstat(&other.memory).unwrap().st_ino, fstat(&first.memory).unwrap().st_ino);
        assert!(first.write(0, &entry(&[0, 1], 2)) && other.write(2, &entry(&[5, 1023], 1)));
        assert_eq!(first.read(3), [Some(entry(&[0, 1], 2)), None, Some(entry(&[5, 1023], 1))]);
        assert!(!other.write(3, &entry(&[], 1)), "there is no room for a fourth");
    }

    #[test]
    fn only_the_memory_that_was_offered_is_opened() {
        let (board, offer) = Board::make(memory(), 2).unwrap();
        for memory in [-1, offer.board.fd] {
            assert!(Board::open(&NodeOffer { memory, ..offer.clone() }).is_none(), "{memory}");
        }
        assert!(Board::open(&offer).is_some());
        drop(board);
    }

    #[test]
    fn cores_are_those_of_all_ranks() {
        let count = |entries: &[Entry]| cores(entries.iter());
        assert_eq!(count(&[entry(&[0], 1), entry(&[1], 1), entry(&[1], 1)]), 2, "bound to one CPU each");
        assert_eq!(count(&[entry(&[0, 1, 2, 3], 4), entry(&[0, 1, 2, 3], 4)]), 4);
        assert_eq!(count(&[entry(&[0, 1, 2, 3], 2), entry(&[0, 1, 2, 3], 2)]), 2, "a quota of 2");
        assert_eq!(count(&[]), 1);
    }
}
