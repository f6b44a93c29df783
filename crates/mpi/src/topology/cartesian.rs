//! Communicators whose processes form a grid.

use banyan_runtime::Cart;

use super::handle::{AsHandle, Handle};
use super::{AsCommunicator, Communicator, Rank, SimpleCommunicator};
use crate::Count;
use crate::error::expect;

/// A grid, and the place of this process in it.
///
/// ```
/// use mpi::topology::CartesianLayout;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let grid = world.create_cartesian_communicator(&[1, 1], &[true, false], false).unwrap();
/// let CartesianLayout { dims, periods, coords } = grid.get_layout();
/// assert_eq!((dims, periods, coords), (vec![1, 1], vec![true, false], vec![0, 0]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CartesianLayout {
    /// How many processes there are along each dimension.
    pub dims: Vec<Count>,
    /// Whether each dimension wraps around.
    pub periods: Vec<bool>,
    /// The place of this process along each dimension.
    pub coords: Vec<Count>,
}

/// Tells something of each dimension.
#[track_caller]
fn fill<T: Copy>(room: &mut [T], told: &[T]) {
    if room.len() != told.len() {
        raise!(ERR_DIMS, "the grid has {} dimensions, but there is room for {}", told.len(), room.len());
    }
    room.copy_from_slice(told);
}

/// A communicator whose processes form a grid.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let ring = world.create_cartesian_communicator(&[world.size()], &[true], false).unwrap();
/// let (source, destination) = ring.shift(0, 1);
/// assert_eq!(destination, Some((ring.rank() + 1) % ring.size()));
/// # assert!(source.is_some());
/// ```
///
/// Coordinates and ranks:
/// ```
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(6, |universe| {
///     let grid = universe.world().create_cartesian_communicator(&[2, 3], &[false, true], false).unwrap();
///     assert_eq!((grid.num_dimensions(), grid.coordinates_to_rank(&[1, 2])), (2, 5));
///     assert_eq!(grid.rank_to_coordinates(4), [1, 1]);
///     assert_eq!(grid.get_layout().dims, [2, 3]);
///     let mut coords = [0; 2];
///     grid.rank_to_coordinates_into(5, &mut coords);
///     assert_eq!(coords, [1, 2]);
///
///     let (mut dims, mut periods) = ([0; 2], [false; 2]);
///     grid.get_layout_into(&mut dims, &mut periods, &mut coords);
///     assert_eq!((dims, periods, grid.rank()), ([2, 3], [false, true], 3 * coords[0] + coords[1]));
///
///     // A row of the grid.
///     assert_eq!(grid.subgroup(&[false, true]).size(), 3);
/// });
/// ```
pub struct CartesianCommunicator(pub(super) SimpleCommunicator);

impl CartesianCommunicator {
    fn cart(&self) -> &Cart {
        self.0.as_handle().comm().cart().expect("a communicator of this type has a grid")
    }

    /// How many dimensions the grid has.
    pub fn num_dimensions(&self) -> Count {
        self.cart().ndims() as Count
    }

    /// The grid, and the place of this process in it, into slices with room for each dimension.
    ///
    /// # Panics
    /// If they are not as long as there are dimensions.
    pub fn get_layout_into(&self, dims: &mut [Count], periods: &mut [bool], coords: &mut [Count]) {
        fill(dims, self.cart().dims());
        fill(periods, self.cart().periods());
        self.rank_to_coordinates_into(self.rank(), coords);
    }

    /// The grid, and the place of this process in it.
    pub fn get_layout(&self) -> CartesianLayout {
        let (dims, periods) = (self.cart().dims().to_vec(), self.cart().periods().to_vec());
        CartesianLayout { dims, periods, coords: self.rank_to_coordinates(self.rank()) }
    }

    /// The rank of the process at these coordinates.
    ///
    /// # Panics
    /// If there are too few, or one lies outside a dimension that does not wrap around.
    pub fn coordinates_to_rank(&self, coords: &[Count]) -> Rank {
        expect(self.cart().rank(coords))
    }

    /// The coordinates of a rank, into a slice with room for each dimension.
    ///
    /// # Panics
    /// If there is no such rank, or the slice is not as long as there are dimensions.
    pub fn rank_to_coordinates_into(&self, rank: Rank, coords: &mut [Count]) {
        fill(coords, &self.rank_to_coordinates(rank));
    }

    /// The coordinates of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rank_to_coordinates(&self, rank: Rank) -> Vec<Count> {
        expect(self.cart().coords(rank))
    }

    /// The ranks so many steps before and behind this process along a dimension; `None` is beyond the edge.
    ///
    /// # Panics
    /// If there is no such dimension.
    pub fn shift(&self, dimension: Count, displacement: Count) -> (Option<Rank>, Option<Rank>) {
        expect(self.cart().shift(self.rank(), dimension, displacement))
    }

    /// The grid of those processes that differ from this one in the dimensions that are retained alone.
    ///
    /// # Panics
    /// If there are not as many marks as dimensions.
    pub fn subgroup(&self, retain: &[bool]) -> CartesianCommunicator {
        let comm = expect(self.0.as_handle().comm().cart_sub(retain));
        CartesianCommunicator(SimpleCommunicator(Handle::new(comm)))
    }
}

impl AsHandle for CartesianCommunicator {
    fn as_handle(&self) -> &Handle {
        self.0.as_handle()
    }
}

impl Communicator for CartesianCommunicator {}

impl AsCommunicator for CartesianCommunicator {
    type Out = CartesianCommunicator;

    fn as_communicator(&self) -> &Self::Out {
        self
    }
}
