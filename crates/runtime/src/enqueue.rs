//! Operations that are enqueued on a stream of the program's: each begins when what the stream held before is over. A thread of its own for each
//! stream carries them out, one after the other, by the same calls as a program makes. So the thread level must be
//! MPI_THREAD_MULTIPLE, and a program that waits for its stream in its only thread waits for no one who needs that thread.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use banyan_memory::{DeviceFailure, Place, Platform, ProgramStream, Turn, forked};

use crate::bail;
use crate::error::{Error, Result};
use crate::runtime::{Runtime, Threads};

/// What is done at its place in a stream. `Err`: the stream has failed, so nothing is to be moved.
type Work = Box<dyn FnOnce(std::result::Result<(), DeviceFailure>) + Send>;

/// A stream of the program's and what is enqueued on it. Its thread ends once it is dropped or closed and all is carried out.
pub struct Enqueuer {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Queue {
    stream: ProgramStream,
    /// Held while a job gets its place, and with none that carries jobs out: a driver may let us wait until the stream goes on.
    order: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// A job is being carried out.
    busy: bool,
    /// No more will come.
    closed: bool,
    /// What has become of an operation that the program was not told of yet.
    failed: Option<Error>,
}

struct Job {
    place: Place,
    /// For this the stream waits.
    turn: Option<Turn>,
    work: Work,
}

impl Enqueuer {
    /// For a stream of a platform's (`cudaStream_t`, `hipStream_t`).
    ///
    /// # Errors
    /// ERR_OTHER below MPI_THREAD_MULTIPLE, and if there is no such stream.
    pub fn new(runtime: &Runtime, platform: Platform, stream: usize) -> Result<Enqueuer> {
        if runtime.threads() < Threads::Multiple {
            bail!(
                ERR_OTHER,
                "operations on a stream are carried out by a thread of the library's, which needs MPI_THREAD_MULTIPLE: ask \
                 MPI_Init_thread for it, and look at what it provides"
            );
        }
        let (order, state, changed) = (Mutex::default(), Mutex::default(), Condvar::new());
        let stream = ProgramStream::new(platform, stream)?;
        let queue = Arc::new(Queue { stream, order, state, changed });
        let its = queue.clone();
        let started = thread::Builder::new().name("banyan-stream".to_owned()).spawn(move || its.carry_out());
        match started {
            Ok(thread) => Ok(Enqueuer { queue, thread: Mutex::new(Some(thread)) }),
            Err(error) => Err(Error::other(format!("no thread for a stream can be started: {error}"))),
        }
    }

    /// Enqueues work; the stream waits for its end if it is `awaited`.
    ///
    /// # Errors
    /// What has become of an operation that was enqueued before, if nobody was told yet; ERR_OTHER if the driver refuses.
    pub fn enqueue(&self, awaited: bool, work: Work) -> Result<()> {
        if forked() {
            bail!(ERR_OTHER, "a child that fork() made of a rank has no part in the job");
        }
        if let Some(error) = self.queue.lock().failed.take() {
            return Err(error);
        }
        let _order = self.queue.order.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.queue.stream.place()?;
        let turn = if awaited { Some(self.queue.stream.take_turn()?) } else { None };
        self.queue.lock().jobs.push_back(Job { place, turn, work });
        self.queue.changed.notify_all();
        Ok(())
    }

    /// Keeps the error of an operation for the next call on this stream.
    pub fn keep_error(&self, error: Error) {
        self.queue.lock().failed.get_or_insert(error);
    }

    /// Waits until all that was enqueued is over.
    ///
    /// # Errors
    /// What has become of it, if nobody was told yet.
    pub fn drain(&self) -> Result<()> {
        let mut state = self.queue.lock();
        while state.busy || !state.jobs.is_empty() {
            state = self.queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failed.take().map_or(Ok(()), Err)
    }

    /// Waits until all that was enqueued is over, and for the end of the thread: nothing more can be enqueued.
    ///
    /// # Errors
    /// As for [`Enqueuer::drain`].
    pub fn close(&self) -> Result<()> {
        let drained = self.drain();
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A child of `fork` has no such thread.
        if let Some(thread) = thread.filter(|_| !forked()) {
            let _ = thread.join();
        }
        drained
    }
}

impl Drop for Enqueuer {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Queue {
    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry_out(&self) {
        while let Some(Job { place, turn, work }) = self.next() {
            work(place.wait());
            turn.into_iter().for_each(|turn| self.stream.end_turn(turn));
            drop(place);
            self.lock().busy = false;
            self.changed.notify_all();
        }
    }

    /// The next job, once there is one; `None` when no more will come.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.busy = true;
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
