//! Parts of multi-dimensional arrays: subarrays and distributed arrays (MPI 5.0, 5.1.3 and 5.1.4).

use std::sync::Arc;

use crate::construct::{derived, in_bytes};
use crate::draft::Draft;
use crate::envelope::{Combiner, Recipe};
use crate::{Datatype, Error};

/// Which index of an array varies fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Order {
    /// The last (MPI_ORDER_C).
    C = 12,
    /// The first (MPI_ORDER_FORTRAN).
    Fortran = 15,
}

impl Order {
    /// The order with this value in the MPI ABI.
    pub fn from_code(code: i32) -> Option<Self> {
        [Order::C, Order::Fortran].into_iter().find(|order| *order as i32 == code)
    }

    /// The dimensions, fastest first.
    fn dimensions(self, count: usize) -> Vec<usize> {
        match self {
            Order::C => (0..count).rev().collect(),
            Order::Fortran => (0..count).collect(),
        }
    }
}

/// How one dimension of an array is spread over processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Distribution {
    /// Not at all (MPI_DISTRIBUTE_NONE).
    None = 16,
    /// One block each (MPI_DISTRIBUTE_BLOCK).
    Block = 17,
    /// Blocks dealt in turn (MPI_DISTRIBUTE_CYCLIC).
    Cyclic = 18,
}

impl Distribution {
    /// The distribution with this value in the MPI ABI.
    pub fn from_code(code: i32) -> Option<Self> {
        use Distribution::*;
        [None, Block, Cyclic].into_iter().find(|distribution| *distribution as i32 == code)
    }
}

/// MPI_DISTRIBUTE_DFLT_DARG: the usual block size.
pub const DEFAULT_BLOCK: i64 = 19;

impl Datatype {
    /// A box of `subsizes` elements at `starts` in an array of `sizes` (MPI_Type_create_subarray).
    ///
    /// # Errors
    /// The lists differ in length or are empty, or the box is empty or not inside the array.
    pub fn subarray(
        sizes: &[i64],
        subsizes: &[i64],
        starts: &[i64],
        order: Order,
        old: &Arc<Datatype>,
    ) -> Result<Arc<Datatype>, Error> {
        let dims = sizes.len();
        same_dimensions(&[sizes, subsizes, starts])?;
        let mut arguments = vec![dims as i64];
        [sizes, subsizes, starts].iter().for_each(|list| arguments.extend_from_slice(list));
        arguments.push(order as i64);
        let recipe = Recipe::new(Combiner::Subarray, arguments, vec![], vec![old.clone()]);

        let (mut draft, mut stride, mut start) = (Draft::from(old), old.extent(), 0i64);
        for dim in order.dimensions(dims) {
            let (size, subsize, first) = (sizes[dim], subsizes[dim], starts[dim]);
            let fits = size >= 1 && (1..=size).contains(&subsize) && (0..=size - subsize).contains(&first);
            if !fits {
                let part = format!(
                    "{subsize} elements from {first} on are not inside the {size} of dimension {dim}"
                );
                return Err(Error::Arg(part));
            }
            draft = draft.repeat(subsize, stride)?;
            start = start
                .checked_add(in_bytes(first, stride)?)
                .ok_or(Error::Overflow("the start of the part"))?;
            stride = in_bytes(stride, size)?;
        }
        finish(draft, start, stride, recipe)
    }

    /// The part of an array of `gsizes` that process `rank` of a grid of `psizes` holds
    /// (MPI_Type_create_darray). The grid is numbered in C order, whatever the order of the array.
    ///
    /// # Errors
    /// Lists of different lengths; a grid that does not have `size` processes or does not fit the
    /// distribution; a rank outside it; blocks that are not positive or do not cover the dimension.
    #[expect(clippy::too_many_arguments, reason = "they are those of MPI_Type_create_darray")]
    pub fn darray(
        size: i64,
        rank: i64,
        gsizes: &[i64],
        distributions: &[Distribution],
        dargs: &[i64],
        psizes: &[i64],
        order: Order,
        old: &Arc<Datatype>,
    ) -> Result<Arc<Datatype>, Error> {
        let dims = gsizes.len();
        let codes: Vec<i64> = distributions.iter().map(|&distribution| distribution as i64).collect();
        same_dimensions(&[gsizes, &codes, dargs, psizes])?;
        let coordinates = grid_place(size, rank, psizes)?;
        let mut arguments = vec![size, rank, dims as i64];
        [gsizes, &codes, dargs, psizes].iter().for_each(|list| arguments.extend_from_slice(list));
        arguments.push(order as i64);
        let recipe = Recipe::new(Combiner::Darray, arguments, vec![], vec![old.clone()]);

        let (mut draft, mut stride, mut start) = (Draft::from(old), old.extent(), 0i64);
        for dim in order.dimensions(dims) {
            let (gsize, grid) = (gsizes[dim], psizes[dim]);
            let block = block_size(dim, gsize, distributions[dim], dargs[dim], grid)?;
            let share = Share { gsize, block, first: block.saturating_mul(coordinates[dim]), grid };
            draft = share.take(&draft, stride)?;
            let offset = in_bytes(share.first.min(gsize), stride)?;
            start = start.checked_add(offset).ok_or(Error::Overflow("the start of the part"))?;
            stride = in_bytes(stride, gsize)?;
        }
        finish(draft, start, stride, recipe)
    }
}

/// Moves the part to its start and gives it the bounds of the whole array.
fn finish(draft: Draft, start: i64, extent: i64, recipe: Recipe) -> Result<Arc<Datatype>, Error> {
    let mut moved = Draft::join(&[(start, draft)])?;
    moved.bounds = moved.bounds.resize(0, extent);
    derived(moved, recipe)
}

/// The indices of one dimension that a process holds: blocks from `first` on, `grid` blocks apart.
struct Share {
    gsize: i64,
    block: i64,
    first: i64,
    grid: i64,
}

impl Share {
    /// Those indices, counted from `first`, of what lies `stride` bytes apart.
    fn take(&self, of: &Draft, stride: i64) -> Result<Draft, Error> {
        let left = self.gsize.saturating_sub(self.first).max(0);
        let period = self.block.saturating_mul(self.grid);
        let tail = left % period;
        let (whole, part) =
            (left / period + i64::from(tail >= self.block), if tail < self.block { tail } else { 0 });
        // Strides of what is there at least twice lie inside the array, so they fit.
        let step = if whole + i64::from(part > 0) > 1 { in_bytes(period, stride)? } else { 0 };
        let blocks = of.repeat(if whole > 0 { self.block } else { 0 }, stride)?.repeat(whole, step)?;
        if part == 0 {
            return Ok(blocks);
        }
        Draft::join(&[(0, blocks), (in_bytes(whole, step)?, of.repeat(part, stride)?)])
    }
}

fn block_size(
    dim: usize,
    gsize: i64,
    distribution: Distribution,
    darg: i64,
    processes: i64,
) -> Result<i64, Error> {
    let wrong = |what: &str| Err(Error::Arg(format!("dimension {dim} of the distributed array: {what}")));
    if gsize < 1 {
        return wrong("its size must be positive");
    }
    let default = darg == DEFAULT_BLOCK;
    if !default && darg < 1 && distribution != Distribution::None {
        return wrong("the distribution argument must be positive");
    }
    match distribution {
        Distribution::None if processes != 1 => {
            wrong("not distributed, so the grid must have 1 process there")
        }
        Distribution::None => Ok(gsize),
        Distribution::Block if default => Ok(gsize / processes + i64::from(gsize % processes > 0)),
        Distribution::Block if darg.saturating_mul(processes) < gsize => wrong("its blocks do not cover it"),
        Distribution::Cyclic if default => Ok(1),
        Distribution::Block | Distribution::Cyclic => Ok(darg),
    }
}

/// The coordinates of a rank in a grid numbered in C order.
fn grid_place(size: i64, rank: i64, psizes: &[i64]) -> Result<Vec<i64>, Error> {
    if psizes.iter().any(|&processes| processes < 1) {
        return Err(Error::Arg("a dimension of the process grid is not positive".into()));
    }
    let product = psizes.iter().try_fold(1i64, |product, &processes| product.checked_mul(processes));
    if product != Some(size) {
        return Err(Error::Arg(format!("the process grid {psizes:?} does not have {size} processes")));
    }
    if !(0..size).contains(&rank) {
        return Err(Error::Arg(format!("rank {rank} is not among {size} processes")));
    }
    let mut rest = rank;
    let mut place = vec![0; psizes.len()];
    for (at, &processes) in place.iter_mut().zip(psizes).rev() {
        (*at, rest) = (rest % processes, rest / processes);
    }
    Ok(place)
}

fn same_dimensions(lists: &[&[i64]]) -> Result<(), Error> {
    if lists[0].is_empty() {
        return Err(Error::Arg("an array needs at least one dimension".into()));
    }
    if lists.iter().all(|list| list.len() == lists[0].len()) {
        return Ok(());
    }
    Err(Error::Arg("the lists describe different numbers of dimensions".into()))
}
