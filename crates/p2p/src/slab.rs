//! [`Slab`]: values with ids, of which none is used twice.

/// Values in entries that are reused; an id is (generation, index of the entry), so that an old id finds nothing. 0 is never
/// an id.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// Bytes of one value.
    pub(crate) const EACH: usize = size_of::<Entry<T>>();

    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        self.insert_with(|_| value)
    }

    /// Inserts the value that `f` makes from the id.
    #[inline(always)]
    pub(crate) fn insert_with(&mut self, f: impl FnOnce(u64) -> T) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| self.grow());
        let entry = &mut self.entries[at as usize];
        let id = id(entry.generation, at);
        // A free entry holds nothing: this tells the compiler that there is nothing to drop.
        std::mem::forget(entry.value.replace(f(id)));
        id
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let at = u32::try_from(self.entries.len()).expect("fewer than 2^32 live requests");
        self.entries.push(Entry { generation: 1, value: None });
        at
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        let entry = self.entries.get(id as u32 as usize)?;
        if entry.generation != (id >> 32) as u32 {
            return None;
        }
        entry.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let entry = self.entries.get_mut(id as u32 as usize)?;
        if entry.generation != (id >> 32) as u32 {
            return None;
        }
        entry.value.as_mut()
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        let at = id as u32;
        let entry = self.entries.get_mut(at as usize)?;
        if entry.generation != (id >> 32) as u32 {
            return None;
        }
        let value = entry.value.take()?;
        Self::vacate(entry, &mut self.free, at);
        Some(value)
    }

    /// As [`Slab::remove`], for a value that owns nothing that would have to be dropped.
    #[inline]
    pub(crate) fn forget(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(id as u32 as usize)
            && entry.generation == (id >> 32) as u32
            && entry.value.is_some()
        {
            std::mem::forget(entry.value.take());
            Self::vacate(entry, &mut self.free, id as u32);
        }
    }

    /// Frees a entry for reuse, unless its generations are used up.
    #[inline]
    fn vacate(entry: &mut Entry<T>, free: &mut Vec<u32>, at: u32) {
        if entry.generation < u32::MAX {
            entry.generation += 1;
            free.push(at);
        }
    }

    /// All values with their ids, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(at, s)| Some((id(s.generation, at as u32), s.value.as_ref()?)))
    }
}

#[inline]
fn id(generation: u32, at: u32) -> u64 {
    (u64::from(generation) << 32) | u64::from(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_finds_nothing() {
        let mut slab = Slab::new();
        let a = slab.insert('a');
        assert_eq!(slab.remove(a), Some('a'));
        let b = slab.insert('b');
        assert_ne!(a, b);
        assert!(slab.get(a).is_none() && slab.get_mut(a).is_none() && slab.remove(a).is_none());
        assert_eq!(slab.get(b), Some(&'b'));
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(b, &'b')]);
        assert_eq!(slab.get(0), None);
    }
}
