//! Slow waits: from its second sleep on, a rank tells mpirun what it waits for (`banyan_pmi::status`).

use std::time::{Duration, Instant};

use banyan_p2p::Wait;
use banyan_pmi::status::{self, Item, MAX_ITEMS, MAX_RUNS, StatusLine};

use crate::engine::Engine;
use crate::group::Group;

/// A sleep at least this long counts as vain; a shorter one was ended by an event.
const VAIN_SLEEP: Duration = Duration::from_millis(90);

/// Most items that are counted, as each report goes through all of them.
const MAX_COUNTED: usize = 10_000;

/// Describes a wait: the first few items that it waits for, and how many there are in all.
pub(crate) type DescribeWait<'a> = &'a dyn Fn(&Engine) -> (Vec<Item>, usize);

/// A message as an item.
pub(crate) fn message(wait: Wait) -> Item {
    Item::Message {
        sends: wait.state.starts_with("send"),
        state: wait.state.to_owned(),
        peer: wait.peer.map(|peer| peer.0),
        tag: wait.tag,
        context: wait.ctx,
        bytes: wait.bytes,
    }
}

/// The names that the program gave its communicators, by context.
#[derive(Default)]
pub(crate) struct Names(Vec<(u64, String)>);

impl Names {
    /// Letters of a name that are reported at most.
    const LETTERS: usize = 32;

    /// Sets the name of a context's communicator.
    pub(crate) fn set(&mut self, context: u64, name: &str) {
        self.forget(context);
        if !name.is_empty() {
            self.0.push((context, name.chars().take(Self::LETTERS).collect()));
        }
    }

    /// Forgets the name of a communicator that is gone.
    pub(crate) fn forget(&mut self, context: u64) {
        self.0.retain(|(named, _)| *named != context);
    }

    /// The names of the communicators that items are about.
    fn of(&self, items: &[Item]) -> Vec<(u64, String)> {
        let comm = |item: &Item| match item {
            Item::Message { context, .. } => Some(*context),
            Item::Collective { comm, .. } => Some(*comm),
            Item::Program(_) => None,
        };
        let named = |(context, _): &&(u64, String)| items.iter().any(|item| comm(item) == Some(*context));
        self.0.iter().filter(named).cloned().collect()
    }
}

/// A collective of these ranks as an item.
pub(crate) fn collective((comm, context): (u64, u64), group: &Group) -> Item {
    let mut members: Vec<(u32, u32)> = Vec::new();
    for peer in group.peers() {
        match members.last_mut() {
            Some((first, count)) if *first + *count == peer.0 => *count += 1,
            _ => members.push((peer.0, 1)),
        }
        if members.len() > MAX_RUNS {
            members.clear();
            break;
        }
    }
    Item::Collective { comm, context, members }
}

/// The first few items, and how many there are in all, counted up to [`MAX_COUNTED`].
pub(crate) fn first(items: impl Iterator<Item = Item>) -> (Vec<Item>, usize) {
    let mut list = Vec::new();
    let mut all = 0;
    for item in items.take(MAX_COUNTED) {
        all += 1;
        if list.len() < MAX_ITEMS {
            list.push(item);
        }
    }
    (list, all)
}

/// All messages that are under way.
pub(crate) fn all(engine: &Engine) -> (Vec<Item>, usize) {
    first(engine.p2p.waits().map(message))
}

/// A wait, as mpirun is told of it. Most waits never sleep, and make nothing here.
#[derive(Default)]
pub(crate) struct Slow(Option<Box<SlowWait>>);

/// A wait that has slept.
struct SlowWait {
    /// When the last sleep began, and how long it lasted.
    slept: (Instant, Duration),
    line: Option<StatusLine>,
}

impl Slow {
    /// Call before a sleep: from the second one on it writes the status line.
    #[cold]
    pub(crate) fn before_sleep(&mut self, engine: &Engine, threads: bool, describe: DescribeWait<'_>) {
        let now = (Instant::now(), Duration::ZERO);
        let Some(wait) = &mut self.0 else {
            self.0 = Some(Box::new(SlowWait { slept: now, line: None }));
            return;
        };
        let (began, lasted) = std::mem::replace(&mut wait.slept, now);
        let Some(client) = &engine.launcher.client else { return };
        let line = wait.line.get_or_insert_with(|| StatusLine {
            call: (engine.caller)().to_owned(),
            since: status::now().saturating_sub(began.elapsed().as_nanos() as u64),
            naps: 0,
            events: 0,
            threads,
            items: Vec::new(),
            more: 0,
            names: Vec::new(),
        });
        match lasted >= VAIN_SLEEP {
            true => line.naps += 1,
            false => line.events += 1,
        }
        let (items, all) = describe(engine);
        line.more = all.saturating_sub(items.len()) as u32;
        line.names = engine.names.of(&items);
        line.items = items;
        client.tell(Some(line));
    }

    /// Call after a sleep.
    #[cold]
    pub(crate) fn after_sleep(&mut self) {
        if let Some(SlowWait { slept: (began, lasted), .. }) = self.0.as_deref_mut() {
            *lasted = began.elapsed();
        }
    }

    /// Call when the wait has ended: takes the status line back, if there is one.
    #[inline(always)]
    pub(crate) fn ended(self, engine: &Engine) {
        if let Some(wait) = self.0 {
            wait.take_back(engine);
        }
    }
}

impl SlowWait {
    #[cold]
    fn take_back(&self, engine: &Engine) {
        if let (Some(_), Some(client)) = (&self.line, &engine.launcher.client) {
            client.tell(None);
        }
    }
}
