//! The arguments of a collective as one [`Signature`], to find the plan of an earlier call with the same arguments.

use crate::buffers::buffer_arg;
use crate::ffi::*;
use crate::pointer::Ptr;
use banyan_memory::{Bounds, Buffer};
use banyan_runtime::{Kind, Lists, Signature};

/// The arguments so far.
pub(crate) struct Arguments<N> {
    numbers: [u64; Signature::NUMBERS],
    number_count: usize,
    /// The first and the last buffer.
    buffers: Option<[Ptr<c_void>; 2]>,
    lists: [Ptr<N>; 4],
    list_count: usize,
}

/// The list arguments in their order, then NULL.
pub(crate) struct Pointers<N>([Ptr<N>; 4]);

/// The buffer arguments: the first and the last.
pub(crate) struct Buffers([Ptr<c_void>; 2]);

impl Buffers {
    /// The user's memory.
    ///
    /// # Safety
    /// The bounds are those of the buffers of a call whose arguments, but for addresses, were equal to these.
    #[inline(always)]
    pub(crate) unsafe fn within(self, [first, last]: [Bounds; 2]) -> [Buffer; 2] {
        let [send, recv] = self.0.map(|buf| buf.raw().cast());
        // SAFETY: by MPI's contract the memory at these addresses is what the arguments say, and those say as much as the ones
        // that the bounds were worked out from.
        unsafe { [Buffer::within(send, first), Buffer::within(recv, last)] }
    }
}

/// An argument of a collective.
pub(crate) trait Argument<N> {
    /// Adds it to the arguments before it.
    fn add_to(self, all: &mut Arguments<N>);
}

impl<N: Number> Arguments<N> {
    /// No arguments yet.
    #[inline(always)]
    pub(crate) fn new() -> Arguments<N> {
        let numbers = [0; Signature::NUMBERS];
        Arguments { numbers, number_count: 0, buffers: None, lists: [Ptr::null(); 4], list_count: 0 }
    }

    /// The signature of the call, its lists and its buffers.
    #[inline(always)]
    pub(crate) fn signature(self, kind: Kind) -> (Signature, Pointers<N>, Buffers) {
        let pointers = self.buffers.unwrap_or([Ptr::null(); 2]);
        let signature = Signature { kind, numbers: self.numbers, buffers: pointers.map(buffer_arg) };
        (signature, Pointers(self.lists), Buffers(pointers))
    }

    #[inline(always)]
    fn number(&mut self, number: u64) {
        self.numbers[self.number_count] = number;
        self.number_count += 1;
    }
}

impl<N: Number, M: Number> Argument<N> for M {
    #[inline(always)]
    fn add_to(self, all: &mut Arguments<N>) {
        let number: i64 = self.into();
        all.number(number as u64);
    }
}

impl<N: Number> Argument<N> for MPI_Datatype {
    #[inline(always)]
    fn add_to(self, all: &mut Arguments<N>) {
        all.number(self.0 as u64);
    }
}

impl<N: Number> Argument<N> for MPI_Op {
    #[inline(always)]
    fn add_to(self, all: &mut Arguments<N>) {
        all.number(self.0 as u64);
    }
}

impl<N: Number> Argument<N> for Ptr<c_void> {
    #[inline(always)]
    fn add_to(self, all: &mut Arguments<N>) {
        let [first, _] = all.buffers.unwrap_or([self; 2]);
        all.buffers = Some([first, self]);
    }
}

impl<N: Number> Argument<N> for Ptr<N> {
    #[inline(always)]
    fn add_to(self, all: &mut Arguments<N>) {
        all.lists[all.list_count] = self;
        all.list_count += 1;
    }
}

/// A list of types is left out: no plan is kept of calls with a type for each rank.
impl<N: Number> Argument<N> for Ptr<MPI_Datatype> {
    fn add_to(self, _: &mut Arguments<N>) {}
}

impl<N: Number> Lists for Pointers<N> {
    fn is(&self, index: usize, values: &[i64]) -> bool {
        self.0.get(index).is_some_and(|list| list.starts_with(values))
    }
}
