//! Single copies whose target lies a few bytes further in its page than the source, where the kernel copies those slowly: they go by way of memory
//! that lies where the peer's does in its page, and this process makes the second copy.

use std::cell::RefCell;
use std::io;

use banyan_memory::{Buffer, vectors};

use crate::attachment::{Way, part};
use crate::layout::PAGE;
use crate::system;

/// Bytes that are copied at a time: they stay in a core's own cache.
const PIECE: usize = 64 << 10;

thread_local! {
    /// What pieces go through, with room to begin anywhere in a page.
    static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Whether a copy between a peer's address and all of `local` had better go this way.
pub(crate) fn shuns(remote: u64, local: &Buffer, way: Way) -> bool {
    let here = local.ptr(local.lo(), local.len()) as u64;
    let (from, to) = if way == Way::Read { (remote, here) } else { (here, remote) };
    vectors::shuns_single_copy(from, to, local.len())
}

/// Copies the next piece of `local`, from byte `done` of it on, between its place and address `remote` of process `pid`; gives how many bytes.
pub(crate) fn copy(pid: u32, remote: u64, (local, done): (&Buffer, usize), way: Way) -> io::Result<usize> {
    let (at, len) = (local.lo() + done as isize, (local.len() - done).min(PIECE));
    BOUNCE.with_borrow_mut(|memory| {
        memory.resize(PIECE + 2 * PAGE, 0);
        let start = memory.as_ptr().align_offset(PAGE) + remote as usize % PAGE;
        let bounce = &mut memory[start..start + len];
        if way == Way::Write {
            local.read(at, bounce);
        }
        let here = [part(bounce.as_mut_ptr() as u64, len)];
        // SAFETY: a slice of ours.
        let copied = unsafe { system::copy_process(pid, &[part(remote, len)], &here, way == Way::Write) }?;
        if way == Way::Read {
            local.write(at, &bounce[..copied]);
        }
        Ok(copied)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_arrive_whole_wherever_they_lie() {
        let pid = std::process::id();
        let theirs: Vec<u8> = (0..200_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let mut ours = vec![0; theirs.len() + 100];
        for (skip, way) in [(0, Way::Read), (17, Way::Read), (0, Way::Write), (33, Way::Write)] {
            let len = theirs.len() - skip;
            let (remote, from) = match way {
                Way::Read => (theirs[skip..].as_ptr() as u64, None),
                Way::Write => (ours.as_mut_ptr() as u64, Some(theirs[skip..].to_vec())),
            };
            let mut local = from.clone().unwrap_or_else(|| vec![0; len]);
            // SAFETY: memory of ours, which nobody else touches meanwhile.
            let buffer = unsafe { Buffer::new(local.as_mut_ptr(), len) };
            let mut done = 0;
            while done < len {
                match copy(pid, remote + done as u64, (&buffer, done), way) {
                    Ok(copied) => done += copied,
                    // A container may forbid it.
                    Err(error) if error.raw_os_error() == Some(libc::EPERM) => return,
                    Err(error) => panic!("{error}"),
                }
            }
            let arrived = if way == Way::Read { &local[..] } else { &ours[..len] };
            assert!(arrived == &theirs[skip..], "{way:?} from {skip}");
        }
    }
}
