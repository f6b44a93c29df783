//! [`Cache`]: which memory is registered, so that a buffer that is used again need not be registered again. Pure: the [`Memory`] under it
//! registers, and tells what was unmapped meanwhile.
//!
//! What this side's work uses is registered in whole pages that do not overlap: memory that reaches into such a registration is registered together
//! with it, in its place. What peers reach is registered as it is, each buffer apart, so that it can end apart. What is unmapped is forgotten before the next look, so that memory which was freed and mapped again is
//! never taken for what was there before. A registration ends when nobody uses it any more and the cache has forgotten it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Registrations that are kept at most.
const MOST: usize = 1024;

/// Who may do what with registered memory, besides this side's device, which may read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u8);

impl Access {
    /// Nobody anything.
    pub const NONE: Access = Access(0);
    /// This side's device may write to it.
    pub const LOCAL: Access = Access(1);
    /// Peers may read it.
    pub const READ: Access = Access(2);
    /// Peers may read and write it, and do atomics.
    pub const READ_WRITE: Access = Access(7);

    /// True if whoever may do `other` may do this.
    pub fn includes(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// What either of the two allows.
    #[must_use]
    pub fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// What memory is registered for. Memory that peers reach has registrations of its own, as those may have to end at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// Work of this side.
    Ours = 0,
    /// Work of peers.
    Theirs = 1,
}

/// A range of addresses.
pub type Span = Range<usize>;

/// The memory of a process.
pub trait Memory {
    /// A registration. It ends with this.
    type Region;

    /// From now on [`Memory::gone`] tells if any of these pages is unmapped; false if that cannot be.
    fn watch(&mut self, pages: &Span) -> bool;

    /// These pages need not be watched any more.
    fn unwatch(&mut self, pages: &Span);

    /// Tells each range of watched pages of which some were unmapped, or emptied, since the last call.
    fn gone(&mut self, tell: &mut dyn FnMut(Span));

    /// Registers a range.
    ///
    /// # Errors
    /// A sentence that says why not.
    fn register(&mut self, span: &Span, access: Access) -> Result<Self::Region, String>;
}

/// Where a registration begins and ends.
type Key = (usize, usize);

struct Entry<R> {
    access: Access,
    region: Arc<R>,
    /// When it was looked for last.
    used: u64,
}

/// Registrations that are there, by what they are for and their ranges.
pub struct Cache<M: Memory> {
    memory: M,
    entries: [BTreeMap<Key, Entry<M::Region>>; 2],
    /// Bytes that are registered by what is kept, and how many may be.
    bytes: usize,
    most_bytes: usize,
    clock: u64,
}

impl<M: Memory> Cache<M> {
    /// An empty cache, which keeps at most so many bytes registered.
    pub fn new(memory: M, most_bytes: usize) -> Cache<M> {
        Cache { memory, entries: Default::default(), bytes: 0, most_bytes, clock: 0 }
    }

    /// The memory under it.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The same, to change it.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Number of registrations that are kept.
    pub fn len(&self) -> usize {
        self.entries.iter().map(BTreeMap::len).sum()
    }

    /// True if none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A registration that a range, which is not empty, lies in. It is kept if the memory can be watched.
    ///
    /// # Errors
    /// If the range cannot be registered.
    pub fn region(
        &mut self,
        span: &Span,
        access: Access,
        purpose: Purpose,
    ) -> Result<Arc<M::Region>, String> {
        self.forget_gone();
        if let Some(found) = self.find(span, access, purpose) {
            return Ok(found);
        }
        let wanted = if purpose == Purpose::Ours { pages(span) } else { span.clone() };
        let (whole, all, old) = self.union(&wanted, access, purpose);
        old.into_iter().for_each(|key| self.drop_entry(purpose, key));
        self.make_room(whole.len());
        let kept = self.keep(&whole, all, purpose).or_else(|| self.keep(&wanted, access, purpose));
        if let Some(region) = kept {
            return Ok(region);
        }
        let region = match self.memory.register(span, access) {
            Err(_) if self.drop_unused() => self.memory.register(span, access),
            first => first,
        };
        region.map(Arc::new)
    }

    /// Forgets a registration, though its memory is still there. It ends as soon as nobody uses it.
    pub fn forget(&mut self, region: &Arc<M::Region>, purpose: Purpose) {
        let found =
            self.entries[purpose as usize].iter().find(|(_, entry)| Arc::ptr_eq(&entry.region, region));
        if let Some(key) = found.map(|(&key, _)| key) {
            self.drop_entry(purpose, key);
        }
    }

    fn find(&mut self, span: &Span, access: Access, purpose: Purpose) -> Option<Arc<M::Region>> {
        self.clock += 1;
        let last = if purpose == Purpose::Ours { usize::MAX } else { span.end };
        let before = self.entries[purpose as usize].range_mut(..=(span.start, last)).next_back();
        let (_, entry) = before.filter(|(key, _)| holds(**key, span, purpose))?;
        if !entry.access.includes(access) {
            return None;
        }
        entry.used = self.clock;
        Some(entry.region.clone())
    }

    /// The range together with those of the registrations whose place it takes, all that these are for, and which they are.
    fn union(&self, span: &Span, access: Access, purpose: Purpose) -> (Span, Access, Vec<Key>) {
        let mut old = self.overlapping(span, purpose);
        if purpose == Purpose::Theirs {
            old.retain(|&key| holds(key, span, purpose));
        }
        let add = |(span, access): (Span, Access), key: &Key| {
            let with = self.entries[purpose as usize][key].access;
            (span.start.min(key.0)..span.end.max(key.1), access.with(with))
        };
        let (whole, all) = old.iter().fold((span.clone(), access), add);
        (whole, all, old)
    }

    /// The registrations that have bytes in common with a range.
    fn overlapping(&self, span: &Span, purpose: Purpose) -> Vec<Key> {
        let all = self.entries[purpose as usize].keys();
        all.filter(|&&(start, end)| start < span.end && span.start < end).copied().collect()
    }

    /// Registers a range and keeps that, if it can be watched.
    fn keep(&mut self, span: &Span, access: Access, purpose: Purpose) -> Option<Arc<M::Region>> {
        if !self.memory.watch(&pages(span)) {
            return None;
        }
        let Ok(region) = self.memory.register(span, access) else {
            self.unwatch(&pages(span));
            return None;
        };
        let region = Arc::new(region);
        self.bytes += span.len();
        let entry = Entry { access, region: region.clone(), used: self.clock };
        self.entries[purpose as usize].insert((span.start, span.end), entry);
        Some(region)
    }

    fn forget_gone(&mut self) {
        let mut gone = Vec::new();
        self.memory.gone(&mut |span| gone.push(span));
        for span in gone {
            for purpose in [Purpose::Ours, Purpose::Theirs] {
                let keys = self.overlapping(&span, purpose);
                keys.into_iter().for_each(|key| self.drop_entry(purpose, key));
            }
        }
    }

    /// Drops what was not used for longest and is not in use, until there is room for so many bytes more.
    fn make_room(&mut self, bytes: usize) {
        while self.len() >= MOST || self.bytes + bytes > self.most_bytes {
            let unused = |(purpose, entries): (Purpose, &BTreeMap<Key, Entry<M::Region>>)| {
                let free = entries.iter().filter(|(_, entry)| Arc::strong_count(&entry.region) == 1);
                free.map(move |(&key, entry)| (entry.used, purpose, key)).min_by_key(|&(used, ..)| used)
            };
            let all = [Purpose::Ours, Purpose::Theirs].into_iter().zip(&self.entries);
            let Some((_, purpose, key)) = all.filter_map(unused).min_by_key(|&(used, ..)| used) else {
                return;
            };
            self.drop_entry(purpose, key);
        }
    }

    /// Drops all that is not in use; false if there is none.
    fn drop_unused(&mut self) -> bool {
        let before = self.len();
        for purpose in [Purpose::Ours, Purpose::Theirs] {
            let entries = self.entries[purpose as usize].iter();
            let free = entries.filter(|(_, entry)| Arc::strong_count(&entry.region) == 1);
            let keys: Vec<Key> = free.map(|(&key, _)| key).collect();
            keys.into_iter().for_each(|key| self.drop_entry(purpose, key));
        }
        self.len() < before
    }

    fn drop_entry(&mut self, purpose: Purpose, key: Key) {
        if self.entries[purpose as usize].remove(&key).is_some() {
            self.bytes -= key.1 - key.0;
            self.unwatch(&pages(&(key.0..key.1)));
        }
    }

    /// Watches no more those of the pages that nothing which is kept has.
    fn unwatch(&mut self, gone: &Span) {
        let purposes = [Purpose::Ours, Purpose::Theirs].into_iter();
        let kept = purposes.flat_map(|purpose| self.overlapping(gone, purpose));
        let mut kept: Vec<Span> = kept.map(|(start, end)| pages(&(start..end))).collect();
        kept.sort_by_key(|span| span.start);
        let mut at = gone.start;
        for span in kept {
            if at < span.start {
                self.memory.unwatch(&(at..span.start));
            }
            at = at.max(span.end);
        }
        if at < gone.end {
            self.memory.unwatch(&(at..gone.end));
        }
    }
}

/// The pages that a range lies in.
pub fn pages(span: &Span) -> Span {
    span.start / PAGE * PAGE..span.end.next_multiple_of(PAGE)
}

/// True if a registration is one of a range for this purpose.
fn holds((start, end): Key, span: &Span, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Ours => start <= span.start && span.end <= end,
        Purpose::Theirs => (start, end) == (span.start, span.end),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashSet;
    use std::rc::Rc;

    use super::*;
    use banyan_transport::random::Random;

    const PAGES: usize = 24;

    /// A small process: what is mapped on each page, or 0; which pages are watched, and what has happened to those.
    struct Process {
        mapped: [u64; PAGES],
        watched: [bool; PAGES],
        events: Vec<Span>,
        can_watch: bool,
        pinned: Rc<Cell<usize>>,
        most: usize,
        made: u64,
    }

    /// A registration: what was on its pages when it was made.
    struct Pinned {
        span: Span,
        access: Access,
        mapped: [u64; PAGES],
        pinned: Rc<Cell<usize>>,
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            self.pinned.set(self.pinned.get() - 1);
        }
    }

    fn numbers(span: &Span) -> Range<usize> {
        span.start / PAGE..span.end.div_ceil(PAGE)
    }

    impl Process {
        fn map(&mut self, pages: Range<usize>, what: u64) {
            for page in pages {
                if self.watched[page] {
                    self.events.push(page * PAGE..(page + 1) * PAGE);
                }
                (self.mapped[page], self.watched[page]) = (what, false);
            }
        }
    }

    impl Memory for Process {
        type Region = Pinned;

        fn watch(&mut self, pages: &Span) -> bool {
            let there = numbers(pages).all(|page| self.mapped[page] > 0);
            if self.can_watch && there {
                numbers(pages).for_each(|page| self.watched[page] = true);
            }
            self.can_watch && there
        }

        fn unwatch(&mut self, pages: &Span) {
            numbers(pages).for_each(|page| self.watched[page] = false);
        }

        fn gone(&mut self, tell: &mut dyn FnMut(Span)) {
            self.events.drain(..).for_each(tell);
        }

        fn register(&mut self, span: &Span, access: Access) -> Result<Pinned, String> {
            if self.pinned.get() == self.most || numbers(span).any(|page| self.mapped[page] == 0) {
                return Err("no".into());
            }
            self.pinned.set(self.pinned.get() + 1);
            self.made += 1;
            Ok(Pinned { span: span.clone(), access, mapped: self.mapped, pinned: self.pinned.clone() })
        }
    }

    fn process(can_watch: bool, most: usize) -> Process {
        let mapped = [1; PAGES];
        let pinned = Rc::default();
        Process { mapped, watched: [false; PAGES], events: Vec::new(), can_watch, pinned, most, made: 0 }
    }

    /// Whatever is mapped, unmapped and used, a registration that is given is of what is there now, and for what was asked.
    #[test]
    fn what_was_mapped_anew_is_never_taken_for_what_was_there() {
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let most = 3 + random.below(8);
            let mut cache = Cache::new(process(!random.once_in(8), most), PAGE * (4 + random.below(40)));
            let mut using: Vec<Arc<Pinned>> = Vec::new();
            for step in 2..400 {
                let page = random.below(PAGES);
                let pages = page..(page + 1 + random.below(5)).min(PAGES);
                match random.below(8) {
                    0 => cache.memory.map(pages, 0),
                    1 | 2 => cache.memory.map(pages, step),
                    3 => drop((!using.is_empty()).then(|| using.swap_remove(random.below(using.len())))),
                    _ if cache.memory.mapped[pages.clone()].contains(&0) => {}
                    _ => {
                        let span =
                            pages.start * PAGE + random.below(PAGE)..pages.end * PAGE - random.below(9) * 100;
                        let span = span.start.min(span.end - 1)..span.end;
                        let accesses = [Access::NONE, Access::LOCAL, Access::READ, Access::READ_WRITE];
                        let access = accesses[random.below(4)];
                        let purpose =
                            if access.includes(Access::READ) { Purpose::Theirs } else { Purpose::Ours };
                        let Ok(region) = cache.region(&span, access, purpose) else {
                            assert!(using.len() >= most, "seed {seed}: there is room");
                            continue;
                        };
                        assert!(
                            region.span.start <= span.start && span.end <= region.span.end,
                            "seed {seed}"
                        );
                        assert!(region.access.includes(access), "seed {seed}");
                        let now = cache.memory.mapped;
                        assert!(
                            numbers(&span).all(|at| region.mapped[at] == now[at]),
                            "seed {seed}, step {step}"
                        );
                        using.push(region);
                        if random.once_in(2) {
                            using.clear();
                        }
                    }
                }
                let kept: Vec<&BTreeMap<_, _>> = cache.entries.iter().collect();
                let all = kept.iter().flat_map(|entries| entries.keys().map(|&(start, end)| start..end));
                let bytes: usize = all.clone().map(|span| span.len()).sum();
                assert_eq!(bytes, cache.bytes, "seed {seed}");
                if cache.memory.events.is_empty() {
                    let needed: HashSet<usize> = all.flat_map(|span| numbers(&span)).collect();
                    let watched = (0..PAGES).filter(|&page| cache.memory.watched[page]).collect();
                    assert_eq!(
                        needed, watched,
                        "seed {seed}, step {step}: what is kept is watched, and no more"
                    );
                }
            }
        }
    }

    #[test]
    fn the_second_use_of_a_buffer_takes_no_registration() {
        let mut cache = Cache::new(process(true, 100), usize::MAX);
        let span = 100..3 * PAGE + 5;
        for _ in 0..10 {
            cache.region(&span, Access::LOCAL, Purpose::Ours).expect("room");
            cache.region(&(PAGE..2 * PAGE), Access::NONE, Purpose::Ours).expect("room");
        }
        assert_eq!(cache.memory().made, 1);
        let shown = [PAGE..2 * PAGE, PAGE..2 * PAGE, PAGE..2 * PAGE + 1, PAGE..2 * PAGE];
        let shown = shown.map(|span| cache.region(&span, Access::READ, Purpose::Theirs).expect("room"));
        assert!(Arc::ptr_eq(&shown[0], &shown[1]) && Arc::ptr_eq(&shown[0], &shown[3]), "that is the same");
        assert_eq!((cache.memory().made, cache.len()), (3, 3), "what is for peers stays apart");
        cache.region(&(2 * PAGE..6 * PAGE), Access::NONE, Purpose::Ours).expect("room");
        cache.region(&(0..6 * PAGE), Access::LOCAL, Purpose::Ours).expect("room");
        assert_eq!((cache.memory().made, cache.len()), (4, 3), "what overlaps is one");
        cache.memory.can_watch = false;
        for _ in 0..10 {
            cache.region(&(8 * PAGE..9 * PAGE), Access::LOCAL, Purpose::Ours).expect("room");
        }
        assert_eq!((cache.memory().made, cache.len()), (14, 3), "what cannot be watched is not kept");
    }

    #[test]
    fn what_is_forgotten_ends() {
        let mut cache = Cache::new(process(true, 100), usize::MAX);
        let region = cache.region(&(5..10), Access::READ, Purpose::Theirs).expect("room");
        cache.forget(&region, Purpose::Theirs);
        assert_eq!((cache.len(), cache.memory.watched), (0, [false; PAGES]));
        assert_eq!(cache.memory.pinned.get(), 1, "it is in use");
        drop(region);
        assert_eq!(cache.memory.pinned.get(), 0);
    }
}
