//! Attribute caching (MPI 5.0, 7.7): keys ([`Keyvals`]) and what each object keeps under them
//! ([`Attributes`]), the same for communicators, datatypes and windows.
//!
//! Callbacks get the handle of the object. They run while no lock is held, so they may use attributes themselves. An
//! attribute keeps its key alive, so a key that is freed while in use lives on until its last attribute is deleted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use crate::{Result, bail, lock};

/// What is cached: an address or an integer of the user's.
pub type Value = usize;

/// The handle of an object.
pub type Object = usize;

/// Called with the object that is duplicated, the key and the value there. Gives the value for the new
/// object, or none to cache nothing there.
pub type CopyFn = Arc<dyn Fn(Object, i32, Value) -> Result<Option<Value>> + Send + Sync>;

/// Called with the object, the key and the value that is about to go.
pub type DeleteFn = Arc<dyn Fn(Object, i32, Value) -> Result<()> + Send + Sync>;

/// What happens to an attribute when its object is duplicated.
pub enum CopyRule {
    /// The duplicate does not get it (MPI_COMM_NULL_COPY_FN).
    Null,
    /// The duplicate gets the same value (MPI_COMM_DUP_FN).
    Dup,
    /// A function of the user decides.
    User(CopyFn),
}

/// The keys of one kind of object in one process.
pub struct Keyvals {
    state: Mutex<State>,
}

struct State {
    next: i32,
    keys: HashMap<i32, Slot>,
}

struct Slot {
    /// `None` once the user has freed the key.
    live: Option<Arc<Keyval>>,
    /// Alive as long as an attribute uses the key.
    any: Weak<Keyval>,
}

/// A key with its callbacks.
struct Keyval {
    id: i32,
    copy: CopyRule,
    delete: Option<DeleteFn>,
}

impl Keyvals {
    /// No keys yet; their numbers count up from `first`. Each kind of object takes a range of its own, above
    /// the predefined keys, so that a key used on the wrong kind of object is noticed.
    pub fn new(first: i32) -> Self {
        Self { state: Mutex::new(State { next: first, keys: HashMap::new() }) }
    }

    /// A new key; without `delete` nothing is called when its attributes go (MPI_COMM_NULL_DELETE_FN).
    ///
    /// # Errors
    /// ERR_NO_SPACE if there are no numbers left.
    pub fn create(&self, copy: CopyRule, delete: Option<DeleteFn>) -> Result<i32> {
        let mut state = lock(&self.state);
        let id = state.next;
        let Some(next) = id.checked_add(1) else {
            bail!(ERR_NO_SPACE, "all attribute keys are used up");
        };
        state.next = next;
        let live = Arc::new(Keyval { id, copy, delete });
        state.keys.insert(id, Slot { any: Arc::downgrade(&live), live: Some(live) });
        Ok(id)
    }

    /// Frees a key: no attribute can be set under it any more; those that are set stay until they are
    /// deleted.
    ///
    /// # Errors
    /// ERR_KEYVAL if there is no such key, or it was freed before.
    pub fn free(&self, id: i32) -> Result<()> {
        let freed = self.key(id, |slot| slot.live.take());
        lock(&self.state).keys.retain(|&other, slot| other == id || slot.any.strong_count() > 0);
        freed.map(drop)
    }

    /// The key of a number, as `find` takes it from its slot.
    fn key(&self, id: i32, find: impl FnOnce(&mut Slot) -> Option<Arc<Keyval>>) -> Result<Arc<Keyval>> {
        match lock(&self.state).keys.get_mut(&id).and_then(find) {
            Some(key) => Ok(key),
            None => bail!(ERR_KEYVAL, "{id} is not an attribute key of this kind of object, or was freed"),
        }
    }

    /// A key, also one that was freed but is in use.
    fn in_use(&self, id: i32) -> Result<Arc<Keyval>> {
        self.key(id, |slot| slot.any.upgrade())
    }
}

/// What one object caches, in the order in which it was set.
#[derive(Default)]
pub struct Attributes {
    entries: Mutex<Vec<Entry>>,
}

#[derive(Clone)]
struct Entry {
    key: Arc<Keyval>,
    value: Value,
}

impl Attributes {
    /// Nothing cached.
    pub fn new() -> Self {
        Self::default()
    }

    /// True if nothing is cached.
    pub fn is_empty(&self) -> bool {
        lock(&self.entries).is_empty()
    }

    /// What is cached under a key, if anything.
    ///
    /// # Errors
    /// ERR_KEYVAL if there is no such key.
    pub fn value(&self, keyvals: &Keyvals, id: i32) -> Result<Option<Value>> {
        let key = keyvals.in_use(id)?;
        Ok(lock(&self.entries).iter().find(|entry| Arc::ptr_eq(&entry.key, &key)).map(|entry| entry.value))
    }

    /// Caches `value`; what was there before is deleted first, through its callback.
    ///
    /// # Errors
    /// ERR_KEYVAL if there is no such key; the error of the delete callback, then nothing changes.
    pub fn set(&self, keyvals: &Keyvals, object: Object, id: i32, value: Value) -> Result<()> {
        let key = keyvals.key(id, |slot| slot.live.clone())?;
        self.remove(&key, object)?;
        let mut entries = lock(&self.entries);
        entries.retain(|entry| !Arc::ptr_eq(&entry.key, &key));
        entries.push(Entry { key, value });
        Ok(())
    }

    /// Deletes what is cached under a key, through its callback. It is no error if nothing is.
    ///
    /// # Errors
    /// ERR_KEYVAL if there is no such key; the error of the delete callback, then the attribute stays.
    pub fn delete(&self, keyvals: &Keyvals, object: Object, id: i32) -> Result<()> {
        self.remove(&keyvals.in_use(id)?, object)
    }

    /// What a duplicate of this object caches: the copy callbacks say, in the order in which the attributes
    /// were set here.
    ///
    /// # Errors
    /// The error of the first callback that fails; no further one is called then.
    pub fn copies(&self, object: Object) -> Result<Attributes> {
        let entries = lock(&self.entries).clone();
        let mut copies = Vec::with_capacity(entries.len());
        for Entry { key, value } in entries {
            let copy = match &key.copy {
                CopyRule::Null => None,
                CopyRule::Dup => Some(value),
                CopyRule::User(callback) => callback(object, key.id, value)?,
            };
            copies.extend(copy.map(|value| Entry { key, value }));
        }
        Ok(Attributes { entries: Mutex::new(copies) })
    }

    /// Deletes everything, latest first (the order that MPI 5.0, 11.2.4 asks for at finalization), also
    /// what the callbacks add meanwhile.
    ///
    /// # Errors
    /// The error of the first delete callback that fails; its attribute and those set before it stay.
    pub fn delete_all(&self, object: Object) -> Result<()> {
        loop {
            let last = lock(&self.entries).last().map(|entry| entry.key.clone());
            match last {
                Some(key) => self.remove(&key, object)?,
                None => return Ok(()),
            }
        }
    }

    /// Calls the delete callback, then forgets the attribute.
    fn remove(&self, key: &Arc<Keyval>, object: Object) -> Result<()> {
        let found = lock(&self.entries).iter().find(|entry| Arc::ptr_eq(&entry.key, key)).cloned();
        let Some(Entry { value, .. }) = found else { return Ok(()) };
        if let Some(callback) = &key.delete {
            callback(object, key.id, value)?;
        }
        lock(&self.entries).retain(|entry| !Arc::ptr_eq(&entry.key, key));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, Error};

    type Log = Arc<Mutex<Vec<(char, i32, Value)>>>;

    fn note(log: &Log, what: char) -> impl Fn(Object, i32, Value) + Send + Sync + 'static {
        let log = log.clone();
        move |_, id, value| log.lock().unwrap().push((what, id, value))
    }

    fn logged(keyvals: &Keyvals, log: &Log) -> i32 {
        let (copied, deleted) = (note(log, 'c'), note(log, 'd'));
        let copy: CopyFn = Arc::new(move |object, id, value| {
            copied(object, id, value);
            Ok((value % 2 == 0).then_some(value + 10))
        });
        let delete: DeleteFn = Arc::new(move |object, id, value| {
            deleted(object, id, value);
            Ok(())
        });
        keyvals.create(CopyRule::User(copy), Some(delete)).unwrap()
    }

    fn drain(log: &Log) -> Vec<(char, i32, Value)> {
        std::mem::take(&mut log.lock().unwrap())
    }

    #[test]
    fn values_are_copied_in_order_and_deleted_in_reverse() {
        let (keyvals, log) = (Keyvals::new(1000), Log::default());
        let [a, b, c] = [(); 3].map(|()| logged(&keyvals, &log));
        let table = Attributes::new();
        for (id, value) in [(c, 2), (a, 4), (b, 5), (a, 6)] {
            table.set(&keyvals, 0, id, value).unwrap();
        }
        assert_eq!(drain(&log), [('d', a, 4)]);
        let copy = table.copies(0).unwrap();
        assert_eq!(drain(&log), [('c', c, 2), ('c', b, 5), ('c', a, 6)]);
        assert_eq!(copy.value(&keyvals, a).unwrap(), Some(16));
        assert_eq!(copy.value(&keyvals, b).unwrap(), None);
        table.delete_all(0).unwrap();
        assert_eq!(drain(&log), [('d', a, 6), ('d', b, 5), ('d', c, 2)]);
        assert!(table.is_empty() && !copy.is_empty());
        copy.delete(&keyvals, 1, b).unwrap();
        assert_eq!(drain(&log), []);
    }

    #[test]
    fn predefined_callbacks_copy_all_or_nothing() {
        let keyvals = Keyvals::new(1000);
        let dup = keyvals.create(CopyRule::Dup, None).unwrap();
        let null = keyvals.create(CopyRule::Null, None).unwrap();
        let table = Attributes::new();
        table.set(&keyvals, 0, dup, 1).unwrap();
        table.set(&keyvals, 0, null, 2).unwrap();
        let copy = table.copies(0).unwrap();
        assert_eq!(copy.value(&keyvals, dup).unwrap(), Some(1));
        assert_eq!(copy.value(&keyvals, null).unwrap(), None);
    }

    #[test]
    fn a_freed_key_lives_while_it_is_used() {
        let (keyvals, log) = (Keyvals::new(1000), Log::default());
        let id = logged(&keyvals, &log);
        let table = Attributes::new();
        table.set(&keyvals, 0, id, 8).unwrap();
        keyvals.free(id).unwrap();
        let class = |result: Result<()>| result.unwrap_err().class;
        assert_eq!(class(keyvals.free(id)), Class::ERR_KEYVAL);
        assert_eq!(class(table.set(&keyvals, 0, id, 9)), Class::ERR_KEYVAL);
        assert_eq!(table.value(&keyvals, id).unwrap(), Some(8));
        let copy = table.copies(0).unwrap();
        table.delete(&keyvals, 0, id).unwrap();
        copy.delete_all(0).unwrap();
        assert_eq!(drain(&log), [('c', id, 8), ('d', id, 8), ('d', id, 18)]);
        assert_eq!(class(table.value(&keyvals, id).map(drop)), Class::ERR_KEYVAL);
        assert_eq!(class(table.delete(&keyvals, 0, 501)), Class::ERR_KEYVAL);
        assert_eq!(class(keyvals.free(501)), Class::ERR_KEYVAL);
    }

    #[test]
    fn a_failing_callback_stops_and_its_attribute_stays() {
        let (keyvals, log) = (Keyvals::new(1000), Log::default());
        let good = logged(&keyvals, &log);
        let code = Class(16400);
        let refuse = move |_: Object, _, value| match value {
            0 => Ok(()),
            _ => Err(Error::new(code, "no")),
        };
        let copy: CopyFn = Arc::new(move |_, _, _| Err(Error::new(code, "no")));
        let bad = keyvals.create(CopyRule::User(copy), Some(Arc::new(refuse))).unwrap();
        let table = Attributes::new();
        table.set(&keyvals, 0, good, 2).unwrap();
        table.set(&keyvals, 0, bad, 1).unwrap();
        assert_eq!(table.copies(0).map(drop).unwrap_err().class, code);
        assert_eq!(table.delete_all(0).unwrap_err().class, code);
        assert_eq!(table.set(&keyvals, 0, bad, 0).unwrap_err().class, code);
        assert_eq!(table.value(&keyvals, bad).unwrap(), Some(1));
        assert_eq!(drain(&log), [('c', good, 2)]);
    }

    #[test]
    fn callbacks_may_use_attributes() {
        let keyvals = Arc::new(Keyvals::new(1000));
        let table = Arc::new(Attributes::new());
        let other = keyvals.create(CopyRule::Dup, None).unwrap();
        let (k, t) = (keyvals.clone(), table.clone());
        let delete: DeleteFn = Arc::new(move |_, id, value| {
            assert_eq!(t.value(&k, id).unwrap(), Some(value));
            t.set(&k, 0, other, value)
        });
        let id = keyvals.create(CopyRule::Null, Some(delete)).unwrap();
        table.set(&keyvals, 0, id, 5).unwrap();
        table.delete(&keyvals, 0, id).unwrap();
        assert_eq!(table.value(&keyvals, other).unwrap(), Some(5));
        table.set(&keyvals, 0, id, 6).unwrap();
        table.delete_all(0).unwrap();
        assert!(table.is_empty());
    }
}
