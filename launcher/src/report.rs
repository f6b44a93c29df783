//! Where the ranks of a job are, for who asks why it hangs, and the proof that it is deadlocked. Pure.

use std::time::{Duration, Instant};

use banyan_pmi::status::{Item, Line};

/// Most lines of a report.
const MOST: usize = 40;

/// Contexts of the two communicators that every job has.
const WORLD: u64 = 1;
const SELF: u64 = 2;

/// Where a rank is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Its process has not called MPI_Init.
    Outside,
    /// In MPI_Init.
    InInit,
    /// In a call that waits.
    Waits(Line),
    /// After MPI_Init and in no call that has waited for long.
    Busy,
    /// After MPI_Finalize.
    Finalized,
    /// Stopped by a signal.
    Stopped,
    /// Its process has ended.
    Ended,
}

impl Place {
    fn line(&self) -> Option<&Line> {
        match self {
            Place::Waits(line) => Some(line),
            _ => None,
        }
    }

    fn describe(&self, places: &[Place]) -> String {
        match self {
            Place::Outside => "not in MPI: MPI_Init was not called".to_owned(),
            Place::InInit => "in MPI_Init".to_owned(),
            Place::Busy => {
                "not waiting in MPI: computes, reads or writes, or polls (MPI_Test, MPI_Iprobe)".to_owned()
            }
            Place::Finalized => "after MPI_Finalize".to_owned(),
            Place::Stopped => "stopped by a signal".to_owned(),
            Place::Ended => "ended".to_owned(),
            Place::Waits(line) => {
                let call = if line.call.is_empty() { "MPI" } else { &line.call };
                let items: Vec<String> = line.items.iter().map(|item| describe(item, line, places)).collect();
                let more = if line.more > 0 { format!(", and {} more", line.more) } else { String::new() };
                let threads = if line.threads { " (other threads of it may go on)" } else { "" };
                match items.is_empty() {
                    true => format!("{call}{threads}"),
                    false => format!("{call}: {}{more}{threads}", items.join("; ")),
                }
            }
        }
    }
}

fn describe(item: &Item, Line { names, .. }: &Line, places: &[Place]) -> String {
    match item {
        Item::Message { sends, state, peer, tag, context, bytes } => {
            let kind = if *sends { "send to" } else { "receive from" };
            let peer = peer.map_or("any rank".to_owned(), |peer| format!("rank {peer}"));
            let tag = tag.map_or("any tag".to_owned(), |tag| format!("tag {tag}"));
            let state = state.split_once(": ").map_or(state.as_str(), |(_, state)| state);
            format!("{kind} {peer}, {tag}, {bytes} bytes, on {} ({state})", named(*context, names))
        }
        Item::Collective { comm, context, members } => {
            let missing = missing(*context, members, places);
            let who = match (members.is_empty(), missing.is_empty()) {
                (true, _) => String::new(),
                (false, true) => " (all its ranks are there)".to_owned(),
                (false, false) => format!(" (not there: {})", ranks(&missing)),
            };
            format!("collective on {}{who}", named(*comm, names))
        }
        Item::Program(what) => what.clone(),
    }
}

fn named(context: u64, names: &[(u64, String)]) -> String {
    let name = names.iter().find(|(known, _)| *known == context);
    match context {
        WORLD => "MPI_COMM_WORLD".to_owned(),
        SELF => "MPI_COMM_SELF".to_owned(),
        other => match name {
            Some((_, name)) => format!("communicator \"{name}\" ({:08x})", other as u32),
            None => format!("communicator {:08x}", other as u32),
        },
    }
}

/// The members of a communicator that are in no collective on it.
fn missing(context: u64, members: &[(u32, u32)], places: &[Place]) -> Vec<u32> {
    let there = |rank: u32| {
        let line = places.get(rank as usize).and_then(Place::line);
        let here = |item: &Item| matches!(item, Item::Collective { context: other, .. } if *other == context);
        line.is_some_and(|line| line.items.iter().any(here))
    };
    let all = members.iter().flat_map(|&(first, count)| first..first.saturating_add(count));
    all.take(places.len()).filter(|&rank| !there(rank)).collect()
}

/// `rank 3`, or `ranks 0, 2-5`.
fn ranks(list: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in list {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    let more = if runs.len() > MOST { ", ..." } else { "" };
    let text: Vec<String> = runs.iter().take(MOST).map(run).collect();
    format!("rank{} {}{more}", if list.len() == 1 { "" } else { "s" }, text.join(", "))
}

/// One line for ranks that are alike; `now` in nanoseconds as in [`Line::since`].
pub(crate) fn lines(places: &[Place], now: u64) -> Vec<String> {
    let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
    for (rank, place) in (0..).zip(places) {
        let text = place.describe(places);
        match groups.iter_mut().find(|(known, _)| *known == text) {
            Some((_, list)) => list.push(rank),
            None => groups.push((text, vec![rank])),
        }
    }
    let shown = groups.iter().take(MOST).map(|(text, list)| {
        let since = list.iter().filter_map(|&rank| Some(places[rank as usize].line()?.since)).max();
        let time = since.map(|since| format!(", for {:.1} s", now.saturating_sub(since) as f64 / 1e9));
        format!("{}: {text}{}", ranks(list), time.unwrap_or_default())
    });
    let left: usize = groups.iter().skip(MOST).map(|(_, list)| list.len()).sum();
    shown.chain((left > 0).then(|| format!("and {left} ranks in other places"))).collect()
}

/// Ranks that wait for each other in a circle, if there is one.
pub(crate) fn cycle(places: &[Place]) -> Option<String> {
    let next: Vec<Vec<u32>> = places.iter().map(|place| waits_for(place, places)).collect();
    // 0: not seen; 1: on the way; 2: leads nowhere.
    let mut seen = vec![0u8; places.len()];
    let mut way: Vec<(u32, usize)> = Vec::new();
    for start in 0..places.len() as u32 {
        if seen[start as usize] == 0 {
            seen[start as usize] = 1;
            way.push((start, 0));
        }
        while let Some((rank, at)) = way.last_mut() {
            let from = *rank as usize;
            let Some(&to) = next[from].get(*at) else {
                seen[from] = 2;
                way.pop();
                continue;
            };
            *at += 1;
            match seen.get(to as usize) {
                Some(0) => {
                    seen[to as usize] = 1;
                    way.push((to, 0));
                }
                Some(1) => {
                    let circle = way.iter().map(|&(rank, _)| rank).skip_while(|&rank| rank != to);
                    let text: Vec<String> = circle.chain([to]).map(|rank| format!("rank {rank}")).collect();
                    return Some(text.join(" waits for "));
                }
                _ => {}
            }
        }
    }
    None
}

/// Ranks without each of which this one cannot go on.
fn waits_for(place: &Place, places: &[Place]) -> Vec<u32> {
    let Some(line) = place.line() else { return Vec::new() };
    let any_will_do = ["any", "some"].iter().any(|word| line.call.ends_with(word));
    if any_will_do && line.items.len() + line.more as usize > 1 {
        return Vec::new();
    }
    let of = |item: &Item| match item {
        Item::Message { peer, .. } => peer.iter().copied().collect(),
        Item::Collective { context, members, .. } => missing(*context, members, places),
        Item::Program(_) => Vec::new(),
    };
    line.items.iter().flat_map(of).collect()
}

/// Looks again and again whether anything can still happen.
///
/// If all ranks wait, none of them has been woken between two looks, and each has slept twice and found nothing in
/// between, then nothing was under way: nobody can end any of the waits.
#[derive(Default)]
pub(crate) struct Watch(Option<(Instant, Vec<Option<Line>>)>);

impl Watch {
    /// For how long nothing can have happened; `None` if that is not proven.
    pub(crate) fn look(&mut self, places: &[Place], now: Instant) -> Option<Duration> {
        if !all_wait(places) {
            self.0 = None;
            return None;
        }
        let lines = || places.iter().map(|place| place.line().cloned()).collect();
        let (since, before) = self.0.get_or_insert_with(|| (now, lines()));
        let same = |(before, place): (&Option<Line>, &Place)| match (before, place.line()) {
            (Some(before), Some(line)) => (before.since, before.events) == (line.since, line.events),
            (before, line) => before.is_none() && line.is_none(),
        };
        if before.len() != places.len() || !before.iter().zip(places).all(same) {
            self.0 = Some((now, lines()));
            return None;
        }
        let slept = |(before, place): (&Option<Line>, &Place)| match (before, place.line()) {
            (Some(before), Some(line)) => line.naps >= before.naps.saturating_add(2),
            _ => true,
        };
        before.iter().zip(places).all(slept).then(|| now - *since)
    }
}

/// Every rank that has not ended waits for others, and nothing but a message can end that.
fn all_wait(places: &[Place]) -> bool {
    let program = |line: &Line| line.items.iter().any(|item| matches!(item, Item::Program(_)));
    let stuck = |place: &Place| match place {
        Place::Waits(line) => !line.threads && !program(line),
        Place::Finalized | Place::Ended => true,
        _ => false,
    };
    places.iter().all(stuck) && places.iter().any(|place| place.line().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(call: &str, items: Vec<Item>) -> Place {
        let call = call.to_owned();
        Place::Waits(Line {
            call,
            since: 0,
            naps: 0,
            events: 0,
            threads: false,
            items,
            more: 0,
            names: Vec::new(),
        })
    }

    fn receive(peer: Option<u32>, tag: i32) -> Place {
        let state = "receive: waits for a matching message".to_owned();
        let item = Item::Message { sends: false, state, peer, tag: Some(tag), context: WORLD, bytes: 4 };
        waits("MPI_Recv", vec![item])
    }

    fn barrier(ranks: u32) -> Place {
        waits(
            "MPI_Barrier",
            vec![Item::Collective { comm: WORLD, context: WORLD, members: vec![(0, ranks)] }],
        )
    }

    #[test]
    fn ranks_that_are_alike_share_a_line() {
        let places = [receive(Some(1), 5), barrier(5), Place::Busy, barrier(5), barrier(5)];
        let text = lines(&places, 2_500_000_000);
        assert_eq!(
            text,
            [
                "rank 0: MPI_Recv: receive from rank 1, tag 5, 4 bytes, on MPI_COMM_WORLD (waits for a matching \
                 message), for 2.5 s",
                "ranks 1, 3, 4: MPI_Barrier: collective on MPI_COMM_WORLD (not there: ranks 0, 2), for 2.5 s",
                "rank 2: not waiting in MPI: computes, reads or writes, or polls (MPI_Test, MPI_Iprobe)",
            ]
        );
    }

    #[test]
    fn circles_are_found() {
        let places = [receive(Some(1), 5), receive(Some(2), 0), receive(Some(1), 7), Place::Busy];
        assert_eq!(cycle(&places).unwrap(), "rank 1 waits for rank 2 waits for rank 1");
        // Rank 1 left the barrier out and waits for rank 0.
        let places = [barrier(2), receive(Some(0), 1)];
        assert_eq!(cycle(&places).unwrap(), "rank 0 waits for rank 1 waits for rank 0");
        assert_eq!(cycle(&[receive(None, 1), receive(Some(0), 1)]), None);
        assert_eq!(cycle(&[barrier(2), Place::Busy]), None);
    }

    #[test]
    fn only_what_cannot_go_on_is_deadlocked() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let change = |place: &Place, f: fn(&mut Line)| {
            let Place::Waits(mut line) = place.clone() else { panic!() };
            f(&mut line);
            Place::Waits(line)
        };
        let all = |f: fn(&mut Line)| [change(&receive(Some(1), 0), f), change(&receive(Some(0), 0), f)];
        let prove = |second: [Place; 2]| {
            let mut watch = Watch::default();
            assert_eq!(watch.look(&all(|_| ()), at(0)), None);
            watch.look(&second, at(3))
        };
        assert_eq!(prove(all(|line| line.naps = 2)), Some(Duration::from_secs(3)));
        assert_eq!(prove(all(|line| line.naps = 1)), None, "not all have looked");
        assert_eq!(prove(all(|line| (line.naps, line.events) = (2, 1))), None, "a message came");
        assert_eq!(prove(all(|line| (line.naps, line.since) = (2, 9))), None, "another wait");
        assert_eq!(prove(all(|line| (line.naps, line.threads) = (2, true))), None, "other threads");
        let [one, _] = all(|line| line.naps = 2);
        assert_eq!(prove([one.clone(), Place::Busy]), None);
        assert_eq!(prove([one, Place::Stopped]), None);
    }
}
