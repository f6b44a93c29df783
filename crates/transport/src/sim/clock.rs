//! A virtual clock for a simulated network: what a program would take on links of a given cost.
//!
//! With a clock no time passes while a process works. Time goes on when all of them wait (they are armed, and nothing has
//! arrived for any), and then at once to the next arrival. So it depends on the program alone: not on threads, cores or
//! seeds. A frame leaves when the frames before it have left: its sender's port carries one after the other, and frames to
//! other nodes go through the one port that the processes of a node share. Frames of class Control cost nothing, as runtimes send them by
//! the time of day.

use std::time::Duration;

use super::state::State;
use crate::{Class, Head};

/// Where the endpoints of a network are, and what its links cost.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The node of each endpoint.
    pub nodes: Vec<usize>,
    /// Between endpoints of a node.
    pub near: LinkCost,
    /// Between nodes.
    pub far: LinkCost,
}

/// What it costs to send a frame, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct LinkCost {
    /// From the moment when the last byte has left until the frame arrives.
    pub latency: f64,
    /// For so long each frame occupies the port, whatever its length.
    pub overhead: f64,
    /// For so long each byte occupies the port.
    pub per_byte: f64,
}

impl LinkCost {
    /// Nanoseconds that a frame with a body of so many bytes occupies its port.
    fn occupies(&self, bytes: usize) -> u64 {
        nanoseconds(self.overhead + (Head::BYTES + bytes) as f64 * self.per_byte)
    }
}

/// When a transfer is over that has not left yet.
pub(super) const NOT_YET: u64 = u64::MAX;

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl Clock {
    fn link(&self, from: usize, to: usize) -> &LinkCost {
        if self.nodes[from] == self.nodes[to] { &self.near } else { &self.far }
    }

    /// Latency, seconds, and seconds a byte, as [`crate::Caps`] have them.
    pub(super) fn alpha_beta(&self, from: usize, to: usize) -> (f64, f64) {
        let link = self.link(from, to);
        (link.latency + link.overhead, link.per_byte)
    }
}

impl State {
    /// Endpoint `me` waits. If all others do, too, time goes on; gives the endpoints for which something has arrived then.
    pub(super) fn wait(&mut self, me: usize) -> Vec<usize> {
        self.ends[me].waits = true;
        let ends = 0..self.ends.len();
        let waits = |i: usize| self.ends[i].gone || (self.ends[i].waits && !self.has_arrivals(i));
        if self.options.clock.is_none() || !ends.clone().all(waits) {
            return Vec::new();
        }
        for from in ends.clone() {
            self.release_held(from);
            self.launch_transfers(from);
        }
        for (from, to) in ends.clone().flat_map(|from| ends.clone().map(move |to| (from, to))) {
            if self.ends[to].gone {
                let at = self.at(from, to);
                self.links[at].flight.clear();
            }
        }
        let flights = self.links.iter().flat_map(|link| &link.flight).map(|flight| flight.due);
        let transfers = self.ends.iter().flat_map(|end| &end.pending).map(|pending| pending.due);
        if let Some(next) = flights.chain(transfers).min() {
            self.tick = self.tick.max(next);
        }
        ends.filter(|&i| self.has_arrivals(i)).collect()
    }

    /// When a frame that leaves now arrives.
    pub(super) fn arrival(&mut self, (from, to): (usize, usize), head: &Head, bytes: usize) -> u64 {
        match &self.options.clock {
            Some(_) if head.class == Class::Control => self.tick,
            Some(_) => self.carried(from, to, bytes),
            None => self.due(),
        }
    }

    /// The one-sided transfers that have been started leave: a request goes to the peer, and the bytes, or an answer, come back.
    fn launch_transfers(&mut self, me: usize) {
        let mut pending = std::mem::take(&mut self.ends[me].pending);
        for transfer in pending.iter_mut().filter(|transfer| transfer.due == NOT_YET) {
            let Some(clock) = &self.options.clock else { break };
            let latency = nanoseconds(clock.link(me, transfer.peer).latency);
            transfer.due = self.carried(transfer.peer, me, transfer.remote.len as usize) + latency;
        }
        self.ends[me].pending = pending;
    }

    /// Sends bytes through the port of `from`; gives the time of their arrival, by the clock.
    fn carried(&mut self, from: usize, to: usize, bytes: usize) -> u64 {
        let Some(clock) = &self.options.clock else { return self.tick };
        let link = clock.link(from, to);
        let near = clock.nodes[from] == clock.nodes[to];
        // Behind the ports of the endpoints there are those of the nodes.
        let port = if near { from } else { self.ends.len() + clock.nodes[from] };
        let port = self.ports_free.entry(port).or_default();
        *port = self.tick.max(*port) + link.occupies(bytes);
        *port + nanoseconds(link.latency)
    }

    fn has_arrivals(&self, me: usize) -> bool {
        let end = &self.ends[me];
        !end.lost.is_empty()
            || !end.wanted.is_empty()
            || !end.sent.is_empty()
            || end.pending.iter().any(|pending| pending.due <= self.tick)
            || (0..self.ends.len()).any(|from| {
                self.links[self.at(from, me)].flight.front().is_some_and(|flight| flight.due <= self.tick)
            })
    }

    pub(super) fn is_quiet(&self, me: usize) -> bool {
        if self.options.clock.is_some() {
            return !self.has_arrivals(me);
        }
        let end = &self.ends[me];
        !end.refused
            && end.lost.is_empty()
            && end.wanted.is_empty()
            && end.pending.is_empty()
            && end.held.is_empty()
            && end.sent.is_empty()
            && (0..self.ends.len()).all(|from| self.links[self.at(from, me)].flight.is_empty())
    }
}

impl super::Net {
    /// The time that has passed by the [`Clock`].
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.0.lock().tick)
    }
}
