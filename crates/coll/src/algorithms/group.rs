//! A group of a power of two: folding the other ranks in, and halving a vector among the members. Used by the
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
    /// The number of ranks beyond it: of the first `2 * extra` ranks the even ones fold into their upper neighbours.
    pub(super) extra: u32,
}

/// What a rank is to the group.
pub(super) enum Role {
    /// The rank is outside: its upper neighbour acts for it.
    Outside,
    /// The rank is a member.
    Member {
        /// Its number in the group.
        number: u32,
        /// The lower neighbour, if the member acts for it.
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

    /// The number of the member that is this rank, or acts for it.
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

/// In how many of the first `levels` joins member `number` is the lower partner: the zeros among its lowest `levels`
/// bits.
pub(super) fn joins_as_lower(number: u32, levels: u32) -> u32 {
    levels - (number & ((1 << levels) - 1)).count_ones()
}
