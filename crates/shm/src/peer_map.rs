//! [`PeerMap`]: from the universe ids of a node's ranks to their local indices, and back.

use std::collections::HashMap;

use banyan_transport::Peer;

/// The ranks of a node in the order of their local indices. Ids without a gap (one job, ranks by node) need no table.
pub(crate) struct PeerMap {
    peers: Box<[Peer]>,
    first: u32,
    /// The index of each id; empty if ids run on from `first` without a gap.
    scattered: HashMap<Peer, u32>,
}

impl PeerMap {
    pub(crate) fn new(peers: &[Peer]) -> Self {
        let first = peers.first().map_or(0, |peer| peer.0);
        let no_gap =
            peers.iter().enumerate().all(|(i, peer)| u64::from(peer.0) == u64::from(first) + i as u64);
        let table = || peers.iter().enumerate().map(|(i, &peer)| (peer, i as u32)).collect();
        let scattered = if no_gap { HashMap::new() } else { table() };
        Self { peers: peers.into(), first, scattered }
    }

    /// The local index of `peer`.
    #[inline(always)]
    pub(crate) fn index(&self, peer: Peer) -> Option<usize> {
        if self.scattered.is_empty() {
            let index = peer.0.wrapping_sub(self.first) as usize;
            return (index < self.peers.len()).then_some(index);
        }
        self.scattered.get(&peer).map(|&index| index as usize)
    }

    /// The peer with this local index.
    #[inline]
    pub(crate) fn peer(&self, index: usize) -> Peer {
        self.peers[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_map_to_indices_and_back() {
        for ids in [vec![0, 1, 2, 3], vec![7, 8, 9], vec![4, 2, 9], vec![u32::MAX]] {
            let peers: Vec<Peer> = ids.iter().map(|&id| Peer(id)).collect();
            let map = PeerMap::new(&peers);
            for (i, &peer) in peers.iter().enumerate() {
                assert_eq!((map.index(peer), map.peer(i)), (Some(i), peer));
            }
            assert_eq!(map.index(Peer(100)), None);
        }
    }
}
