//! Groups of a power of two: folding the other ranks in, and halving a vector among the group. Shared by the
//! doubling and Rabenseifner forms of reduce, allreduce and reduce_scatter.
//!
//! Neighbours fold together and groups join by ascending distance, so partial results always cover
//! consecutive ranks and the order of operands is kept.

use crate::{Shape, log2_down};

/// The largest group of a power of two within the ranks.
#[derive(Clone, Copy)]
pub(super) struct Group {
    /// log2 of its size.
    pub(super) levels: u32,
    /// Ranks beyond it: that many even ranks of the first `2 * extra` fold into their upper neighbours.
    pub(super) extra: u32,
}

/// What a rank is to the group.
pub(super) enum Role {
    /// Not in it: the neighbour above acts for this rank.
    Outside,
    /// A member, and the rank that it acts for, if any.
    Member {
        /// Its number in the group.
        number: u32,
        /// The neighbour below.
        ward: Option<u32>,
    },
}

impl Group {
    pub(super) fn of(shape: &Shape) -> Group {
        let levels = log2_down(shape.ranks);
        Group { levels, extra: shape.ranks - (1 << levels) }
    }

    pub(super) fn role(&self, rank: u32) -> Role {
        if rank >= 2 * self.extra {
            return Role::Member { number: rank - self.extra, ward: None };
        }
        match rank % 2 {
            0 => Role::Outside,
            _ => Role::Member { number: rank / 2, ward: Some(rank - 1) },
        }
    }

    /// The number of the member that is, or acts for, a rank.
    pub(super) fn acting(&self, rank: u32) -> u32 {
        if rank >= 2 * self.extra { rank - self.extra } else { rank / 2 }
    }

    /// The rank of a member.
    pub(super) fn rank(&self, number: u32) -> u32 {
        if number < self.extra { 2 * number + 1 } else { number + self.extra }
    }
}

/// Start and length of the part of `len` units that member `number` has left after `levels` halvings; bit k
/// of the number says which half it keeps at level k.
pub(super) fn half(number: u32, levels: u32, len: u64) -> (u64, u64) {
    (0..levels).fold((0, len), |(at, len), level| {
        let low = len / 2;
        if number >> level & 1 == 0 { (at, low) } else { (at + low, len - low) }
    })
}

/// How many of the lowest `levels` bits of `number` are 0: joins in which this member was the lower one.
pub(super) fn lower_joins(number: u32, levels: u32) -> u32 {
    levels - (number & ((1 << levels) - 1)).count_ones()
}
