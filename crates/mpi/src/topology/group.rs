//! Groups: ordered sets of processes.

use banyan_runtime as rt;

use super::Rank;
use crate::error::expect;

/// What has a group of the runtime.
pub trait AsGroup {
    #[doc(hidden)]
    fn object(&self) -> &rt::Group;
}

/// The group without members.
///
/// ```
/// use mpi::topology::SystemGroup;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// assert_eq!(SystemGroup::empty().size(), 0);
/// ```
#[derive(Clone, Debug)]
pub struct SystemGroup(rt::Group);

impl SystemGroup {
    /// The group without members (MPI_GROUP_EMPTY).
    pub fn empty() -> SystemGroup {
        SystemGroup(rt::Group::empty())
    }
}

impl AsGroup for SystemGroup {
    fn object(&self) -> &rt::Group {
        &self.0
    }
}

impl Group for SystemGroup {}

/// A group of a communicator's processes, or one made from others.
///
/// ```
/// use mpi::topology::UserGroup;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let all: UserGroup = universe.world().group();
/// assert_eq!(all.size(), universe.world().size());
/// ```
#[derive(Clone, Debug)]
pub struct UserGroup(pub(super) rt::Group);

impl AsGroup for UserGroup {
    fn object(&self) -> &rt::Group {
        &self.0
    }
}

impl Group for UserGroup {}

/// An ordered set of processes.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let group = universe.world().group();
/// assert_eq!(group.include(&[]).size(), 0);
/// assert_eq!(group.translate_rank(0, &group), Some(0));
/// ```
///
/// Groups made of others:
/// ```
/// use mpi::topology::GroupRelation;
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(4, |universe| {
///     let all = universe.world().group();
///     let (low, odd) = (all.include(&[0, 1]), all.include(&[1, 3]));
///     assert_eq!(low.union(&odd).translate_ranks(&[0, 1, 2], &all), [Some(0), Some(1), Some(3)]);
///     assert_eq!(low.intersection(&odd).translate_rank(0, &all), Some(1));
///     assert_eq!(low.difference(&odd).compare(&all.include(&[0])), GroupRelation::Identical);
///     assert_eq!(all.exclude(&[3, 2]).compare(&low), GroupRelation::Identical);
///     assert_eq!(low.rank(), Some(universe.world().rank()).filter(|rank| *rank < 2));
/// });
/// ```
pub trait Group: AsGroup {
    /// The members of this group, then those of the other one that are not in it.
    fn union<G: Group>(&self, other: &G) -> UserGroup
    where
        Self: Sized,
    {
        UserGroup(self.object().union(other.object()))
    }

    /// The members of both, ordered as in this one.
    fn intersection<G: Group>(&self, other: &G) -> UserGroup
    where
        Self: Sized,
    {
        UserGroup(self.object().intersection(other.object()))
    }

    /// The members of this group that are not in the other one.
    fn difference<G: Group>(&self, other: &G) -> UserGroup
    where
        Self: Sized,
    {
        UserGroup(self.object().difference(other.object()))
    }

    /// The members with these ranks, in this order.
    fn include(&self, ranks: &[Rank]) -> UserGroup {
        UserGroup(expect(self.object().incl(ranks)))
    }

    /// The members but those with these ranks.
    fn exclude(&self, ranks: &[Rank]) -> UserGroup {
        UserGroup(expect(self.object().excl(ranks)))
    }

    /// How many members there are.
    fn size(&self) -> Rank {
        self.object().size() as Rank
    }

    /// The rank of this process; `None` if it is no member.
    fn rank(&self) -> Option<Rank> {
        self.object().rank().map(|rank| rank as Rank)
    }

    /// The rank in the other group of the member with this rank; `None` if it is no member there.
    fn translate_rank<G: Group>(&self, rank: Rank, other: &G) -> Option<Rank>
    where
        Self: Sized,
    {
        expect(self.object().translate_rank(rank, other.object())).map(|rank| rank as Rank)
    }

    /// [`Group::translate_rank`] of several ranks.
    fn translate_ranks<G: Group>(&self, ranks: &[Rank], other: &G) -> Vec<Option<Rank>>
    where
        Self: Sized,
    {
        ranks.iter().map(|&rank| self.translate_rank(rank, other)).collect()
    }

    /// How this group relates to the other one.
    fn compare<G: Group>(&self, other: &G) -> GroupRelation
    where
        Self: Sized,
    {
        match self.object().compare(other.object()) {
            rt::Comparison::Ident | rt::Comparison::Congruent => GroupRelation::Identical,
            rt::Comparison::Similar => GroupRelation::Similar,
            rt::Comparison::Unequal => GroupRelation::Unequal,
        }
    }
}

/// How two groups relate.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum GroupRelation {
    /// The same members in the same order.
    Identical,
    /// The same members in another order.
    Similar,
    /// Other members.
    Unequal,
}
