//! Contexts: the numbers that keep the messages of one communicator apart from those of all others (MPI 5.0, 7.1). All members
//! derive them without a message.

/// Context of MPI_COMM_WORLD.
pub(crate) const WORLD: u64 = 1;
/// Context of MPI_COMM_SELF: its messages never leave the process.
pub(crate) const SELF: u64 = 2;

/// What a context is for. Two contexts made from one parent differ in purpose, in count, or in sibling number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Purpose {
    /// A number that one process draws for others.
    Drawn = 1,
    /// A duplicate.
    Duplicate,
    /// A part of a communicator that was split; its sibling number is the colour.
    Split,
    /// A subset (MPI_Comm_create); its sibling number is the leader.
    Subset,
    /// A Cartesian grid.
    Cart,
    /// Both groups of an intercommunicator in one.
    Merged,
    /// A persistent collective.
    Persistent,
    /// Nonblocking collectives.
    Nonblocking,
    /// Messages of MPI_Comm_create_group; the sibling number is the tag.
    CreateGroupChannel,
    /// Messages of MPI_Intercomm_create; the sibling number is the tag.
    IntercommCreateChannel,
}

impl Purpose {
    /// A number that differs for each purpose and sibling.
    fn number(self, sibling: u32) -> u64 {
        (self as u64) << 32 | u64::from(sibling)
    }
}

/// The context of a communicator. All members derive the same one from the parent's context, the number of communicators
/// made from the parent before, the purpose and the sibling number. 64 well-mixed bits (SplitMix64's finalizer, three times).
pub(crate) fn derive_context(parent: u64, count: u64, purpose: Purpose, sibling: u32) -> u64 {
    let sibling = purpose.number(sibling);
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let ctx =
        mix(mix(mix(parent.wrapping_add(step)) ^ count.wrapping_mul(step)) ^ sibling.wrapping_add(step));
    // Contexts below 16 are for predefined communicators.
    if ctx < 16 { ctx + 16 } else { ctx }
}

/// The context of a communicator that is gone.
pub(crate) struct Retired {
    pub(crate) ctx: u64,
    /// It joined an arena of the node's memory with so many ranks, or was told that there is no room.
    pub(crate) arena_ranks: Option<u32>,
    /// Index of its `CollSequence` in the engine.
    pub(crate) sequence: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::Purpose::*;
    use super::*;
    use std::collections::HashSet;

    const ALL: [Purpose; 10] = [
        Drawn,
        Duplicate,
        Split,
        Subset,
        Cart,
        Merged,
        Persistent,
        Nonblocking,
        CreateGroupChannel,
        IntercommCreateChannel,
    ];

    #[test]
    fn derived_contexts_differ() {
        let mut seen = HashSet::new();
        for parent in [WORLD, SELF, derive_context(WORLD, 0, Duplicate, 0)] {
            for count in 0..100 {
                for (purpose, sibling) in ALL.into_iter().flat_map(|p| (0..20).map(move |s| (p, s))) {
                    assert!(seen.insert(derive_context(parent, count, purpose, sibling)));
                }
            }
        }
    }

    /// Siblings are numbered by ranks, sizes, colours and tags: those of one purpose are never those of another.
    #[test]
    fn purposes_share_no_number() {
        let mut seen = HashSet::new();
        for purpose in ALL {
            for sibling in (0..=100_000).chain([i32::MAX as u32, u32::MAX - 1, u32::MAX]) {
                assert!(seen.insert(purpose.number(sibling)), "{purpose:?} {sibling}");
            }
        }
    }
}
