//! The report on what each rank of a job does, to explain why it hangs, and the proof that it is deadlocked. Pure.

use std::time::{Duration, Instant};

use banyan_pmi::status::{Item, StatusLine};
use serde::{Deserialize, Serialize};

use crate::trouble::listed;

/// Most lines of a report.
const MOST: usize = 40;

/// Contexts of the two communicators that every job has: MPI_COMM_WORLD and MPI_COMM_SELF.
const WORLD: u64 = 1;
const SELF: u64 = 2;

/// What a rank does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum RankState {
    /// Its process has not called MPI_Init.
    Outside,
    /// In MPI_Init.
    InInit,
    /// In a call that waits.
    Waits(StatusLine),
    /// After MPI_Init and in no call that has waited for long.
    Busy,
    /// After MPI_Finalize.
    Finalized,
    /// Stopped by a signal.
    Stopped,
    /// Its process has ended.
    Ended,
}

impl RankState {
    fn line(&self) -> Option<&StatusLine> {
        match self {
            RankState::Waits(line) => Some(line),
            _ => None,
        }
    }

    fn describe(&self, states: &[RankState]) -> String {
        match self {
            RankState::Outside => "not in MPI: MPI_Init was not called".to_owned(),
            RankState::InInit => "in MPI_Init".to_owned(),
            RankState::Busy => {
                "not waiting in MPI: computes, reads or writes, or polls (MPI_Test, MPI_Iprobe)".to_owned()
            }
            RankState::Finalized => "after MPI_Finalize".to_owned(),
            RankState::Stopped => "stopped by a signal".to_owned(),
            RankState::Ended => "ended".to_owned(),
            RankState::Waits(line) => {
                let call = if line.call.is_empty() { "MPI" } else { &line.call };
                let items: Vec<String> = line.items.iter().map(|item| describe(item, line, states)).collect();
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

fn describe(item: &Item, StatusLine { names, .. }: &StatusLine, states: &[RankState]) -> String {
    match item {
        Item::Message { sends, state, peer, tag, context, bytes } => {
            let kind = if *sends { "send to" } else { "receive from" };
            let peer = peer.map_or("any rank".to_owned(), |peer| format!("rank {peer}"));
            let tag = tag.map_or("any tag".to_owned(), |tag| format!("tag {tag}"));
            let state = state.split_once(": ").map_or(state.as_str(), |(_, state)| state);
            format!("{kind} {peer}, {tag}, {bytes} bytes, on {} ({state})", named(*context, names))
        }
        Item::Collective { comm, context, members } => {
            let missing = missing(*context, members, states);
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
    let name = names.iter().find(|(key, _)| *key == context);
    match context {
        WORLD => "MPI_COMM_WORLD".to_owned(),
        SELF => "MPI_COMM_SELF".to_owned(),
        other => match name {
            Some((_, name)) => format!("communicator \"{name}\" ({:08x})", other as u32),
            None => format!("communicator {:08x}", other as u32),
        },
    }
}

/// The members of a communicator that are not in a collective with this context.
fn missing(context: u64, members: &[(u32, u32)], states: &[RankState]) -> Vec<u32> {
    let there = |rank: u32| {
        let line = states.get(rank as usize).and_then(RankState::line);
        let here = |item: &Item| matches!(item, Item::Collective { context: other, .. } if *other == context);
        line.is_some_and(|line| line.items.iter().any(here))
    };
    let all = members.iter().flat_map(|&(first, count)| first..first.saturating_add(count));
    all.take(states.len()).filter(|&rank| !there(rank)).collect()
}

/// Ranks in words, as in `rank 3` or `ranks 0, 2-5`.
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
    let text = listed(runs.iter().map(run), MOST);
    format!("rank{} {text}", if list.len() == 1 { "" } else { "s" })
}

/// The report: one line for all ranks in equal states; `now` in nanoseconds as in [`StatusLine::since`].
pub(crate) fn lines(states: &[RankState], now: u64) -> Vec<String> {
    let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
    for (rank, state) in (0..).zip(states) {
        let text = state.describe(states);
        match groups.iter_mut().find(|(key, _)| *key == text) {
            Some((_, list)) => list.push(rank),
            None => groups.push((text, vec![rank])),
        }
    }
    let shown = groups.iter().take(MOST).map(|(text, list)| {
        let since = list.iter().filter_map(|&rank| Some(states[rank as usize].line()?.since)).max();
        let time = since.map(|since| format!(", for {:.1} s", now.saturating_sub(since) as f64 / 1e9));
        format!("{}: {text}{}", ranks(list), time.unwrap_or_default())
    });
    let left: usize = groups.iter().skip(MOST).map(|(_, list)| list.len()).sum();
    shown.chain((left > 0).then(|| format!("and {left} ranks in other places"))).collect()
}

/// Ranks that wait for each other in a circle, if there is one.
pub(crate) fn cycle(states: &[RankState]) -> Option<String> {
    let next: Vec<Vec<u32>> = states.iter().map(|state| waits_for(state, states)).collect();
    // 0: not visited; 1: on the present path; 2: visited, and on no cycle.
    let mut seen = vec![0u8; states.len()];
    let mut path: Vec<(u32, usize)> = Vec::new();
    for start in 0..states.len() as u32 {
        if seen[start as usize] == 0 {
            seen[start as usize] = 1;
            path.push((start, 0));
        }
        while let Some((rank, at)) = path.last_mut() {
            let from = *rank as usize;
            let Some(&to) = next[from].get(*at) else {
                seen[from] = 2;
                path.pop();
                continue;
            };
            *at += 1;
            match seen.get(to as usize) {
                Some(0) => {
                    seen[to as usize] = 1;
                    path.push((to, 0));
                }
                Some(1) => {
                    let cycle = path.iter().map(|&(rank, _)| rank).skip_while(|&rank| rank != to);
                    let text: Vec<String> = cycle.chain([to]).map(|rank| format!("rank {rank}")).collect();
                    return Some(text.join(" waits for "));
                }
                _ => {}
            }
        }
    }
    None
}

/// The ranks that a rank in this state waits for, if it needs every one of them to go on.
fn waits_for(state: &RankState, states: &[RankState]) -> Vec<u32> {
    let Some(line) = state.line() else { return Vec::new() };
    let any_will_do = ["any", "some"].iter().any(|word| line.call.ends_with(word));
    if any_will_do && line.items.len() + line.more as usize > 1 {
        return Vec::new();
    }
    let of = |item: &Item| match item {
        Item::Message { peer, .. } => peer.iter().copied().collect(),
        Item::Collective { context, members, .. } => missing(*context, members, states),
        Item::Program(_) => Vec::new(),
    };
    line.items.iter().flat_map(of).collect()
}

/// Compares the states of the ranks at several times, to prove a deadlock.
///
/// If all ranks wait, none of them has been woken between two observations, and each has slept twice and found nothing in
/// between, then nothing was under path: no rank can end any of the waits.
#[derive(Default)]
pub(crate) struct DeadlockDetector(Option<(Instant, Vec<Option<StatusLine>>)>);

impl DeadlockDetector {
    /// Observes the ranks. Gives for how long the job has been deadlocked; `None` if a deadlock is not proven.
    pub(crate) fn observe(&mut self, states: &[RankState], now: Instant) -> Option<Duration> {
        if !all_wait(states) {
            self.0 = None;
            return None;
        }
        let lines = || states.iter().map(|state| state.line().cloned()).collect();
        let (since, before) = self.0.get_or_insert_with(|| (now, lines()));
        let same = |(before, state): (&Option<StatusLine>, &RankState)| match (before, state.line()) {
            (Some(before), Some(line)) => (before.since, before.events) == (line.since, line.events),
            (before, line) => before.is_none() && line.is_none(),
        };
        if before.len() != states.len() || !before.iter().zip(states).all(same) {
            self.0 = Some((now, lines()));
            return None;
        }
        let slept_twice = |(before, state): (&Option<StatusLine>, &RankState)| match (before, state.line()) {
            (Some(before), Some(line)) => line.naps >= before.naps.saturating_add(2),
            _ => true,
        };
        before.iter().zip(states).all(slept_twice).then(|| now - *since)
    }
}

/// True if every rank that has not ended waits, at least one does, and only a message can end each of the waits.
pub(crate) fn all_wait(states: &[RankState]) -> bool {
    let program = |line: &StatusLine| line.items.iter().any(|item| matches!(item, Item::Program(_)));
    let waits = |state: &RankState| match state {
        RankState::Waits(line) => !line.threads && !program(line),
        RankState::Finalized | RankState::Ended => true,
        _ => false,
    };
    states.iter().all(waits) && states.iter().any(|state| state.line().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(call: &str, items: Vec<Item>) -> RankState {
        let call = call.to_owned();
        RankState::Waits(StatusLine {
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

    fn receive(peer: Option<u32>, tag: i32) -> RankState {
        let state = "receive: waits for a matching message".to_owned();
        let item = Item::Message { sends: false, state, peer, tag: Some(tag), context: WORLD, bytes: 4 };
        waits("MPI_Recv", vec![item])
    }

    fn barrier(ranks: u32) -> RankState {
        waits(
            "MPI_Barrier",
            vec![Item::Collective { comm: WORLD, context: WORLD, members: vec![(0, ranks)] }],
        )
    }

    #[test]
    fn ranks_in_equal_states_share_a_line() {
        let states = [receive(Some(1), 5), barrier(5), RankState::Busy, barrier(5), barrier(5)];
        let text = lines(&states, 2_500_000_000);
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
    fn cycles_are_found() {
        let states = [receive(Some(1), 5), receive(Some(2), 0), receive(Some(1), 7), RankState::Busy];
        assert_eq!(cycle(&states).unwrap(), "rank 1 waits for rank 2 waits for rank 1");
        // Rank 1 left the barrier out and waits for rank 0.
        let states = [barrier(2), receive(Some(0), 1)];
        assert_eq!(cycle(&states).unwrap(), "rank 0 waits for rank 1 waits for rank 0");
        assert_eq!(cycle(&[receive(None, 1), receive(Some(0), 1)]), None);
        assert_eq!(cycle(&[barrier(2), RankState::Busy]), None);
    }

    #[test]
    fn only_what_cannot_go_on_is_deadlocked() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let change = |state: &RankState, f: fn(&mut StatusLine)| {
            let RankState::Waits(mut line) = state.clone() else { panic!() };
            f(&mut line);
            RankState::Waits(line)
        };
        let all = |f: fn(&mut StatusLine)| [change(&receive(Some(1), 0), f), change(&receive(Some(0), 0), f)];
        let prove = |second: [RankState; 2]| {
            let mut detector = DeadlockDetector::default();
            assert_eq!(detector.observe(&all(|_| ()), at(0)), None);
            detector.observe(&second, at(3))
        };
        assert_eq!(prove(all(|line| line.naps = 2)), Some(Duration::from_secs(3)));
        assert_eq!(prove(all(|line| line.naps = 1)), None, "not all have looked");
        assert_eq!(prove(all(|line| (line.naps, line.events) = (2, 1))), None, "a message came");
        assert_eq!(prove(all(|line| (line.naps, line.since) = (2, 9))), None, "another wait");
        assert_eq!(prove(all(|line| (line.naps, line.threads) = (2, true))), None, "other threads");
        let [one, _] = all(|line| line.naps = 2);
        assert_eq!(prove([one.clone(), RankState::Busy]), None);
        assert_eq!(prove([one, RankState::Stopped]), None);
    }
}
