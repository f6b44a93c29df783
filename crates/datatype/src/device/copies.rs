//! Copies of packed bytes where memory of a device has to do with it, one after the other where one needs what another has brought.

use std::collections::VecDeque;

use banyan_memory::{Copying, HeapBuffer, Scratch};

use crate::Data;

/// Copies that devices carry out. When this is dropped, what a device has begun is waited for, and the rest is not begun.
#[must_use]
#[derive(Debug, Default)]
pub struct Copies {
    under_way: Vec<Copying>,
    /// What to begin when those are over.
    next: VecDeque<Part>,
    /// What those go through: it must outlive them.
    stages: Vec<Scratch>,
}

/// A copy of packed bytes, from byte `from_at` of `from` to byte `at` of `to`.
#[derive(Debug)]
struct Part {
    to: Data,
    at: u64,
    from: Data,
    from_at: u64,
    len: u64,
    /// What `from` is, if it is memory of a device for this alone.
    stage: Option<Scratch>,
}

/// Most bytes that go through a stage at a time.
const STAGE: u64 = 1 << 25;

impl Copies {
    /// Begins to copy packed bytes: `len` of them, from byte `from_at` of `from` to byte `at` of `to`.
    ///
    /// # Panics
    /// If there are not so many bytes.
    pub(crate) fn begin(to: &Data, at: u64, from: &Data, from_at: u64, len: u64) -> Copies {
        let mut copies = Copies::default();
        copies.start(Part { to: to.clone(), at, from: from.clone(), from_at, len, stage: None });
        copies
    }

    /// True once all is where it belongs. If a device has failed, the call that is under way ends.
    pub fn are_over(&mut self) -> bool {
        loop {
            self.under_way.retain(|copy| !copy.is_over());
            if !self.under_way.is_empty() {
                return false;
            }
            self.stages.clear();
            let Some(part) = self.next.pop_front() else { return true };
            self.start(part);
        }
    }

    /// Waits until all is where it belongs.
    pub fn wait(mut self) {
        while !self.are_over() {
            std::thread::yield_now();
        }
    }

    fn start(&mut self, mut part: Part) {
        self.stages.extend(part.stage.take());
        let Part { to, at, from, from_at, len, .. } = &part;
        if *len == 0 {
            return;
        }
        let [to_on_device, from_on_device] = [to, from].map(Data::is_on_device);
        if !to_on_device && !from_on_device {
            return to.copy_part(*at, from, *from_at, *len);
        }
        let [to_many, from_many] = [to, from].map(|data| data.has_many_runs(*len));
        let direct = match (from.piece(), to.piece()) {
            _ if !to_many && !from_many => None,
            (_, Some((packed, start))) if from_on_device && to_on_device => {
                Some(from.start_moves(false, *from_at, *len, (packed, start + *at as isize)))
            }
            (Some((packed, start)), _) if from_on_device && to_on_device => {
                Some(to.start_moves(true, *at, *len, (packed, start + *from_at as isize)))
            }
            // Where it is in one piece in between, on the device that has much to gather or to scatter, or else on the host.
            _ => return self.staged(part, from_many && from_on_device, to_many && to_on_device),
        };
        match direct {
            Some(Ok((moving, table))) => {
                self.under_way.push(moving);
                self.stages.extend(table);
            }
            Some(Err(_)) | None => self.under_way.extend(to.start_runs(*at, from, *from_at, *len)),
        }
    }

    fn staged(&mut self, part: Part, beside_from: bool, beside_to: bool) {
        let Part { to, at, from, from_at, len, .. } = part;
        let n = len.min(STAGE);
        let room = |beside: &Data| Scratch::beside(beside.buffer(), n as usize);
        let (memory, stage) = match (beside_from, beside_to) {
            (false, false) => (HeapBuffer::zeroed(n as usize), None),
            (beside_from, _) => match room(if beside_from { &from } else { &to }) {
                Ok(scratch) => (scratch.memory().clone(), Some(scratch)),
                // The device is full.
                Err(_) => return self.under_way.extend(to.start_runs(at, &from, from_at, len)),
            },
        };
        let piece = Data::bytes(memory.slice(0, n as usize));
        let (rest_at, rest_from) = (at + n, from_at + n);
        let rest = Part {
            to: to.clone(),
            at: rest_at,
            from: from.clone(),
            from_at: rest_from,
            len: len - n,
            stage: None,
        };
        self.next.push_front(rest);
        self.next.push_front(Part { to, at, from: piece.clone(), from_at: 0, len: n, stage });
        self.start(Part { to: piece, at: 0, from, from_at, len: n, stage: None });
    }
}
