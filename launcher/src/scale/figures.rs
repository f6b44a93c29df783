//! What jobs are simulated, at what costs, and what comes of them.

use std::time::Duration;

/// A job.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks on each host, but the last.
    pub per_host: u32,
    /// Whether the hosts get a rank each in turn, instead of all of theirs in a row.
    pub in_turn: bool,
    /// Most agents that one agent starts.
    pub radix: u32,
}

/// What things take, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A message between two hosts, beside its bytes.
    pub latency: u64,
    /// A byte between two hosts.
    pub byte: u64,
    /// From the start of an ssh to the first line of the agent that it starts.
    pub ssh: u64,
    /// To start an ssh.
    pub start_ssh: u64,
    /// For an agent to take a frame.
    pub frame: u64,
    /// To start a rank.
    pub start_rank: u64,
    /// From a rank's start to its first request.
    pub init: u64,
    /// A frame between a rank and its agent.
    pub socket: u64,
}

impl Default for Costs {
    /// A network of 1 Gbit/s with 50 us one way; the rest about as measured on a busy virtual machine.
    fn default() -> Costs {
        Costs {
            latency: 50_000,
            byte: 8,
            ssh: 300_000_000,
            start_ssh: 2_000_000,
            frame: 3_000,
            start_rank: 500_000,
            init: 5_000_000,
            socket: 10_000,
        }
    }
}

/// When a part of the job was over: so long after mpirun's start, and after so many messages, each of which waited for the one
/// before.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reached {
    /// Virtual time.
    pub time: Duration,
    /// Length of the longest chain of messages.
    pub depth: u32,
}

/// Frames and their bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// Number of frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Traffic {
    pub(super) fn add(&mut self, bytes: usize) {
        self.frames += 1;
        self.bytes += bytes as u64;
    }
}

/// What became of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Figures {
    /// Number of hosts.
    pub hosts: u32,
    /// All agents were there.
    pub agents: Reached,
    /// All ranks were through MPI_Init.
    pub init: Reached,
    /// All ranks were through an allreduce of 8 bytes.
    pub allreduce: Reached,
    /// All agents have ended.
    pub end: Reached,
    /// Frames that mpirun's own agent got from other hosts, and sent to them.
    pub first: [Traffic; 2],
    /// The same of that one of the other agents which had most.
    pub busiest: [Traffic; 2],
    /// Bytes between a rank and its agent, of the rank that had most.
    pub rank_bytes: u64,
    /// Lookups of business cards that ranks asked for, in all.
    pub lookups: u64,
    /// Connections between ranks, in all, and of the rank that has most.
    pub connections: [u64; 2],
    /// Bytes that mpirun's own agent keeps of the job, and the one of the others that keeps most.
    pub tables: [usize; 2],
}
