//! [`Topology`]: what all ranks of a communicator know of where they are.

/// What is known of a communicator's ranks. All of them must have the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Topology {
    /// How many they are.
    pub ranks: u32,
    /// They are all on one node.
    pub one_node: bool,
    /// The fewest cores that the ranks on a node have between them.
    pub cores: u32,
    /// The most ranks on one node.
    pub per_node: u32,
    /// They have shared buffers.
    pub shared: Option<SharedCaps>,
}

/// What all ranks know of their shared buffers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharedCaps {
    /// Bytes that a publication can carry inline.
    pub inline: u64,
    /// Every rank can get exposed ranges of every other.
    pub single_copy: bool,
    /// Bytes of the shared scratch.
    pub scratch: u64,
}

impl Topology {
    /// Of `ranks` ranks on one node of `cores` cores with CICO buffers about as the runtime makes them, or on nodes of
    /// their own: what models and tests assume.
    pub fn supposed(ranks: u32, one_node: bool, cores: u32) -> Topology {
        let shared = one_node.then_some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 });
        Topology { ranks, one_node, cores, per_node: if one_node { ranks } else { 1 }, shared }
    }
}
