//! How a datatype was made: what MPI_Type_get_envelope and MPI_Type_get_contents report.

use std::sync::Arc;

use crate::Datatype;

/// The constructor of a datatype; the values are the MPI_COMBINER_* constants of the ABI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
#[expect(missing_docs, reason = "each is the constant of the same name")]
pub enum Combiner {
    Named = 101,
    Dup = 102,
    Contiguous = 103,
    Vector = 104,
    Hvector = 105,
    Indexed = 106,
    Hindexed = 107,
    IndexedBlock = 108,
    HindexedBlock = 109,
    Struct = 110,
    Subarray = 111,
    Darray = 112,
    F90Real = 113,
    F90Complex = 114,
    F90Integer = 115,
    Resized = 116,
    ValueIndex = 117,
}

/// The arguments of a constructor in the order that MPI_Type_get_contents lists them (MPI 5.0, 5.1.13).
#[derive(Debug, Clone)]
pub struct Envelope {
    /// The constructor.
    pub combiner: Combiner,
    /// It was called in its large-count (`_c`) form: only the `_c` forms of get_envelope and
    /// get_contents may then be used.
    pub large: bool,
    /// Integers, each within `int`.
    pub integers: Vec<i64>,
    /// Addresses (MPI_Aint).
    pub addresses: Vec<i64>,
    /// Large counts (MPI_Count); none unless `large`.
    pub counts: Vec<i64>,
    /// Datatypes, derived or predefined.
    pub datatypes: Vec<Arc<Datatype>>,
}

/// What is kept of a constructor call: its arguments as the small form lists them.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub(crate) combiner: Combiner,
    large: bool,
    integers: Vec<i64>,
    addresses: Vec<i64>,
    pub(crate) types: Vec<Arc<Datatype>>,
}

impl Recipe {
    pub(crate) fn new(
        combiner: Combiner,
        integers: Vec<i64>,
        addresses: Vec<i64>,
        types: Vec<Arc<Datatype>>,
    ) -> Self {
        Self { combiner, large: false, integers, addresses, types }
    }

    /// This recipe, as called in the large-count form, if there is one.
    pub(crate) fn into_large(mut self) -> Self {
        use Combiner::*;
        self.large = !matches!(self.combiner, Named | Dup | F90Real | F90Complex | F90Integer | ValueIndex);
        self
    }

    pub(crate) fn envelope(&self) -> Envelope {
        let (integers, addresses, counts) = if self.large {
            let (integers, counts) = self.large_arguments();
            (integers, vec![], counts)
        } else {
            (self.integers.clone(), self.addresses.clone(), vec![])
        };
        let (combiner, large, datatypes) = (self.combiner, self.large, self.types.clone());
        Envelope { combiner, large, integers, addresses, counts, datatypes }
    }

    /// Integers and counts of the large form: what is neither a rank, a number of dimensions nor a
    /// constant became a count.
    fn large_arguments(&self) -> (Vec<i64>, Vec<i64>) {
        let all = &self.integers;
        match self.combiner {
            Combiner::Subarray => {
                let (first, last) = (all[0], all[all.len() - 1]);
                (vec![first, last], all[1..all.len() - 1].to_vec())
            }
            Combiner::Darray => {
                let dims = all[2] as usize;
                let integers = all[..3].iter().chain(&all[3 + dims..]).copied().collect();
                (integers, all[3..3 + dims].to_vec())
            }
            _ => (vec![], all.iter().chain(&self.addresses).copied().collect()),
        }
    }
}
