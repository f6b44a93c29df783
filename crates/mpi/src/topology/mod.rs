//! Communicators and groups: who communicates with whom.

mod cartesian;
mod communicator;
mod group;
pub(crate) mod handle;

pub use cartesian::{CartesianCommunicator, CartesianLayout};
pub use communicator::{AnyCommunicator, Communicator};
pub use group::{Group, GroupRelation, SystemGroup, UserGroup};

use handle::{AsHandle, Handle};

use crate::instance;

/// The traits of communicators and groups.
pub mod traits {
    pub use super::{AnyCommunicator, AsCommunicator, Communicator, Group};
}

/// The number of a process in a communicator or group.
pub type Rank = i32;

/// What names any process (MPI_ANY_SOURCE).
pub(crate) const ANY_SOURCE: Rank = -1;
/// What names no process (MPI_PROC_NULL).
pub(crate) const PROC_NULL: Rank = -3;

/// What belongs to a communicator.
pub trait AsCommunicator {
    /// The type of that communicator.
    type Out: Communicator;
    /// The communicator.
    fn as_communicator(&self) -> &Self::Out;
}

/// A communicator of one group of processes.
#[derive(Clone)]
pub struct SimpleCommunicator(pub(crate) Handle);

impl SimpleCommunicator {
    /// The communicator of all processes (MPI_COMM_WORLD).
    ///
    /// # Panics
    /// If MPI is not initialized, or this thread may not call it.
    pub fn world() -> SimpleCommunicator {
        SimpleCommunicator(instance::with(|instance| instance.world.clone()))
    }

    /// The communicator of this process alone (MPI_COMM_SELF).
    ///
    /// # Panics
    /// If MPI is not initialized, or this thread may not call it.
    pub fn self_comm() -> SimpleCommunicator {
        SimpleCommunicator(instance::with(|instance| instance.itself.clone()))
    }

    /// Which topology it has.
    pub fn topology(&self) -> Topology {
        if self.0.comm().cart().is_some() { Topology::Cartesian } else { Topology::Undefined }
    }

    /// This communicator as one of its topology.
    pub fn into_topology(self) -> IntoTopology {
        match self.topology() {
            Topology::Cartesian => IntoTopology::Cartesian(CartesianCommunicator(self)),
            _ => IntoTopology::Undefined(self),
        }
    }
}

impl AsHandle for SimpleCommunicator {
    fn as_handle(&self) -> &Handle {
        &self.0
    }
}

impl Communicator for SimpleCommunicator {}

impl AsCommunicator for SimpleCommunicator {
    type Out = SimpleCommunicator;

    fn as_communicator(&self) -> &Self::Out {
        self
    }
}

/// The topologies of communicators.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Topology {
    /// A grid.
    Cartesian,
    /// None.
    Undefined,
}

/// A communicator as one of its topology.
#[non_exhaustive]
pub enum IntoTopology {
    /// A grid.
    Cartesian(CartesianCommunicator),
    /// None.
    Undefined(SimpleCommunicator),
}

/// What tells the parts apart into which a communicator is split.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Color(Option<i32>);

impl Color {
    /// That of processes which get no communicator.
    pub fn undefined() -> Color {
        Color(None)
    }

    /// A number that is not negative.
    ///
    /// # Panics
    /// If it is negative.
    pub fn with_value(value: i32) -> Color {
        assert!(value >= 0, "the value of a color is {value}, but must not be negative");
        Color(Some(value))
    }
}

/// What orders the processes of a part into which a communicator is split.
pub type Key = i32;

/// How two communicators relate.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CommunicatorRelation {
    /// They are one.
    Identical,
    /// The same processes in the same order.
    Congruent,
    /// The same processes in another order.
    Similar,
    /// Other processes.
    Unequal,
}

/// A process of a communicator.
#[derive(Copy, Clone)]
pub struct Process<'a> {
    // A communicator without a method `rank` of its own: that of a process is the process's.
    comm: AnyProcess<'a>,
    rank: Rank,
}

impl<'a> Process<'a> {
    pub(crate) fn new(comm: &'a Handle, rank: Rank) -> Process<'a> {
        Process { comm: AnyProcess(comm), rank }
    }

    /// Its rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether it is the process that asks.
    pub fn is_self(&self) -> bool {
        self.comm.rank() == self.rank
    }
}

/// Any process of a communicator, as the source of a message.
#[derive(Copy, Clone)]
pub struct AnyProcess<'a>(&'a Handle);

impl AsHandle for Process<'_> {
    fn as_handle(&self) -> &Handle {
        self.comm.0
    }
}

impl AsHandle for AnyProcess<'_> {
    fn as_handle(&self) -> &Handle {
        self.0
    }
}

impl Communicator for Process<'_> {}
impl Communicator for AnyProcess<'_> {}

impl<'a> AsCommunicator for Process<'a> {
    type Out = AnyProcess<'a>;

    fn as_communicator(&self) -> &Self::Out {
        &self.comm
    }
}

impl AsCommunicator for AnyProcess<'_> {
    type Out = Self;

    fn as_communicator(&self) -> &Self::Out {
        self
    }
}
