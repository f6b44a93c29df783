//! What can be chosen, and what is counted.

/// How memory of peers is read without going through the rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SingleCopy {
    /// By a plain copy inside one process, else by `process_vm_readv` where the system allows it.
    #[default]
    Auto,
    /// By `process_vm_readv` in any case.
    Syscall,
    /// Not at all.
    Off,
}

/// What can be chosen.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How memory of peers is read.
    pub single_copy: SingleCopy,
    /// Ranks sleep often: all that send fence, some nanoseconds each, and going to sleep is cheap. Otherwise
    /// sending is cheaper, and going to sleep interrupts the cores that run other ranks, some microseconds.
    /// `None`: if the node has more ranks than cores. One rank that asks for it is enough.
    pub crowded: Option<bool>,
}

/// Counts since this instance attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Reads of peers' memory that were done.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Reads that were refused, and went another way.
    pub refused_reads: u64,
    /// Times that we woke a peer.
    pub wakes: u64,
    /// Times that a peer asked to be woken by its socket and could not be (another network namespace).
    pub lost_wakes: u64,
    /// Times that we slept.
    pub sleeps: u64,
    /// Sends that found no room.
    pub busy: u64,
}
