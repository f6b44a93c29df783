//! Partitions: buffers with a block for each rank.

use std::borrow::Borrow;
use std::ffi::c_void;

use super::{AsDatatype, Buffer, BufferMut, FixedBuffer, Pointer, PointerMut};
use crate::Count;

/// How a buffer is divided into blocks.
///
/// ```
/// use mpi::datatype::Partition;
/// use mpi::traits::*;
///
/// fn largest(blocks: &impl Partitioned) -> Option<(&mpi::Count, &mpi::Count)> {
///     blocks.counts().iter().zip(blocks.displs()).max()
/// }
///
/// let numbers = [1, 2, 3];
/// assert_eq!(largest(&Partition::new(&numbers, [1, 2], [0, 1])), Some((&2, &1)));
/// ```
///
/// # Safety
/// The blocks lie within the buffer, and neither list changes while the value is borrowed.
pub unsafe trait Partitioned {
    /// How many elements each block has.
    fn counts(&self) -> &[Count];
    /// How many elements each block is from the start.
    fn displs(&self) -> &[Count];
}

/// A buffer that is divided into blocks.
///
/// ```
/// use mpi::datatype::Partition;
/// use mpi::traits::*;
///
/// fn scatter(root: &impl Root, blocks: &impl PartitionedBuffer, mine: &mut [i32]) {
///     root.scatter_varcount_into_root(blocks, mine);
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (numbers, mut mine) = ([1, 2, 3], [0; 2]);
/// scatter(&world.this_process(), &Partition::new(&numbers, [2], [1]), &mut mine);
/// assert_eq!(mine, [2, 3]);
/// ```
pub trait PartitionedBuffer: Partitioned + Pointer + AsDatatype {}

/// A buffer to be written that is divided into blocks.
///
/// ```
/// use mpi::datatype::PartitionMut;
/// use mpi::traits::*;
///
/// fn gather(root: &impl Root, mine: &[i32], blocks: &mut impl PartitionedBufferMut) {
///     root.gather_varcount_into_root(mine, blocks);
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut all = [0; 3];
/// gather(&world.this_process(), &[5, 6], &mut PartitionMut::new(&mut all, [2], [1]));
/// assert_eq!(all, [0, 5, 6]);
/// ```
pub trait PartitionedBufferMut: Partitioned + PointerMut + AsDatatype {}

/// A buffer with blocks of so many elements, each so many elements from the start.
///
/// ```
/// use mpi::datatype::Partition;
/// use mpi::traits::*;
///
/// let letters = *b"abcd";
/// let halves = Partition::new(&letters, [2, 2], [0, 2]);
/// assert_eq!(halves.displs(), [0, 2]);
/// ```
pub struct Partition<'b, B: ?Sized, C, D> {
    buf: &'b B,
    blocks: Blocks,
    lists: std::marker::PhantomData<(C, D)>,
}

/// A buffer to be written, with blocks of so many elements, each so many elements from the start.
///
/// ```
/// use mpi::datatype::PartitionMut;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut all = vec![0; 3 * world.size() as usize];
/// let counts = vec![3; world.size() as usize];
/// let displs: Vec<mpi::Count> = (0..world.size()).map(|rank| 3 * rank).collect();
/// world.all_gather_varcount_into(&[1, 2, 3], &mut PartitionMut::new(&mut all, counts, displs));
/// assert_eq!(all[..3], [1, 2, 3]);
/// ```
pub struct PartitionMut<'b, B: ?Sized, C, D> {
    buf: &'b mut B,
    blocks: Blocks,
    lists: std::marker::PhantomData<(C, D)>,
}

/// Copies of the lists that a partition was made with and checked by: what a caller's type lends may be another list each time.
struct Blocks {
    counts: Vec<Count>,
    displs: Vec<Count>,
}

impl Blocks {
    fn checked(counts: &[Count], displs: &[Count], elements: u64) -> Blocks {
        if counts.len() != displs.len() {
            raise!(ERR_ARG, "there are {} counts, but {} displacements", counts.len(), displs.len());
        }
        for (&count, &displ) in counts.iter().zip(displs) {
            let end =
                u64::try_from(count).ok().zip(u64::try_from(displ).ok()).map(|(count, displ)| count + displ);
            if end.is_none_or(|end| end > elements) {
                raise!(
                    ERR_ARG,
                    "a block of {count} elements, {displ} from the start, is not within the buffer of {elements}"
                );
            }
        }
        Blocks { counts: counts.to_vec(), displs: displs.to_vec() }
    }
}

impl<'b, B: Buffer + ?Sized, C: Borrow<[Count]>, D: Borrow<[Count]>> Partition<'b, B, C, D> {
    /// Divides a buffer.
    ///
    /// # Panics
    /// If a block is not within the buffer, or there are not as many counts as displacements.
    pub fn new(buf: &'b B, counts: C, displs: D) -> Self {
        let blocks = Blocks::checked(counts.borrow(), displs.borrow(), buf.elements());
        Partition { buf, blocks, lists: std::marker::PhantomData }
    }
}

impl<'b, B: BufferMut + ?Sized, C: Borrow<[Count]>, D: Borrow<[Count]>> PartitionMut<'b, B, C, D> {
    /// Divides a buffer.
    ///
    /// # Panics
    /// If a block is not within the buffer, or there are not as many counts as displacements.
    pub fn new(buf: &'b mut B, counts: C, displs: D) -> Self {
        let blocks = Blocks::checked(counts.borrow(), displs.borrow(), buf.elements());
        PartitionMut { buf, blocks, lists: std::marker::PhantomData }
    }
}

macro_rules! partitions {
    ($($name:ident: $bound:ident)*) => {$(
        // SAFETY: the lists were checked against the buffer when the value was made, and are its own.
        unsafe impl<B: ?Sized, C, D> Partitioned for $name<'_, B, C, D> {
            fn counts(&self) -> &[Count] {
                &self.blocks.counts
            }

            fn displs(&self) -> &[Count] {
                &self.blocks.displs
            }
        }

        // SAFETY: it is the buffer's.
        unsafe impl<B: $bound + ?Sized, C, D> AsDatatype for $name<'_, B, C, D> {
            type Out = B::Out;

            fn as_datatype(&self) -> Self::Out {
                self.buf.as_datatype()
            }
        }
    )*};
}

partitions! { Partition: Buffer PartitionMut: BufferMut }

// SAFETY: the buffer is borrowed for as long.
unsafe impl<B: Buffer + ?Sized, C, D> Pointer for Partition<'_, B, C, D> {
    fn pointer(&self) -> *const c_void {
        self.buf.pointer()
    }
}

// SAFETY: the buffer is borrowed for as long.
unsafe impl<B: BufferMut + ?Sized, C, D> PointerMut for PartitionMut<'_, B, C, D> {
    fn pointer_mut(&mut self) -> *mut c_void {
        self.buf.pointer_mut()
    }
}

// SAFETY: the buffer is borrowed for as long.
unsafe impl<B: BufferMut + Pointer + ?Sized, C, D> Pointer for PartitionMut<'_, B, C, D> {
    fn pointer(&self) -> *const c_void {
        self.buf.pointer()
    }
}

// SAFETY: the memory is that of a fixed buffer, and the blocks stay as they are.
unsafe impl<B: FixedBuffer + ?Sized, C, D> FixedBuffer for PartitionMut<'_, B, C, D> {
    type Data = B::Data;

    fn data(&mut self) -> &mut B::Data {
        self.buf.data()
    }
}

impl<B: Buffer + ?Sized, C, D> PartitionedBuffer for Partition<'_, B, C, D> {}
impl<B: BufferMut + Pointer + ?Sized, C, D> PartitionedBuffer for PartitionMut<'_, B, C, D> {}
impl<B: BufferMut + ?Sized, C, D> PartitionedBufferMut for PartitionMut<'_, B, C, D> {}
