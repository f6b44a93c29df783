//! [`Group`]: an ordered set of processes (MPI 5.0, 7.3), kept as compactly as its shape allows.

use std::sync::{Arc, OnceLock};

use banyan_transport::Peer;

use crate::{Result, bail};

/// How two groups, or two communicators, relate, from alike to different; the numbers are those of the MPI 5.0 ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i32)]
pub enum Comparison {
    /// The same members in the same order (communicators: the same object).
    Ident = 201,
    /// Communicators only: groups are identical, contexts differ.
    Congruent = 202,
    /// The same members in another order.
    Similar = 203,
    /// Other members.
    Unequal = 204,
}

/// An ordered set of processes. Immutable; a clone shares it.
#[derive(Clone, Debug)]
pub struct Group(Arc<Members>);

#[derive(Debug)]
struct Members {
    map: Map,
    /// This process, whether a member or not; unknown only to [`Group::empty`].
    myself: Option<Peer>,
    rank: Option<u32>,
    /// Ranks in the order of their peers, for lists that are too long to scan; made on first use.
    by_peer: OnceLock<Box<[u32]>>,
}

#[derive(Debug)]
enum Map {
    /// Rank `r` is peer `first + r * stride`.
    Strided {
        first: u32,
        stride: i64,
        size: u32,
    },
    List(Box<[Peer]>),
}

/// Up to this many members a scan beats a search.
const SCAN: usize = 16;

impl Group {
    /// The group with these members, in this order, as seen by the process `myself` (a member or not).
    /// The peers must be distinct.
    pub fn new(members: Vec<Peer>, myself: Peer) -> Group {
        Self::build(members, Some(myself))
    }

    /// `size` peers from number `first` on: what MPI_COMM_WORLD is made of.
    pub fn contiguous(first: Peer, size: u32, myself: Peer) -> Group {
        Self::with_map(Map::Strided { first: first.0, stride: 1, size }, Some(myself))
    }

    /// MPI_GROUP_EMPTY.
    pub fn empty() -> Group {
        Self::build(Vec::new(), None)
    }

    /// Number of members.
    #[inline]
    pub fn size(&self) -> u32 {
        match &self.0.map {
            Map::Strided { size, .. } => *size,
            Map::List(list) => list.len() as u32,
        }
    }

    /// Rank of this process; `None` if it is not a member.
    #[inline]
    pub fn rank(&self) -> Option<u32> {
        self.0.rank
    }

    /// The member of that rank; `None` if there is none.
    #[inline]
    pub fn peer(&self, rank: u32) -> Option<Peer> {
        match &self.0.map {
            Map::Strided { first, stride, size } => {
                (rank < *size).then(|| Peer((i64::from(*first) + i64::from(rank) * stride) as u32))
            }
            Map::List(list) => list.get(rank as usize).copied(),
        }
    }

    /// The rank of `peer`; `None` if it is not a member.
    #[inline]
    pub fn rank_of(&self, peer: Peer) -> Option<u32> {
        match &self.0.map {
            Map::Strided { first, stride, size } => {
                let distance = i64::from(peer.0) - i64::from(*first);
                let rank = if *stride == 1 { distance } else { distance / stride };
                let member = rank >= 0 && rank < i64::from(*size) && rank * stride == distance;
                member.then_some(rank as u32)
            }
            Map::List(list) if list.len() <= SCAN => {
                list.iter().position(|&member| member == peer).map(|rank| rank as u32)
            }
            Map::List(list) => {
                let by_peer = self.0.by_peer.get_or_init(|| ranks_by_peer(list));
                let at = by_peer.binary_search_by_key(&peer, |&rank| list[rank as usize]).ok()?;
                Some(by_peer[at])
            }
        }
    }

    /// All members in the order of their ranks.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = Peer> + Clone + '_ {
        (0..self.size()).map(|rank| self.peer(rank).expect("a rank below the size has a peer"))
    }

    /// The rank in `other` of the process that has this rank here (MPI 5.0, 7.3.1); `None` if it is no member there.
    ///
    /// # Errors
    /// ERR_RANK for a rank that this group does not have.
    pub fn translate_rank(&self, rank: i32, other: &Group) -> Result<Option<u32>> {
        Ok(other.rank_of(self.member(rank)?))
    }

    /// Whether both have the same members, and in the same order (MPI 5.0, 7.3.1).
    pub fn compare(&self, other: &Group) -> Comparison {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Comparison::Ident;
        }
        if self.size() != other.size() {
            return Comparison::Unequal;
        }
        if self.peers().eq(other.peers()) {
            return Comparison::Ident;
        }
        match self.peers().all(|peer| other.rank_of(peer).is_some()) {
            true => Comparison::Similar,
            false => Comparison::Unequal,
        }
    }

    /// The members of this group, then those of `other` that are not in it.
    pub fn union(&self, other: &Group) -> Group {
        let new = other.peers().filter(|&peer| self.rank_of(peer).is_none());
        self.joined(other, self.peers().chain(new).collect())
    }

    /// The members of this group that are in `other` too, ordered as here.
    pub fn intersection(&self, other: &Group) -> Group {
        self.joined(other, self.peers().filter(|&peer| other.rank_of(peer).is_some()).collect())
    }

    /// The members of this group that are not in `other`.
    pub fn difference(&self, other: &Group) -> Group {
        self.joined(other, self.peers().filter(|&peer| other.rank_of(peer).is_none()).collect())
    }

    /// The members with these ranks, in this order.
    ///
    /// # Errors
    /// ERR_RANK for a rank that the group does not have, or that is named twice.
    pub fn incl(&self, ranks: &[i32]) -> Result<Group> {
        self.marked(ranks)?;
        let members = ranks.iter().map(|&rank| self.member(rank)).collect::<Result<_>>()?;
        Ok(Self::build(members, self.0.myself))
    }

    /// The members without those of these ranks; the order stays.
    ///
    /// # Errors
    /// As for [`Group::incl`].
    pub fn excl(&self, ranks: &[i32]) -> Result<Group> {
        let left_out = self.marked(ranks)?;
        let kept = self.peers().zip(left_out).filter(|&(_, out)| !out).map(|(peer, _)| peer);
        Ok(Self::build(kept.collect(), self.0.myself))
    }

    /// [`Group::incl`] of the ranks that the triplets (first, last, stride) stand for.
    ///
    /// # Errors
    /// ERR_ARG for a stride of 0 or one that leads away from the last rank; otherwise as for [`Group::incl`].
    pub fn range_incl(&self, ranges: &[[i32; 3]]) -> Result<Group> {
        self.incl(&self.expand(ranges)?)
    }

    /// [`Group::excl`] of the ranks that the triplets (first, last, stride) stand for.
    ///
    /// # Errors
    /// As for [`Group::range_incl`].
    pub fn range_excl(&self, ranges: &[[i32; 3]]) -> Result<Group> {
        self.excl(&self.expand(ranges)?)
    }

    fn build(members: Vec<Peer>, myself: Option<Peer>) -> Group {
        let map = match stride_of(&members) {
            Some((first, stride)) => Map::Strided { first, stride, size: members.len() as u32 },
            None => Map::List(members.into_boxed_slice()),
        };
        Self::with_map(map, myself)
    }

    fn with_map(map: Map, myself: Option<Peer>) -> Group {
        let mut group = Group(Arc::new(Members { map, myself, rank: None, by_peer: OnceLock::new() }));
        let rank = myself.and_then(|peer| group.rank_of(peer));
        Arc::get_mut(&mut group.0).expect("made just now").rank = rank;
        group
    }

    fn joined(&self, other: &Group, members: Vec<Peer>) -> Group {
        Self::build(members, self.0.myself.or(other.0.myself))
    }

    fn member(&self, rank: i32) -> Result<Peer> {
        match u32::try_from(rank).ok().and_then(|rank| self.peer(rank)) {
            Some(peer) => Ok(peer),
            None => bail!(ERR_RANK, "rank {rank} is not in the group: it has {} members", self.size()),
        }
    }

    /// One flag a member: whether its rank is in `ranks`.
    fn marked(&self, ranks: &[i32]) -> Result<Vec<bool>> {
        let mut marks = vec![false; self.size() as usize];
        for &rank in ranks {
            self.member(rank)?;
            if std::mem::replace(&mut marks[rank as usize], true) {
                bail!(ERR_RANK, "rank {rank} is named twice");
            }
        }
        Ok(marks)
    }

    fn expand(&self, ranges: &[[i32; 3]]) -> Result<Vec<i32>> {
        let mut ranks = Vec::new();
        for &[first, last, stride] in ranges {
            if stride == 0 {
                bail!(ERR_ARG, "the range ({first}, {last}, {stride}) has a stride of 0");
            }
            self.member(first)?;
            let (step, way) = (i64::from(stride), i64::from(last) - i64::from(first));
            if way != 0 && (way > 0) != (step > 0) {
                bail!(ERR_ARG, "the stride of the range ({first}, {last}, {stride}) leads away from {last}");
            }
            let end = i64::from(first) + way / step * step;
            if end < 0 || end >= i64::from(self.size()) || ranks.len() > self.size() as usize {
                let size = self.size();
                bail!(ERR_RANK, "the range ({first}, {last}, {stride}) leaves the group of {size} members");
            }
            ranks.extend((0..=way / step).map(|i| (i64::from(first) + i * step) as i32));
        }
        Ok(ranks)
    }
}

/// First peer and constant distance of the members; `None` if they have none.
fn stride_of(members: &[Peer]) -> Option<(u32, i64)> {
    let distance = |pair: &[Peer]| i64::from(pair[1].0) - i64::from(pair[0].0);
    let first = members.first().map_or(0, |peer| peer.0);
    let stride = members.get(..2).map_or(1, distance);
    let regular = stride != 0 && members.windows(2).all(|pair| distance(pair) == stride);
    regular.then_some((first, stride))
}

fn ranks_by_peer(list: &[Peer]) -> Box<[u32]> {
    let mut ranks: Box<[u32]> = (0..list.len() as u32).collect();
    ranks.sort_unstable_by_key(|&rank| list[rank as usize]);
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;
    use proptest::prelude::*;

    fn group(peers: &[u32]) -> Group {
        Group::new(peers.iter().copied().map(Peer).collect(), Peer(3))
    }

    fn numbers(group: &Group) -> Vec<u32> {
        group.peers().map(|peer| peer.0).collect()
    }

    #[test]
    fn the_world_knows_its_own_rank() {
        let world = Group::contiguous(Peer(0), 8, Peer(3));
        assert_eq!((world.size(), world.rank()), (8, Some(3)));
        assert_eq!(world.range_excl(&[[0, 3, 3]]).unwrap().rank(), None);
        assert_eq!(Group::empty().union(&world).rank(), Some(3));
        assert_eq!((Group::empty().size(), Group::empty().rank()), (0, None));
    }

    #[test]
    fn comparison_sees_order_and_members() {
        let a = group(&[1, 2, 5]);
        assert_eq!(a.compare(&a.clone()), Comparison::Ident);
        assert_eq!(a.compare(&group(&[1, 2, 5])), Comparison::Ident);
        assert_eq!(a.compare(&group(&[5, 2, 1])), Comparison::Similar);
        assert_eq!(a.compare(&group(&[1, 2, 6])), Comparison::Unequal);
        assert_eq!(a.compare(&group(&[1, 2])), Comparison::Unequal);
        assert_eq!(Group::empty().compare(&group(&[])), Comparison::Ident);
    }

    #[test]
    fn ranks_are_translated() {
        let (a, b) = (group(&[4, 7, 9]), group(&[9, 4]));
        assert_eq!([0, 1, 2].map(|rank| a.translate_rank(rank, &b).unwrap()), [Some(1), None, Some(0)]);
        for rank in [3, -1, -3] {
            assert_eq!(a.translate_rank(rank, &b).unwrap_err().class, Class::ERR_RANK);
        }
    }

    #[test]
    fn ranges_are_expanded_and_checked() {
        let world = Group::contiguous(Peer(0), 10, Peer(3));
        assert_eq!(numbers(&world.range_incl(&[[1, 8, 3], [9, 5, -4]]).unwrap()), [1, 4, 7, 9, 5]);
        assert_eq!(numbers(&world.range_incl(&[[0, 11, 6]]).unwrap()), [0, 6]);
        assert_eq!(numbers(&world.range_excl(&[[0, 9, 2]]).unwrap()), [1, 3, 5, 7, 9]);
        let class = |ranges: &[[i32; 3]]| world.range_incl(ranges).unwrap_err().class;
        assert_eq!(class(&[[1, 2, 0]]), Class::ERR_ARG);
        assert_eq!(class(&[[2, 1, 1]]), Class::ERR_ARG);
        assert_eq!(class(&[[0, 10, 1]]), Class::ERR_RANK);
        assert_eq!(class(&[[-1, 3, 1]]), Class::ERR_RANK);
        assert_eq!(class(&[[0, 3, 1], [3, 4, 1]]), Class::ERR_RANK);
        assert_eq!(class(&[[9, i32::MIN, -1]]), Class::ERR_RANK);
        assert_eq!(class(&[[0, i32::MAX, 1]]), Class::ERR_RANK);
    }

    #[test]
    fn a_rank_twice_or_out_of_range_is_refused() {
        let a = group(&[4, 7, 9]);
        for ranks in [&[0, 0][..], &[3], &[-1]] {
            assert_eq!(a.incl(ranks).unwrap_err().class, Class::ERR_RANK);
            assert_eq!(a.excl(ranks).unwrap_err().class, Class::ERR_RANK);
        }
        assert_eq!(a.incl(&[]).unwrap().compare(&Group::empty()), Comparison::Ident);
    }

    #[test]
    fn regular_groups_take_no_list() {
        for peers in [&[][..], &[7], &[7, 8, 9], &[9, 7, 5], &[0, u32::MAX]] {
            assert!(matches!(group(peers).0.map, Map::Strided { .. }), "{peers:?}");
            assert_eq!(numbers(&group(peers)), peers);
        }
    }

    fn distinct() -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::hash_set(0u32..60, 0..40).prop_map(|set| set.into_iter().collect())
    }

    proptest! {
        #[test]
        fn every_member_is_found_and_no_other(peers in distinct()) {
            let group = group(&peers);
            for number in 0..61 {
                let rank = peers.iter().position(|&peer| peer == number).map(|rank| rank as u32);
                prop_assert_eq!(group.rank_of(Peer(number)), rank);
            }
            prop_assert_eq!(numbers(&group), peers);
        }

        #[test]
        fn set_operations_follow_their_definitions(a in distinct(), b in distinct()) {
            let (ga, gb) = (group(&a), group(&b));
            let mut union = a.clone();
            union.extend(b.iter().filter(|peer| !a.contains(peer)));
            prop_assert_eq!(numbers(&ga.union(&gb)), union);
            let (both, rest): (Vec<u32>, Vec<u32>) = a.iter().partition(|peer| b.contains(peer));
            prop_assert_eq!(numbers(&ga.intersection(&gb)), both);
            prop_assert_eq!(numbers(&ga.difference(&gb)), rest);
        }

        #[test]
        fn strided_groups_answer_like_lists(first in 0u32..50, stride in 1u32..7, size in 0u32..30, back: bool) {
            let mut peers: Vec<u32> = (0..size).map(|rank| first + rank * stride).collect();
            if back { peers.reverse(); }
            let group = group(&peers);
            for number in 0..300 {
                let rank = peers.iter().position(|&peer| peer == number).map(|rank| rank as u32);
                prop_assert_eq!(group.rank_of(Peer(number)), rank);
            }
        }
    }
}
