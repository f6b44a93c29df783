//! Which kernel moves bytes between packed memory and where a datatype says that they lie.

use banyan_memory::{Arg, Buffer, Copying, DeviceFailure, Scratch};

use super::{PACK, Run};
use crate::Data;

/// Numbers of a table that a kernel is given as such.
const SHORT: usize = 64;

/// A move of packed bytes between the memory of a [`Data`] and memory where they lie in one piece, on a device.
#[derive(Debug)]
pub struct Moves<'a> {
    /// The run, on the addresses of [`Data::buffer`]'s first byte, of the packed bytes, and of the table.
    pub run: Run,
    /// What has to be in the device's memory besides, if anything.
    pub table: Option<&'a [i64]>,
}

impl Data {
    /// The kernel that packs `len` bytes from packed byte `at` on, or with `unpack` the one that puts them there. `packed` is the
    /// address where these bytes lie in one piece. `None` if they do so here.
    ///
    /// # Panics
    /// If there are not so many bytes.
    pub fn moves(&self, unpack: bool, at: u64, len: u64, packed: usize) -> Option<Moves<'_>> {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len()),
            "{len} bytes from {at} of {self:?}"
        );
        let table = self.table()?;
        let lo = self.buffer().lo();
        let all = self.buffer().address(0) as u64 | packed as u64 | at | len;
        let bytes = table.grain.min(1 << all.trailing_zeros().min(4));
        let numbers = &table.numbers;
        let is_long = numbers.len() > SHORT;
        let mut short = [0; SHORT];
        if !is_long {
            short[..numbers.len()].copy_from_slice(numbers);
        }
        let values =
            [at, len, lo as u64, is_long.into()].into_iter().chain(short.map(|number| number as u64));
        let name = format!("{}_{bytes}", if unpack { "unpack" } else { "pack" });
        Some(Moves { run: Run::new(PACK, &name, len / bytes, values), table: is_long.then_some(numbers) })
    }

    /// Starts such a move, between memory of one device and the bytes at an offset of other memory of it. What comes with it must outlive it.
    ///
    /// # Errors
    /// Why the device does not do it.
    ///
    /// # Panics
    /// As [`Data::moves`], and if there are not so many bytes at that offset.
    pub(crate) fn start_moves(
        &self,
        unpack: bool,
        at: u64,
        len: u64,
        (packed, packed_at): (&Buffer, isize),
    ) -> Result<(Copying, Option<Scratch>), DeviceFailure> {
        let none = || DeviceFailure { what: "what lies in one piece is no work for a kernel".to_owned() };
        let moves = self.moves(unpack, at, len, packed.address(packed_at)).ok_or_else(none)?;
        let memory = Arg::Memory(self.buffer(), self.buffer().lo(), self.buffer().len());
        let bytes = Arg::Memory(packed, packed_at, len as usize);
        let Some(numbers) = moves.table else {
            // SAFETY: a kernel goes to where the datatype has its data, which is within the bounds, and to the packed bytes.
            return unsafe { moves.run.start([memory, bytes, memory]) }.map(|moving| (moving, None));
        };
        let table = Scratch::beside(self.buffer(), size_of_val(numbers))?;
        table.memory().write(0, &numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>());
        let there = Arg::Memory(table.memory(), 0, table.memory().len());
        // SAFETY: as above, and to the table.
        let moving = unsafe { moves.run.start([memory, bytes, there]) }?;
        Ok((moving, Some(table)))
    }
}
