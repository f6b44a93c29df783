//! [`Failures`]: the processes that have failed while the job goes on (`mpirun --keep-going`), as the launcher tells, and the
//! communicators that they are members of. Calls that need such a process end with MPI_ERR_PROC_ABORTED.

use std::sync::Arc;

use banyan_coll::Fault;
use banyan_p2p::P2p;
use banyan_transport::Peer;

use crate::group::Group;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Failures {
    /// Each with the reason.
    failed: Vec<(Peer, Arc<str>)>,
    /// The context of each communicator, and the group that messages there come from.
    senders: Vec<(u64, Group)>,
}

impl Failures {
    /// There is a communicator.
    pub(crate) fn enter(&mut self, ctx: u64, senders: &Group, p2p: &mut P2p) {
        self.senders.push((ctx, senders.clone()));
        for (peer, cause) in self.failed.iter().filter(|(peer, _)| senders.rank_of(*peer).is_some()) {
            p2p.member_failed(ctx, *peer, cause);
        }
    }

    /// The communicator is gone.
    pub(crate) fn leave(&mut self, ctx: u64) {
        self.senders.retain(|(other, _)| *other != ctx);
    }

    /// True if a process of the job has failed.
    pub(crate) fn any(&self) -> bool {
        !self.failed.is_empty()
    }

    /// A process has failed; false if that is known.
    pub(crate) fn note(&mut self, peer: Peer, cause: &str, p2p: &mut P2p) -> bool {
        if self.failed.iter().any(|(other, _)| *other == peer) {
            return false;
        }
        let cause: Arc<str> = cause.into();
        for (ctx, _) in self.senders.iter().filter(|(_, senders)| senders.rank_of(peer).is_some()) {
            p2p.member_failed(*ctx, peer, &cause);
        }
        self.failed.push((peer, cause));
        true
    }

    /// Why collectives of these ranks fail, if one of them has failed.
    pub(crate) fn fault_among(&self, ranks: &Group) -> Option<Fault> {
        self.failed.iter().find_map(|(peer, cause)| {
            Some(Fault::Gone { rank: ranks.rank_of(*peer)?, cause: cause.to_string() })
        })
    }
}
