//! Whether processes of this host can read each other's memory.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::AtomicU8;

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// True if processes that this one starts can read each other's memory with `process_vm_readv`.
///
/// The call is really tried, on this process's own memory, which shows a filter of system calls (containers). The
/// setting of the Yama security module is read, too: its scope 1 is fine, as ranks allow each other to read; from 2 on
/// only the superuser may.
pub fn single_copy() -> bool {
    let from = [0x5au8; 16];
    let mut to = [0u8; 16];
    get(&from, &mut to) && to == from && yama_allows(yama_scope(), nix::unistd::geteuid().is_root())
}

/// Gets `from`, which is this process's own, with `process_vm_readv`, as if it were another's; false if the system refuses.
pub fn get(from: &[u8], to: &mut [u8]) -> bool {
    let remote = RemoteIoVec { base: from.as_ptr() as usize, len: from.len() };
    process_vm_readv(Pid::this(), &mut [IoSliceMut::new(to)], &[remote]) == Ok(from.len())
}

/// Puts `from` to where `to` is, which is this process's own and as long, with `process_vm_writev`, as if it were another's; false if
/// the system refuses.
pub fn put(from: &[u8], to: &[AtomicU8]) -> bool {
    let remote = RemoteIoVec { base: to.as_ptr() as usize, len: to.len().min(from.len()) };
    process_vm_writev(Pid::this(), &[IoSlice::new(from)], &[remote]) == Ok(from.len())
}

fn yama_scope() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn yama_allows(scope: u32, root: bool) -> bool {
    scope < 2 || (scope == 2 && root)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_is_put_can_be_got() {
        let to: Vec<AtomicU8> = (0..100).map(AtomicU8::new).collect();
        if put(&[7; 40], &to[50..90]) {
            let bytes: Vec<u8> = to.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
            assert!(
                bytes[50..90] == [7; 40]
                    && bytes[..50].iter().copied().eq(0..50)
                    && bytes[90..].iter().copied().eq(90..100)
            );
            let mut got = [0; 100];
            assert!(get(&bytes, &mut got) && got[..] == bytes);
        }
        assert!(!put(&[7; 41], &to[50..90]), "there is no room");
    }

    #[test]
    fn yama_scopes() {
        assert!(yama_allows(0, false) && yama_allows(1, false) && yama_allows(2, true));
        assert!(!yama_allows(2, false) && !yama_allows(3, true));
    }
}
