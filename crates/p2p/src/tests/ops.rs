//! What programs are made of: settings and operations, and the strategies by which proptest makes and shrinks them.

use banyan_transport::sim::Options;
use proptest::prelude::*;

use super::{CHOICES, any_network};
use crate::Mode;

pub(super) const TAGS: i32 = 3;
pub(super) const CONTEXTS: u64 = 2;
/// Bytes of the longest message.
pub(super) const LONGEST: usize = 200_000;

/// What a program runs on. Processes are numbers modulo `processes`.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) processes: usize,
    /// Of the network.
    pub(super) seed: u64,
    pub(super) network: Options,
    /// `Config::budget`, bytes.
    pub(super) budget: usize,
    /// [`super::choice`] of this number.
    pub(super) choice: usize,
    /// Half of the memory is a device's.
    pub(super) device: bool,
    /// The messages with keys, whose ends [`Op::Key`] starts.
    pub(super) keyed: Vec<Keyed>,
}

/// A message with a key.
#[derive(Clone, Debug)]
pub(super) struct Keyed {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) ctx: u64,
    pub(super) key: u64,
    pub(super) len: usize,
}

/// A step of a program. Where it does not fit (there is nothing to cancel, for one) nothing happens.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Send {
        from: usize,
        to: usize,
        ctx: u64,
        tag: i32,
        len: usize,
        scattered: bool,
        mode: Mode,
    },
    Receive {
        at: usize,
        src: Option<usize>,
        ctx: u64,
        tag: Option<i32>,
        len: usize,
        scattered: bool,
        bypass: bool,
    },
    /// A probe; `take` is by how much the room for the message is longer than it, if it is taken.
    Probe {
        at: usize,
        src: Option<usize>,
        ctx: u64,
        tag: Option<i32>,
        take: Option<usize>,
    },
    ReceiveProbed {
        at: usize,
    },
    /// Cancels one of the sends of `from` that are under way.
    CancelSend {
        from: usize,
        which: usize,
    },
    CancelReceive {
        which: usize,
    },
    /// Starts one end of a message with a key.
    Key {
        which: usize,
        receive: bool,
        scattered: bool,
    },
    /// All processes poll and make progress so many times.
    Turn {
        times: usize,
    },
}

pub(super) fn setting() -> impl Strategy<Value = Setting> {
    let keyed = (0usize..5, 0usize..5, 0..CONTEXTS, prop::sample::select(vec![8, 300, 9000, 40_000]));
    let keyed = prop::collection::vec(keyed, 0..40).prop_map(|all| {
        let numbered = all.into_iter().zip(0u64..);
        let keyed = |((from, to, ctx, len), i)| Keyed { from, to, ctx, key: i << (i % 50), len };
        numbered.map(keyed).collect()
    });
    let network = prop::collection::vec(0usize..60, 12).prop_map(|picks| {
        let mut picks = picks.into_iter();
        any_network(|n| picks.next().map_or(0, |pick| pick % n))
    });
    let budget = prop::sample::select(vec![4 << 20, 50_000, 2000, 0]);
    (1usize..6, any::<u64>(), network, budget, (0..CHOICES, any::<bool>()), keyed).prop_map(
        |(processes, seed, network, budget, (choice, device), keyed)| Setting {
            processes,
            seed,
            network,
            budget,
            choice,
            device,
            keyed,
        },
    )
}

/// Lengths at which a protocol may change, and some between.
fn length() -> impl Strategy<Value = usize> {
    let marks = vec![0, 16, 23, 36, 64, 100, 200, 500, 4096, 5000, 8192, 10_000, 16_384, 32_768];
    prop_oneof![
        3 => (prop::sample::select(marks), 0usize..4).prop_map(|(mark, more)| (mark + more).saturating_sub(2)),
        1 => 0usize..20_000,
        1 => 0..LONGEST,
    ]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let at = || 0usize..5;
    let any_at = || prop::option::weighted(0.6, 0usize..5);
    let any_tag = || prop::option::weighted(0.6, 0..TAGS);
    let mode = prop::sample::select(vec![Mode::Standard, Mode::Sync, Mode::Ready, Mode::Buffered]);
    let room = prop_oneof![3 => Just(LONGEST), 1 => length()];
    let turns = prop::sample::select(vec![1usize, 2, 6, 60]);
    prop_oneof![
        8 => (at(), at(), 0..CONTEXTS, 0..TAGS, length(), any::<bool>(), mode).prop_map(
            |(from, to, ctx, tag, len, scattered, mode)| Op::Send { from, to, ctx, tag, len, scattered, mode }),
        6 => (at(), any_at(), 0..CONTEXTS, any_tag(), room, any::<bool>(), any::<bool>()).prop_map(
            |(at, src, ctx, tag, len, scattered, bypass)| Op::Receive { at, src, ctx, tag, len, scattered, bypass }),
        2 => (at(), any_at(), 0..CONTEXTS, any_tag(), prop::option::of(0usize..3)).prop_map(
            |(at, src, ctx, tag, take)| Op::Probe { at, src, ctx, tag, take }),
        2 => at().prop_map(|at| Op::ReceiveProbed { at }),
        1 => (at(), 0usize..20).prop_map(|(from, which)| Op::CancelSend { from, which }),
        1 => (0usize..200).prop_map(|which| Op::CancelReceive { which }),
        4 => (0usize..40, any::<bool>(), any::<bool>()).prop_map(
            |(which, receive, scattered)| Op::Key { which, receive, scattered }),
        12 => turns.prop_map(|times| Op::Turn { times }),
    ]
}
