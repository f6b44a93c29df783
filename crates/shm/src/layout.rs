//! Where things lie in a segment: a pure function of its size and of the number of ranks.
//!
//! Header, one block per rank, a table of pairs, rings, handover buffers, then the pages for arenas. A segment is a sparse file: what no
//! rank touches takes no memory. So there is a ring for every directed pair and none can ever be missing; but a pair gets
//! the next free ring on its first contact, and the table says which. The rings in use lie close together, and their
//! memory grows with the pairs that talk.

use banyan_memory::BOUNCE_BUFFER;

use crate::ring::{INLINE, LINE, max_body};
use crate::swap::{BLOCK, MOST};

/// Bytes of a page: the unit in which the kernel gives memory, and to which rings and arenas are aligned.
pub(crate) const PAGE: usize = 4096;

/// Size classes of rings, largest first: elements, bytes of the data ring, and the most bytes that all rings of a segment may
/// take in that class. In time a stream of messages touches every page of its ring: so the larger classes are for few ranks.
const RINGS: [(u32, u64, usize); 8] = [
    (158, 4 << 20, FEW_RINGS),
    (158, 2 << 20, FEW_RINGS),
    (158, 1 << 20, FEW_RINGS),
    (158, 512 << 10, FEW_RINGS),
    (158, 128 << 10, RINGS_AT_MOST),
    (158, 64 << 10, RINGS_AT_MOST),
    (94, 32 << 10, RINGS_AT_MOST),
    (94, 16 << 10, usize::MAX),
];

/// Offset in a page at which data rings start. Large user buffers mostly start some bytes into a page; a copy from the
/// start of a page there loads what looks (by the low 12 bits of its address) as if it had just been stored,
/// and takes a quarter longer.
const DATA_PHASE: usize = PAGE / 2;

/// The most bytes that all rings of a segment take in the classes for few ranks.
const FEW_RINGS: usize = 80 << 20;

/// The most bytes that all rings of a segment take, where smaller rings are an alternative.
const RINGS_AT_MOST: usize = 8 << 30;

/// The most ranks of one segment: rings and arenas of so many are within what an address space has room for, and pages
/// have numbers of 32 bits.
pub(crate) const MOST_RANKS: u32 = 20_000;

/// The most handover buffers of a rank: as many as a word has bits.
const HANDOVERS: usize = 64;

/// The most bytes that all handover buffers of a segment take.
const HANDOVERS_AT_MOST: usize = 1 << 30;

/// Number of arenas that fit into a segment of the recommended size, if all are for all ranks.
const ARENAS: usize = 64;

/// The layout of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) ranks: u32,
    /// Bytes of a rank's block: each doorbell is looked for by it.
    block_bytes: usize,
    /// Elements of a ring.
    pub(crate) elements: u32,
    /// Bytes of a ring's data ring.
    pub(crate) data_bytes: u64,
    /// Handover buffers of each rank.
    handovers: u32,
    /// Bytes for arenas.
    pub(crate) arena_bytes: usize,
}

impl Layout {
    /// The best layout that fits into `size` bytes; `Err` is the least size that would suffice.
    pub(crate) fn of(size: usize, ranks: u32) -> Result<Self, usize> {
        let need = |(elements, data, _): (u32, u64, usize), arenas: usize, handovers: u32| {
            rings_end(ranks, elements, data) + handover_bytes(ranks, handovers) + arenas * arena_stride(ranks)
        };
        // Room for all arenas, and for handover buffers, goes before larger rings. Where even the smallest rings leave less, one arena suffices.
        let best = |arenas, handovers| {
            let rings = RINGS.into_iter().find(|&rings| need(rings, arenas, handovers) <= size)?;
            Some((rings, handovers))
        };
        let choices = [(ARENAS, handovers(ranks)), (ARENAS, 0), (1, 0)];
        let best = choices.into_iter().find_map(|(arenas, handovers)| best(arenas, handovers));
        let Some(((elements, data_bytes, _), handovers)) = best else {
            return Err(Self::least(ranks));
        };
        let arena_bytes = size - rings_end(ranks, elements, data_bytes) - handover_bytes(ranks, handovers);
        Ok(Self { ranks, block_bytes: block_stride(ranks), elements, data_bytes, handovers, arena_bytes })
    }

    /// The least size of a segment for so many ranks.
    pub(crate) fn least(ranks: u32) -> usize {
        let (elements, data, _) = RINGS[RINGS.len() - 1];
        rings_end(ranks, elements, data) + arena_stride(ranks)
    }

    /// The size that a segment for so many ranks should have, on a machine whose cores have `private_cache` bytes of cache each.
    pub(crate) fn recommended(ranks: u32, private_cache: Option<u64>) -> usize {
        let longest = longest_ring(private_cache);
        let modest = |&&(elements, data, most): &&(u32, u64, usize)| {
            let all = ranks as usize * ranks as usize * (ring_head(elements) + data as usize);
            data <= longest && all <= most
        };
        let &(elements, data, _) = RINGS.iter().find(modest).unwrap_or(&RINGS[RINGS.len() - 1]);
        let handovers = handover_bytes(ranks, handovers(ranks));
        rings_end(ranks, elements, data) + handovers + ARENAS * arena_stride(ranks)
    }

    /// Offset of a rank's block.
    #[inline]
    pub(crate) fn block(&self, rank: u32) -> usize {
        blocks_at() + rank as usize * self.block_bytes
    }

    /// Offset of the word (32 bits) that says which ring leads from `from` to `to`.
    pub(crate) fn pair(&self, from: u32, to: u32) -> usize {
        pairs_at(self.ranks) + (to as usize * self.ranks as usize + from as usize) * PAIR
    }

    /// Number of rings that there is room for: one for each directed pair.
    pub(crate) fn rings(&self) -> u32 {
        self.ranks * self.ranks
    }

    /// Offset of ring number `number`, below [`Layout::rings`].
    pub(crate) fn ring(&self, number: u32) -> usize {
        rings_at(self.ranks) + number as usize * ring_stride(self.elements, self.data_bytes)
    }

    /// Bytes of a ring's control lines and elements, which come before its data ring.
    pub(crate) fn ring_head_bytes(&self) -> usize {
        ring_head(self.elements)
    }

    /// Swap blocks behind each data ring.
    pub(crate) fn blocks(&self) -> usize {
        blocks(self.data_bytes)
    }

    /// The element at which the frames of a pair start: it differs from pair to pair, so that rings polled together use
    /// different cache sets.
    pub(crate) fn first_element(&self, from: u32, to: u32) -> u32 {
        (from.wrapping_mul(5).wrapping_add(to.wrapping_mul(3))) % self.elements
    }

    /// Largest body of a frame.
    pub(crate) fn max_body(&self) -> usize {
        max_body(self.data_bytes)
    }

    /// How many handover buffers each rank has.
    pub(crate) fn handovers(&self) -> u32 {
        self.handovers
    }

    /// Offset of a handover buffer of a rank; `None` if there are not so many.
    pub(crate) fn handover(&self, rank: u32, number: u32) -> Option<usize> {
        let before = rank as usize * self.handovers as usize + number as usize;
        let is_there = rank < self.ranks && number < self.handovers;
        is_there.then(|| self.handovers_at() + before * BOUNCE_BUFFER)
    }

    fn handovers_at(&self) -> usize {
        rings_end(self.ranks, self.elements, self.data_bytes)
    }

    /// Offset of the pages for arenas.
    pub(crate) fn arenas(&self) -> usize {
        self.handovers_at() + handover_bytes(self.ranks, self.handovers)
    }
}

/// Handover buffers of a rank where there is room for all: with many ranks each has fewer.
fn handovers(ranks: u32) -> u32 {
    (HANDOVERS_AT_MOST / BOUNCE_BUFFER / ranks as usize).min(HANDOVERS) as u32
}

fn handover_bytes(ranks: u32, of_each: u32) -> usize {
    ranks as usize * of_each as usize * BOUNCE_BUFFER
}

/// The longest data ring that is of use. A line of a ring comes from the other core's private cache if it is still there, and out of
/// the cache that they share if it is not, which is up to three times quicker: so a ring that goes around is to be longer than
/// what a private cache holds. Where that is not known, this is for one of 256 KiB.
fn longest_ring(private_cache: Option<u64>) -> u64 {
    let most = RINGS[0].1 / 2;
    private_cache.unwrap_or(0).clamp(256 << 10, most).next_power_of_two() * 2
}

fn blocks_at() -> usize {
    PAGE
}

/// Bytes of a rank's block: doorbell line, identity line, summary of the inbound bits, one inbound bit per rank.
fn block_stride(ranks: u32) -> usize {
    (3 * LINE + (ranks as usize).div_ceil(64) * 8).next_multiple_of(LINE)
}

/// Bytes of an entry of the table of pairs. The entries of one receiver are a row.
const PAIR: usize = 4;

fn pairs_at(ranks: u32) -> usize {
    blocks_at() + ranks as usize * block_stride(ranks)
}

fn rings_at(ranks: u32) -> usize {
    (pairs_at(ranks) + ranks as usize * ranks as usize * PAIR).next_multiple_of(PAGE)
}

const fn ring_head(elements: u32) -> usize {
    (2 + elements as usize) * LINE
}

fn ring_stride(elements: u32, data: u64) -> usize {
    (ring_head(elements) + data as usize + blocks(data) * BLOCK).next_multiple_of(PAGE)
}

/// Bytes of a data ring that are in use at first: an eighth, as it is acknowledged by quarters, and streams of short bodies should seldom wait for that.
pub(crate) fn first_span(data: u64) -> u64 {
    (data / 8).max(64 << 10).min(data)
}

/// Swap blocks behind a data ring: half of its bytes, none where rings are short because there are so many.
fn blocks(data: u64) -> usize {
    (data as usize / 2 / BLOCK).min(MOST)
}

fn rings_end(ranks: u32, elements: u32, data: u64) -> usize {
    rings_at(ranks) + ranks as usize * ranks as usize * ring_stride(elements, data)
}

/// Bytes that one cell can carry in an arena of so many ranks.
pub(crate) fn arena_inline(ranks: u32) -> usize {
    match ranks {
        // A page of data and, where that must be told, its length.
        0..=32 => 4096 + 8,
        33..=128 => 1024,
        _ => 256,
    }
}

/// Bytes of one cell: the line that begins with its head, then the bytes that it carries.
pub(crate) fn cell_bytes(ranks: u32) -> usize {
    LINE + arena_inline(ranks).next_multiple_of(LINE)
}

/// Bytes of a cell's head: sequence number and length.
pub(crate) const CELL_HEAD: usize = 16;

/// Cells of a CICO buffer: how far a root that need not wait gets ahead, with more ranks than cores, while it has the core. A
/// gather of 8 bytes on 16 ranks takes 21 us with 2 cells, 17 with 8, 11 with 16.
pub(crate) const CELLS: u64 = 16;

/// Small cells of a CICO buffer, each a cache line, for what fits into one beside the head. They lie together, and a root that gets ahead by as many seldom
/// waits for acknowledgements: two cores that are 0.24 us a line apart (EPYC of family 23) take 0.02 us for each of a stream of lines then, and 0.06
/// with 16 cells on pages of their own.
pub(crate) const SMALL_CELLS: u64 = 64;

/// Bytes that a small cell can carry.
pub(crate) const SMALL_BYTES: usize = LINE - CELL_HEAD;

/// Offset, from a CICO buffer's start, of the small cells: behind the control words.
pub(crate) const SMALL_CELLS_AT: usize = LINE;

/// Offset, from a CICO buffer's start, of the cells for what has more bytes.
pub(crate) const CELLS_AT: usize = SMALL_CELLS_AT + SMALL_CELLS as usize * LINE;

/// Bytes of one rank's CICO buffer: a line of control words, its small cells, its other cells.
pub(crate) fn arena_cico(ranks: u32) -> usize {
    CELLS_AT + CELLS as usize * cell_bytes(ranks)
}

/// Bytes of all CICO buffers of an arena.
pub(crate) fn arena_buffers(ranks: u32) -> usize {
    (ranks as usize * arena_cico(ranks)).next_multiple_of(PAGE)
}

/// Offset of the shared scratch in an arena: in its page it begins where data rings do.
pub(crate) fn arena_scratch(ranks: u32) -> usize {
    arena_buffers(ranks) + DATA_PHASE
}

/// Bytes of an arena: CICO buffers, then the shared scratch.
pub(crate) fn arena_stride(ranks: u32) -> usize {
    (arena_buffers(ranks) + SCRATCH).next_power_of_two()
}

/// The least size of a shared scratch.
const SCRATCH: usize = 16 << 20;

const _: () = assert!(INLINE == 36);
const _: () = {
    let mut class = 0;
    while class < RINGS.len() {
        assert!(ring_head(RINGS[class].0) % PAGE == DATA_PHASE);
        class += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recommended_size_gives_good_rings_and_room() {
        for ranks in [1, 2, 3, 16, 64, 128, 256, 590, 600, 1000, 4096, MOST_RANKS] {
            let size = Layout::recommended(ranks, Some(1 << 20));
            let layout = Layout::of(size, ranks).expect("it fits");
            assert!(layout.arena_bytes >= ARENAS * arena_stride(ranks), "{ranks} ranks: {layout:?}");
            assert!(layout.max_body() >= 4096, "{ranks} ranks: {layout:?}");
            assert!(ranks > 128 || size <= 7 << 30, "{ranks} ranks: {size}");
            assert!(size >> 32 <= PAGE, "{ranks} ranks: pages have numbers of 32 bits");
        }
        let sizes = [(12, 512), (13, 128), (128, 128), (256, 64), (512, 16), (1000, 16), (4096, 16)];
        for (ranks, data) in sizes {
            let layout = Layout::of(Layout::recommended(ranks, Some(2 << 20)), ranks).expect("fits");
            assert_eq!(layout.data_bytes, data << 10, "{ranks} ranks");
        }
    }

    #[test]
    fn rings_of_few_ranks_are_longer_than_a_private_cache() {
        let of = |ranks, cache: Option<u64>| {
            let size = Layout::recommended(ranks, cache.map(|kib| kib << 10));
            Layout::of(size, ranks).expect("fits").data_bytes >> 10
        };
        let caches = [None, Some(256), Some(512), Some(1024), Some(1280), Some(2048), Some(16384)];
        assert_eq!(caches.map(|cache| of(2, cache)), [512, 512, 1024, 2048, 4096, 4096, 4096]);
        assert_eq!(
            [4, 5, 6, 7, 8, 9, 12].map(|ranks| of(ranks, Some(2048))),
            [4096, 2048, 2048, 1024, 1024, 512, 512]
        );
    }

    #[test]
    fn each_rank_has_handover_buffers_where_there_is_room() {
        let of = |size, ranks| Layout::of(size, ranks).expect("fits").handovers();
        let recommended = |ranks| of(Layout::recommended(ranks, None), ranks);
        assert_eq!([1, 2, 32, 128, 1000, 2048, 4096].map(recommended), [64, 64, 64, 16, 2, 1, 0]);
        assert_eq!([2, 32].map(|ranks| of(Layout::least(ranks), ranks)), [0, 0]);
    }

    #[test]
    fn what_a_thousand_ranks_have_before_they_talk_is_little() {
        let at = |ranks| rings_at(ranks) / 1024;
        assert_eq!([at(2), at(16), at(256)], [8, 12, 324]);
        // Mostly the table of pairs, of which only the entries of pairs that talk are touched.
        assert!(at(1000) < 4400, "{} KiB", at(1000));
    }

    #[test]
    fn too_small_says_what_is_needed() {
        let need = Layout::of(4096, 4).expect_err("a page is not enough");
        assert_eq!(need, Layout::least(4));
        assert!(Layout::of(need - 1, 4).is_err());
        assert_eq!(Layout::of(need, 4).expect("just fits").data_bytes, 16 << 10);
    }

    #[test]
    fn nothing_overlaps() {
        for ranks in [1, 2, 5, 65, 1000] {
            let layout = Layout::of(Layout::recommended(ranks, None), ranks).expect("fits");
            let mut end = PAGE;
            for rank in 0..ranks {
                assert!(layout.block(rank) >= end);
                end = layout.block(rank) + layout.block_bytes;
            }
            for (to, from) in (0..ranks).flat_map(|to| (0..ranks).map(move |from| (to, from))) {
                let at = layout.pair(from, to);
                assert!(at >= end && at.is_multiple_of(PAIR));
                end = at + PAIR;
            }
            for number in 0..layout.rings() {
                let at = layout.ring(number);
                assert!(at >= end && at.is_multiple_of(PAGE));
                end = at + ring_stride(layout.elements, layout.data_bytes);
            }
            for (rank, number) in (0..ranks).flat_map(|rank| (0..layout.handovers()).map(move |n| (rank, n)))
            {
                let at = layout.handover(rank, number).expect("it is there");
                assert!(at >= end && at.is_multiple_of(PAGE));
                end = at + BOUNCE_BUFFER;
            }
            assert_eq!([layout.handover(0, layout.handovers()), layout.handover(ranks, 0)], [None; 2]);
            assert!(layout.arenas() >= end && layout.arenas().is_multiple_of(PAGE));
        }
    }
}
