//! [`Slab`]: values by ids that are never used twice.

/// Values in slots; an id is (generation, slot), so that an old id finds nothing. 0 is never an id.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// Bytes of one value.
    pub(crate) const EACH: usize = size_of::<Slot<T>>();

    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        self.insert_with(|_| value)
    }

    /// Inserts what `f` makes of the id.
    #[inline(always)]
    pub(crate) fn insert_with(&mut self, f: impl FnOnce(u64) -> T) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[at as usize];
        let id = id(slot.generation, at);
        // A slot that is free holds nothing: the compiler need not look for what to drop.
        std::mem::forget(slot.value.replace(f(id)));
        id
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let at = u32::try_from(self.slots.len()).expect("fewer than 2^32 live requests");
        self.slots.push(Slot { generation: 1, value: None });
        at
    }

    #[inline]
    pub(crate) fn get(&self, id: u64) -> Option<&T> {
        let slot = self.slots.get(id as u32 as usize)?;
        if slot.generation != (id >> 32) as u32 {
            return None;
        }
        slot.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(id as u32 as usize)?;
        if slot.generation != (id >> 32) as u32 {
            return None;
        }
        slot.value.as_mut()
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: u64) -> Option<T> {
        let at = id as u32;
        let slot = self.slots.get_mut(at as usize)?;
        if slot.generation != (id >> 32) as u32 {
            return None;
        }
        let value = slot.value.take()?;
        Self::vacate(slot, &mut self.free, at);
        Some(value)
    }

    /// As [`Slab::remove`], for a value with nothing in it that would have to be dropped.
    #[inline]
    pub(crate) fn forget(&mut self, id: u64) {
        if let Some(slot) = self.slots.get_mut(id as u32 as usize)
            && slot.generation == (id >> 32) as u32
            && slot.value.is_some()
        {
            std::mem::forget(slot.value.take());
            Self::vacate(slot, &mut self.free, id as u32);
        }
    }

    /// A slot whose generations are used up is left alone.
    #[inline]
    fn vacate(slot: &mut Slot<T>, free: &mut Vec<u32>, at: u32) {
        if slot.generation < u32::MAX {
            slot.generation += 1;
            free.push(at);
        }
    }

    /// All values with their ids, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots
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
