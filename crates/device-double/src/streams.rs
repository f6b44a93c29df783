//! Streams and events. Work on a stream happens in order, and later: each question about an event lets some streams go on, as a
//! generator of numbers with a seed decides.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::codes::{Handle, INVALID_HANDLE, NOT_READY, WAIT};
use crate::kernels::Run;
use crate::memory::Memory;

/// A piece of work on a stream.
pub(crate) enum Work {
    Copy {
        to: usize,
        from: usize,
        len: usize,
    },
    Fill {
        to: usize,
        byte: u8,
        len: usize,
    },
    Kernel(Run),
    /// The event is over when this is reached.
    Record(Handle, u64),
    /// Nothing goes on before the event is over.
    Await(Handle, u64),
    /// Nothing goes on before the program has written at least this number at an address of its memory, where numbers go round.
    AwaitValue(usize, u32),
    /// The same of a number of 64 bits, which does not go round.
    AwaitWide(usize, u64),
}

struct Stream {
    context: Handle,
    work: VecDeque<Work>,
    /// Why it does no more.
    failed: c_int,
}

#[derive(Default)]
struct Event {
    context: Handle,
    recorded: u64,
    over: u64,
    /// What became of the stream before it.
    outcome: c_int,
}

pub(crate) struct Streams {
    all: BTreeMap<Handle, Stream>,
    events: HashMap<Handle, Event>,
    random: u64,
}

impl Streams {
    pub(crate) fn new(seed: u64) -> Streams {
        Streams { all: BTreeMap::new(), events: HashMap::new(), random: seed | 1 << 40 }
    }

    pub(crate) fn add(&mut self, stream: Handle, context: Handle) {
        self.all.insert(stream, Stream { context, work: VecDeque::new(), failed: 0 });
    }

    pub(crate) fn remove(&mut self, memory: &Memory, stream: Handle) -> Result<(), c_int> {
        self.finish(memory, stream)?;
        self.all.remove(&stream).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn add_event(&mut self, event: Handle, context: Handle) {
        self.events.insert(event, Event { context, ..Event::default() });
    }

    pub(crate) fn remove_event(&mut self, event: Handle) -> Result<(), c_int> {
        self.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    /// Those of a context go.
    pub(crate) fn forget(&mut self, context: Handle) {
        self.all.retain(|_, stream| stream.context != context);
        self.events.retain(|_, event| event.context != context);
    }

    /// The context that a stream is of.
    pub(crate) fn context(&self, stream: Handle) -> Option<Handle> {
        self.all.get(&stream).map(|stream| stream.context)
    }

    pub(crate) fn start(&mut self, stream: Handle, work: Work) -> Result<(), c_int> {
        let stream = self.all.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        if stream.failed != 0 {
            return Err(stream.failed);
        }
        stream.work.push_back(work);
        Ok(())
    }

    pub(crate) fn record(&mut self, event: Handle, stream: Handle) -> Result<(), c_int> {
        let entry = self.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        if self.all.get(&stream).is_none_or(|stream| stream.context != entry.context) {
            return Err(INVALID_HANDLE);
        }
        entry.recorded += 1;
        let number = entry.recorded;
        self.start(stream, Work::Record(event, number))
    }

    pub(crate) fn wait_for(&mut self, stream: Handle, event: Handle) -> Result<(), c_int> {
        let number = self.events.get(&event).ok_or(INVALID_HANDLE)?.recorded;
        self.start(stream, Work::Await(event, number))
    }

    /// Lets some streams go on, and says whether the event is over.
    pub(crate) fn query(&mut self, memory: &Memory, event: Handle) -> c_int {
        self.some_time(memory);
        match self.events.get(&event) {
            None => INVALID_HANDLE,
            Some(event) if event.over < event.recorded => NOT_READY,
            Some(event) => event.outcome,
        }
    }

    /// Lets some streams go on, and says whether one has nothing to do.
    pub(crate) fn query_stream(&mut self, memory: &Memory, stream: Handle) -> c_int {
        self.some_time(memory);
        match self.all.get(&stream) {
            None => INVALID_HANDLE,
            Some(stream) if stream.work.is_empty() => stream.failed,
            Some(_) => NOT_READY,
        }
    }

    /// Lets some streams go on; [`WAIT`] while this one has something to do.
    pub(crate) fn finish(&mut self, memory: &Memory, stream: Handle) -> Result<(), c_int> {
        match self.query_stream(memory, stream) {
            0 => Ok(()),
            NOT_READY => Err(WAIT),
            error => Err(error),
        }
    }

    /// Lets some streams go on; [`WAIT`] while any has something to do.
    pub(crate) fn finish_all(&mut self, memory: &Memory) -> Result<(), c_int> {
        self.some_time(memory);
        if self.all.values().all(|stream| stream.work.is_empty()) { Ok(()) } else { Err(WAIT) }
    }

    /// One piece of work of about every third stream.
    fn some_time(&mut self, memory: &Memory) {
        for stream in self.all.keys().copied().collect::<Vec<_>>() {
            // An xorshift.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            if (self.random >> 33).is_multiple_of(3) {
                self.go_on(memory, stream);
            }
        }
    }

    fn go_on(&mut self, memory: &Memory, stream: Handle) {
        let Some(entry) = self.all.get_mut(&stream) else { return };
        if let Some(Work::Await(event, number)) = entry.work.front()
            && self.events.get(event).is_some_and(|event| event.over < *number)
        {
            return;
        }
        if let Some(&Work::AwaitValue(at, least)) = entry.work.front() {
            let value = memory.real(at, 4).map_or(least, |at| {
                // SAFETY: pinned memory of the program's, which it writes like this.
                unsafe { std::sync::atomic::AtomicU32::from_ptr(at.cast()) }.load(Ordering::Acquire)
            });
            if value.wrapping_sub(least).cast_signed() < 0 {
                return;
            }
        }
        if let Some(&Work::AwaitWide(at, least)) = entry.work.front() {
            let value = memory.real(at, 8).map_or(least, |at| {
                // SAFETY: memory of the host, which the program writes like this.
                unsafe { std::sync::atomic::AtomicU64::from_ptr(at.cast()) }.load(Ordering::Acquire)
            });
            if value < least {
                return;
            }
        }
        let done = match entry.work.pop_front() {
            Some(Work::Copy { to, from, len }) if entry.failed == 0 => memory.copy(to, from, len),
            Some(Work::Fill { to, byte, len }) if entry.failed == 0 => memory.real(to, len).map(|to| {
                // SAFETY: memory of ours inside its bounds, or what the program names as its own.
                unsafe { std::ptr::write_bytes(to, byte, len) }
            }),
            Some(Work::Kernel(run)) if entry.failed == 0 => {
                run.run(memory);
                Ok(())
            }
            Some(Work::Record(event, number)) => {
                if let Some(event) = self.events.get_mut(&event) {
                    (event.over, event.outcome) = (event.over.max(number), entry.failed);
                }
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            entry.failed = error;
        }
    }
}
