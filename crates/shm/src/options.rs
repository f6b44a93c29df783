//! [`Options`] of the fabric, and its counters ([`Stats`]).

/// How a rank reads memory of its peers without going through the rings.
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

/// Options of [`Shm::attach`](crate::Shm::attach).
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How memory of peers is read.
    pub single_copy: SingleCopy,
    /// True: ranks sleep often, so every send fences (some nanoseconds) and going to sleep is cheap. False: sending is
    /// cheaper, and going to sleep interrupts the cores that run other ranks (some microseconds). `None`: true if the node
    /// has more ranks than cores. If one rank of the node says true, all its ranks fence.
    pub crowded: Option<bool>,
}

/// Counts since this instance attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Reads of peers' memory that succeeded.
    pub reads: u64,
    /// Bytes that these reads copied.
    pub read_bytes: u64,
    /// Reads that were refused; their data take another way.
    pub refused_reads: u64,
    /// Times that this rank woke a peer.
    pub wakes: u64,
    /// Times that a peer asked to be woken by its socket and could not be (another network namespace).
    pub lost_wakes: u64,
    /// Times that this rank slept.
    pub sleeps: u64,
    /// Sends that found no room.
    pub busy: u64,
}
