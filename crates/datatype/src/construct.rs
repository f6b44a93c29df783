//! The constructors (MPI 5.0, 5.1.2 to 5.1.10).

use std::sync::Arc;

use crate::draft::Draft;
use crate::envelope::{Combiner, Recipe};
use crate::{Datatype, Error};

impl Datatype {
    /// `count` elements side by side (MPI_Type_contiguous).
    ///
    /// # Errors
    /// Like all constructors: negative counts or block lengths, and sizes past 64 bits.
    pub fn contiguous(count: i64, old: &Arc<Datatype>) -> Result<Arc<Datatype>, Error> {
        check_count(count)?;
        let recipe = Recipe::new(Combiner::Contiguous, vec![count], vec![], vec![old.clone()]);
        derived(Draft::from(old).contiguous(count)?, recipe)
    }

    /// `count` blocks of `blocklen` elements, `stride` extents apart (MPI_Type_vector).
    pub fn vector(
        count: i64,
        blocklen: i64,
        stride: i64,
        old: &Arc<Datatype>,
    ) -> Result<Arc<Datatype>, Error> {
        let bytes = in_bytes(stride, old.extent())?;
        let arguments = vec![count, blocklen, stride];
        let recipe = Recipe::new(Combiner::Vector, arguments, vec![], vec![old.clone()]);
        derived(vector(count, blocklen, bytes, old)?, recipe)
    }

    /// `count` blocks of `blocklen` elements, `stride` bytes apart (MPI_Type_create_hvector).
    pub fn hvector(
        count: i64,
        blocklen: i64,
        stride: i64,
        old: &Arc<Datatype>,
    ) -> Result<Arc<Datatype>, Error> {
        let recipe = Recipe::new(Combiner::Hvector, vec![count, blocklen], vec![stride], vec![old.clone()]);
        derived(vector(count, blocklen, stride, old)?, recipe)
    }

    /// Blocks at displacements in extents (MPI_Type_indexed).
    pub fn indexed(blocklens: &[i64], displs: &[i64], old: &Arc<Datatype>) -> Result<Arc<Datatype>, Error> {
        let arguments = listed(blocklens.len(), [blocklens, displs])?;
        let recipe = Recipe::new(Combiner::Indexed, arguments, vec![], vec![old.clone()]);
        let blocks = blocks(blocklens, displs, old.extent())?;
        derived(Draft::from(old).blocks(&blocks)?, recipe)
    }

    /// Blocks at displacements in bytes (MPI_Type_create_hindexed).
    pub fn hindexed(blocklens: &[i64], displs: &[i64], old: &Arc<Datatype>) -> Result<Arc<Datatype>, Error> {
        same_lengths([blocklens, displs])?;
        let arguments = listed(blocklens.len(), [blocklens])?;
        let recipe = Recipe::new(Combiner::Hindexed, arguments, displs.to_vec(), vec![old.clone()]);
        let blocks = blocks(blocklens, displs, 1)?;
        derived(Draft::from(old).blocks(&blocks)?, recipe)
    }

    /// Blocks of one length at displacements in extents (MPI_Type_create_indexed_block).
    pub fn indexed_block(blocklen: i64, displs: &[i64], old: &Arc<Datatype>) -> Result<Arc<Datatype>, Error> {
        let mut arguments = vec![displs.len() as i64, blocklen];
        arguments.extend(displs);
        let recipe = Recipe::new(Combiner::IndexedBlock, arguments, vec![], vec![old.clone()]);
        let blocks = blocks(&vec![blocklen; displs.len()], displs, old.extent())?;
        derived(Draft::from(old).blocks(&blocks)?, recipe)
    }

    /// Blocks of one length at displacements in bytes (MPI_Type_create_hindexed_block).
    pub fn hindexed_block(
        blocklen: i64,
        displs: &[i64],
        old: &Arc<Datatype>,
    ) -> Result<Arc<Datatype>, Error> {
        let arguments = vec![displs.len() as i64, blocklen];
        let recipe = Recipe::new(Combiner::HindexedBlock, arguments, displs.to_vec(), vec![old.clone()]);
        let blocks = blocks(&vec![blocklen; displs.len()], displs, 1)?;
        derived(Draft::from(old).blocks(&blocks)?, recipe)
    }

    /// Blocks of different types at displacements in bytes (MPI_Type_create_struct). The extent is
    /// rounded up to the strictest alignment among the members, as C does.
    pub fn create_struct(
        blocklens: &[i64],
        displs: &[i64],
        types: &[Arc<Datatype>],
    ) -> Result<Arc<Datatype>, Error> {
        same_lengths([blocklens, displs])?;
        if types.len() != displs.len() {
            return Err(Error::Arg(format!("{} datatypes for {} blocks", types.len(), displs.len())));
        }
        let arguments = listed(blocklens.len(), [blocklens])?;
        let recipe = Recipe::new(Combiner::Struct, arguments, displs.to_vec(), types.to_vec());
        let mut parts = Vec::with_capacity(types.len());
        for ((&blocklen, &disp), old) in blocklens.iter().zip(displs).zip(types) {
            check_blocklen(blocklen)?;
            if blocklen > 0 {
                parts.push((disp, Draft::from(old).contiguous(blocklen)?));
            }
        }
        let mut draft = Draft::join(&parts)?;
        draft.bounds = draft.bounds.pad(draft.align);
        derived(draft, recipe)
    }

    /// The data of this type with other bounds (MPI_Type_create_resized).
    pub fn resized(old: &Arc<Datatype>, lb: i64, extent: i64) -> Result<Arc<Datatype>, Error> {
        let recipe = Recipe::new(Combiner::Resized, vec![], vec![lb, extent], vec![old.clone()]);
        let mut draft = Draft::from(old);
        draft.bounds = draft.bounds.resize(lb, extent);
        derived(draft, recipe)
    }

    /// A duplicate of this type (MPI_Type_dup), committed if this one is.
    pub fn dup(self: &Arc<Self>) -> Arc<Datatype> {
        let recipe = Recipe::new(Combiner::Dup, vec![], vec![], vec![self.clone()]);
        let copy = Datatype::new(self.draft(), recipe, self.basic(), self.is_committed());
        Arc::new(copy.expect("the bounds fitted before"))
    }
}

pub(crate) fn derived(draft: Draft, recipe: Recipe) -> Result<Arc<Datatype>, Error> {
    Datatype::new(draft, recipe, None, false).map(Arc::new)
}

fn vector(count: i64, blocklen: i64, stride: i64, old: &Arc<Datatype>) -> Result<Draft, Error> {
    check_count(count)?;
    check_blocklen(blocklen)?;
    Draft::from(old).contiguous(blocklen)?.repeat(count, stride)
}

/// `(byte displacement, length)` of each block; displacements count `unit` bytes.
fn blocks(blocklens: &[i64], displs: &[i64], unit: i64) -> Result<Vec<(i64, i64)>, Error> {
    let block = |(&blocklen, &disp): (&i64, &i64)| {
        check_blocklen(blocklen)?;
        // The displacement of an empty block has no effect, so it may be anything.
        Ok((if blocklen == 0 { 0 } else { in_bytes(disp, unit)? }, blocklen))
    };
    blocklens.iter().zip(displs).map(block).collect()
}

/// A count, then lists of that length, as MPI_Type_get_contents gives them.
fn listed<const N: usize>(count: usize, lists: [&[i64]; N]) -> Result<Vec<i64>, Error> {
    same_lengths(lists)?;
    let mut all = vec![count as i64];
    lists.iter().for_each(|list| all.extend_from_slice(list));
    Ok(all)
}

fn same_lengths<const N: usize>(lists: [&[i64]; N]) -> Result<(), Error> {
    if lists.iter().all(|list| list.len() == lists[0].len()) {
        return Ok(());
    }
    Err(Error::Arg("block lengths and displacements differ in number".into()))
}

pub(crate) fn in_bytes(elements: i64, extent: i64) -> Result<i64, Error> {
    elements.checked_mul(extent).ok_or(Error::Overflow("a displacement in bytes"))
}

fn check_count(value: i64) -> Result<(), Error> {
    if value < 0 { Err(Error::Count { what: "count", value }) } else { Ok(()) }
}

fn check_blocklen(value: i64) -> Result<(), Error> {
    if value < 0 {
        Err(Error::Arg(format!("a block length is {value}, but must not be negative")))
    } else {
        Ok(())
    }
}
