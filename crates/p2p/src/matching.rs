//! Matching of messages and receives within one context: O(1), and in the order that MPI asks for.
//!
//! A receive names a source or any, a tag or any: four *patterns*. A message matches the receive that was
//! posted first among those that fit; a receive matches the message that arrived first among those that
//! fit (MPI 5.0, 3.5). The first entries of a queue are scanned in order. Once a search finds nothing among
//! the first [`SCAN`], lists by pattern and key are kept until the queue is empty. A receive is in one list of
//! its pattern: a search for a message compares four heads and takes the lowest post number. A message is in one list of
//! each pattern that has been searched for.

use banyan_transport::hash::Map;

/// Entries that are scanned before lists are made.
const SCAN: usize = 8;
/// Entries that an empty queue keeps memory for.
const KEPT: usize = 1 << 14;
const NONE: u32 = u32::MAX;

// The patterns, by what a receive names of (source, tag): nothing, both, the source, the tag. Each is also the number of the
// link that its lists use.
const ORDER: usize = 0;
const EXACT: usize = 1;
const SOURCE: usize = 2;
const TAG: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

const EMPTY: Ends = Ends { head: NONE, tail: NONE };

/// The list of receives or messages alike: pattern, source, tag; 0 for what the pattern leaves open.
type ListKey = (u8, u32, u64);

#[inline]
fn pattern_of(src: Option<u32>, tag: Option<u64>) -> usize {
    match (src, tag) {
        (None, None) => ORDER,
        (Some(_), Some(_)) => EXACT,
        (Some(_), None) => SOURCE,
        (None, Some(_)) => TAG,
    }
}

#[inline]
fn list_key(pattern: usize, src: u32, tag: u64) -> ListKey {
    match pattern {
        ORDER => (ORDER as u8, 0, 0),
        EXACT => (EXACT as u8, src, tag),
        SOURCE => (SOURCE as u8, src, 0),
        _ => (TAG as u8, 0, tag),
    }
}

/// Entries in `LISTS` doubly linked lists at once; list 0 is the order of arrival.
#[derive(Debug)]
struct Entries<T, const LISTS: usize> {
    nodes: Vec<Node<T, LISTS>>,
    free: u32,
    len: usize,
    order: Ends,
    lists: Map<ListKey, Ends>,
}

#[derive(Debug)]
struct Node<T, const LISTS: usize> {
    value: T,
    links: [Link; LISTS],
}

impl<T: Copy, const LISTS: usize> Entries<T, LISTS> {
    fn new() -> Self {
        Self { nodes: Vec::new(), free: NONE, len: 0, order: EMPTY, lists: Map::default() }
    }

    /// Adds an entry at the end of the order of arrival.
    #[inline]
    fn add(&mut self, value: T) -> u32 {
        let node = Node { value, links: [Link { prev: NONE, next: NONE }; LISTS] };
        let at = match self.free {
            NONE => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
            at => {
                self.free = self.nodes[at as usize].links[ORDER].next;
                self.nodes[at as usize] = node;
                at
            }
        };
        self.len += 1;
        push_back(&mut self.nodes, &mut self.order, ORDER, at);
        at
    }

    /// Adds an entry to the list of `key`, through its link number `link`.
    fn index(&mut self, link: usize, key: ListKey, at: u32) {
        let ends = self.lists.entry(key).or_insert(EMPTY);
        push_back(&mut self.nodes, ends, link, at);
    }

    /// Takes an entry out of the list of `key`.
    fn unindex(&mut self, link: usize, key: ListKey, at: u32) {
        let Some(ends) = self.lists.get_mut(&key) else { return };
        unlink(&mut self.nodes, ends, link, at);
        if ends.head == NONE {
            self.lists.remove(&key);
        }
    }

    /// Frees an entry that is in no list but the order of arrival.
    #[inline]
    fn free(&mut self, at: u32) -> T {
        unlink(&mut self.nodes, &mut self.order, ORDER, at);
        let value = self.nodes[at as usize].value;
        self.len -= 1;
        if self.len == 0 {
            self.nodes.clear();
            self.free = NONE;
            if self.nodes.capacity() > KEPT {
                self.nodes.shrink_to(KEPT);
                self.lists.shrink_to(KEPT);
            }
        } else {
            self.nodes[at as usize].links[ORDER].next = self.free;
            self.free = at;
        }
        value
    }

    /// The first entry that fits, or `NONE` if there is none; `None` if the first [`SCAN`] do not tell.
    #[inline]
    fn scan(&self, mut fits: impl FnMut(&T) -> bool) -> Option<u32> {
        let mut at = self.order.head;
        for _ in 0..SCAN {
            if at == NONE || fits(self.value(at)) {
                return Some(at);
            }
            at = self.next(at);
        }
        (at == NONE).then_some(NONE)
    }

    #[inline]
    fn next(&self, at: u32) -> u32 {
        self.nodes[at as usize].links[ORDER].next
    }

    #[inline]
    fn value(&self, at: u32) -> &T {
        &self.nodes[at as usize].value
    }

    fn head(&self, key: ListKey) -> u32 {
        self.lists.get(&key).map_or(NONE, |ends| ends.head)
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.order.head;
        std::iter::from_fn(move || {
            let this = (at != NONE).then_some(at)?;
            at = self.next(this);
            Some(this)
        })
    }
}

#[inline]
fn push_back<T, const L: usize>(nodes: &mut [Node<T, L>], ends: &mut Ends, link: usize, at: u32) {
    nodes[at as usize].links[link] = Link { prev: ends.tail, next: NONE };
    match ends.tail {
        NONE => ends.head = at,
        tail => nodes[tail as usize].links[link].next = at,
    }
    ends.tail = at;
}

#[inline]
fn unlink<T, const L: usize>(nodes: &mut [Node<T, L>], ends: &mut Ends, link: usize, at: u32) {
    let Link { prev, next } = nodes[at as usize].links[link];
    match prev {
        NONE => ends.head = next,
        prev => nodes[prev as usize].links[link].next = next,
    }
    match next {
        NONE => ends.tail = prev,
        next => nodes[next as usize].links[link].prev = prev,
    }
}

/// The posted receives of one context: those that wait for a message.
#[derive(Debug)]
pub(crate) struct Posted {
    entries: Entries<Receive, 2>,
    /// The number of entries of each pattern.
    patterns: [usize; 4],
    number: u64,
    indexed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Receive {
    id: u64,
    number: u64,
    tag: u64,
    src: u32,
    pattern: u8,
}

impl Receive {
    fn is_from(&self, src: u32) -> bool {
        self.src == src || !matches!(self.pattern as usize, EXACT | SOURCE)
    }

    #[inline]
    fn fits(&self, src: u32, tag: u64) -> bool {
        match self.pattern as usize {
            ORDER => true,
            EXACT => self.src == src && self.tag == tag,
            SOURCE => self.src == src,
            _ => self.tag == tag,
        }
    }
}

impl Posted {
    pub(crate) fn new() -> Self {
        Self { entries: Entries::new(), patterns: [0; 4], number: 0, indexed: false }
    }

    /// Their number.
    pub(crate) fn len(&self) -> usize {
        self.entries.len
    }

    /// True if, of those posted first, more than one would take a message of `src`, whatever its tag.
    pub(crate) fn several_from(&self, src: u32) -> bool {
        let mut more = 2;
        let mut is_second = |receive: &Receive| {
            more -= u32::from(receive.is_from(src));
            more == 0
        };
        self.entries.scan(&mut is_second).is_some_and(|at| at != NONE)
    }

    /// Posts receive `id`; gives its entry, for [`Posted::remove`].
    #[inline]
    pub(crate) fn push(&mut self, src: Option<u32>, tag: Option<u64>, id: u64) -> u32 {
        let pattern = pattern_of(src, tag);
        let (src, tag) = (src.unwrap_or(0), tag.unwrap_or(0));
        self.number += 1;
        let at = self.entries.add(Receive { id, number: self.number, tag, src, pattern: pattern as u8 });
        self.patterns[pattern] += 1;
        if self.indexed {
            self.entries.index(1, list_key(pattern, src, tag), at);
        }
        at
    }

    /// The receive that a message of (`src`, `tag`) matches: its entry and its id.
    #[inline(always)]
    pub(crate) fn find(&mut self, src: u32, tag: u64) -> Option<(u32, u64)> {
        if self.entries.len == 0 {
            return None;
        }
        let at = self.first(src, tag);
        (at != NONE).then(|| (at, self.entries.value(at).id))
    }

    /// Takes out the receive that a message of (`src`, `tag`) matches; gives its id.
    #[inline(always)]
    pub(crate) fn take(&mut self, src: u32, tag: u64) -> Option<u64> {
        self.find(src, tag).map(|(at, _)| self.remove(at))
    }

    /// Takes out the receive of an entry; gives its id.
    #[inline]
    pub(crate) fn remove(&mut self, at: u32) -> u64 {
        let Receive { id, tag, src, pattern, .. } = *self.entries.value(at);
        if self.indexed {
            self.entries.unindex(1, list_key(pattern as usize, src, tag), at);
        }
        self.patterns[pattern as usize] -= 1;
        self.entries.free(at);
        if self.entries.len == 0 {
            self.indexed = false;
        }
        id
    }

    /// The receives in the order they were posted.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().map(|at| self.entries.value(at).id)
    }

    #[inline]
    fn first(&mut self, src: u32, tag: u64) -> u32 {
        if !self.indexed {
            if let Some(at) = self.entries.scan(|receive| receive.fits(src, tag)) {
                return at;
            }
            self.build();
        }
        self.first_by_lists(src, tag)
    }

    fn first_by_lists(&self, src: u32, tag: u64) -> u32 {
        let heads = (0..4)
            .filter(|&pattern| self.patterns[pattern] > 0)
            .map(|pattern| self.entries.head(list_key(pattern, src, tag)))
            .filter(|&at| at != NONE);
        heads.min_by_key(|&at| self.entries.value(at).number).unwrap_or(NONE)
    }

    #[cold]
    fn build(&mut self) {
        self.indexed = true;
        let mut at = self.entries.order.head;
        while at != NONE {
            let Receive { tag, src, pattern, .. } = *self.entries.value(at);
            self.entries.index(1, list_key(pattern as usize, src, tag), at);
            at = self.entries.next(at);
        }
    }
}

/// The unexpected messages of one context: those that wait for a receive.
#[derive(Debug)]
pub(crate) struct Unexpected {
    entries: Entries<Message, 4>,
    /// Whether the lists of a pattern are kept (that of `ORDER` always is: the order of arrival).
    indexed: [bool; 4],
}

#[derive(Clone, Copy, Debug)]
struct Message {
    id: u64,
    tag: u64,
    src: u32,
}

impl Unexpected {
    /// Bytes of the entry of one message.
    pub(crate) const EACH: usize = size_of::<Node<Message, 4>>();

    pub(crate) fn new() -> Self {
        Self { entries: Entries::new(), indexed: [false; 4] }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.entries.len
    }

    /// Adds message `id`.
    #[inline]
    pub(crate) fn push(&mut self, src: u32, tag: u64, id: u64) {
        let at = self.entries.add(Message { id, tag, src });
        for pattern in [EXACT, SOURCE, TAG] {
            if self.indexed[pattern] {
                self.entries.index(pattern, list_key(pattern, src, tag), at);
            }
        }
    }

    /// The message that a receive of (`src`, `tag`) matches: its entry and its id.
    #[inline(always)]
    pub(crate) fn find(&mut self, src: Option<u32>, tag: Option<u64>) -> Option<(u32, u64)> {
        if self.entries.len == 0 { None } else { self.find_any(src, tag) }
    }

    fn find_any(&mut self, src: Option<u32>, tag: Option<u64>) -> Option<(u32, u64)> {
        let at = self.first(src, tag);
        (at != NONE).then(|| (at, self.entries.value(at).id))
    }

    /// Takes out the message of an entry; gives its id.
    #[inline]
    pub(crate) fn remove(&mut self, at: u32) -> u64 {
        let Message { id, tag, src } = *self.entries.value(at);
        for pattern in [EXACT, SOURCE, TAG] {
            if self.indexed[pattern] {
                self.entries.unindex(pattern, list_key(pattern, src, tag), at);
            }
        }
        self.entries.free(at);
        if self.entries.len == 0 {
            self.indexed = [false; 4];
        }
        id
    }

    /// Entries and ids in the order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.entries.iter().map(|at| (at, self.entries.value(at).id))
    }

    #[inline]
    fn first(&mut self, src: Option<u32>, tag: Option<u64>) -> u32 {
        let pattern = pattern_of(src, tag);
        if pattern == ORDER {
            return self.entries.order.head;
        }
        if !self.indexed[pattern] {
            if let Some(at) = self.entries.scan(|message| fits(message, src, tag)) {
                return at;
            }
            self.build(pattern);
        }
        self.entries.head(list_key(pattern, src.unwrap_or(0), tag.unwrap_or(0)))
    }

    #[cold]
    fn build(&mut self, pattern: usize) {
        self.indexed[pattern] = true;
        let mut at = self.entries.order.head;
        while at != NONE {
            let Message { tag, src, .. } = *self.entries.value(at);
            self.entries.index(pattern, list_key(pattern, src, tag), at);
            at = self.entries.next(at);
        }
    }
}

#[inline]
fn fits(message: &Message, src: Option<u32>, tag: Option<u64>) -> bool {
    src.is_none_or(|s| s == message.src) && tag.is_none_or(|t| t == message.tag)
}

#[cfg(test)]
mod tests {
    use banyan_transport::random::Random;

    use super::*;

    fn pattern(random: &mut Random) -> (Option<u32>, Option<u64>) {
        let pattern = random.below(8);
        let (src, tag) = message(random);
        ((pattern & 3 != 1).then_some(src), (pattern & 3 != 2 && pattern != 5).then_some(tag))
    }

    fn message(random: &mut Random) -> (u32, u64) {
        (random.below(3) as u32, random.below(3) as u64)
    }

    #[test]
    fn posted_agrees_with_a_plain_list() {
        for seed in 1..60u64 {
            let mut random = Random::new(seed);
            let (mut posted, mut plain) = (Posted::new(), Vec::new());
            for id in 0..600 {
                match random.below(3 + seed as usize % 3) {
                    0 => {
                        let (src, tag) = message(&mut random);
                        let at =
                            plain.iter().position(|&(s, t, ..): &(Option<u32>, Option<u64>, u64, u32)| {
                                s.is_none_or(|s| s == src) && t.is_none_or(|t| t == tag)
                            });
                        assert_eq!(posted.take(src, tag), at.map(|at| plain.remove(at).2), "seed {seed}");
                    }
                    1 if !plain.is_empty() => {
                        let (.., id, at) = plain.remove(random.below(plain.len()));
                        assert_eq!(posted.remove(at), id);
                    }
                    _ => {
                        let (src, tag) = pattern(&mut random);
                        plain.push((src, tag, id, posted.push(src, tag, id)));
                    }
                }
                assert_eq!(posted.len(), plain.len());
                let of_first = plain.iter().take(SCAN).filter(|entry| entry.0.is_none_or(|src| src == 1));
                assert_eq!(posted.several_from(1), of_first.count() > 1, "seed {seed}: {plain:?}");
            }
            assert!(posted.ids().eq(plain.iter().map(|p| p.2)));
        }
    }

    #[test]
    fn unexpected_agrees_with_a_plain_list() {
        for seed in 1..60u64 {
            let mut random = Random::new(seed);
            let (mut queue, mut plain) = (Unexpected::new(), Vec::<(u32, u64, u64)>::new());
            for id in 0..600 {
                if random.once_in(2 + seed as u32 % 2) {
                    let (src, tag) = pattern(&mut random);
                    let at = plain
                        .iter()
                        .position(|&(s, t, _)| src.is_none_or(|x| x == s) && tag.is_none_or(|x| x == t));
                    let found = queue.find(src, tag);
                    assert_eq!(found.map(|f| f.1), at.map(|at| plain[at].2), "seed {seed}");
                    if let (Some((entry, _)), true) = (found, !random.once_in(4)) {
                        queue.remove(entry);
                        plain.remove(at.unwrap());
                    }
                } else {
                    let (src, tag) = message(&mut random);
                    queue.push(src, tag, id);
                    plain.push((src, tag, id));
                }
                assert_eq!(queue.len(), plain.len());
            }
            assert!(queue.iter().map(|p| p.1).eq(plain.iter().map(|p| p.2)));
        }
    }
}
