//! The tree of agents: who starts whom, where an order goes, and how business cards are found. Pure: frames in, frames out.
//!
//! A business card stays with the agent of its rank until it is looked up. A lookup goes towards that agent, and the card comes back
//! the same way; each agent on it keeps the card, and has one lookup of it under way at a time.

use std::collections::HashMap;
use std::ops::Range;

use banyan_pmi::Places;
use serde::{Deserialize, Serialize};

use crate::frames::{ALL, Frame};

/// Most bytes of business cards that an agent keeps of ranks of other hosts.
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

/// What agents tell each other of business cards, and each to its ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Cards {
    /// The business card of this rank is wanted.
    Lookup { rank: u32 },
    /// This is it.
    Card { rank: u32, business_card: Vec<u8> },
}

/// Where such a frame comes from, or goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// This rank of this host.
    Rank(u32),
    /// The child with this number.
    Child(u32),
    Parent,
}

/// One agent's part of the tree.
#[derive(Default)]
pub(crate) struct Relay {
    children: Vec<Range<u32>>,
    own: u32,
    /// Which ranks belong to which agent.
    places: Places,
    /// The business cards that are known here.
    cards: HashMap<u32, Vec<u8>>,
    /// Bytes of those of ranks of other hosts.
    kept: usize,
    /// Who waits for which business card.
    waiting: HashMap<u32, Vec<Side>>,
}

impl Relay {
    pub(crate) fn new(subtree: &Range<u32>, radix: u32) -> Relay {
        Relay { children: children(subtree, radix), own: subtree.start, ..Relay::default() }
    }

    /// Says which ranks belong to which agent.
    pub(crate) fn place(&mut self, places: Places) {
        self.places = places;
    }

    /// The subtrees of this agent's children.
    pub(crate) fn children(&self) -> &[Range<u32>] {
        &self.children
    }

    /// Bytes of memory that this takes.
    #[cfg(feature = "sim")]
    pub(crate) fn bytes(&self) -> usize {
        // A table of the standard library has a byte for each place beside it.
        let table = |places: usize, each: usize| places * 8 / 7 * (each + 1);
        let cards = self.cards.values().map(Vec::capacity).sum::<usize>();
        let waiting = self.waiting.values().map(|sides| size_of::<Side>() * sides.capacity()).sum::<usize>();
        size_of::<Relay>()
            + size_of_val(self.children.as_slice())
            + self.places.bytes()
            + table(self.cards.capacity(), size_of::<(u32, Vec<u8>)>())
            + table(self.waiting.capacity(), size_of::<(u32, Vec<Side>)>())
            + cards
            + waiting
    }

    /// The child that this agent is below.
    fn child(&self, agent: u32) -> Option<usize> {
        let at = self.children.partition_point(|child| child.end <= agent);
        self.children.get(at).filter(|child| child.contains(&agent)).map(|_| at)
    }

    /// Where an order goes.
    pub(crate) fn down(&self, frame: &Frame) -> Way {
        match frame.host {
            ALL => Way::All,
            host if host == self.own => Way::Here,
            host => self.child(host).map_or(Way::Nowhere, Way::Child),
        }
    }

    /// Where the agent of a rank is.
    fn side_of(&self, rank: u32) -> Side {
        let agent = self.places.home(rank).node;
        match self.child(agent) {
            _ if agent == self.own => Side::Rank(rank),
            Some(child) => Side::Child(self.children[child].start),
            None => Side::Parent,
        }
    }

    /// Takes what is said of business cards; gives what is to be said of them, and to whom. A rank publishes its business card by
    /// saying it.
    pub(crate) fn cards(&mut self, from: Side, said: Cards) -> Vec<(Side, Cards)> {
        match said {
            Cards::Lookup { rank } => {
                if let Some(business_card) = self.cards.get(&rank).cloned() {
                    return vec![(from, Cards::Card { rank, business_card })];
                }
                let waiting = self.waiting.entry(rank).or_default();
                let is_first = waiting.is_empty();
                if !waiting.contains(&from) {
                    waiting.push(from);
                }
                let to = Some(self.side_of(rank)).filter(|to| is_first && !matches!(to, Side::Rank(_)));
                to.map(|to| (to, Cards::Lookup { rank })).into_iter().collect()
            }
            // A second business card of a rank is ignored, and so is one that does not come from where the rank is.
            Cards::Card { rank, .. } if self.cards.contains_key(&rank) || from != self.side_of(rank) => {
                vec![]
            }
            Cards::Card { rank, business_card } => {
                let card = || Cards::Card { rank, business_card: business_card.clone() };
                let waiting = self.waiting.remove(&rank).unwrap_or_default();
                if self.waiting.is_empty() {
                    self.waiting.shrink_to_fit();
                }
                let answers = waiting.into_iter().map(|to| (to, card())).collect();
                let is_own = matches!(from, Side::Rank(_));
                if is_own || self.kept + business_card.len() <= MOST_CARDS {
                    self.kept += if is_own { 0 } else { business_card.len() };
                    self.cards.insert(rank, business_card);
                }
                answers
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use banyan_pmi::NodeKind;

    use super::*;
    use crate::frames::Order;

    /// All agents of a job, as mpirun's own and those below it make them.
    fn tree(hosts: u32, radix: u32, places: &Places) -> Vec<Relay> {
        let mut subtrees: Vec<Range<u32>> = std::iter::once(0..hosts).collect();
        let mut relays: Vec<Option<Relay>> = (0..hosts).map(|_| None).collect();
        while let Some(subtree) = subtrees.pop() {
            let mut relay = Relay::new(&subtree, radix);
            relay.place(places.clone());
            subtrees.extend(relay.children().iter().cloned());
            let before = relays[subtree.start as usize].replace(relay);
            assert!(before.is_none(), "host {} has two parents", subtree.start);
        }
        relays.into_iter().map(|relay| relay.expect("every host has a parent")).collect()
    }

    /// The agents that an order passes, mpirun's own first.
    fn way(relays: &[Relay], host: u32) -> Vec<u32> {
        let mut passed = vec![0];
        loop {
            let at = *passed.last().unwrap() as usize;
            match relays[at].down(&Frame::new(host, &Order::Pulse)) {
                Way::Here => return passed,
                Way::Child(child) => passed.push(relays[at].children()[child].start),
                other => panic!("{other:?} at {at}"),
            }
        }
    }

    /// Lets a rank say something of business cards, and all agents what follows. Gives the agents that were asked or told, in order,
    /// and the answers that ranks get.
    fn say(relays: &mut [Relay], rank: u32, said: Cards) -> (Vec<u32>, Vec<(u32, Cards)>) {
        let (mut asked, mut answers) = (vec![], vec![]);
        let host = relays[0].places.home(rank).node;
        let mut under_way = VecDeque::from([(host, Side::Rank(rank), said)]);
        while let Some((at, from, said)) = under_way.pop_front() {
            for (to, said) in relays[at as usize].cards(from, said) {
                let (next, from) = match to {
                    Side::Rank(rank) => {
                        answers.push((rank, said));
                        continue;
                    }
                    Side::Child(child) => (child, Side::Parent),
                    Side::Parent => {
                        let path = way(relays, at);
                        (path[path.len() - 2], Side::Child(at))
                    }
                };
                asked.push(next);
                under_way.push_back((next, from, said));
            }
        }
        (asked, answers)
    }

    fn two_each(hosts: u32) -> Places {
        Places::new((0..2 * hosts).map(|rank| rank / 2), |_| NodeKind::new(1, []))
    }

    fn card(rank: u32) -> Cards {
        Cards::Card { rank, business_card: vec![rank as u8, 7] }
    }

    #[test]
    fn every_host_is_reached_in_few_steps() {
        for (hosts, radix) in (1..=64).flat_map(|hosts| [1, 2, 3, 8, 64].map(|radix| (hosts, radix))) {
            let relays = tree(hosts, radix, &Places::default());
            // A tree of this depth has room for so many hosts.
            let (mut room, mut depth, mut level) = (1u64, 0, 1u64);
            while room < u64::from(hosts) {
                level *= u64::from(radix);
                room += level;
                depth += 1;
            }
            for host in 0..hosts {
                let passed = way(&relays, host);
                assert_eq!(passed.last(), Some(&host));
                assert!(passed.len() <= depth + 2, "{hosts} hosts, radix {radix}: {passed:?}");
            }
            assert!(relays.iter().all(|relay| relay.children().len() <= radix as usize));
            assert_eq!(relays[0].down(&Frame::new(hosts, &Order::Pulse)), Way::Nowhere);
            assert_eq!(relays[0].down(&Frame::new(ALL, &Order::Pulse)), Way::All);
        }
    }

    #[test]
    fn business_cards_are_looked_up_where_they_are_and_kept_on_the_way() {
        // Hosts 2, 3 and 4 hang on host 1, which hangs on mpirun's own; as 6 to 8 do on 5.
        let mut relays = tree(13, 3, &two_each(13));
        assert_eq!((way(&relays, 2), way(&relays, 6)), (vec![0, 1, 2], vec![0, 5, 6]));
        assert_eq!(say(&mut relays, 4, card(4)), (vec![], vec![]), "nobody wants it yet");
        let lookup = || Cards::Lookup { rank: 4 };
        assert_eq!(say(&mut relays, 5, lookup()), (vec![], vec![(5, card(4))]), "a rank of the same host");
        assert_eq!(say(&mut relays, 6, lookup()), (vec![1, 2, 1, 3], vec![(6, card(4))]), "of a sibling");
        assert_eq!(
            say(&mut relays, 8, lookup()),
            (vec![1, 4], vec![(8, card(4))]),
            "the parent knows it now"
        );
        assert_eq!(say(&mut relays, 12, lookup()), (vec![5, 0, 1, 0, 5, 6], vec![(12, card(4))]));
    }

    #[test]
    fn a_lookup_of_what_is_looked_up_already_waits_for_the_same_answer() {
        let mut relays = tree(13, 3, &two_each(13));
        let lookup = || Cards::Lookup { rank: 12 };
        assert_eq!(say(&mut relays, 4, lookup()).0, [1, 0, 5, 6], "as far as the agent of that rank");
        assert_eq!(say(&mut relays, 5, lookup()).0, [0; 0]);
        assert_eq!(say(&mut relays, 6, lookup()).0, [1]);
        assert_eq!(say(&mut relays, 13, lookup()).0, [0; 0]);
        let (told, answers) = say(&mut relays, 12, card(12));
        assert_eq!(told, [5, 0, 1, 2, 3]);
        assert_eq!(answers, [13, 4, 5, 6].map(|rank| (rank, card(12))));
        assert!(relays.iter().all(|relay| relay.waiting.is_empty()));
        assert_eq!(say(&mut relays, 12, Cards::Card { rank: 12, business_card: vec![] }), (vec![], vec![]));
        assert_eq!(say(&mut relays, 4, lookup()).1, [(4, card(12))], "the first one counts");
    }

    #[test]
    fn nobody_speaks_for_the_rank_of_another() {
        let mut relay = Relay::new(&(0..3), 2);
        relay.place(two_each(3));
        assert_eq!(relay.cards(Side::Rank(0), Cards::Lookup { rank: 2 }).len(), 1);
        for side in [Side::Rank(0), Side::Child(2), Side::Parent] {
            assert_eq!(relay.cards(side, card(2)), []);
        }
        assert_eq!(relay.cards(Side::Child(1), card(2)), [(Side::Rank(0), card(2))]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut relay = Relay::new(&(0..1001), 2000);
        relay.place(Places::new(0..1001, |_| NodeKind::new(1, [])));
        for rank in 1..1001 {
            let business_card = vec![0; banyan_pmi::MAX_BUSINESS_CARD];
            relay.cards(Side::Child(rank), Cards::Card { rank, business_card });
        }
        assert!(relay.kept <= MOST_CARDS && relay.cards.len() == MOST_CARDS / banyan_pmi::MAX_BUSINESS_CARD);
    }
}
