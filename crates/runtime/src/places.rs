//! Lists whose values keep their place, and whose free places are used again.

/// Puts a value into the first free place, or a new one; says which.
pub(crate) fn keep<T>(places: &mut Vec<Option<T>>, value: T) -> usize {
    let free = places.iter().position(Option::is_none).unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    });
    places[free] = Some(value);
    free
}
