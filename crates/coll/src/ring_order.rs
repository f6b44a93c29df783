//! [`RingOrder`]: in which order ranks follow each other on a ring, where that is not the order of ranks.

use std::collections::HashMap;
use std::sync::Arc;

/// An order of the ranks, which goes on with the first one after the last. All of them have the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingOrder {
    /// The ranks in that order.
    at: Vec<u32>,
    /// By rank, how many come before it.
    place: Vec<u32>,
}

impl RingOrder {
    /// The ring in this order; `None` if that is the order of ranks, or does not have each rank once.
    pub fn new(at: Vec<u32>) -> Option<Arc<RingOrder>> {
        let mut place = vec![u32::MAX; at.len()];
        for (index, &rank) in (0..).zip(&at) {
            *place.get_mut(rank as usize)? = index;
        }
        let whole = place.iter().all(|&index| index != u32::MAX);
        (whole && !at.is_sorted()).then(|| Arc::new(RingOrder { at, place }))
    }

    /// An order that goes host by host: `places` says of each rank on which host it is, and how many of that host come before it.
    pub fn over_hosts(places: &[(u32, u32)]) -> Vec<u32> {
        let mut first = HashMap::new();
        for (rank, (host, _)) in (0..).zip(places) {
            first.entry(host).or_insert(rank);
        }
        let mut order: Vec<u32> = (0..places.len() as u32).collect();
        order.sort_by_key(|&rank| {
            let (host, place) = &places[rank as usize];
            (first[host], *place, rank)
        });
        order
    }

    /// The rank that is `distance` (at most the number of ranks) after `rank`.
    pub(crate) fn after(&self, rank: u32, distance: u32) -> u32 {
        let place = u64::from(self.place[rank as usize]) + u64::from(distance);
        self.at[(place % self.at.len() as u64) as usize]
    }

    /// How far `rank` is behind `origin`.
    pub(crate) fn behind(&self, rank: u32, origin: u32) -> u32 {
        let (rank, origin) = (self.place[rank as usize], self.place[origin as usize]);
        if rank >= origin { rank - origin } else { self.at.len() as u32 - origin + rank }
    }

    /// The ring of those that some ranks are, or stand for, in the order in which they come first.
    pub(crate) fn of(&self, number: u32, member: impl Fn(u32) -> Option<u32>) -> Option<Arc<RingOrder>> {
        let mut seen = vec![false; number as usize];
        let new = |member: &u32| !std::mem::replace(&mut seen[*member as usize], true);
        RingOrder::new(self.at.iter().filter_map(|rank| member(*rank)).filter(new).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_follow_each_other() {
        let places = [(7, 0), (3, 1), (7, 2), (3, 0), (7, 1)];
        assert_eq!(RingOrder::over_hosts(&places), [0, 4, 2, 3, 1]);
        assert_eq!(RingOrder::over_hosts(&[(1, 5), (1, 5)]), [0, 1], "each rank once, whatever it is told");
    }

    #[test]
    fn a_ring_is_an_order_of_all_ranks() {
        let ring = RingOrder::new(vec![0, 3, 2, 1]).unwrap();
        for rank in 0..4 {
            for distance in 0..4 {
                assert_eq!(ring.behind(ring.after(rank, distance), rank), distance);
            }
            assert_eq!(ring.after(rank, 4), rank);
        }
        assert_eq!((0..4).map(|distance| ring.after(3, distance)).collect::<Vec<_>>(), [3, 2, 1, 0]);
        for none in [vec![], vec![0], vec![0, 1, 2], vec![0, 0, 1], vec![0, 2, 3], vec![2, 1]] {
            assert_eq!(RingOrder::new(none), None);
        }
        // Ranks 1 and 3, and pairs of ranks.
        let odd = ring.of(2, |rank| (rank % 2 == 1).then_some(rank / 2)).unwrap();
        assert_eq!(odd.at, [1, 0]);
        assert_eq!(ring.of(2, |rank| Some(rank / 2)), None, "in their order");
    }
}
