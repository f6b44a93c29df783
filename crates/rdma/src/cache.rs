//! [`Cache`]: which memory is registered, so that a buffer that is used again need not be registered again. Pure: the [`Memory`] under it
//! registers, and tells what was unmapped meanwhile.
//!
//! Registrations are of whole pages. Of one [`Purpose`] they do not overlap: memory that reaches into some of them is registered together
//! with them, in their place. What is unmapped is forgotten before the next look, so that memory which was freed and mapped again is
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

struct Entry<R> {
    end: usize,
    access: Access,
    region: Arc<R>,
    /// When it was looked for last.
    used: u64,
}

/// Registrations that are there, by what they are for and where they begin.
pub struct Cache<M: Memory> {
    memory: M,
    entries: [BTreeMap<usize, Entry<M::Region>>; 2],
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
        let pages = span.start / PAGE * PAGE..span.end.next_multiple_of(PAGE);
        let (whole, all) = self.union(&pages, access, purpose);
        self.overlapping(&pages, purpose).into_iter().for_each(|start| self.drop_entry(purpose, start));
        self.make_room(whole.len());
        let kept = self.keep(&whole, all, purpose).or_else(|| self.keep(&pages, access, purpose));
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
        if let Some(start) = found.map(|(&start, _)| start) {
            self.drop_entry(purpose, start);
        }
    }

    fn find(&mut self, span: &Span, access: Access, purpose: Purpose) -> Option<Arc<M::Region>> {
        self.clock += 1;
        let (_, entry) = self.entries[purpose as usize].range_mut(..=span.start).next_back()?;
        if entry.end < span.end || !entry.access.includes(access) {
            return None;
        }
        entry.used = self.clock;
        Some(entry.region.clone())
    }

    /// The pages together with those of the registrations that they reach into, and all that these are for.
    fn union(&self, pages: &Span, access: Access, purpose: Purpose) -> (Span, Access) {
        let entries = &self.entries[purpose as usize];
        let add = |(span, access): (Span, Access), start: usize| {
            let entry = &entries[&start];
            (span.start.min(start)..span.end.max(entry.end), access.with(entry.access))
        };
        self.overlapping(pages, purpose).into_iter().fold((pages.clone(), access), add)
    }

    /// Where the registrations begin that have pages in common with a range.
    fn overlapping(&self, pages: &Span, purpose: Purpose) -> Vec<usize> {
        let before = self.entries[purpose as usize].range(..pages.end).rev();
        before.take_while(|(_, entry)| entry.end > pages.start).map(|(&start, _)| start).collect()
    }

    /// Registers pages and keeps that, if they can be watched.
    fn keep(&mut self, pages: &Span, access: Access, purpose: Purpose) -> Option<Arc<M::Region>> {
        if !self.memory.watch(pages) {
            return None;
        }
        let Ok(region) = self.memory.register(pages, access) else {
            self.unwatch(pages);
            return None;
        };
        let region = Arc::new(region);
        self.bytes += pages.len();
        let entry = Entry { end: pages.end, access, region: region.clone(), used: self.clock };
        self.entries[purpose as usize].insert(pages.start, entry);
        Some(region)
    }

    fn forget_gone(&mut self) {
        let mut gone = Vec::new();
        self.memory.gone(&mut |span| gone.push(span));
        for span in gone {
            for purpose in [Purpose::Ours, Purpose::Theirs] {
                let starts = self.overlapping(&span, purpose);
                starts.into_iter().for_each(|start| self.drop_entry(purpose, start));
            }
        }
    }

    /// Drops what was not used for longest and is not in use, until there is room for so many bytes more.
    fn make_room(&mut self, bytes: usize) {
        while self.len() >= MOST || self.bytes + bytes > self.most_bytes {
            let unused = |(purpose, entries): (Purpose, &BTreeMap<usize, Entry<M::Region>>)| {
                let free = entries.iter().filter(|(_, entry)| Arc::strong_count(&entry.region) == 1);
                free.map(move |(&start, entry)| (entry.used, purpose, start)).min_by_key(|&(used, ..)| used)
            };
            let all = [Purpose::Ours, Purpose::Theirs].into_iter().zip(&self.entries);
            let Some((_, purpose, start)) = all.filter_map(unused).min_by_key(|&(used, ..)| used) else {
                return;
            };
            self.drop_entry(purpose, start);
        }
    }

    /// Drops all that is not in use; false if there is none.
    fn drop_unused(&mut self) -> bool {
        let before = self.len();
        for purpose in [Purpose::Ours, Purpose::Theirs] {
            let entries = self.entries[purpose as usize].iter();
            let free = entries.filter(|(_, entry)| Arc::strong_count(&entry.region) == 1);
            let starts: Vec<usize> = free.map(|(&start, _)| start).collect();
            starts.into_iter().for_each(|start| self.drop_entry(purpose, start));
        }
        self.len() < before
    }

    fn drop_entry(&mut self, purpose: Purpose, start: usize) {
        let Some(entry) = self.entries[purpose as usize].remove(&start) else { return };
        self.bytes -= entry.end - start;
        self.unwatch(&(start..entry.end));
    }

    /// Watches no more those of the pages that nothing which is kept has.
    fn unwatch(&mut self, pages: &Span) {
        let mut kept: Vec<Span> = Vec::new();
        for purpose in [Purpose::Ours, Purpose::Theirs] {
            let entries = &self.entries[purpose as usize];
            kept.extend(self.overlapping(pages, purpose).into_iter().map(|start| start..entries[&start].end));
        }
        kept.sort_by_key(|span| span.start);
        let mut at = pages.start;
        for span in kept {
            if at < span.start {
                self.memory.unwatch(&(at..span.start));
            }
            at = at.max(span.end);
        }
        if at < pages.end {
            self.memory.unwatch(&(at..pages.end));
        }
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
                let all =
                    kept.iter().flat_map(|entries| entries.iter().map(|(&start, entry)| start..entry.end));
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
        cache.region(&(2 * PAGE..6 * PAGE), Access::NONE, Purpose::Ours).expect("room");
        cache.region(&(0..6 * PAGE), Access::LOCAL, Purpose::Ours).expect("room");
        assert_eq!((cache.memory().made, cache.len()), (2, 1), "what overlaps is one");
        cache.memory.can_watch = false;
        for _ in 0..10 {
            cache.region(&(8 * PAGE..9 * PAGE), Access::LOCAL, Purpose::Ours).expect("room");
        }
        assert_eq!((cache.memory().made, cache.len()), (12, 1), "what cannot be watched is not kept");
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
