//! Handles of objects: 31-bit numbers of kind and serial number, and the tables behind them.
//!
//! Serial numbers are given out in turn, and the last bits of one are the index of its object's slot in the table. So a
//! handle comes again only after 2^27 others of its kind, and a number that was never given out, or whose object
//! is gone, is noticed until then: it becomes the error class of its kind, never a crash.
//! MPI 5.0, 20.3: integers 0 to 4095 are predefined handles.

use crate::kinds::Kind;
use crate::serial::{Promise, Spin};
use banyan_runtime::{Class, Error, Result};
use std::collections::TryReserveError;

const NUMBER_BITS: u32 = 27;
const NUMBERS: usize = 1 << NUMBER_BITS;
/// Most objects of a kind: half of the slots of a table are free, so that the next free one is near.
const MAX_OBJECTS: usize = NUMBERS / 2;
/// Fewest slots of a table that is used.
const MIN_SLOTS: usize = 64;

fn kind_of(handle: usize) -> Option<Kind> {
    Kind::ALL.iter().copied().find(|kind| handle >> NUMBER_BITS == *kind as usize)
}

/// The objects of one kind. Lookups clone the object, so no lock is held while it is used.
pub struct Table<T> {
    kind: Kind,
    slots: Spin<Slots<T>>,
}

struct Slots<T> {
    /// Their number is a power of two, or 0.
    all: Vec<Slot<T>>,
    /// How many objects there are.
    live: usize,
    /// Objects that there may be before the limit is raised or the table grows: a power of two, never more than half of
    /// the slots. It is reached only if at some time in this round of the numbers there were half as many objects.
    limit: usize,
    /// How many numbers were given out or passed over; its low 27 bits are the next number.
    next: usize,
}

struct Slot<T> {
    /// The handle of the object; 0, which is no handle, if the slot is free.
    handle: usize,
    object: Option<T>,
}

impl<T> Slots<T> {
    const fn new() -> Self {
        Self { all: Vec::new(), live: 0, limit: 0, next: 0 }
    }

    /// Frees a slot, whose object is gone: the old handle is stale from now on.
    #[inline(always)]
    fn vacate(&mut self, index: usize) {
        self.all[index].handle = 0;
        self.live -= 1;
    }

    /// The index of a handle's slot, if the handle is good.
    #[inline(always)]
    fn find(&self, handle: usize) -> Option<usize> {
        let index = handle & self.all.len().wrapping_sub(1);
        self.all.get(index).is_some_and(|slot| slot.handle == handle).then_some(index)
    }

    /// The next number whose slot is free, and the index of that slot. There is one.
    #[inline(always)]
    fn next(&mut self) -> (usize, usize) {
        loop {
            let number = self.next % NUMBERS;
            let index = number & (self.all.len() - 1);
            self.next += 1;
            if index == 0 {
                self.start_round();
            }
            if self.all[index].handle == 0 {
                return (number, index);
            }
        }
    }

    /// Called when the numbers reach the first slot again. Halves a table that was far too large during the round, unless
    /// two objects would come to one slot: the next objects then lie in memory that is in the cache.
    #[cold]
    fn start_round(&mut self) {
        let half = self.all.len() / 2;
        let fits = || (0..half).all(|at| self.all[at].handle == 0 || self.all[at + half].handle == 0);
        if half >= MIN_SLOTS && self.limit <= half / 4 && fits() {
            // Without memory for a smaller table the large one stays.
            let _ = self.resize(half);
        }
        self.limit = (self.live + 1).next_power_of_two().clamp(MIN_SLOTS / 8, self.all.len() / 2);
    }

    #[cold]
    fn resize(&mut self, len: usize) -> Result<(), TryReserveError> {
        let mut all = Vec::new();
        all.try_reserve_exact(len)?;
        all.resize_with(len, || Slot { handle: 0, object: None });
        for slot in self.all.drain(..).filter(|slot| slot.handle != 0) {
            let index = slot.handle & (len - 1);
            all[index] = slot;
        }
        self.all = all;
        Ok(())
    }
}

impl<T> Table<T> {
    /// An empty table.
    pub const fn new(kind: Kind) -> Self {
        Self { kind, slots: Spin::new(Slots::new(), None) }
    }

    /// An empty table to which threads come one after the other while the promise holds.
    pub(crate) const fn serial(kind: Kind, promise: &'static Promise) -> Self {
        Self { kind, slots: Spin::new(Slots::new(), Some(promise)) }
    }

    /// Keeps `object` and returns its handle.
    ///
    /// # Errors
    /// MPI_ERR_NO_MEM if there are 2^26 objects of the kind already, or no memory for one more.
    #[inline(always)]
    pub fn insert(&self, object: T) -> Result<usize> {
        self.insert_with(|| object)
    }

    /// Keeps the object that `make` returns, and returns its handle. The object is made in its slot and not moved, and is not
    /// made at all if there is no room.
    ///
    /// # Errors
    /// Those of [`Table::insert`].
    #[inline(always)]
    pub fn insert_with(&self, make: impl FnOnce() -> T) -> Result<usize> {
        let slots = &mut *self.slots.lock();
        if slots.live >= slots.limit {
            self.raise_limit(slots)?;
        }
        let (number, index) = slots.next();
        let handle = (self.kind as usize) << NUMBER_BITS | number;
        slots.live += 1;
        let slot = &mut slots.all[index];
        // A free slot has no object: this spares the code that would drop one.
        std::mem::forget(slot.object.replace(make()));
        slot.handle = handle;
        Ok(handle)
    }

    /// Makes room for another object when the limit is reached.
    #[cold]
    fn raise_limit(&self, slots: &mut Slots<T>) -> Result<()> {
        if slots.limit < slots.all.len() / 2 {
            slots.limit *= 2;
            return Ok(());
        }
        let (name, live) = (self.kind.name(), slots.live);
        if live >= MAX_OBJECTS {
            let what =
                format!("there are {live} {name}s already, as many as there can be; free those not needed");
            return Err(Error::new(Class::ERR_NO_MEM, what));
        }
        let len = (slots.all.len() * 2).max(MIN_SLOTS);
        slots.resize(len).map_err(|error| {
            let what = format!("there is no memory for more than {live} {name}s: {error}");
            Error::new(Class::ERR_NO_MEM, what)
        })?;
        slots.limit = len / 2;
        Ok(())
    }

    /// Takes the object out; its handle is stale from now on.
    pub fn remove(&self, handle: usize) -> Result<T> {
        self.visit(|mut objects| objects.remove(handle))
    }

    /// Calls `f` on the object. `f` must not call user code: the table is locked.
    #[inline]
    pub fn with<R>(&self, handle: usize, f: impl FnOnce(&T) -> R) -> Result<R> {
        self.visit(|objects| objects.get(handle).map(f))
    }

    /// Calls `f` on the objects, for several steps under one lock. `f` must not call user code.
    #[inline(always)]
    pub fn visit<R>(&self, f: impl FnOnce(Objects<'_, T>) -> R) -> R {
        f(Objects { table: self, slots: &mut self.slots.lock() })
    }

    /// How many objects there are.
    pub fn count(&self) -> usize {
        self.slots.lock().live
    }

    /// Takes every object out.
    pub fn drain(&self) -> Vec<T> {
        let mut slots = self.slots.lock();
        slots.live = 0;
        let objects = slots.all.iter_mut().filter_map(|slot| {
            slot.handle = 0;
            slot.object.take()
        });
        objects.collect()
    }

    #[inline(always)]
    fn index(&self, slots: &Slots<T>, handle: usize) -> Result<usize> {
        match slots.find(handle) {
            Some(index) => Ok(index),
            None => Err(self.bad_handle(slots.next, handle)),
        }
    }

    #[cold]
    fn bad_handle(&self, numbers_given: usize, handle: usize) -> Error {
        match kind_of(handle) {
            Some(kind) if kind == self.kind && handle % NUMBERS < numbers_given => self.stale(handle),
            _ => self.wild(handle),
        }
    }

    #[cold]
    fn stale(&self, handle: usize) -> Error {
        let what = format!("handle {handle:#x} is of a {} that {}", self.kind.name(), self.kind.gone());
        Error::new(self.kind.class(), what)
    }

    #[cold]
    fn wild(&self, handle: usize) -> Error {
        let name = self.kind.name();
        let what = match kind_of(handle) {
            _ if handle == 0 => format!("handle 0 is not a {name}: is the variable set?"),
            Some(kind) if kind != self.kind => {
                format!("handle {handle:#x} is a {}, not a {name}", kind.name())
            }
            _ => format!("handle {handle:#x} is not a {name}"),
        };
        Error::new(self.kind.class(), what)
    }
}

impl<T: Clone> Table<T> {
    /// The object of a handle.
    ///
    /// # Errors
    /// The class of the kind, if the handle is stale, wild, or of another kind.
    #[inline]
    pub fn lookup(&self, handle: usize) -> Result<T> {
        self.with(handle, T::clone)
    }
}

/// The objects of a table that is locked.
pub struct Objects<'a, T> {
    table: &'a Table<T>,
    slots: &'a mut Slots<T>,
}

impl<T> Objects<'_, T> {
    /// The object.
    ///
    /// # Errors
    /// The class of the kind, if the handle is stale, wild, or of another kind.
    #[inline(always)]
    pub fn get(&self, handle: usize) -> Result<&T> {
        let index = self.table.index(self.slots, handle)?;
        self.slots.all[index].object.as_ref().ok_or_else(|| self.table.stale(handle))
    }

    /// The object, if the handle is good.
    #[inline(always)]
    pub fn find(&self, handle: usize) -> Option<&T> {
        self.slots.all[self.slots.find(handle)?].object.as_ref()
    }

    /// Takes the object out; its handle is stale from now on.
    ///
    /// # Errors
    /// As for [`Objects::get`].
    #[inline]
    pub fn remove(&mut self, handle: usize) -> Result<T> {
        let index = self.table.index(self.slots, handle)?;
        let object = self.slots.all[index].object.take();
        self.slots.vacate(index);
        object.ok_or_else(|| self.table.stale(handle))
    }

    /// Takes the object out and drops it, if `f` gives something for it.
    ///
    /// # Errors
    /// As for [`Objects::get`].
    #[inline(always)]
    pub fn remove_if<R>(&mut self, handle: usize, f: impl FnOnce(&T) -> Option<R>) -> Result<Option<R>> {
        let index = self.table.index(self.slots, handle)?;
        let object = &mut self.slots.all[index].object;
        let given = object.as_ref().and_then(f);
        if given.is_some() {
            *object = None;
            self.slots.vacate(index);
        }
        Ok(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_positive_ints_above_the_predefined_ones() {
        let table = Table::new(Kind::Request);
        for n in 0..100 {
            let handle = table.insert(n).unwrap();
            assert!(handle >= 0x1000 && i32::try_from(handle).is_ok());
            assert_eq!(table.lookup(handle), Ok(n));
        }
        assert_eq!(table.count(), 100);
        assert_eq!(table.drain().len(), 100);
    }

    #[test]
    fn stale_and_wild_handles_are_errors_of_their_class() {
        let (table, other) = (Table::new(Kind::Info), Table::new(Kind::Group));
        let (a, group) = (table.insert('a').unwrap(), other.insert('g').unwrap());
        assert_eq!(table.remove(a), Ok('a'));
        let b = table.insert('b').unwrap();
        assert_ne!(a, b);
        for wild in [a, 0, 0x130, 0x131, b + 1, group, usize::MAX, 1 << 31, b | 1 << 40] {
            assert_eq!(table.lookup(wild).unwrap_err().class, Class::ERR_INFO, "{wild:#x}");
        }
        assert!(table.lookup(a).unwrap_err().what.contains("freed"));
        assert!(table.lookup(group).unwrap_err().what.contains("is a group"));
        assert_eq!(table.lookup(b), Ok('b'));
    }

    #[test]
    fn a_stale_handle_stays_stale() {
        let table = Table::new(Kind::Datatype);
        let kept: Vec<usize> = (0..10).map(|n| table.insert(n).unwrap()).collect();
        let stale = table.insert(77).unwrap();
        assert_eq!(table.remove(stale), Ok(77));
        for n in 0..100_000 {
            let handle = table.insert(n).unwrap();
            assert!(table.lookup(stale).is_err() && !kept.contains(&handle));
            assert_eq!(table.remove(handle), Ok(n));
        }
        assert!(table.lookup(stale).unwrap_err().what.contains("freed"));
        for (n, handle) in kept.into_iter().enumerate() {
            assert_eq!(table.lookup(handle), Ok(n));
        }
    }

    #[test]
    fn numbers_come_again_after_all_others() {
        let table = Table::new(Kind::Op);
        let (first, kept) = (table.insert(1).unwrap(), table.insert(2).unwrap());
        assert_eq!(table.remove(first), Ok(1));
        table.slots.lock().next = NUMBERS - 1;
        let last = table.insert(3).unwrap();
        assert_eq!(last % NUMBERS, NUMBERS - 1);
        assert_eq!(table.insert(4), Ok(first));
        let next = table.insert(5).unwrap();
        assert_ne!(next, kept, "the number of an object that is still there is passed over");
        assert_eq!([last, first, kept, next].map(|handle| table.lookup(handle).unwrap()), [3, 4, 2, 5]);
    }

    #[test]
    fn a_million_objects_have_room() {
        const MANY: usize = (1 << 20) + 5;
        let table = Table::new(Kind::Group);
        let handles: Vec<usize> = (0..MANY).map(|n| table.insert(n as u32).unwrap()).collect();
        assert_eq!(table.count(), MANY);
        for (n, handle) in handles.iter().enumerate() {
            assert_eq!(table.lookup(*handle), Ok(n as u32));
        }
    }

    #[test]
    fn a_table_grows_with_its_objects_and_shrinks_again() {
        let table = Table::new(Kind::Group);
        let handles: Vec<usize> = (0..3000).map(|n| table.insert(n).unwrap()).collect();
        let len = table.slots.lock().all.len();
        assert!((6000..20_000).contains(&len), "{len}");
        for handle in &handles[1..] {
            table.remove(*handle).unwrap();
        }
        for n in 0..5 * len as u32 {
            let handle = table.insert(n).unwrap();
            assert_eq!(table.remove(handle), Ok(n));
        }
        let len = table.slots.lock().all.len();
        assert_eq!(len, MIN_SLOTS);
        assert_eq!(table.lookup(handles[0]), Ok(0));
        assert!(table.lookup(handles[1]).is_err());
    }

    #[test]
    fn threads_share_a_table() {
        let table = Table::new(Kind::Request);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..1000 {
                        let handle = table.insert((thread, round)).unwrap();
                        assert_eq!(table.lookup(handle), Ok((thread, round)));
                        assert_eq!(table.remove(handle), Ok((thread, round)));
                    }
                });
            }
        });
        assert_eq!(table.count(), 0);
    }
}
