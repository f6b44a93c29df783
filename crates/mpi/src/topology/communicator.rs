//! What all communicators can do, but for moving data.

use std::ops::Range;
use std::sync::Arc;

use banyan_runtime::{Cart, Comm, Comparison, Info, SplitType};

use super::group::UserGroup;
use super::handle::{AsHandle, Handle};
use super::{
    AnyProcess, CartesianCommunicator, Color, CommunicatorRelation, Group, Key, Process, Rank,
    SimpleCommunicator,
};
use crate::attribute::CommAttribute;
use crate::datatype::{Buffer, BufferMut, Datatype, counted, read, written};
use crate::error::expect;
use crate::{Count, Tag};

fn made(comm: Option<Arc<Comm>>) -> Option<SimpleCommunicator> {
    comm.map(|comm| SimpleCommunicator(Handle::new(comm)))
}

/// Where so many packed bytes lie from a position on, and the position behind them.
#[track_caller]
fn packed_at(position: Count, bytes: usize, room: usize) -> (Range<usize>, Count) {
    let start = usize::try_from(position).ok().filter(|start| *start <= room && bytes <= room - start);
    let Some(start) = start else {
        raise!(
            ERR_TRUNCATE,
            "{bytes} packed bytes from position {position} on are not within a buffer of {room}"
        )
    };
    (start..start + bytes, counted((start + bytes) as u64, "bytes"))
}

/// Processes that communicate with each other, apart from all other communication.
///
/// ```
/// use mpi::topology::{Color, CommunicatorRelation};
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let half = world.split_by_color(Color::with_value(world.rank() % 2)).unwrap();
/// assert!(half.size() <= world.size());
/// assert_eq!(world.compare(&world.duplicate()), CommunicatorRelation::Congruent);
/// assert_eq!(world.get_name(), "MPI_COMM_WORLD");
/// half.set_name("half");
/// assert_eq!(half.get_name(), "half");
/// ```
///
/// Processes, and parts of a communicator:
///
/// ```
/// use mpi::topology::Color;
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(3, |universe| {
///     let world = universe.world();
///     let (rank, size) = (world.rank(), world.size());
///     assert_eq!((world.target_size(), world.test_inter()), (size, false));
///     assert!(world.this_process().is_self() && world.process_at_rank(rank).is_self());
///     world.this_process().send(&rank);
///     assert_eq!(world.any_process().receive::<i32>().0, rank);
///
///     let reversed = world.split_by_color_with_key(Color::with_value(0), -rank).unwrap();
///     assert_eq!(reversed.rank(), size - 1 - rank);
///     assert!(world.split_shared(0).size() <= size);
///
///     let first_two = world.group().include(&[0, 1]);
///     let all_call = world.split_by_subgroup_collective(&first_two);
///     let members_call = if rank < 2 { world.split_by_subgroup(&first_two) } else { None };
///     let with_tag = if rank < 2 { world.split_by_subgroup_with_tag(&first_two, 1) } else { None };
///     assert!([all_call, members_call, with_tag].iter().all(|part| part.is_some() == (rank < 2)));
///
///     // In a row of three where they need two, one is left over.
///     let row = world.create_cartesian_communicator(&[2], &[false], false);
///     assert_eq!(row.is_some(), world.cartesian_map(&[2], &[false]).is_some());
/// });
/// ```
///
/// Elements as bytes:
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (one, mut bytes, mut back) = (1u16, [0; 6], [0u16; 2]);
/// assert_eq!(world.pack_size(2, &u16::equivalent_datatype()), 4);
/// let end = world.pack_into(&one, &mut bytes, 0);
/// let end = world.pack_into(&[2u16, 3], &mut bytes, end);
/// assert_eq!((end, world.pack(&one)), (6, bytes[..2].to_vec()));
/// // SAFETY: the bytes are those of numbers.
/// let end = unsafe { world.unpack_into(&bytes, &mut back, 2) };
/// assert_eq!((end, back), (6, [2, 3]));
/// ```
pub trait Communicator: AsHandle {
    /// How many processes there are to communicate with.
    fn target_size(&self) -> Rank {
        self.as_handle().comm().blocks() as Rank
    }

    /// How many processes there are.
    fn size(&self) -> Rank {
        self.as_handle().comm().size() as Rank
    }

    /// The rank of this process.
    fn rank(&self) -> Rank {
        self.as_handle().comm().rank() as Rank
    }

    /// The process of this rank.
    ///
    /// # Panics
    /// If there is no such rank.
    #[track_caller]
    fn process_at_rank(&self, r: Rank) -> Process<'_> {
        let size = self.target_size();
        if !(0..size).contains(&r) {
            raise!(ERR_RANK, "there is no rank {r}: the ranks are 0 to {}", size - 1);
        }
        Process::new(self.as_handle(), r)
    }

    /// Any process, as the source of a message.
    fn any_process(&self) -> AnyProcess<'_> {
        AnyProcess(self.as_handle())
    }

    /// This process.
    fn this_process(&self) -> Process<'_> {
        Process::new(self.as_handle(), self.rank())
    }

    /// How this communicator relates to another one.
    fn compare(&self, other: &dyn Communicator) -> CommunicatorRelation {
        match self.as_handle().comm().compare(other.as_handle().comm()) {
            Comparison::Ident => CommunicatorRelation::Identical,
            Comparison::Congruent => CommunicatorRelation::Congruent,
            Comparison::Similar => CommunicatorRelation::Similar,
            Comparison::Unequal => CommunicatorRelation::Unequal,
        }
    }

    /// A communicator of the same processes. All of them call this.
    fn duplicate(&self) -> SimpleCommunicator {
        let handle = self.as_handle();
        SimpleCommunicator(Handle::with(expect(handle.comm().dup()), handle.attributes().copies()))
    }

    /// A communicator of the processes that give the same color. All processes call this.
    fn split_by_color(&self, color: Color) -> Option<SimpleCommunicator> {
        self.split_by_color_with_key(color, Key::default())
    }

    /// [`Communicator::split_by_color`], with the processes ordered by their keys.
    fn split_by_color_with_key(&self, color: Color, key: Key) -> Option<SimpleCommunicator> {
        made(expect(self.as_handle().comm().split(color.0, key)))
    }

    /// A communicator of the processes that share memory with this one, ordered by their keys. All processes call this.
    fn split_shared(&self, key: Key) -> SimpleCommunicator {
        let shared = expect(self.as_handle().comm().split_type(Some(SplitType::Shared), key, &Info::new()));
        made(shared).expect("each process shares memory with itself")
    }

    /// A communicator of the group's members. All processes of this communicator call this, each with the group that it is in.
    fn split_by_subgroup_collective(&self, group: &dyn Group) -> Option<SimpleCommunicator> {
        made(expect(self.as_handle().comm().create(group.object())))
    }

    /// A communicator of the group's members, who call this.
    fn split_by_subgroup(&self, group: &dyn Group) -> Option<SimpleCommunicator> {
        self.split_by_subgroup_with_tag(group, Tag::default())
    }

    /// [`Communicator::split_by_subgroup`], with a tag that tells it from other calls at the same time.
    fn split_by_subgroup_with_tag(&self, group: &dyn Group, tag: Tag) -> Option<SimpleCommunicator> {
        group.rank()?;
        made(expect(self.as_handle().comm().create_group(group.object(), tag)))
    }

    /// The group of its processes.
    fn group(&self) -> UserGroup {
        UserGroup(self.as_handle().comm().group().clone())
    }

    /// Ends the job with this exit status.
    ///
    /// ```
    /// # use mpi::traits::*;
    /// # let universe = mpi::initialize().unwrap();
    /// # let (world, input) = (universe.world(), Some("input"));
    /// if input.is_none() {
    ///     eprintln!("there is no input");
    ///     world.abort(3);
    /// }
    /// ```
    fn abort(&self, errorcode: i32) -> ! {
        let comm = self.as_handle().comm();
        let what = format!("abort({errorcode}) on {}", comm.name_or_kind());
        comm.runtime().abort(errorcode, &what);
        std::process::exit(if errorcode & 0xff == 0 { 1 } else { errorcode & 0xff })
    }

    /// Whether it joins two groups.
    fn test_inter(&self) -> bool {
        self.as_handle().comm().is_inter()
    }

    /// Names it, for messages about errors and jobs that hang.
    fn set_name(&self, name: &str) {
        self.as_handle().comm().set_name(name);
    }

    /// Its name.
    fn get_name(&self) -> String {
        self.as_handle().comm().name()
    }

    /// The most bytes that so many elements of the datatype take when they are packed.
    fn pack_size<Dt: Datatype>(&self, incount: Count, datatype: &Dt) -> Count
    where
        Self: Sized,
    {
        let bytes = datatype.object().size() * incount.max(0) as u64;
        counted(bytes, "bytes")
    }

    /// The elements of a buffer, one after the other as bytes.
    fn pack<Buf: ?Sized + Buffer>(&self, inbuf: &Buf) -> Vec<u8>
    where
        Self: Sized,
    {
        // SAFETY: it is used in this call alone.
        let data = unsafe { read(inbuf) };
        let mut packed = vec![0; data.len() as usize];
        let end = data.cursor().pack(&data, &mut packed);
        debug_assert_eq!(end, packed.len());
        packed
    }

    /// Writes the elements of a buffer as bytes, from `position` on; gives the position behind them.
    ///
    /// # Panics
    /// If there is no room for them.
    fn pack_into<Buf: ?Sized + Buffer>(&self, inbuf: &Buf, outbuf: &mut [u8], position: Count) -> Count
    where
        Self: Sized,
    {
        let packed = self.pack(inbuf);
        let (place, end) = packed_at(position, packed.len(), outbuf.len());
        outbuf[place].copy_from_slice(&packed);
        end
    }

    /// Reads the elements of a buffer from bytes, from `position` on; gives the position behind them.
    ///
    /// # Safety
    /// The bytes are those of values that the buffer's elements can have.
    ///
    /// # Panics
    /// If there are too few bytes.
    unsafe fn unpack_into<Buf: ?Sized + BufferMut>(
        &self,
        inbuf: &[u8],
        outbuf: &mut Buf,
        position: Count,
    ) -> Count
    where
        Self: Sized,
    {
        // SAFETY: it is used in this call alone.
        let data = unsafe { written(outbuf) };
        let (place, end) = packed_at(position, data.len() as usize, inbuf.len());
        data.cursor().unpack(&data, &inbuf[place]);
        end
    }

    /// A communicator whose processes form a grid; `None` at processes that are left over. Ranks keep their order, also if they
    /// may be reordered.
    ///
    /// # Panics
    /// If a dimension is not positive, the grid needs more processes than there are, or there are not as many `periods` as `dims`.
    fn create_cartesian_communicator(
        &self,
        dims: &[Count],
        periods: &[bool],
        reorder: bool,
    ) -> Option<CartesianCommunicator> {
        let (comm, _) = (self.as_handle().comm(), reorder);
        let cart = expect(Cart::new(dims, periods, comm.size()));
        made(expect(comm.cart_create(cart))).map(CartesianCommunicator)
    }

    /// The rank that this process would have in such a grid; `None` if it would be left over.
    ///
    /// # Panics
    /// As [`Communicator::create_cartesian_communicator`].
    fn cartesian_map(&self, dims: &[Count], periods: &[bool]) -> Option<Rank> {
        let comm = self.as_handle().comm();
        let cart = expect(Cart::new(dims, periods, comm.size()));
        cart.map(comm.rank()).map(|rank| rank as Rank)
    }
}

/// What a communicator can do with a type of the caller's.
///
/// ```
/// use mpi::traits::*;
///
/// #[derive(Clone)]
/// struct Neighbours(Vec<mpi::Rank>);
/// impl CommAttribute for Neighbours {}
///
/// fn known(comm: &impl AnyCommunicator) -> usize {
///     comm.get_attr::<Neighbours>().map_or(0, |neighbours| neighbours.0.len())
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let mut world = universe.world();
/// assert_eq!(known(&world), 0);
/// world.set_attr(Neighbours(vec![0]));
/// assert_eq!(known(&world), 1);
/// ```
pub trait AnyCommunicator: Communicator {
    /// The value of this type that is attached to the communicator.
    fn get_attr<A: CommAttribute>(&self) -> Option<&A> {
        self.as_handle().attributes().get()
    }

    /// Attaches a value, in the place of the one of its type.
    fn set_attr<A: CommAttribute>(&mut self, value: A) {
        self.as_handle().attributes().set(value);
    }
}

impl<C: ?Sized + Communicator> AnyCommunicator for C {}
