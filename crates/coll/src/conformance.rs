//! What every implementation of [`SharedBuffers`] keeps, whoever makes them: one suite, which all of them run.

use banyan_memory::{Buffer, HeapBuffer};

use crate::ledger::AT_TAG;
use crate::{Published, SharedBuffers};

/// Calls a function with the shared buffers as a rank has them.
pub type Access = Box<dyn FnMut(u32, &mut dyn FnMut(&mut dyn SharedBuffers))>;

/// Runs the suite on shared buffers of some ranks, new ones for each of its parts.
///
/// # Panics
/// If something is not kept.
pub fn shared_buffers(mut make: impl FnMut(u32) -> Access) {
    for part in [
        publications,
        ranks_that_are_ahead,
        packed_cells,
        exposed_ranges,
        offered_ranges,
        acknowledgements,
        scratch,
    ] {
        part(&mut Ranks(make(RANKS)));
    }
}

const RANKS: u32 = 3;
/// A call tag.
const TAG: u64 = 0x1234 << AT_TAG;
/// So often something is polled that must never come, or must come in the end.
const POLLS: [u32; 2] = [5, 1000];

struct Ranks(Access);

impl Ranks {
    fn at<T>(&mut self, rank: u32, f: impl FnOnce(&mut dyn SharedBuffers) -> T) -> T {
        let (mut f, mut result) = (Some(f), None);
        (self.0)(rank, &mut |shared| result = f.take().map(|f| f(shared)));
        result.expect("the function is called once")
    }

    fn publish(&mut self, rank: u32, seq: u64, bytes: &[u8]) {
        // From the middle of a buffer.
        let data = HeapBuffer::copy_of(&[&[0xee; 3], bytes, &[0xee; 5]].concat());
        self.at(rank, |shared| shared.publish(seq, &data, 3, bytes.len()));
    }

    fn poll(&mut self, reader: u32, rank: u32, seq: u64) -> Published {
        let mut polls = 0..POLLS[1];
        polls.find_map(|_| self.at(reader, |shared| shared.poll(rank, seq, false))).expect("it is published")
    }

    fn inline(&mut self, reader: u32, rank: u32, seq: u64) -> Vec<u8> {
        match self.poll(reader, rank, seq) {
            Published::Inline(data) => bytes(&data),
            Published::Exposed(_) => panic!("rank {rank} has exposed nothing"),
        }
    }

    fn assert_unpublished(&mut self, rank: u32, seq: u64, why: &str) {
        for reader in (0..RANKS).flat_map(|reader| [reader; POLLS[0] as usize]) {
            assert!(self.at(reader, |shared| shared.poll(rank, seq, false)).is_none(), "{why}");
        }
    }

    fn ack(&mut self, seq: u64) {
        (0..RANKS).for_each(|rank| self.at(rank, |shared| shared.ack(seq)));
    }
}

fn bytes(data: &Buffer) -> Vec<u8> {
    let mut out = vec![0; data.len()];
    data.read(data.lo(), &mut out);
    out
}

fn pattern(rank: u32, seq: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 7 + seq * 31 + u64::from(rank) * 101) as u8).collect()
}

/// All ranks see what one has published, whole, under its sequence number and tag alone, once it is published.
fn publications(ranks: &mut Ranks) {
    let most = ranks.at(0, |shared| shared.inline_bytes());
    for (len, seq) in [0, 1, 7, 8, 63, 64, 65, most / 2, most - 1, most].into_iter().zip(1..) {
        for rank in 0..RANKS {
            ranks.assert_unpublished(rank, TAG | seq, "nothing is published yet");
            ranks.publish(rank, TAG | seq, &pattern(rank, seq, len));
            ranks.assert_unpublished(rank, (TAG << 1) | seq, "the call has another tag");
        }
        for (reader, rank) in (0..RANKS).flat_map(|reader| (0..RANKS).map(move |rank| (reader, rank))) {
            let got = ranks.inline(reader, rank, TAG | seq);
            assert!(got == pattern(rank, seq, len), "{len} bytes of rank {rank} at rank {reader}");
        }
        ranks.ack(seq);
    }
}

/// A rank may be ahead by as many phases as there are cells for what it publishes; none of its publications is lost.
fn ranks_that_are_ahead(ranks: &mut Ranks) {
    let least = ranks.at(0, |shared| shared.cells());
    let mut first = 1;
    for len in [100, 100, 100, 8, 8, 0, 64, 8, 100] {
        let cells = ranks.at(0, |shared| shared.cells_for(len as u64));
        assert!(cells >= least);
        let all = first..first + cells;
        all.clone().for_each(|seq| ranks.publish(0, TAG | seq, &pattern(0, seq, len)));
        ranks.at(0, |shared| shared.ack(all.end - 1));
        for reader in 1..RANKS {
            for seq in all.clone() {
                assert_eq!(ranks.inline(reader, 0, TAG | seq), pattern(0, seq, len));
                ranks.at(reader, |shared| shared.ack(seq));
            }
        }
        first = all.end;
    }
}

/// A cell is seen as a whole, once it is published, and not before.
fn packed_cells(ranks: &mut Ranks) {
    let most = ranks.at(0, |shared| shared.inline_bytes());
    for seq in [1, 2] {
        let data = pattern(1, seq, 16);
        for at in [8, most - 16] {
            let cell = ranks.at(1, |shared| shared.cell(TAG | seq));
            assert!(cell.len() >= most);
            cell.write(cell.lo() + at as isize, &data);
        }
        ranks.assert_unpublished(1, TAG | seq, "it is only packed");
        ranks.at(1, |shared| shared.publish_cell(TAG | seq));
        for reader in 0..RANKS {
            let cell = ranks.inline(reader, 1, TAG | seq);
            assert!(cell.len() >= most && [8, most - 16].iter().all(|&at| cell[at..at + 16] == data));
        }
        ranks.ack(seq);
    }
}

/// An exposed range is got in parts, until it is taken back.
fn exposed_ranges(ranks: &mut Ranks) {
    let single_copy = ranks.at(0, |shared| shared.single_copy());
    assert!((1..RANKS).all(|rank| ranks.at(rank, |shared| shared.single_copy()) == single_copy));
    if !single_copy {
        return;
    }
    let data = pattern(2, 1, 50_000);
    let whole = HeapBuffer::copy_of(&data).slice(0, data.len());
    ranks.at(2, |shared| shared.expose(TAG | 1, &whole));
    let part = HeapBuffer::zeroed(1000).slice(0, 1000);
    for reader in 0..2 {
        assert!(matches!(ranks.poll(reader, 2, TAG | 1), Published::Exposed(50_000)));
        for at in [0, 777, 49_000] {
            assert!(ranks.at(reader, |shared| shared.get(2, TAG | 1, at as u64, &part)));
            assert!(bytes(&part) == data[at..at + 1000], "from byte {at}");
        }
    }
    ranks.at(2, |shared| shared.revoke_exposed(TAG | 1, TAG | 1));
    part.write(0, &[0xee; 1000]);
    assert!(!ranks.at(0, |shared| shared.get(2, TAG | 1, 0, &part)), "it was taken back");
}

/// An offered range is taken whole, or a block is put there, until it is taken back; a block that cannot be put is there to be got.
fn offered_ranges(ranks: &mut Ranks) {
    if !ranks.at(0, |shared| shared.single_copy()) {
        return;
    }
    const LEN: usize = 50_000;
    let of = |data: &[u8]| HeapBuffer::copy_of(data).slice(0, data.len());
    let offer = |ranks: &mut Ranks, seq: u64, offers: &[(u64, &Buffer)]| {
        for (at, range) in offers {
            ranks.at(2, |shared| shared.offer(TAG | seq, *at, range));
        }
        ranks.at(2, |shared| shared.publish_cell(TAG | seq));
        (0..2).for_each(|user| drop(ranks.inline(user, 2, TAG | seq)));
    };

    // Taken by one, put by another.
    let (given, place) = (of(&pattern(2, 1, LEN)), of(&[0xee; LEN]));
    offer(ranks, 1, &[(8, &given), (101, &place)]);
    let (taken, short) = (of(&[0; LEN]), of(&[0; 100]));
    assert!(ranks.at(0, |shared| shared.take(2, TAG | 1, 8, &taken)));
    assert!(bytes(&taken) == pattern(2, 1, LEN));
    assert!(!ranks.at(0, |shared| shared.take(2, TAG | 1, 8, &short)), "it is longer");
    let block = of(&pattern(1, 1, LEN));
    // A rank may now and then be refused.
    let put = |ranks: &mut Ranks, seq: u64, at: Option<u64>, block: &Buffer| {
        ranks.at(1, |shared| shared.put(2, TAG | seq, at, block));
        ranks.poll(2, 1, TAG | seq)
    };
    match put(ranks, 1, Some(101), &block) {
        Published::Inline(none) => assert!(none.is_empty() && bytes(&place) == pattern(1, 1, LEN)),
        Published::Exposed(_) => assert_got(ranks, 1, &pattern(1, 1, LEN)),
    }
    ranks.ack(1);

    // No offer, one of another length, and one that is taken back.
    let untouched = |place: &Buffer, why: &str| assert!(bytes(place) == [0xee; LEN], "{why}");
    for (seq, at, len) in [(2, None, LEN), (3, Some(8), 999), (4, Some(8), LEN)] {
        let place = of(&[0xee; LEN]);
        offer(ranks, seq, &[(8, &place)]);
        if seq == 4 {
            ranks.at(2, |shared| shared.revoke_exposed(TAG | seq, TAG | seq));
            assert!(!ranks.at(0, |shared| shared.take(2, TAG | seq, 8, &taken)), "it was taken back");
        }
        let came = put(ranks, seq, at, &of(&pattern(1, seq, len)));
        assert!(matches!(came, Published::Exposed(there) if there == len as u64));
        untouched(&place, "nothing is put there");
        assert_got(ranks, seq, &pattern(1, seq, len));
        ranks.ack(seq);
    }
}

/// Rank 2 gets what rank 1 has exposed.
fn assert_got(ranks: &mut Ranks, seq: u64, expected: &[u8]) {
    let got = HeapBuffer::zeroed(expected.len()).slice(0, expected.len());
    assert!(ranks.at(2, |shared| shared.get(1, TAG | seq, 0, &got)));
    assert!(bytes(&got) == expected);
}

/// All ranks see what one has acknowledged, and what it has only given up.
fn acknowledgements(ranks: &mut Ranks) {
    let all_see = |ranks: &mut Ranks, last: u64, reached: &[(u64, bool)]| {
        for reader in 0..RANKS {
            assert_eq!(ranks.at(reader, |shared| shared.acked(1)), last);
            for &(seq, expected) in reached {
                assert_eq!(ranks.at(reader, |shared| shared.reached(1, seq)), expected, "{seq}");
            }
        }
    };
    all_see(ranks, 0, &[(1, false)]);
    ranks.at(1, |shared| shared.ack(2));
    all_see(ranks, 2, &[(1, true), (2, true), (3, false)]);
    ranks.at(1, |shared| {
        shared.void(3, 4);
        shared.ack(4);
    });
    all_see(ranks, 4, &[(2, true), (3, false), (4, false), (5, false)]);
    ranks.at(1, |shared| shared.ack(5));
    all_see(ranks, 5, &[(3, false), (4, false), (5, true)]);
}

/// The shared scratch is the same memory at all ranks.
fn scratch(ranks: &mut Ranks) {
    let views: Vec<Buffer> = (0..RANKS).map(|rank| ranks.at(rank, |shared| shared.scratch())).collect();
    assert!(views.iter().all(|view| view.len() == views[0].len()));
    let room = views[0].len().saturating_sub(8) as isize;
    for (writer, at) in views.iter().zip([0, room / 2, room]).filter(|_| room > 24) {
        let data = pattern(3, at as u64, 8);
        writer.write(writer.lo() + at, &data);
        assert!(views.iter().all(|view| bytes(&view.slice(view.lo() + at, 8)) == data));
    }
}
