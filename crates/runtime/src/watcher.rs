//! [`Watcher`]: a thread that sleeps on the fabrics' descriptors in the place of tasks that await requests, and wakes them.
//!
//! It never enters the engine, so it may be there at any thread level. It sleeps once for each time that it is told to: tasks that are
//! woken poll, and the first of them that finds nothing tells it to sleep again.

use std::sync::{Arc, Condvar, Mutex};
use std::task;
use std::time::Instant;
use std::{io, thread};

use crate::engine::Engine;
use crate::lock;
use crate::request::Operation;
use crate::runtime::Runtime;
use crate::status::Outcome;
use crate::wait::{Sleep, Waker};

/// The thread, which ends with this value.
pub(crate) struct Watcher(Arc<Watch>);

struct Watch {
    /// Ends the thread's sleep.
    waker: Arc<Waker>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What to wake after the sleep.
    tasks: Vec<task::Waker>,
    /// The sleep that is to begin.
    next: Option<Sleep>,
    /// When the present sleep ends, or the next one, and whether it waits for the launcher, too.
    watched: Option<(Instant, bool)>,
    ended: bool,
}

impl Watcher {
    fn start() -> io::Result<Watcher> {
        let (waker, changed) = (Arc::new(Waker::new()?), Condvar::new());
        let watch = Arc::new(Watch { waker, state: Mutex::default(), changed });
        let its = watch.clone();
        thread::Builder::new().name("banyan-watcher".to_owned()).spawn(move || its.run())?;
        Ok(Watcher(watch))
    }

    /// Has the task woken when the sleep ends, which begins unless there is one.
    fn watch(&self, task: &task::Waker, sleep: Sleep) {
        let state = &mut *lock(&self.0.state);
        if !state.tasks.iter().any(|known| known.will_wake(task)) {
            state.tasks.push(task.clone());
        }
        let wanted = (sleep.until, sleep.launcher.is_some());
        match state.watched {
            None => {
                state.watched = Some(wanted);
                state.next = Some(sleep);
                self.0.changed.notify_one();
            }
            // Too long a sleep: all tasks are woken, and the first that polls asks for one that is short enough for all.
            Some((until, launcher)) if wanted.0 < until || wanted.1 && !launcher => self.0.waker.wake(),
            Some(_) => {}
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_one();
        self.0.waker.wake();
    }
}

impl Watch {
    fn run(&self) {
        loop {
            let mut state = lock(&self.state);
            let sleep = loop {
                if state.ended {
                    return;
                }
                match state.next.take() {
                    Some(sleep) => break sleep,
                    None => state = self.changed.wait(state).unwrap_or_else(|poison| poison.into_inner()),
                }
            };
            drop(state);
            self.waker.sleep(&sleep);
            let mut state = lock(&self.state);
            state.watched = None;
            let tasks = std::mem::take(&mut state.tasks);
            drop(state);
            tasks.into_iter().for_each(task::Waker::wake);
        }
    }
}

impl Runtime {
    /// Takes the outcome of the operation if it is over; if not, `task` is woken when it may be.
    pub(crate) fn await_outcome(&self, operation: &Operation, task: &task::Waker) -> Option<Outcome> {
        let settled = self.await_for(|engine| operation.settled(engine), task)?;
        Some(operation.completed(settled))
    }

    /// What `find` finds after a poll; if that is nothing, `task` is woken when it may be something.
    fn await_for<T>(&self, mut find: impl FnMut(&mut Engine) -> Option<T>, task: &task::Waker) -> Option<T> {
        let found = self.poll_for(&mut find);
        if found.is_some() {
            return found;
        }
        let mut engine = self.engine_lock.enter();
        // What made the descriptors readable was polled.
        engine.ports.disarm();
        let sleep = engine.prepare_sleep();
        let found = find(&mut engine);
        if found.is_some() {
            return found;
        }
        let mut watcher = lock(&self.watcher);
        if watcher.is_none() {
            *watcher = Watcher::start().ok();
        }
        match (sleep, &*watcher) {
            (Some(sleep), Some(watcher)) => {
                engine.add_sleeper(&watcher.0.waker);
                watcher.watch(task, sleep);
            }
            // Something has come, or the process can have no more threads: the task polls again.
            _ => task.wake_by_ref(),
        }
        None
    }
}
