//! [`Datatype`]: a datatype, as the rest of the runtime uses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::Error;
use crate::basic::Basic;
use crate::bounds::{Bounds, Extents};
use crate::device::Table;
use crate::draft::Draft;
use crate::envelope::{Combiner, Envelope, Recipe};
use crate::layout::{Kind, Placed};
use crate::signature::Sequence;

/// A datatype. Nothing about it changes after construction, except that it gets committed.
#[derive(Debug)]
pub struct Datatype {
    size: u64,
    extents: Extents,
    bounds: Bounds,
    align: u32,
    dense: bool,
    /// Where the data lies; `None` if there is none.
    shape: Option<Placed>,
    /// The basic types in order; `None` if there is no data.
    sequence: Option<Arc<Sequence>>,
    /// The predefined type that this type is or duplicates: reductions work on that.
    basic: Option<&'static Basic>,
    recipe: Recipe,
    committed: AtomicBool,
    /// The layout as kernels take it, once a device has moved such data.
    table: OnceLock<Table>,
}

/// What a count of a datatype covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Packed bytes.
    pub bytes: u64,
    /// First byte of data, relative to the address that the user passes.
    pub lo: i64,
    /// One past the last byte of data.
    pub hi: i64,
}

impl Datatype {
    /// The predefined datatype with this handle value in the MPI 5.0 ABI (0x209 = MPI_INT).
    #[inline]
    pub fn builtin(code: u16) -> Option<&'static Arc<Datatype>> {
        // In one comparison: a code below the first one wraps, and is too large.
        let place = BUILTINS.get(usize::from(code.wrapping_sub(FIRST)))?;
        place.get().or_else(|| first_use(place, code))
    }

    /// True if the predefined datatype with this handle value was used.
    pub(crate) fn is_in_use(code: u16) -> bool {
        BUILTINS[usize::from(code - FIRST)].get().is_some()
    }

    pub(crate) fn named(basic: &'static Basic) -> Datatype {
        let recipe = Recipe::new(Combiner::Named, vec![], vec![], vec![]);
        Datatype::new(Draft::basic(basic), recipe, Some(basic), true).expect("the table's extents fit")
    }

    /// The handle value of a predefined datatype that has a name.
    #[inline]
    pub fn code(&self) -> Option<u16> {
        self.basic.filter(|_| self.recipe.combiner == Combiner::Named).map(|basic| basic.code)
    }

    /// The standard's name of a predefined datatype (`MPI_INT`), else "".
    pub fn name(&self) -> &'static str {
        self.code().and(self.basic).map_or("", |basic| basic.name)
    }

    /// True for types that the user may not free: those with a name, and those of the
    /// `MPI_Type_create_f90_*` functions.
    pub fn is_predefined(&self) -> bool {
        use Combiner::*;
        matches!(self.recipe.combiner, Named | F90Real | F90Complex | F90Integer | ValueIndex)
    }

    /// The predefined type that this type is, or is another name for (duplicates, Fortran kinds).
    pub fn basic(&self) -> Option<&'static Basic> {
        self.basic
    }

    /// Bytes of data, holes not counted (MPI_Type_size).
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Lower bound, in bytes.
    pub fn lb(&self) -> i64 {
        self.extents.lb
    }

    /// Upper bound, in bytes.
    pub fn ub(&self) -> i64 {
        self.extents.ub
    }

    /// Bytes from one element to the next: `ub - lb`.
    pub fn extent(&self) -> i64 {
        self.extents.ub - self.extents.lb
    }

    /// The first byte of data.
    pub fn true_lb(&self) -> i64 {
        self.extents.true_lb
    }

    /// Bytes from the first to the last byte of data, both included.
    pub fn true_extent(&self) -> i64 {
        self.extents.true_ub - self.extents.true_lb
    }

    /// Makes the type usable in communication.
    pub fn commit(&self) {
        self.committed.store(true, Ordering::Relaxed);
    }

    /// True after [`Datatype::commit`]; predefined types are committed.
    #[inline(always)]
    pub fn is_committed(&self) -> bool {
        self.committed.load(Ordering::Relaxed)
    }

    /// True if any number of elements in memory is exactly their packed bytes, from the address on.
    #[inline]
    pub fn is_dense(&self) -> bool {
        self.dense
    }

    /// True if `count` elements lie in memory in one piece, in packed order (perhaps not at the address).
    #[inline]
    pub(crate) fn is_one_piece(&self, count: u64) -> bool {
        let Some(shape) = &self.shape else { return true };
        matches!(shape.node.kind, Kind::Run) && (count == 1 || u64::try_from(self.extent()) == Ok(self.size))
    }

    /// Bytes that `count` elements take from the address on, if the type is dense and the sum fits.
    #[inline(always)]
    pub fn dense_bytes(&self, count: u64) -> Option<u64> {
        // `&` has all of it looked at, which takes less time than a branch for each.
        let (bytes, over) = self.size.overflowing_mul(count);
        (self.dense & !over & (bytes <= i64::MAX as u64)).then_some(bytes)
    }

    /// What `count` elements cover.
    ///
    /// # Errors
    /// [`Error::Overflow`] if that does not fit into 64 bits.
    #[inline]
    pub fn span(&self, count: u64) -> Result<Span, Error> {
        if self.dense {
            let bytes = self.size.checked_mul(count).filter(|&bytes| bytes <= i64::MAX as u64);
            let bytes = bytes.ok_or(Error::Overflow("the size of the message"))?;
            return Ok(Span { bytes, lo: 0, hi: bytes as i64 });
        }
        self.scattered_span(count)
    }

    fn scattered_span(&self, count: u64) -> Result<Span, Error> {
        const WHAT: Error = Error::Overflow("the size of the message");
        if count == 0 || self.size == 0 {
            return Ok(Span { bytes: 0, lo: 0, hi: 0 });
        }
        if count == 1 {
            return Ok(Span { bytes: self.size, lo: self.extents.true_lb, hi: self.extents.true_ub });
        }
        let count = i64::try_from(count).map_err(|_| WHAT)?;
        let bytes = self.size.checked_mul(count as u64).filter(|&bytes| bytes <= i64::MAX as u64);
        let all = self.bounds.repeat(count, self.extent()).fit()?;
        Ok(Span { bytes: bytes.ok_or(WHAT)?, lo: all.true_lb, hi: all.true_ub })
    }

    /// How the type was made (MPI_Type_get_envelope, MPI_Type_get_contents).
    pub fn envelope(&self) -> Envelope {
        self.recipe.envelope()
    }

    /// Basic elements in `bytes` received bytes (MPI_Get_elements); `None` if they end inside one.
    pub fn elements(&self, bytes: u64) -> Option<u64> {
        match &self.sequence {
            Some(sequence) => sequence.elements(bytes),
            None => (bytes == 0).then_some(0),
        }
    }

    /// Bytes of the first `elements` basic elements (MPI_Status_set_elements): the inverse of
    /// [`Datatype::elements`]. `None` if there are no such elements, or too many.
    pub fn bytes_of(&self, elements: u64) -> Option<u64> {
        match &self.sequence {
            Some(sequence) => sequence.bytes_of(elements),
            None => (elements == 0).then_some(0),
        }
    }

    /// Basic elements in one element of this type.
    pub fn element_count(&self) -> u64 {
        self.sequence.as_ref().map_or(0, |sequence| sequence.count)
    }

    /// A hash of the sequence of basic types in `count` elements: equal signatures have equal hashes,
    /// however the types were made.
    pub fn signature_hash(&self, count: u64) -> u64 {
        self.sequence.as_ref().map_or(0, |sequence| sequence.hash(count))
    }

    /// Calls `f(type, n)` for each stretch of `n` equal basic types in one element, in order, until it
    /// fails.
    pub fn visit_basics<E>(&self, mut f: impl FnMut(&'static Basic, u64) -> Result<(), E>) -> Result<(), E> {
        self.sequence.as_ref().map_or(Ok(()), |sequence| sequence.try_visit(&mut f))
    }

    /// The basic type of all of the data, if there is only one.
    pub fn uniform(&self) -> Option<&'static Basic> {
        self.sequence.as_ref()?.uniform()
    }

    pub(crate) fn sequence(&self) -> Option<&Arc<Sequence>> {
        self.sequence.as_ref()
    }

    pub(crate) fn shape(&self) -> Option<&Placed> {
        self.shape.as_ref()
    }

    /// Separate runs of memory in one element, at least 1.
    pub(crate) fn runs(&self) -> u64 {
        self.shape.as_ref().map_or(1, |shape| shape.node.runs)
    }

    /// Any number of elements, as kernels take them; `None` without data.
    pub(crate) fn table(&self) -> Option<&Table> {
        let shape = self.shape.as_ref()?;
        Some(self.table.get_or_init(|| Table::of(&shape.node, shape.disp, self.extent())))
    }

    pub(crate) fn draft(&self) -> Draft {
        Draft {
            size: self.size,
            bounds: self.bounds,
            align: self.align,
            shape: self.shape.clone(),
            sequence: self.sequence.clone(),
        }
    }

    pub(crate) fn new(
        draft: Draft,
        recipe: Recipe,
        basic: Option<&'static Basic>,
        committed: bool,
    ) -> Result<Self, Error> {
        let extents = draft.bounds.fit()?;
        let from_zero =
            draft.shape.as_ref().is_none_or(|at| at.disp == 0 && matches!(at.node.kind, Kind::Run));
        let whole = extents.lb == 0 && u64::try_from(extents.ub) == Ok(draft.size);
        Ok(Self {
            size: draft.size,
            extents,
            bounds: draft.bounds,
            align: draft.align,
            dense: from_zero && whole,
            shape: draft.shape,
            sequence: draft.sequence,
            basic,
            recipe,
            committed: AtomicBool::new(committed),
            table: OnceLock::new(),
        })
    }

    /// This type, marked as made by the large-count (`_c`) form of its constructor, which decides
    /// how [`Datatype::envelope`] lists its arguments.
    pub fn into_large(self: Arc<Self>) -> Arc<Self> {
        let committed = self.is_committed();
        let recipe = self.recipe.clone().into_large();
        let large = Self::new(self.draft(), recipe, self.basic, committed);
        Arc::new(large.expect("the bounds fitted before"))
    }
}

impl Drop for Datatype {
    /// Lets go of the types this one was made of in a loop: a long chain must not exhaust the stack.
    fn drop(&mut self) {
        let mut waiting = std::mem::take(&mut self.recipe.types);
        while let Some(next) = waiting.pop() {
            if let Some(mut last) = Arc::into_inner(next) {
                waiting.append(&mut last.recipe.types);
            }
        }
    }
}

const FIRST: u16 = 0x200;
const LAST: u16 = 0x2ff;

/// The predefined types that were used so far: most programs use a few, and all of them would take 36 KiB.
static BUILTINS: [OnceLock<Arc<Datatype>>; (LAST - FIRST + 1) as usize] =
    [const { OnceLock::new() }; (LAST - FIRST + 1) as usize];

/// Makes a predefined type, if there is one with this handle value.
#[cold]
fn first_use(place: &'static OnceLock<Arc<Datatype>>, code: u16) -> Option<&'static Arc<Datatype>> {
    let basic = Basic::find(code)?;
    Some(place.get_or_init(|| Arc::new(Datatype::named(basic))))
}
