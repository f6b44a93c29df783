//! Universe ids and local indices of a node's ranks.

use std::collections::HashMap;

use banyan_transport::Peer;

/// Who sits where. Ids that run on without a gap (one job, ranks by node) need no table.
pub(crate) struct Names {
    peers: Box<[Peer]>,
    first: u32,
    scattered: HashMap<Peer, u32>,
}

impl Names {
    pub(crate) fn new(peers: &[Peer]) -> Self {
        let first = peers.first().map_or(0, |peer| peer.0);
        let run = peers.iter().enumerate().all(|(i, peer)| u64::from(peer.0) == u64::from(first) + i as u64);
        let table = || peers.iter().enumerate().map(|(i, &peer)| (peer, i as u32)).collect();
        let scattered = if run { HashMap::new() } else { table() };
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
            let names = Names::new(&peers);
            for (i, &peer) in peers.iter().enumerate() {
                assert_eq!((names.index(peer), names.peer(i)), (Some(i), peer));
            }
            assert_eq!(names.index(Peer(100)), None);
        }
    }
}
