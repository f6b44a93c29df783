//! What the ranks of a simulated job do: they join, and carry out an allreduce along its schedule.

use std::collections::HashMap;

use banyan_coll::simulate::Messages;
use banyan_pmi::{Job, Reply, Request, VERSION, codec};

use super::{Simulated, What};

/// Bytes of a business card with an address of each family.
const BUSINESS_CARD: usize = 56;

/// A rank, as far as it has come with its allreduce.
#[derive(Default)]
pub(super) struct Rank {
    /// Its rounds.
    rounds: Vec<Messages>,
    round: usize,
    /// The latest that it has waited for.
    at: (u64, u32),
    /// How many messages have come from whom that no round has taken.
    arrived: HashMap<u32, u32>,
    pub(super) bytes: u64,
    pub(super) connections: u64,
    is_in: bool,
}

impl Rank {
    pub(super) fn new(rounds: Vec<Messages>) -> Rank {
        Rank { rounds, ..Rank::default() }
    }
}

/// A pair of ranks on two hosts that talk.
#[derive(Default)]
pub(super) struct Pair {
    /// They are connected from this time on.
    pub(super) connected: Option<(u64, u32)>,
    /// Messages that wait for that.
    waiting: Vec<(u32, u32)>,
}

impl Simulated {
    /// A rank asks its agent for something.
    pub(super) fn ask(&mut self, rank: u32, (time, depth): (u64, u32), request: Request) {
        let mut bytes = Vec::new();
        codec::encode(&request, &mut bytes).expect("requests are short");
        self.ranks[rank as usize].bytes += bytes.len() as u64;
        self.arrive(time + self.costs.socket, depth + 1, What::Ask { rank, request });
    }

    /// A rank gets a frame of its agent.
    pub(super) fn answer(&mut self, rank: u32, reply: &Reply) {
        let mut bytes = Vec::new();
        codec::encode(reply, &mut bytes).expect("replies fit into a frame");
        self.ranks[rank as usize].bytes += bytes.len() as u64;
    }

    /// MPI_Init of a rank, and the beginning of its allreduce.
    pub(super) fn join(&mut self, rank: u32, now: (u64, u32)) {
        let places = self.places.clone();
        let job = Job { rank, size: self.shape.ranks, places, ..Job::singleton(1) };
        self.answer(rank, &Reply::Welcome { version: VERSION, job: Box::new(job) });
        self.ask(rank, now, Request::Hello { version: VERSION, pid: 100_000 + rank });
        self.ask(rank, now, Request::Publish { business_card: vec![1; BUSINESS_CARD] });
        self.ask(rank, now, Request::Ready);
        self.reach(1, now);
        self.ranks[rank as usize].is_in = true;
        self.begin_round(rank, now);
        self.go_on(rank, now);
    }

    /// Sends the messages of a rank's present round, and waits for connections where there are none.
    fn begin_round(&mut self, rank: u32, now: (u64, u32)) {
        let this = &self.ranks[rank as usize];
        let to = this.rounds.get(this.round).map(|round| round.to.clone()).unwrap_or_default();
        for to in to {
            let pair = self.pairs.entry((rank.min(to), rank.max(to))).or_default();
            match pair.connected {
                Some(since) => self.message((rank, to), now, since),
                None => {
                    let asked = pair.waiting.iter().any(|&(from, _)| from == rank);
                    pair.waiting.push((rank, to));
                    if !asked {
                        self.lookups += 1;
                        self.ask(rank, now, Request::Lookup { rank: to });
                    }
                }
            }
        }
    }

    /// A message between ranks that are connected, from some time on.
    fn message(&mut self, (from, to): (u32, u32), now: (u64, u32), connected: (u64, u32)) {
        let (time, depth) = (now.0.max(connected.0), now.1.max(connected.1));
        self.arrive(time + self.costs.latency, depth + 1, What::Message { to, from });
    }

    /// A rank knows where another one listens, and connects to it, unless that has happened.
    pub(super) fn connect(&mut self, rank: u32, of: u32, now: (u64, u32)) {
        /// Messages of the kernel and of the handshake before the first one of ours.
        const MESSAGES: u32 = 5;
        let pair = self.pairs.entry((rank.min(of), rank.max(of))).or_default();
        if pair.connected.is_some() {
            return;
        }
        let connected = (now.0 + u64::from(MESSAGES) * self.costs.latency, now.1 + MESSAGES);
        pair.connected = Some(connected);
        for ends in std::mem::take(&mut pair.waiting) {
            self.message(ends, now, connected);
        }
        for rank in [rank, of] {
            self.ranks[rank as usize].connections += 1;
        }
    }

    /// A message comes to a rank.
    pub(super) fn receive(&mut self, rank: u32, from: u32, now: (u64, u32)) {
        *self.ranks[rank as usize].arrived.entry(from).or_default() += 1;
        self.go_on(rank, now);
    }

    /// Goes on to a rank's next rounds, if all messages of the present one have come.
    fn go_on(&mut self, rank: u32, (time, depth): (u64, u32)) {
        let this = &mut self.ranks[rank as usize];
        this.at = (this.at.0.max(time), this.at.1.max(depth));
        if !this.is_in {
            return;
        }
        loop {
            let this = &mut self.ranks[rank as usize];
            let Some(round) = this.rounds.get(this.round) else { break };
            if !round.from.iter().all(|from| this.arrived.get(from).is_some_and(|&count| count > 0)) {
                return;
            }
            for from in &round.from {
                *this.arrived.entry(*from).or_default() -= 1;
            }
            this.round += 1;
            let now = this.at;
            self.begin_round(rank, now);
        }
        let this = &mut self.ranks[rank as usize];
        this.is_in = false;
        let now = this.at;
        self.reach(2, now);
        self.ask(rank, now, Request::Finalized);
    }
}
