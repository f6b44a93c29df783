//! [`Memory`]: the memory of a buffer as the runtime takes it. Here users' references become addresses with bounds.

use std::sync::Arc;

use banyan_datatype as dt;
use banyan_datatype::{Data, Span, TypeArc};
use banyan_memory::{Buffer as RawBuffer, MemoryKind, kind_at, surely_host};
use banyan_runtime::{ArgKind, Argument, Operand, UserMemory, bail};

use super::{AsObject, Buffer, BufferMut, Partitioned, PartitionedBuffer, PartitionedBufferMut};
use crate::error::{Result, expect};

/// The data of a buffer, for one message.
///
/// # Safety
/// As for [`Memory::of`].
#[inline(always)]
unsafe fn data(start: *mut u8, elements: u64, ty: &Arc<dt::Datatype>) -> Data {
    if surely_host(start.addr()) {
        // SAFETY: what the caller says.
        return expect(unsafe { Data::try_new(start, elements, ty) }.map_err(Into::into));
    }
    // SAFETY: what the caller says.
    let (span, buffer) = unsafe { unusual(start, elements, ty) };
    Data::typed(buffer, if span.bytes == 0 { 0 } else { elements }, ty)
}

/// Memory at an address that may be a device's, or that nothing lies at.
///
/// # Safety
/// As for [`Memory::of`].
#[cold]
unsafe fn unusual(start: *mut u8, elements: u64, ty: &dt::Datatype) -> (Span, RawBuffer) {
    let span = expect(ty.span(elements).map_err(Into::into));
    if span.bytes == 0 {
        return (span, RawBuffer::empty());
    }
    // SAFETY: the span is that of the elements.
    let buffer = unsafe { RawBuffer::classified(start, span.lo as isize, span.hi as isize) };
    (span, expect(buffer.map_err(Into::into)))
}

/// What a send reads. It must not be used after the borrow of the buffer has ended.
///
/// # Safety
/// The caller has the operation ended before the borrow of the buffer that this is made for ends.
#[inline(always)]
pub(crate) unsafe fn read<B: Buffer + ?Sized>(buffer: &B) -> Data {
    let ty = buffer.as_datatype();
    // SAFETY: the elements are there while the buffer is borrowed, by the traits' contracts; the rest is the caller's promise.
    unsafe { data(buffer.pointer().cast::<u8>().cast_mut(), buffer.elements(), ty.object()) }
}

/// What a receive writes.
///
/// # Safety
/// As for [`read`].
#[inline(always)]
pub(crate) unsafe fn written<B: BufferMut + ?Sized>(buffer: &mut B) -> Data {
    let ty = buffer.as_datatype();
    // SAFETY: as for `read`.
    unsafe { data(buffer.pointer_mut().cast(), buffer.elements(), ty.object()) }
}

/// `elements` of the type at `start`, which need not be initialized: for a receive.
///
/// # Safety
/// As for [`read`], with memory in the place of a buffer.
pub(crate) unsafe fn uninitialized<T: super::Equivalence>(start: *mut T, elements: u64) -> Data {
    let ty = T::equivalent_datatype();
    // SAFETY: what the caller says.
    unsafe { data(start.cast(), elements, ty.object()) }
}

/// How the elements of an argument of a collective lie.
enum Layout {
    /// So many; of an argument with a block for each rank, so many in each.
    Uniform(u64),
    /// Blocks of so many, so many elements from the start.
    Blocks(Vec<u64>, Vec<i64>),
}

/// The memory of an argument of a collective.
pub(crate) struct Memory {
    start: *mut u8,
    layout: Layout,
    /// All elements that lie there, where they are no blocks.
    elements: u64,
    ty: TypeArc,
}

#[inline(always)]
fn type_arc(ty: &Arc<dt::Datatype>) -> TypeArc {
    match ty.code().and_then(dt::Datatype::builtin) {
        Some(predefined) => TypeArc::Predefined(predefined),
        None => TypeArc::Made(ty.clone()),
    }
}

impl Memory {
    /// What is given.
    ///
    /// # Safety
    /// As for [`read`].
    #[inline(always)]
    pub(crate) unsafe fn of<B: Buffer + ?Sized>(buffer: &B) -> Memory {
        let (elements, ty) = (buffer.elements(), type_arc(buffer.as_datatype().object()));
        Memory {
            start: buffer.pointer().cast::<u8>().cast_mut(),
            layout: Layout::Uniform(elements),
            elements,
            ty,
        }
    }

    /// What is got.
    ///
    /// # Safety
    /// As for [`read`].
    #[inline(always)]
    pub(crate) unsafe fn of_mut<B: BufferMut + ?Sized>(buffer: &mut B) -> Memory {
        let (elements, ty) = (buffer.elements(), type_arc(buffer.as_datatype().object()));
        Memory { start: buffer.pointer_mut().cast(), layout: Layout::Uniform(elements), elements, ty }
    }

    /// What is given, in blocks.
    ///
    /// # Safety
    /// As for [`read`].
    pub(crate) unsafe fn blocks<B: PartitionedBuffer + ?Sized>(buffer: &B) -> Memory {
        let ty = type_arc(buffer.as_datatype().object());
        Memory { start: buffer.pointer().cast::<u8>().cast_mut(), ty, ..Memory::partitioned(buffer) }
    }

    /// What is got, in blocks.
    ///
    /// # Safety
    /// As for [`read`].
    pub(crate) unsafe fn blocks_mut<B: PartitionedBufferMut + ?Sized>(buffer: &mut B) -> Memory {
        let ty = type_arc(buffer.as_datatype().object());
        Memory { start: buffer.pointer_mut().cast(), ty, ..Memory::partitioned(buffer) }
    }

    fn partitioned<B: Partitioned + ?Sized>(buffer: &B) -> Memory {
        let counts: Vec<u64> = buffer.counts().iter().map(|&count| count.max(0) as u64).collect();
        let displs: Vec<i64> = buffer.displs().iter().map(|&displ| displ.into()).collect();
        Memory { layout: Layout::Blocks(counts, displs), ..Memory::nothing() }
    }

    /// An argument that is not significant at this rank.
    pub(crate) fn nothing() -> Memory {
        let ty = TypeArc::Predefined(super::SystemDatatype::builtin(0x241).0);
        Memory { start: std::ptr::null_mut(), layout: Layout::Uniform(0), elements: 0, ty }
    }

    /// The elements in one block of several, of which there is one for each of so many ranks.
    pub(crate) fn split(mut self, ranks: u32) -> Memory {
        self.layout = Layout::Uniform(self.elements / u64::from(ranks.max(1)));
        self
    }

    /// How many elements of which predefined datatype there are, if that is what there is.
    #[inline]
    pub(crate) fn predefined(&self) -> Option<(u64, u16)> {
        match (&self.layout, &self.ty) {
            (Layout::Uniform(_), TypeArc::Predefined(ty)) => Some((self.elements, ty.code()?)),
            _ => None,
        }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The argument of a signature: its address, and what memory is there.
    #[inline]
    pub(crate) fn argument(&self) -> (usize, ArgKind) {
        let address = self.start.addr();
        let kind = if surely_host(address) { MemoryKind::Host } else { kind_at(address) };
        (address, ArgKind::Data(kind))
    }

    pub(crate) fn elements(&self) -> u64 {
        self.elements
    }

    pub(crate) fn ty(&self) -> &TypeArc {
        &self.ty
    }

    /// The number and type of the elements of a reduction's two buffers, which must be alike.
    pub(crate) fn alike(&self, other: &Memory) -> Result<(u64, TypeArc)> {
        if self.elements != other.elements {
            bail!(ERR_COUNT, "{} elements are reduced into {}", self.elements, other.elements);
        }
        self.same_type(other)?;
        Ok((self.elements, self.ty.clone()))
    }

    /// Refuses two buffers of a reduction whose elements are of different datatypes. What is made anew for each buffer counts as
    /// the same if the elements lie in the same way.
    pub(crate) fn same_type(&self, other: &Memory) -> Result<()> {
        let form =
            |memory: &Memory| (memory.ty.signature_hash(1), memory.ty.extent(), memory.ty.span(1).ok());
        if !Arc::ptr_eq(&self.ty, &other.ty) && form(self) != form(other) {
            bail!(ERR_TYPE, "the buffers of a reduction have elements of different datatypes");
        }
        Ok(())
    }
}

impl UserMemory for Memory {
    fn is_in_place(&self) -> bool {
        false
    }

    fn region(&self, span: Span) -> Result<RawBuffer> {
        if span.bytes == 0 {
            return Ok(RawBuffer::empty());
        }
        if !surely_host(self.start.addr()) {
            // SAFETY: as below.
            let buffer = unsafe { RawBuffer::classified(self.start, span.lo as isize, span.hi as isize) };
            return buffer.map_err(Into::into);
        }
        // SAFETY: the span is that of the elements that the layout tells of, all of which are there: `Memory::of` and its kin
        // take them from buffers, and partitions are checked against theirs when they are made.
        Ok(unsafe { RawBuffer::with_bounds(self.start, span.lo as isize, span.hi as isize) })
    }
}

impl Argument for Memory {
    fn operand(&self, blocks: usize) -> Result<Operand> {
        match &self.layout {
            Layout::Uniform(elements) => Ok(Operand::uniform(*elements, self.ty.clone())),
            Layout::Blocks(counts, displs) if counts.len() == blocks && displs.len() == blocks => {
                let (counts, displs, ty) = (counts.clone(), displs.clone(), self.ty.clone());
                Ok(Operand::Vector { base: RawBuffer::empty(), counts, displs, ty })
            }
            Layout::Blocks(counts, displs) => bail!(
                ERR_ARG,
                "a partition has {} counts and {} displacements, but there are {blocks} ranks",
                counts.len(),
                displs.len()
            ),
        }
    }
}
