//! Slow waits: from its second sleep on, a rank tells mpirun what it waits for (`banyan_pmi::status`).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use banyan_p2p::Wait;
use banyan_pmi::status::{self, Item, Line, MAX_ITEMS, MAX_RUNS};

use crate::engine::Engine;
use crate::group::Group;

/// A sleep that is shorter was ended by somebody.
const NAP: Duration = Duration::from_millis(90);

/// More are not counted: each look goes through all of them.
const COUNTED: usize = 10_000;

/// Who knows which MPI function this process has called last.
static CALLER: OnceLock<fn() -> &'static str> = OnceLock::new();

/// Says how to find out which MPI function this process has called last: for reports on jobs that hang.
pub fn name_calls_by(caller: fn() -> &'static str) {
    let _ = CALLER.set(caller);
}

/// What a wait would end with: the first few things, and how many more there are.
pub(crate) type What<'a> = &'a dyn Fn(&Engine) -> (Vec<Item>, usize);

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

/// What the program calls its communicators, by context.
#[derive(Default)]
pub(crate) struct Names(Vec<(u64, String)>);

impl Names {
    /// More letters of a name are not told.
    const LETTERS: usize = 32;

    /// The communicator of this context is called so from now on.
    pub(crate) fn set(&mut self, context: u64, name: &str) {
        self.forget(context);
        if !name.is_empty() {
            self.0.push((context, name.chars().take(Self::LETTERS).collect()));
        }
    }

    /// That communicator is gone.
    pub(crate) fn forget(&mut self, context: u64) {
        self.0.retain(|(known, _)| *known != context);
    }

    /// The names of the communicators that items are about.
    fn of(&self, items: &[Item]) -> Vec<(u64, String)> {
        let comm = |item: &Item| match item {
            Item::Message { context, .. } => Some(*context),
            Item::Collective { comm, .. } => Some(*comm),
            Item::Program(_) => None,
        };
        let told = |(context, _): &&(u64, String)| items.iter().any(|item| comm(item) == Some(*context));
        self.0.iter().filter(told).cloned().collect()
    }
}

/// A collective operation of these ranks as an item.
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

/// The first few of what is waited for, and how many there are of at most [`COUNTED`].
pub(crate) fn first(items: impl Iterator<Item = Item>) -> (Vec<Item>, usize) {
    let mut list = Vec::new();
    let mut all = 0;
    for item in items.take(COUNTED) {
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

/// One wait, as far as it is slow.
#[derive(Default)]
pub(crate) struct Slow {
    /// When the last sleep began, and how long it was.
    slept: Option<(Instant, Duration)>,
    line: Option<Line>,
}

impl Slow {
    /// Before a sleep: from the second one on the line is written.
    #[cold]
    pub(crate) fn sleeps(&mut self, engine: &Engine, threads: bool, what: What<'_>) {
        let Some((began, lasted)) = self.slept.replace((Instant::now(), Duration::ZERO)) else { return };
        let Some(client) = &engine.boot else { return };
        let line = self.line.get_or_insert_with(|| Line {
            call: CALLER.get().map_or("", |caller| caller()).to_owned(),
            since: status::now().saturating_sub(began.elapsed().as_nanos() as u64),
            naps: 0,
            events: 0,
            threads,
            items: Vec::new(),
            more: 0,
            names: Vec::new(),
        });
        match lasted >= NAP {
            true => line.naps += 1,
            false => line.events += 1,
        }
        let (items, all) = what(engine);
        line.more = all.saturating_sub(items.len()) as u32;
        line.names = engine.names.of(&items);
        line.items = items;
        client.tell(Some(line));
    }

    /// After it.
    #[cold]
    pub(crate) fn slept(&mut self) {
        if let Some((began, lasted)) = &mut self.slept {
            *lasted = began.elapsed();
        }
    }

    /// The wait has ended: the line is taken back, if there is one.
    #[inline(always)]
    pub(crate) fn ended(&self, engine: &Engine) {
        if self.line.is_some() {
            self.forget(engine);
        }
    }

    #[cold]
    fn forget(&self, engine: &Engine) {
        if let Some(client) = &engine.boot {
            client.tell(None);
        }
    }
}
