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

/// Writes `bytes`, or as many of them as there is room for, to `data` from its byte `at` on; gives how many.
#[inline(always)]
pub(crate) fn unpack(data: &Data, at: u64, bytes: &[u8]) -> usize {
    let Some((memory, start)) = data.piece() else {
        let mut cursor = data.cursor();
        cursor.seek(at);
        return cursor.unpack(data, bytes);
    };
    let len = data.len().saturating_sub(at).min(bytes.len() as u64) as usize;
    memory.write(start + at as isize, &bytes[..len]);
    len
}

/// Writes the first `len` bytes of `from` to `data` from its byte `at` on.
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

/// A copy of `data` in memory of this crate's own, from byte `from` on; the bytes before are zero. `None` if there is no
/// memory for it.
pub(crate) fn copy_from(data: &Data, from: u64) -> Option<Data> {
    let copy = Data::bytes(HeapBuffer::try_zeroed(data.len() as usize)?);
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
