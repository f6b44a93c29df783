//! The arguments of a collective taken together, to find what was worked out for the same ones before.

use crate::buffers::given;
use crate::ffi::*;
use crate::pointer::Ptr;
use banyan_runtime::{Asked, Kind, Lists};

/// The arguments so far.
pub(crate) struct Arguments<N> {
    numbers: [u64; Asked::NUMBERS],
    counted: usize,
    /// The first, and the last one.
    buffers: Option<[Ptr<c_void>; 2]>,
    lists: [Ptr<N>; 4],
    listed: usize,
}

/// Lists, in their order; those that there are not are NULL.
pub(crate) struct Pointers<N>([Ptr<N>; 4]);

/// An argument of a collective.
pub(crate) trait Argument<N> {
    /// Adds it to those before it.
    fn join(self, all: &mut Arguments<N>);
}

impl<N: Number> Arguments<N> {
    /// None yet.
    #[inline(always)]
    pub(crate) fn new() -> Arguments<N> {
        let numbers = [0; Asked::NUMBERS];
        Arguments { numbers, counted: 0, buffers: None, lists: [Ptr::null(); 4], listed: 0 }
    }

    /// What is asked by them.
    #[inline(always)]
    pub(crate) fn asked(self, kind: Kind) -> (Asked, Pointers<N>) {
        let buffers = self.buffers.unwrap_or([Ptr::null(); 2]).map(given);
        (Asked { kind, numbers: self.numbers, buffers }, Pointers(self.lists))
    }

    #[inline(always)]
    fn number(&mut self, number: u64) {
        self.numbers[self.counted] = number;
        self.counted += 1;
    }
}

impl<N: Number, M: Number> Argument<N> for M {
    #[inline(always)]
    fn join(self, all: &mut Arguments<N>) {
        let number: i64 = self.into();
        all.number(number as u64);
    }
}

impl<N: Number> Argument<N> for MPI_Datatype {
    #[inline(always)]
    fn join(self, all: &mut Arguments<N>) {
        all.number(self.0 as u64);
    }
}

impl<N: Number> Argument<N> for MPI_Op {
    #[inline(always)]
    fn join(self, all: &mut Arguments<N>) {
        all.number(self.0 as u64);
    }
}

impl<N: Number> Argument<N> for Ptr<c_void> {
    #[inline(always)]
    fn join(self, all: &mut Arguments<N>) {
        let [first, _] = all.buffers.unwrap_or([self; 2]);
        all.buffers = Some([first, self]);
    }
}

impl<N: Number> Argument<N> for Ptr<N> {
    #[inline(always)]
    fn join(self, all: &mut Arguments<N>) {
        all.lists[all.listed] = self;
        all.listed += 1;
    }
}

/// Lists of types are not looked at: nothing is kept of calls with a type for each rank.
impl<N: Number> Argument<N> for Ptr<MPI_Datatype> {
    fn join(self, _: &mut Arguments<N>) {}
}

impl<N: Number> Lists for Pointers<N> {
    fn is(&self, index: usize, values: &[i64]) -> bool {
        let Some(list) = self.0.get(index) else { return false };
        let same = |(at, value): (usize, &i64)| list.at(at).is_ok_and(|number| number.into() == *value);
        values.iter().enumerate().all(same)
    }
}
