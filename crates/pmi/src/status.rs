//! Status lines: what each rank waits for, so that a job that hangs can be explained.
//!
//! The agent makes a second memfd with one line per rank. A rank whose wait has become long writes its line, writes it
//! again each time that it has slept without being woken, and erases it when the wait ends. The agent reads the lines when
//! it looks for a deadlock or is asked for a report. Short waits write nothing. Reads and writes may overlap: a line carries
//! a checksum, and is read again if it is torn.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::inherit::largest_file;

/// Bytes of a rank's line in the file.
const LINE: usize = 1024;

/// Most items of a line; a rank may wait for more.
pub const MAX_ITEMS: usize = 8;

/// Most runs of ranks by which a line names the members of a communicator.
pub const MAX_RUNS: usize = 16;

/// What a rank waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatusLine {
    /// The MPI function that was called last.
    pub call: String,
    /// When the wait began, in nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes of a host.
    pub since: u64,
    /// How often the rank has slept since then for the longest time allowed, without being woken.
    pub naps: u32,
    /// How often a sleep of it ended otherwise: a message came, or the rank was woken.
    pub events: u32,
    /// Other threads of the rank may call MPI meanwhile.
    pub threads: bool,
    /// The operations that the wait is for, at most [`MAX_ITEMS`].
    pub items: Vec<Item>,
    /// Number of further items that are left out.
    pub more: u32,
    /// Names that the program gave to communicators of the items, by context.
    pub names: Vec<(u64, String)>,
}

/// One thing that a rank waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Item {
    /// A message.
    Message {
        /// True if this rank sends it, false if it receives.
        sends: bool,
        /// What the operation waits for, as in `send: waits for a matching receive`.
        state: String,
        /// The other side's rank in MPI_COMM_WORLD; `None` is MPI_ANY_SOURCE.
        peer: Option<u32>,
        /// `None` is MPI_ANY_TAG.
        tag: Option<i32>,
        /// Context of the communicator.
        context: u64,
        /// Size of the message to send, or of the receive buffer.
        bytes: u64,
    },
    /// The other ranks of a communicator, in a collective operation.
    Collective {
        /// Context of the communicator.
        comm: u64,
        /// Context of the operation: nonblocking and persistent collectives have their own.
        context: u64,
        /// Its ranks in MPI_COMM_WORLD, as first and number; empty if they are too scattered to be named.
        members: Vec<(u32, u32)>,
    },
    /// Something that only the program itself can end, in words.
    Program(String),
}

/// The present time by the clock of [`StatusLine::since`], in nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Makes the file for `ranks` ranks, sealed so that no process can change its size.
///
/// # Errors
/// If the system refuses a call, or its limit on file sizes is too small.
pub fn create(ranks: u32) -> std::io::Result<OwnedFd> {
    let file = memfd_create("banyan-status", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let bytes = u64::from(ranks) * LINE as u64;
    // Going past a limit on file sizes (ulimit -f) raises SIGXFSZ.
    if largest_file() < bytes {
        return Err(rustix::io::Errno::FBIG.into());
    }
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Writes the line of `rank`, or erases it (`None`). Items that do not fit are left out; so is a line that the system
/// refuses to write, as nothing depends on it.
pub fn write(file: impl AsFd, rank: u32, line: Option<&StatusLine>) {
    let at = u64::from(rank) * LINE as u64;
    // A program may have lowered the limit on file sizes since it was started.
    if largest_file() < at + LINE as u64 {
        return;
    }
    let bytes = line.map_or(vec![0; 8], encode);
    let _ = pwrite(file, &bytes, at);
}

fn encode(line: &StatusLine) -> Vec<u8> {
    let mut line = line.clone();
    loop {
        let body = postcard::to_allocvec(&line).unwrap_or_default();
        if body.len() + 8 <= LINE {
            let len = (body.len() as u32).to_le_bytes();
            return [&len[..], &check(&body).to_le_bytes(), &body].concat();
        }
        line.more += u32::from(line.items.pop().is_some());
    }
}

/// The lines of all ranks: `None` where a rank does not wait.
pub fn read(file: impl AsFd, ranks: u32) -> Vec<Option<StatusLine>> {
    let mut bytes = vec![0; LINE];
    let mut line = |rank: u32| {
        // A line that was torn by a write at the same time is read again.
        (0..3).find_map(|_| {
            let count = pread(&file, &mut bytes[..], u64::from(rank) * LINE as u64).ok()?;
            decode(bytes.get(..count)?)
        })
    };
    (0..ranks).map(|rank| line(rank).flatten()).collect()
}

/// `None` if the line is torn; `Some(None)` if there is no line.
fn decode(bytes: &[u8]) -> Option<Option<StatusLine>> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    if len == 0 {
        return Some(None);
    }
    let body = rest.get(..len)?;
    if check(body) != u32::from_le_bytes(*sum) {
        return None;
    }
    postcard::from_bytes(body).ok().map(Some)
}

/// FNV-1a.
fn check(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(items: usize) -> StatusLine {
        let item = Item::Message {
            sends: false,
            state: "receive: waits for a matching message".to_owned(),
            peer: Some(7),
            tag: Some(5),
            context: u64::MAX,
            bytes: 1 << 40,
        };
        StatusLine {
            call: "MPI_Waitall".to_owned(),
            since: now(),
            naps: 3,
            events: 1,
            threads: false,
            items: vec![item; items],
            more: 2,
            names: vec![(u64::MAX, "rows".to_owned())],
        }
    }

    #[test]
    fn lines_are_written_read_and_taken_back() {
        let file = create(3).unwrap();
        assert_eq!(read(&file, 3), [None, None, None]);
        write(&file, 2, Some(&line(8)));
        assert_eq!(read(&file, 3)[2].as_ref().unwrap().items.len(), 8);
        write(&file, 0, Some(&line(1)));
        write(&file, 2, None);
        let lines = read(&file, 3);
        assert_eq!((lines[0].as_ref().unwrap().call.as_str(), &lines[2]), ("MPI_Waitall", &None));
        assert!(ftruncate(&file, 10).is_err(), "its size is sealed");
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let bytes = encode(&line(100));
        let read = decode(&bytes).unwrap().unwrap();
        assert!(bytes.len() <= LINE && read.items.len() + read.more as usize == 102);
    }

    #[test]
    fn torn_lines_are_no_lines() {
        let mut bytes = encode(&line(2));
        for at in [0, 5, 9, bytes.len() - 1] {
            bytes[at] ^= 0x55;
            assert_eq!(decode(&bytes), None, "byte {at}");
            bytes[at] ^= 0x55;
        }
        assert!(decode(&bytes).unwrap().is_some());
        assert_eq!(decode(&bytes[..20]), None);
    }
}
