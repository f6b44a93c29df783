//! MPI's matching rules on plain lists: which message each receive must get, from the order of arrivals and posts.

use std::collections::HashMap;

use banyan_transport::{Class, Head, Peer};

use crate::wire::Kind;

/// The nth envelope of a class that a peer sent here.
pub(super) type Identity = (usize, Class, usize);

/// A receive as posted.
pub(super) struct Posted {
    pub(super) recv: usize,
    pub(super) ctx: u64,
    pub(super) class: Class,
    pub(super) src: Option<u32>,
    pub(super) tag: Option<u64>,
}

struct Arrived {
    identity: Identity,
    ctx: u64,
    src: u32,
    tag: u64,
}

/// One process' lists.
#[derive(Default)]
pub(super) struct Oracle {
    posted: Vec<Posted>,
    arrived: Vec<Arrived>,
    counts: HashMap<(usize, Class), usize>,
    /// Which message each receive got.
    pub(super) matched: HashMap<usize, Identity>,
}

impl Posted {
    fn fits(&self, class: Class, ctx: u64, src: u32, tag: u64) -> bool {
        self.class == class
            && self.ctx == ctx
            && self.src.is_none_or(|s| s == src)
            && self.tag.is_none_or(|t| t == tag)
    }
}

impl Oracle {
    /// A frame arrives; gives the message, if it is an envelope.
    pub(super) fn frame(&mut self, peer: Peer, head: &Head) -> Option<Identity> {
        if head.kind > Kind::Rts as u8 {
            return None;
        }
        let count = self.counts.entry((peer.0 as usize, head.class)).or_default();
        let identity = (peer.0 as usize, head.class, *count);
        *count += 1;
        let wide = u64::from(head.a) | u64::from(head.b) << 32;
        let (src, tag) = if head.class == Class::Coll { (peer.0, wide) } else { (head.b, u64::from(head.a)) };
        match self.posted.iter().position(|p| p.fits(head.class, head.ctx, src, tag)) {
            Some(at) => drop(self.matched.insert(self.posted.remove(at).recv, identity)),
            None => self.arrived.push(Arrived { identity, ctx: head.ctx, src, tag }),
        }
        Some(identity)
    }

    pub(super) fn post(&mut self, posted: Posted) {
        match self.find(&posted) {
            Some(at) => drop(self.matched.insert(posted.recv, self.arrived.remove(at).identity)),
            None => self.posted.push(posted),
        }
    }

    /// The message that a probe with these arguments must find.
    pub(super) fn probe(&self, like: &Posted) -> Option<Identity> {
        Some(self.arrived[self.find(like)?].identity)
    }

    /// The receive is withdrawn; true if it was still waiting.
    pub(super) fn cancel(&mut self, recv: usize) -> bool {
        let before = self.posted.len();
        self.posted.retain(|p| p.recv != recv);
        self.posted.len() < before
    }

    /// The message is withdrawn; true if nobody had it yet.
    pub(super) fn forget(&mut self, identity: Identity) -> bool {
        let before = self.arrived.len();
        self.arrived.retain(|a| a.identity != identity);
        self.arrived.len() < before
    }

    /// The message is here, and some receive has it.
    pub(super) fn is_matched(&self, identity: Identity) -> bool {
        let arrived = self.counts.get(&(identity.0, identity.1)).is_some_and(|&n| n > identity.2);
        arrived && self.arrived.iter().all(|a| a.identity != identity)
    }

    pub(super) fn waiting(&self) -> usize {
        self.arrived.len()
    }

    fn find(&self, like: &Posted) -> Option<usize> {
        let class = |a: &Arrived| a.identity.1;
        self.arrived.iter().position(|a| like.fits(class(a), a.ctx, a.src, a.tag))
    }
}
