//! What messages of many lengths take by each way between two cores of this machine: measured on bare threads, and by the profile.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use banyan_topo::{DISTANCES, Machine, Profile, get, put};

use super::{SHORT, Way, beside, by_library, exchanges, heard, least, pairs, rings, sockets, timed};

/// The ways, the first ones of [`Way::ALL`](banyan_topo::Way::ALL) first: what frames that are copied past the caches take depends on what is in these.
pub(crate) const WAYS: [&str; 5] = ["ring", "read", "write", "both", "tcp"];

/// Lengths of messages, bytes.
pub(crate) const LENGTHS: [usize; 10] =
    [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20];

/// What messages take between two cores.
pub(crate) struct Curves {
    /// How the cores are apart.
    pub(crate) distance: &'static str,
    /// By length and way, seconds by the profile.
    pub(crate) by_profile: [[f64; WAYS.len()]; LENGTHS.len()],
    /// The same, measured; no number if that was refused, or something else had the cores.
    pub(crate) measured: [[f64; WAYS.len()]; LENGTHS.len()],
}

/// Of the nearest two cores; none if this machine has only one.
pub(crate) fn curves(profile: &Profile) -> Option<Curves> {
    let (distance, cpus) =
        pairs(&Machine::read()).into_iter().enumerate().rev().find_map(|(at, pair)| Some((at, pair?)))?;
    let mut measured = [[f64::NAN; WAYS.len()]; LENGTHS.len()];
    let mut keep = |way: usize, figures: Vec<f64>| {
        measured.iter_mut().zip(figures).for_each(|(row, figure)| row[way] = figure);
    };
    let lengths = |exchange: &mut dyn FnMut(usize, usize) -> f64| {
        let back = least(|| exchange(SHORT, 1)) / 2.0;
        // An answer that came too late would be taken for that to the next message: after one that is none there are no more.
        let mut answered = true;
        let mut one = |bytes: usize| {
            let seconds = if answered { least(|| exchange(bytes, 1)) } else { f64::NAN };
            answered = seconds.is_finite();
            seconds - back
        };
        LENGTHS.map(&mut one).to_vec()
    };
    let ring = rings(by_library).map_or(vec![], |ways| exchanges(cpus, ways, lengths));
    let back = ring.first().copied().unwrap_or(f64::NAN);
    keep(0, ring);
    for (way, [read, written]) in (1..).zip([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]) {
        let shares = LENGTHS.map(|bytes| [read, written].map(|share| (bytes as f64 * share) as usize));
        keep(way, shares.map(|share| single_copies(cpus, share) - back).to_vec());
    }
    keep(4, sockets().map_or(vec![], |ways| exchanges(cpus, ways, lengths)));
    let by_profile = by_profile(profile, distance);
    Some(Curves { distance: DISTANCES[distance], by_profile, measured })
}

/// What the profile makes of all lengths and ways.
pub(crate) fn by_profile(profile: &Profile, distance: usize) -> [[f64; WAYS.len()]; LENGTHS.len()] {
    LENGTHS.map(|bytes| {
        let [ring, read, write, both, _] =
            banyan_topo::Way::ALL.map(|way| profile.way(way, distance, bytes as f64));
        [ring, read, write, both, profile.by_tcp(bytes as f64)]
    })
}

/// A message whose receiver reads so many bytes while its sender writes so many: from its announcement until its sender knows that all
/// of it is there.
fn single_copies(cpus: (u32, u32), [read, written]: [usize; 2]) -> f64 {
    let Some((mut mine, mut other)) = rings(by_library) else { return f64::NAN };
    let (from, over) = (vec![1u8; read + written], AtomicBool::new(false));
    let to: Vec<AtomicU8> = (0..written).map(|_| AtomicU8::new(0)).collect();
    let receive = || {
        let mut into = vec![0; read];
        while !over.load(Ordering::Relaxed) {
            if other.received() == 0 {
                continue;
            }
            if written > 0 {
                other.send(SHORT, false);
            }
            let got = read == 0 || get(&from[..read], &mut into);
            if got && (written == 0 || heard(&mut other, SHORT)) {
                other.send(SHORT, false);
            }
        }
    };
    let mut message = || {
        mine.send(SHORT, false);
        if written > 0 {
            if !heard(&mut mine, SHORT) || !put(&from[read..], &to) {
                return false;
            }
            mine.send(SHORT, false);
        }
        heard(&mut mine, SHORT)
    };
    beside(cpus, receive, || {
        let least = least(|| {
            let mut all = false;
            let seconds = timed(|| all = message());
            if all { seconds } else { f64::NAN }
        });
        over.store(true, Ordering::Relaxed);
        least
    })
}
