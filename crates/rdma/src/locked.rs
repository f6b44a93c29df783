//! How much memory this process may lock, which registered memory is, and what of it is for what.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::sending;
use crate::windows;

/// What the fabric locks whatever its connections: slots that frames leave from, a reserve of those that they come in, buffers for greetings,
/// and parts of pages.
const OWN: usize = sending::BYTES + windows::RESERVE_BYTES + (64 << 10);

/// Bytes that this process may lock in memory by its limit; `None`: as many as there are.
pub(crate) fn limit() -> Option<usize> {
    getrlimit(Resource::Memlock).current.map(|bytes| bytes as usize)
}

/// The same for a device; `strict`: its driver holds processes to the limit that the kernel lets do without.
pub(crate) fn limit_on(strict: bool) -> Option<usize> {
    let privileged = || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    limit().filter(|_| strict || !privileged())
}

/// Connections for whose buffers there is room within a limit, at least one: half of it is for memory of programs.
///
/// # Errors
/// If the limit is too small for the fabric: what it is, and where it is set.
pub(crate) fn connections(limit: Option<usize>) -> Result<u32, String> {
    let Some(limit) = limit else { return Ok(u32::MAX) };
    let least = OWN + windows::BYTES;
    if limit < least {
        return Err(format!("the fabric locks {least} bytes in memory at least, and {}", may_lock(limit)));
    }
    Ok(((limit / 2).saturating_sub(OWN) / windows::BYTES).max(1).try_into().unwrap_or(u32::MAX))
}

/// Bytes of programs' memory that are kept registered, at most.
pub(crate) fn kept(limit: Option<usize>) -> usize {
    limit.map_or(usize::MAX, |bytes| bytes / 2)
}

/// What a process may lock, and where that is set.
pub(crate) fn may_lock(limit: usize) -> String {
    format!(
        "this process may lock {limit} bytes (ulimit -l, LimitMEMLOCK of a service), which RDMA devices take much of; let it be unlimited"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_half_of_what_may_be_locked() {
        assert_eq!(connections(None), Ok(u32::MAX));
        assert_eq!(connections(Some(OWN + windows::BYTES)), Ok(1));
        assert_eq!(connections(Some(2 * (OWN + 9 * windows::BYTES))), Ok(9));
        let why = connections(Some(64 << 10)).expect_err("it is too little");
        assert!(why.contains("lock 65536 bytes") && why.contains("ulimit -l"), "{why}");
    }
}
