//! Copies bytes between frames and the memory of the user, whatever its datatype.

use banyan_datatype::Data;
use banyan_memory::{Buffer, HeapBuffer};

/// Fills `out` with the bytes of `data` from its byte `at` on.
#[inline(always)]
pub(crate) fn pack(data: &Data, at: u64, out: &mut [u8]) {
    match data.piece() {
        Some((memory, start)) => memory.read(start + at as isize, out),
        None => {
            let mut cursor = data.cursor();
            cursor.seek(at);
            cursor.pack(data, out);
        }
    }
}

/// Writes `bytes`, or as many of them as there is room for, to `data` from its byte `at` on; gives how many. A device that fails ends the
/// call.
#[inline(always)]
pub(crate) fn unpack(data: &Data, at: u64, bytes: &[u8]) -> usize {
    unpack_by(false, data, at, bytes)
}

/// [`unpack`] `past` the caches of this core, where the memory is contiguous, or through them.
#[inline(always)]
pub(crate) fn unpack_by(past: bool, data: &Data, at: u64, bytes: &[u8]) -> usize {
    let Some((memory, start)) = data.piece() else {
        let mut cursor = data.cursor();
        cursor.seek(at);
        return cursor.unpack(data, bytes);
    };
    let len = data.len().saturating_sub(at).min(bytes.len() as u64) as usize;
    match past {
        true => memory.write_past(start + at as isize, &bytes[..len]),
        false => memory.write(start + at as isize, &bytes[..len]),
    }
    len
}

/// Pieces of memory that one read fills at most.
const RUNS: usize = 64;
/// Pieces of fewer bytes than this, on average, are quicker filled from a buffer than named one by one: to name one costs as
/// much as to copy so many bytes.
const SHORTEST_RUN: usize = 512;

/// The pieces of memory behind bytes of `data`, from its byte `at` on, at most `most` bytes; `None` if the pieces are too short
/// to be worth naming.
pub(crate) fn runs(data: &Data, at: u64, most: u64) -> Option<Vec<Buffer>> {
    let (mut cursor, mut runs, mut left) = (data.cursor(), Vec::new(), most as usize);
    cursor.seek(at);
    cursor.segments(data, RUNS, |run| {
        let len = run.len().min(left);
        left -= len;
        if len > 0 {
            runs.push(run.slice(run.lo(), len));
        }
    });
    (most as usize - left >= SHORTEST_RUN * runs.len().saturating_sub(1)).then_some(runs)
}

/// Writes the first `len` bytes of `from` to `data`, which is memory of the host, from its byte `at` on.
pub(crate) fn scatter(data: &Data, at: u64, from: &Buffer, len: usize) {
    let mut piece = [0; 4096];
    let mut done = 0;
    while done < len {
        let piece = &mut piece[..(len - done).min(4096)];
        from.read(done as isize, piece);
        unpack(data, at + done as u64, piece);
        done += piece.len();
    }
}

/// Writes all bytes of `from`, memory of the host, to `data`, which is the host's, too, from its byte `at` on.
pub(crate) fn unpack_from(data: &Data, at: u64, from: &Buffer) {
    match data.piece() {
        Some((memory, start)) => memory.copy_from(start + at as isize, from, 0, from.len()),
        None => scatter(data, at, from, from.len()),
    }
}

/// A copy of `data` in memory of this crate's own, from byte `from` on; the bytes before are zero. `None` if there is no
/// memory for it.
pub(crate) fn copy_from(data: &Data, from: u64) -> Option<Data> {
    let copy = Data::bytes(HeapBuffer::try_zeroed(data.len() as usize)?);
    if !data.buffer().kind().is_host_accessible() {
        copy.copy_part(from, data, from, data.len() - from);
        return Some(copy);
    }
    let mut piece = [0; 4096];
    let mut at = from;
    while at < data.len() {
        let piece = &mut piece[..(data.len() - at).min(4096) as usize];
        pack(data, at, piece);
        unpack(&copy, at, piece);
        at += piece.len() as u64;
    }
    Some(copy)
}

#[cfg(test)]
mod tests {
    use banyan_datatype::Datatype;

    use super::*;

    /// 100 runs of so many bytes, with holes of 3.
    fn rows(run: i64) -> Data {
        let byte = Datatype::builtin(0x247).expect("MPI_BYTE");
        let ty = Datatype::vector(100, run, run + 3, byte).expect("a type");
        Data::typed(HeapBuffer::zeroed(100 * (run as usize + 3)), 1, &ty)
    }

    #[test]
    fn long_runs_are_named_and_short_ones_are_not() {
        let data = rows(700);
        let first = runs(&data, 100, 65_000).expect("long runs");
        assert_eq!((first.len(), first[0].len(), first[1].len()), (RUNS, 600, 700));
        let last = runs(&data, 69_000, 800).expect("long runs");
        assert_eq!(last.iter().map(Buffer::len).collect::<Vec<_>>(), [300, 500]);
        assert!(runs(&rows(100), 0, 10_000).is_none());
        let whole = Data::bytes(HeapBuffer::zeroed(10));
        assert_eq!(runs(&whole, 0, 10).expect("one run").len(), 1);
    }
}
