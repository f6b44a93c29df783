//! Slabs: lists in which a value keeps its index, and free indices are used again.

/// Puts a value at the first free index, or at a new one; returns the index.
pub(crate) fn keep<T>(slab: &mut Vec<Option<T>>, value: T) -> usize {
    let free = slab.iter().position(Option::is_none).unwrap_or_else(|| {
        slab.push(None);
        slab.len() - 1
    });
    slab[free] = Some(value);
    free
}
