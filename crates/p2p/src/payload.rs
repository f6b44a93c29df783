//! Bytes between frames and the memory of the user, whatever its layout.

use banyan_datatype::Data;
use banyan_memory::Buffer;

/// Writes the bytes of `data` from its byte `at` on to `out`, which they fill.
#[inline]
pub(crate) fn pack(data: &Data, at: u64, out: &mut [u8]) {
    let mut cursor = data.cursor();
    cursor.seek(at);
    cursor.pack(data, out);
}

/// Writes `bytes`, or as many as there is room for, to `data` from its byte `at` on; gives how many.
#[inline]
pub(crate) fn unpack(data: &Data, at: u64, bytes: &[u8]) -> usize {
    let mut cursor = data.cursor();
    cursor.seek(at);
    cursor.unpack(data, bytes)
}

/// Writes the first `len` bytes of `scratch` to `data` from its byte `at` on.
pub(crate) fn scatter(data: &Data, at: u64, scratch: &Buffer, len: usize) {
    let mut piece = [0; 4096];
    let mut done = 0;
    while done < len {
        let piece = &mut piece[..(len - done).min(4096)];
        scratch.read(done as isize, piece);
        unpack(data, at + done as u64, piece);
        done += piece.len();
    }
}
