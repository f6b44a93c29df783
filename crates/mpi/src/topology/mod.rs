//! Communicators and groups: who communicates with whom.
//!
//! ```
//! use mpi::topology::{Color, Key, Rank, SimpleCommunicator};
//! use mpi::traits::*;
//!
//! /// The ranks of a communicator in two halves, each in the opposite order.
//! fn halves(comm: &SimpleCommunicator) -> SimpleCommunicator {
//!     let (rank, size): (Rank, Rank) = (comm.rank(), comm.size());
//!     let key: Key = -rank;
//!     comm.split_by_color_with_key(Color::with_value(i32::from(rank >= size / 2)), key).unwrap()
//! }
//!
//! let ranks = mpi::environment::Universe::simulated(4, |universe| halves(&universe.world()).rank());
//! assert_eq!(ranks, [1, 0, 1, 0]);
//! ```

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
///
/// ```
/// use mpi::traits::*;
///
/// fn ranks(of: &impl AsCommunicator) -> mpi::Rank {
///     of.as_communicator().size()
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// assert_eq!(ranks(&world.any_process()), world.size());
/// ```
pub trait AsCommunicator {
    /// The type of that communicator.
    type Out: Communicator;
    /// The communicator.
    fn as_communicator(&self) -> &Self::Out;
}

/// A communicator of one group of processes.
///
/// ```
/// use mpi::topology::{IntoTopology, SimpleCommunicator, Topology};
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let (all, alone) = (SimpleCommunicator::world(), SimpleCommunicator::self_comm());
/// assert_eq!((all.size(), alone.size()), (universe.world().size(), 1));
/// assert_eq!(all.topology(), Topology::Undefined);
/// assert!(matches!(all.into_topology(), IntoTopology::Undefined(_)));
/// ```
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

/// The topologies of communicators. [`SimpleCommunicator::topology`] tells it.
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
///
/// ```
/// use mpi::topology::Color;
/// use mpi::traits::*;
///
/// let sizes = mpi::environment::Universe::simulated(3, |universe| {
///     let world = universe.world();
///     let color = if world.rank() == 2 { Color::undefined() } else { Color::with_value(5) };
///     world.split_by_color(color).map(|part| part.size())
/// });
/// assert_eq!(sizes, [Some(2), Some(2), None]);
/// ```
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
        if value < 0 {
            raise!(ERR_ARG, "the value of a color is {value}, but must not be negative");
        }
        Color(Some(value))
    }
}

/// What orders the processes of a part into which a communicator is split.
pub type Key = i32;

/// How two communicators relate.
///
/// ```
/// use mpi::topology::CommunicatorRelation;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// assert_eq!(world.compare(&universe.world()), CommunicatorRelation::Identical);
/// ```
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
///
/// ```
/// use mpi::topology::Process;
/// use mpi::traits::*;
///
/// fn greeting(to: Process<'_>) -> String {
///     if to.is_self() { "me".to_owned() } else { format!("rank {}", to.rank()) }
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// assert_eq!(greeting(world.process_at_rank(0)), "me");
/// ```
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
///
/// ```
/// use mpi::topology::AnyProcess;
/// use mpi::traits::*;
///
/// fn next(from: AnyProcess<'_>) -> (u8, mpi::Rank) {
///     let (byte, status) = from.receive::<u8>();
///     (byte, status.source_rank())
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// world.this_process().send(&7u8);
/// assert_eq!(next(world.any_process()), (7, 0));
/// ```
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
