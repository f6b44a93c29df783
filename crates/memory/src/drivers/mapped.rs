//! Copies of few bytes between memory of a CUDA device and the host's by the processor itself, which has the device's memory mapped
//! ([GDRCopy](super::gdrcopy)): no call of the driver is waited for. What PCIe shows of a device's memory is scarce, often 256 MiB for all processes, so
//! windows of it are mapped as they are wanted, few at a time, and are kept by the driver's number for the allocation.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::gdrcopy::{self, GdrCopy};
use crate::device::Direction;
use crate::stats;

/// Bytes of a window: memory is mapped by such parts of the address space, as far as they belong to the allocation.
const WINDOW: usize = 1 << 19;
/// The most windows that are mapped at a time: 16 MiB of a device's memory.
const MOST: usize = 32;
/// How many short copies pay for a mapping. On a V100 GDRCopy pins and unpins in 2 ms and the driver takes 6 to 7 us for a copy (GDRCopy's README): so
/// what is mapped in vain never takes longer than the copies.
const PRICE: usize = 256;
/// After so many refusals, none of which came behind a success, nothing is tried any more.
const MOST_REFUSALS: usize = 3;
/// Allocations that are remembered as refused; then all are forgotten.
const MOST_REFUSED: usize = 1024;

/// The longest copies that are made so, out of a device's memory and into it; 0: none.
static LONGEST_READ: AtomicUsize = AtomicUsize::new(0);
static LONGEST_WRITE: AtomicUsize = AtomicUsize::new(0);

/// Lengths of copies that the processor makes by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedCopies {
    /// The longest one out of memory of a device, bytes; 0: none.
    pub longest_read: usize,
    /// The longest one into memory of a device, bytes; 0: none.
    pub longest_write: usize,
}

impl MappedCopies {
    /// Copies of these lengths are made so from now on, where GDRCopy is there. Only the first call in the life of a process counts.
    pub fn use_from_now_on(self) {
        static SAID: OnceLock<()> = OnceLock::new();
        SAID.get_or_init(|| {
            LONGEST_READ.store(self.longest_read, Ordering::Relaxed);
            LONGEST_WRITE.store(self.longest_write, Ordering::Relaxed);
        });
    }
}

/// Why memory of a device was not mapped, so that the driver copies: the first reason. `None`: none was refused.
pub fn why_not_mapped() -> Option<&'static str> {
    WHY_NOT.get().map(String::as_str)
}

static WHY_NOT: OnceLock<String> = OnceLock::new();

/// True if copies of this length are made so.
pub(super) fn is_short(direction: Direction, len: usize) -> bool {
    let longest = match direction {
        Direction::Read => &LONGEST_READ,
        Direction::Write => &LONGEST_WRITE,
    };
    len <= longest.load(Ordering::Relaxed)
}

/// What is asked of the driver.
pub(super) trait Asked {
    /// The number of the allocation that has an address now.
    fn number(&self, address: usize) -> Option<u64>;
    /// Its addresses, if it can be mapped; it is prepared for that.
    fn prepared(&self, address: usize) -> Option<Range<usize>>;
    /// Works in the context of the memory.
    fn within<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String>;
}

/// Copies bytes between memory of a device at `there` and the host's at `here`. False: the driver has to, and bytes may have been copied.
///
/// # Safety
/// As for [`GdrCopy::copy`], but that the memory of the device may be too short, or have been freed before.
pub(super) unsafe fn copy(
    asked: &impl Asked,
    direction: Direction,
    there: usize,
    here: *mut u8,
    len: usize,
) -> bool {
    static MAPPINGS: Mutex<Option<Mappings<GdrCopy>>> = Mutex::new(None);
    // Memory that was freed has no number, and what came to its address another one.
    let Some(id) = asked.number(there) else { return false };
    let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
    if mappings.is_none() {
        match asked.within(GdrCopy::open) {
            Ok(open) => *mappings = Some(Mappings::new(open)),
            Err(why) => {
                refused(why);
                give_up();
            }
        }
    }
    let Some(mappings) = &mut *mappings else { return false };
    let mut done = 0;
    while done < len {
        let at = there + done;
        let part = (len - done).min(WINDOW - at % WINDOW);
        if mappings.of(asked, id, at, part).is_none() {
            return false;
        }
        let (mapping, here) = (&mappings.windows[0].mapping, here.wrapping_add(done));
        // SAFETY: as the caller promises; the part is within its window, and the allocation is there by its number.
        if !unsafe { mappings.mapper.copy(mapping, direction, at, here, part) } {
            return false;
        }
        done += part;
    }
    stats::count(&stats::MAPPED_COPIES);
    true
}

fn refused(why: String) {
    stats::count(&stats::MAPPED_REFUSED);
    WHY_NOT.get_or_init(|| why);
}

/// From now on the driver makes all copies.
fn give_up() {
    LONGEST_READ.store(0, Ordering::Relaxed);
    LONGEST_WRITE.store(0, Ordering::Relaxed);
}

/// Who maps memory.
trait Mapper {
    type Mapping;
    fn map(&mut self, pages: Range<usize>) -> Result<Self::Mapping, String>;
    fn unmap(&mut self, mapping: Self::Mapping);
}

impl Mapper for GdrCopy {
    type Mapping = gdrcopy::Mapping;

    fn map(&mut self, pages: Range<usize>) -> Result<gdrcopy::Mapping, String> {
        GdrCopy::map(self, pages)
    }

    fn unmap(&mut self, mapping: gdrcopy::Mapping) {
        GdrCopy::unmap(self, mapping);
    }
}

/// A part of an allocation that is mapped.
struct Window<M> {
    /// The number of the allocation.
    id: u64,
    /// Which addresses of the allocation it has.
    bytes: Range<usize>,
    mapping: M,
}

/// What is mapped.
struct Mappings<M: Mapper> {
    mapper: M,
    /// That which was used last comes first.
    windows: Vec<Window<M::Mapping>>,
    /// Allocations that cannot be mapped.
    refused: HashSet<u64>,
    /// Refusals of the library's, while nothing was ever mapped.
    refusals: usize,
    /// Short copies that no mapping has been paid with.
    saved: usize,
}

impl<M: Mapper> Mappings<M> {
    fn new(mapper: M) -> Mappings<M> {
        Mappings { mapper, windows: vec![], refused: HashSet::new(), refusals: 0, saved: MOST * PRICE }
    }

    /// The mapping of some bytes of an allocation, which lie in one window: it is the first one from then on.
    fn of(&mut self, asked: &impl Asked, id: u64, at: usize, len: usize) -> Option<&Window<M::Mapping>> {
        self.saved = (self.saved + 1).min(MOST * PRICE);
        let has = |window: &Window<M::Mapping>| window.id == id && window.bytes.contains(&at);
        let found = self.windows.iter().position(has);
        let place = match found {
            Some(place) => place,
            None => {
                let window = self.map(asked, id, at)?;
                self.windows.push(window);
                self.windows.len() - 1
            }
        };
        self.windows[..=place].rotate_right(1);
        self.windows.first().filter(|window| len <= window.bytes.end - at)
    }

    /// Maps the window of an address, if that is worth it.
    fn map(&mut self, asked: &impl Asked, id: u64, at: usize) -> Option<Window<M::Mapping>> {
        if self.saved < PRICE || self.refused.contains(&id) {
            return None;
        }
        let Some(allocation) = asked.prepared(at) else {
            self.refuse(id);
            return None;
        };
        self.saved -= PRICE;
        self.forget_what_is_freed(asked);
        let start = at - at % WINDOW;
        let bytes = start.max(allocation.start)..(start + WINDOW).min(allocation.end);
        let pages = bytes.start - bytes.start % gdrcopy::PAGE..bytes.end.next_multiple_of(gdrcopy::PAGE);
        if self.windows.len() == MOST {
            self.forget_the_least_used();
        }
        let mut mapped = asked.within(|| self.mapper.map(pages.clone()));
        // Others may have what PCIe shows: there is room for one window if another one goes.
        if mapped.is_err() && self.forget_the_least_used() {
            mapped = asked.within(|| self.mapper.map(pages));
        }
        match mapped {
            Ok(mapping) => {
                self.refusals = 0;
                Some(Window { id, bytes, mapping })
            }
            Err(why) => {
                self.refuse(id);
                refused(why);
                self.refusals += 1;
                if self.refusals >= MOST_REFUSALS && self.windows.is_empty() {
                    give_up();
                }
                None
            }
        }
    }

    fn refuse(&mut self, id: u64) {
        if self.refused.len() >= MOST_REFUSED {
            self.refused.clear();
        }
        self.refused.insert(id);
    }

    /// Memory that is freed while it is mapped may be taken for good until it is not.
    fn forget_what_is_freed(&mut self, asked: &impl Asked) {
        let is_there = |window: &mut Window<M::Mapping>| asked.number(window.bytes.start) == Some(window.id);
        for gone in self.windows.extract_if(.., |window| !is_there(window)) {
            self.mapper.unmap(gone.mapping);
        }
    }

    /// True if there was one.
    fn forget_the_least_used(&mut self) -> bool {
        let last = self.windows.pop();
        last.map(|gone| self.mapper.unmap(gone.mapping)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps by counting, and refuses when it is told to.
    #[derive(Default)]
    struct Counting {
        mapped: Vec<Range<usize>>,
        calls: usize,
        refuses: bool,
        room: usize,
    }

    impl Mapper for Counting {
        type Mapping = Range<usize>;

        fn map(&mut self, pages: Range<usize>) -> Result<Range<usize>, String> {
            self.calls += 1;
            if self.refuses || self.mapped.len() == self.room {
                return Err("no room".to_owned());
            }
            self.mapped.push(pages.clone());
            Ok(pages)
        }

        fn unmap(&mut self, mapping: Range<usize>) {
            let place = self.mapped.iter().position(|pages| *pages == mapping).expect("it is mapped");
            self.mapped.remove(place);
        }
    }

    /// Allocations, each with its number.
    struct Memory(Vec<(u64, Range<usize>)>);

    impl Asked for Memory {
        fn number(&self, address: usize) -> Option<u64> {
            self.0.iter().find(|(_, range)| range.contains(&address)).map(|found| found.0)
        }

        fn prepared(&self, address: usize) -> Option<Range<usize>> {
            self.0
                .iter()
                .find(|(id, range)| *id < 100 && range.contains(&address))
                .map(|found| found.1.clone())
        }

        fn within<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
            work()
        }
    }

    fn mappings(room: usize) -> Mappings<Counting> {
        Mappings::new(Counting { room, ..Counting::default() })
    }

    const LONG: Range<usize> = 0x100_0000..0x1000_0000;

    #[test]
    fn windows_lie_within_the_allocation_and_are_whole_pages() {
        let memory = Memory(vec![(1, 0x12_3400..0x1a_0100), (2, LONG)]);
        let mut mappings = mappings(MOST);
        let first = mappings.of(&memory, 1, 0x12_3400, 10).expect("it is mapped");
        assert_eq!(
            (first.bytes.clone(), first.mapping.clone()),
            (0x12_3400..0x18_0000, 0x12_0000..0x18_0000)
        );
        let second = mappings.of(&memory, 1, 0x18_0000, 0x100).expect("it is mapped");
        assert_eq!(
            (second.bytes.clone(), second.mapping.clone()),
            (0x18_0000..0x1a_0100, 0x18_0000..0x1b_0000)
        );
        assert!(mappings.of(&memory, 1, 0x1a_00ff, 2).is_none(), "it is not as long");
        assert!(mappings.of(&memory, 1, 0x12_4000, 10).is_some());
        assert_eq!(mappings.mapper.mapped.len(), 2, "what is mapped is used again");
    }

    #[test]
    fn the_least_used_window_goes_and_what_is_freed_goes_first() {
        let mut memory = Memory(vec![(1, 0..0x1000), (2, LONG), (3, 0x2000_0000..0x2000_1000)]);
        let mut mappings = mappings(MOST);
        let window = |i: usize| LONG.start + i * WINDOW;
        assert!(mappings.of(&memory, 1, 0, 1).is_some());
        (0..MOST - 1).for_each(|i| assert!(mappings.of(&memory, 2, window(i), 1).is_some()));
        // The second one is older now than the first one of all.
        (0..PRICE).for_each(|_| assert!(mappings.of(&memory, 1, 0, 1).is_some()));
        assert!(mappings.of(&memory, 2, window(MOST), 1).is_some());
        let has = |mappings: &Mappings<Counting>, start: usize| {
            mappings.mapper.mapped.iter().any(|pages| pages.start == start)
        };
        assert!(has(&mappings, 0) && !has(&mappings, window(0)) && mappings.windows.len() == MOST);
        // Its address again, under another number: the old mapping is not taken.
        memory.0[0].0 = 4;
        (0..2 * PRICE).for_each(|_| assert!(mappings.of(&memory, 2, window(MOST), 1).is_some()));
        let again = mappings.of(&memory, 4, 0, 1).expect("it is mapped anew");
        assert_eq!(again.id, 4);
        assert_eq!(mappings.windows.iter().filter(|window| window.bytes.start == 0).count(), 1);
        memory.0.remove(1);
        assert!(mappings.of(&memory, 3, 0x2000_0000, 1).is_some());
        assert_eq!(mappings.mapper.mapped.len(), 2, "all of the freed one are gone");
    }

    #[test]
    fn mappings_are_paid_for_by_copies() {
        let memory = Memory(vec![(2, LONG)]);
        let mut mappings = mappings(MOST);
        let window = |i: usize| LONG.start + i % (2 * MOST) * WINDOW;
        // In turns over twice as many windows as are kept, none is there when it is wanted again.
        let paid = |mappings: &mut Mappings<Counting>, turns: Range<usize>| {
            turns.filter(|i| mappings.of(&memory, 2, window(*i), 1).is_some()).count()
        };
        assert_eq!(paid(&mut mappings, 0..MOST), MOST, "at first each is mapped");
        let later = paid(&mut mappings, MOST..MOST + 100 * PRICE);
        let calls = mappings.mapper.calls;
        assert!((MOST + 90..=MOST + 100).contains(&calls), "{calls} mappings");
        assert!(later > 40 * PRICE, "{later}: those that stay are used");
    }

    #[test]
    fn what_is_refused_is_not_asked_for_again() {
        let memory = Memory(vec![(1, 0..0x1000), (2, LONG), (100, 0x2000_0000..0x2000_1000)]);
        let mut mappings = mappings(1);
        assert!(mappings.of(&memory, 100, 0x2000_0000, 1).is_none(), "it cannot be mapped");
        assert_eq!(mappings.saved, MOST * PRICE, "and costs nothing");
        assert!(mappings.of(&memory, 1, 0, 1).is_some());
        // Without room for two, one goes.
        assert!(mappings.of(&memory, 2, LONG.start, 1).is_some() && mappings.windows.len() == 1);
        mappings.mapper.refuses = true;
        assert!(mappings.of(&memory, 1, 0, 1).is_none());
        mappings.mapper.refuses = false;
        assert!(mappings.of(&memory, 1, 0, 1).is_none(), "it was refused");
        assert!(mappings.of(&memory, 2, LONG.start, 1).is_some());
    }
}
