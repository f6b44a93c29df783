//! The tree of agents: who starts whom, where a frame goes, and the business cards that are kept on the way. Pure: frames in,
//! frames out.

use std::collections::HashMap;
use std::ops::Range;

use banyan_pmi::{Reply, Request};

use crate::frames::{ALL, Event, Frame, Order};

/// Most bytes of business cards that an agent keeps for the ranks below it.
const MOST_CARDS: usize = 16 << 20;

/// The subtrees of the agents that the first agent of `subtree` starts: at most `radix`, of about the same size.
pub(crate) fn children(subtree: &Range<u32>, radix: u32) -> Vec<Range<u32>> {
    let (first, count) = (subtree.start + 1, subtree.end.saturating_sub(subtree.start + 1));
    let parts = count.min(radix.max(1));
    let at = |part: u32| first + (u64::from(count) * u64::from(part) / u64::from(parts)) as u32;
    (0..parts).map(|part| at(part)..at(part + 1)).collect()
}

/// Where an order goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Here,
    /// To this child.
    Child(usize),
    /// To this agent and all its children.
    All,
    /// To no agent of this subtree.
    Nowhere,
}

/// What becomes of a frame from a child.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Upwards {
    /// It goes on to the parent.
    Pass(Frame),
    /// It is answered from here, by this frame to the same child.
    Answer(Frame),
}

/// One agent's part of the tree.
#[derive(Default)]
pub(crate) struct Relay {
    children: Vec<Range<u32>>,
    own: u32,
    cards: HashMap<u32, Vec<u8>>,
    kept: usize,
}

impl Relay {
    pub(crate) fn new(subtree: &Range<u32>, radix: u32) -> Relay {
        Relay { children: children(subtree, radix), own: subtree.start, ..Relay::default() }
    }

    /// The subtrees of this agent's children.
    pub(crate) fn children(&self) -> &[Range<u32>] {
        &self.children
    }

    /// Where an order goes. A business card that passes by is kept.
    pub(crate) fn down(&mut self, frame: &Frame) -> Way {
        if frame.host == ALL {
            return Way::All;
        }
        if frame.host == self.own {
            return Way::Here;
        }
        let child = self.children.iter().position(|child| child.contains(&frame.host));
        if child.is_some()
            && let Some(Order::Reply { reply: Reply::BusinessCard { rank, business_card }, .. }) =
                frame.open()
        {
            self.keep(rank, business_card);
        }
        child.map_or(Way::Nowhere, Way::Child)
    }

    /// What becomes of a frame from a child. A lookup of a card that is known here is answered.
    pub(crate) fn up(&mut self, frame: Frame) -> Upwards {
        match frame.open() {
            Some(Event::Request { rank, request: Request::Lookup { rank: wanted } }) => {
                if let Some(reply) = self.card(wanted) {
                    return Upwards::Answer(Frame::new(frame.host, &Order::Reply { rank, reply }));
                }
            }
            Some(Event::Request { rank, request: Request::Publish { business_card } }) => {
                self.keep(rank, business_card);
            }
            _ => {}
        }
        Upwards::Pass(frame)
    }

    /// The answer to a lookup, if the card is known here.
    pub(crate) fn card(&self, rank: u32) -> Option<Reply> {
        let business_card = self.cards.get(&rank)?.clone();
        Some(Reply::BusinessCard { rank, business_card })
    }

    /// Keeps a business card, as long as there is room.
    pub(crate) fn keep(&mut self, rank: u32, business_card: Vec<u8>) {
        if self.kept + business_card.len() <= MOST_CARDS && !self.cards.contains_key(&rank) {
            self.kept += business_card.len();
            self.cards.insert(rank, business_card);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All agents of a job, as mpirun's own and those below it make them.
    fn tree(hosts: u32, radix: u32) -> Vec<Relay> {
        let mut subtrees: Vec<Range<u32>> = std::iter::once(0..hosts).collect();
        let mut relays: Vec<Option<Relay>> = (0..hosts).map(|_| None).collect();
        while let Some(subtree) = subtrees.pop() {
            let relay = Relay::new(&subtree, radix);
            subtrees.extend(relay.children().iter().cloned());
            let before = relays[subtree.start as usize].replace(relay);
            assert!(before.is_none(), "host {} has two parents", subtree.start);
        }
        relays.into_iter().map(|relay| relay.expect("every host has a parent")).collect()
    }

    /// The agents that an order passes, mpirun's own first.
    fn way(relays: &mut [Relay], frame: &Frame) -> Vec<u32> {
        let mut passed = vec![0];
        loop {
            let at = *passed.last().unwrap() as usize;
            match relays[at].down(frame) {
                Way::Here => return passed,
                Way::Child(child) => passed.push(relays[at].children()[child].start),
                other => panic!("{other:?} at {at}"),
            }
        }
    }

    /// Sends an event up from host `from`; gives the agents that read it, and the answer of the last of them, if it gave one.
    fn climb(relays: &mut [Relay], from: u32, event: &Event) -> (Vec<u32>, Option<Frame>) {
        let mut frame = Frame::new(from, event);
        let mut path = way(relays, &Frame::new(from, &Order::Pulse));
        path.pop();
        let mut read = Vec::new();
        for &at in path.iter().rev() {
            read.push(at);
            match relays[at as usize].up(frame) {
                Upwards::Pass(same) => frame = same,
                Upwards::Answer(answer) => return (read, Some(answer)),
            }
        }
        (read, None)
    }

    #[test]
    fn every_host_is_reached_in_few_steps() {
        for (hosts, radix) in (1..=64).flat_map(|hosts| [1, 2, 3, 8, 64].map(|radix| (hosts, radix))) {
            let mut relays = tree(hosts, radix);
            // A tree of this depth has room for so many hosts.
            let (mut room, mut depth, mut level) = (1u64, 0, 1u64);
            while room < u64::from(hosts) {
                level *= u64::from(radix);
                room += level;
                depth += 1;
            }
            for host in 0..hosts {
                let passed = way(&mut relays, &Frame::new(host, &Order::Pulse));
                assert_eq!(passed.last(), Some(&host));
                assert!(passed.len() <= depth + 2, "{hosts} hosts, radix {radix}: {passed:?}");
            }
            assert!(relays.iter().all(|relay| relay.children().len() <= radix as usize));
            assert_eq!(relays[0].down(&Frame::new(hosts, &Order::Pulse)), Way::Nowhere);
            assert_eq!(relays[0].down(&Frame::new(ALL, &Order::Pulse)), Way::All);
        }
    }

    #[test]
    fn lookups_are_answered_by_the_first_agent_that_knows() {
        let mut relays = tree(13, 3);
        let of = |host: u32, request| Event::Request { rank: host * 2, request };
        // Host 2 hangs on host 1, which hangs on mpirun's own.
        assert_eq!(way(&mut relays, &Frame::new(2, &Order::Pulse)), [0, 1, 2]);
        let (read, answer) = climb(&mut relays, 2, &of(2, Request::Publish { business_card: vec![7] }));
        assert_eq!((read, answer), (vec![1, 0], None));
        let (read, answer) = climb(&mut relays, 3, &of(3, Request::Lookup { rank: 4 }));
        assert_eq!(read, [1], "a sibling's card is known to the parent of both");
        let answer = answer.unwrap();
        assert_eq!(answer.host, 3);
        let Some(Order::Reply { rank: 6, reply }) = answer.open() else { panic!("no answer to rank 6") };
        assert_eq!(reply, Reply::BusinessCard { rank: 4, business_card: vec![7] });
        // A card that nobody knows yet is asked of all agents up to mpirun's own; the answer leaves it on the way.
        let (read, answer) = climb(&mut relays, 3, &of(3, Request::Lookup { rank: 20 }));
        assert_eq!((read, answer), (vec![1, 0], None));
        let reply = Reply::BusinessCard { rank: 20, business_card: vec![9] };
        way(&mut relays, &Frame::new(3, &Order::Reply { rank: 6, reply }));
        let (read, answer) = climb(&mut relays, 2, &of(2, Request::Lookup { rank: 20 }));
        assert!(read == [1] && answer.is_some());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut relay = Relay::new(&(0..2), 2);
        for rank in 0..1000 {
            relay.keep(rank, vec![0; banyan_pmi::MAX_BUSINESS_CARD]);
        }
        assert!(relay.kept <= MOST_CARDS && relay.cards.len() == MOST_CARDS / banyan_pmi::MAX_BUSINESS_CARD);
    }
}
