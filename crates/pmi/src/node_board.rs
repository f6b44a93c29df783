//! The board of a node: a small memfd by which ranks that a foreign launcher started find out that they share memory.
//!
//! Nobody inherits anything there. The first rank of a would-be node makes its memory and the board, and offers both as
//! descriptors of its process; the others open them by way of `/proc/PID/fd`. Process numbers may mean something else in another
//! container or on another host, so the board begins with a random number that the offer names. Who has opened both writes
//! its entry on the board, with the CPUs that it may use. After a fence the first rank reads who is there.
//!
//! The system allows this to processes of one user (also with the Yama security module at its default) which see each other's
//! process numbers. What it refuses is no error: then the ranks do not share a node.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create, open, readlink,
};
use rustix::io::{pread, pwrite};
use serde::{Deserialize, Serialize};

use crate::inherit::largest_file;

/// Bytes of the random number at the start.
const NONCE: usize = 32;
/// CPUs that an entry can name.
const CPUS: usize = 1024;
/// Bytes of an entry: that it is there, the CPU quota, and a bit for each CPU.
const ENTRY: usize = 1 + 4 + CPUS / 8;

/// Where the first rank of a would-be node has its memory and the board.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pid: u32,
    board: i32,
    memory: i32,
    /// The inode of the memory.
    inode: u64,
    nonce: [u8; NONCE],
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
    pub(crate) fn make(memory: OwnedFd, ranks: u32) -> io::Result<(Board, Offer)> {
        let bytes = (NONCE + ranks as usize * ENTRY) as u64;
        // Going past a limit on file sizes (ulimit -f) raises SIGXFSZ.
        if largest_file() < bytes {
            return Err(rustix::io::Errno::FBIG.into());
        }
        let file = memfd_create("banyan-board", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let nonce = crate::random()?;
        pwrite(&file, &nonce, 0)?;
        let offer = Offer {
            pid: std::process::id(),
            board: file.as_raw_fd(),
            memory: memory.as_raw_fd(),
            inode: fstat(&memory)?.st_ino,
            nonce,
        };
        Ok((Board { file, memory }, offer))
    }

    /// Opens what is offered; `None` if this process cannot, or finds something else there.
    pub(crate) fn open(offer: &Offer) -> Option<Board> {
        let file = open_memfd(offer.pid, offer.board)?;
        let mut nonce = [0; NONCE];
        if pread(&file, &mut nonce, 0) != Ok(NONCE) || nonce != offer.nonce {
            return None;
        }
        let memory = open_memfd(offer.pid, offer.memory)?;
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

/// Opens a memfd of ours that another process has under this number.
fn open_memfd(pid: u32, fd: i32) -> Option<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{fd}");
    // Only a memfd: to open something else, such as a device, might have effects.
    let target = readlink(&path, Vec::new()).ok()?;
    target.to_bytes().starts_with(b"/memfd:banyan").then_some(())?;
    open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()
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
    fn only_what_was_offered_is_opened() {
        let (_board, offer) = Board::make(memory(), 2).unwrap();
        let stdin = std::fs::File::open("/dev/null").unwrap();
        for wrong in [
            Offer { nonce: [7; NONCE], ..offer.clone() },
            Offer { board: offer.memory, ..offer.clone() },
            Offer { board: stdin.as_raw_fd(), ..offer.clone() },
            Offer { memory: offer.board, ..offer.clone() },
            Offer { memory: -1, ..offer.clone() },
            Offer { pid: 1, ..offer.clone() },
            Offer { pid: u32::MAX, ..offer },
        ] {
            assert!(Board::open(&wrong).is_none(), "{wrong:?}");
        }
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
