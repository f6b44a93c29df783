//! A job of many ranks in virtual time, from mpirun's start to the first allreduce and the end: what agents and ranks tell each
//! other, how long that takes, and what they keep.
//!
//! The tree, the relays, the search for business cards and all frames are those of real agents ([`crate::tree`],
//! [`crate::frames`]), the schedules and the choice among them those of real ranks. Costs of links and processes are assumed
//! ([`Costs`]). What a rank does on its own host takes no time.

mod figures;
mod ranks;

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use banyan_coll::simulate::{Messages, Schedules};
use banyan_coll::{Groups, Kind, Location, Model, Nodes, Topology, Tuning};
use banyan_pmi::{NodeKind, Places, Reply, Request};
use banyan_topo::Profile;
pub use figures::{Costs, Figures, Reached, Shape, Traffic};
use ranks::{Pair, Rank};

use crate::agent;
use crate::frames::{ALL, Ended, Event, Frame, HEAD, Here, Launch, Order, Reach};
use crate::mapping::{self, Room};
use crate::tree::{Cards, Relay, Side, Way};
use crate::verdict::End;

/// Bytes by which an agent says where it is.
const MEETING: usize = 160;
/// Bytes of a program's name, arguments and environment.
const ENVIRONMENT: usize = 4096;

/// Runs a job.
///
/// # Panics
/// If the job is none, or hangs.
pub fn simulate(shape: Shape, costs: Costs) -> Figures {
    let mut job = Simulated::new(shape, costs);
    job.run();
    job.figures()
}

/// What arrives, when, and after how many messages. What arrives at the same time does so in order of numbers.
struct Arrival {
    time: u64,
    number: u64,
    depth: u32,
    what: What,
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Arrival) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Arrival {}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Arrival) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Arrival) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}

enum What {
    /// The first line of a new agent, at its parent.
    Mark(u32),
    /// A frame, at an agent; `from`: of which child, or of its parent.
    Frame { to: u32, from: Option<u32>, frame: Frame },
    /// What a rank asks its agent for.
    Ask { rank: u32, request: Request },
    /// A business card, at the rank that has asked for it.
    Told { rank: u32, of: u32 },
    /// A process has been started as this rank, and asks for its first things.
    Joins(u32),
    /// A message of one rank, at another.
    Message { to: u32, from: u32 },
}

/// An agent.
struct Agent {
    relay: Relay,
    parent: u32,
    subtree: Range<u32>,
    /// When it, and its way to the network, are free.
    free: [u64; 2],
    traffic: [Traffic; 2],
    ranks: u32,
    /// Ranks that are through.
    through: u32,
}

struct Simulated {
    shape: Shape,
    costs: Costs,
    hosts: u32,
    places: Places,
    launch: Frame,
    agents: Vec<Agent>,
    ranks: Vec<Rank>,
    pairs: HashMap<(u32, u32), Pair>,
    /// What arrives, the next of it first.
    queue: BinaryHeap<Arrival>,
    /// How much has arrived or will.
    number: u64,
    lookups: u64,
    /// How many agents are there, and have ended; how many ranks have got through MPI_Init, and are through with all.
    here: u32,
    empty: u32,
    reached: [Reached; 4],
}

impl Simulated {
    fn new(shape: Shape, costs: Costs) -> Simulated {
        let hosts = shape.ranks.div_ceil(shape.per_host);
        let rooms = vec![Room { slots: shape.per_host, most: None }; hosts as usize];
        let placed = mapping::places(&rooms, shape.ranks, shape.in_turn).expect("there is room");
        let places = Places::new(placed, |_| NodeKind::new(shape.per_host, []));
        let reach = Reach {
            ssh: ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"].map(str::to_owned).to_vec(),
            agent: "/usr/local/bin/mpirun".to_owned(),
            radix: shape.radix,
            patience: Duration::from_secs(30),
        };
        let launch = Launch {
            places: places.clone(),
            size: shape.ranks,
            folder: PathBuf::from("/home/user"),
            settings: vec![(String::new(), "x".repeat(ENVIRONMENT))],
            ..Launch::question(reach)
        };
        let topology = Topology {
            ranks: shape.ranks,
            cores: shape.per_host,
            levels: Groups::on_nodes(hosts, shape.per_host.min(shape.ranks)),
            ..Topology::assumed(shape.ranks, false, shape.per_host)
        };
        let nodes = Nodes::new((0..shape.ranks).map(|rank| Location::from(places.home(rank).node)));
        let tuning = Tuning { model: Model::of(&Profile::default(), hosts), ..Tuning::default() };
        let schedules = Schedules::new(Kind::Allreduce, 8, (&topology, &nodes), &tuning);
        let home = |rank: u32| places.home(rank).node;
        let rank = |rank: u32| {
            let mut rounds = schedules.messages(rank);
            let far = |other: &u32| home(*other) != home(rank);
            for Messages { to, from } in &mut rounds {
                to.retain(far);
                from.retain(far);
            }
            rounds.retain(|round| !(round.to.is_empty() && round.from.is_empty()));
            Rank::new(rounds)
        };
        let ranks = (0..shape.ranks).map(rank).collect();
        let mut job = Simulated {
            shape,
            costs,
            hosts,
            launch: Frame::new(ALL, &Order::Begin(Box::new(launch))),
            agents: Vec::new(),
            ranks,
            pairs: HashMap::new(),
            queue: BinaryHeap::new(),
            number: 0,
            lookups: 0,
            here: 0,
            empty: 0,
            reached: [Reached::default(); 4],
            places,
        };
        let mut subtrees = vec![(0, 0..hosts)];
        let mut agents: Vec<Option<Agent>> = (0..hosts).map(|_| None).collect();
        while let Some((parent, subtree)) = subtrees.pop() {
            let (number, agent) = (subtree.start, job.agent(parent, subtree));
            subtrees.extend(agent.relay.children().iter().map(|child| (number, child.clone())));
            agents[number as usize] = Some(agent);
        }
        job.agents = agents.into_iter().map(|agent| agent.expect("each host has an agent")).collect();
        job
    }

    fn agent(&self, parent: u32, subtree: Range<u32>) -> Agent {
        Agent {
            parent,
            relay: Relay::new(&subtree, self.shape.radix),
            ranks: self.places.ranks_on(subtree.start, self.shape.ranks).count() as u32,
            subtree,
            free: [0; 2],
            traffic: [Traffic::default(); 2],
            through: 0,
        }
    }

    fn run(&mut self) {
        self.start_children(0, (0, 0));
        self.is_here(0, (0, 0));
        while let Some(Arrival { time, depth, what, .. }) = self.queue.pop() {
            self.take(time, depth, what);
        }
        assert_eq!(self.empty, self.hosts, "the job hangs");
    }

    fn arrive(&mut self, at: u64, depth: u32, what: What) {
        self.number += 1;
        self.queue.push(Arrival { time: at, number: self.number, depth, what });
    }

    fn reach(&mut self, part: usize, (time, depth): (u64, u32)) {
        let reached = &mut self.reached[part];
        reached.time = reached.time.max(Duration::from_nanos(time));
        reached.depth = reached.depth.max(depth);
    }

    /// An agent works for so long, from `time` at the earliest; gives when it is through.
    fn work(&mut self, agent: u32, time: u64, cost: u64) -> u64 {
        let free = &mut self.agents[agent as usize].free[0];
        *free = (*free).max(time) + cost;
        *free
    }

    /// Sends a frame from one agent to another.
    fn send(&mut self, from: u32, to: u32, (time, depth): (u64, u32), frame: Frame) {
        let bytes = frame.body.len() + HEAD;
        let sender = &mut self.agents[from as usize];
        sender.free[1] = sender.free[1].max(time) + bytes as u64 * self.costs.byte;
        sender.traffic[1].add(bytes);
        let (at, is_child) = (sender.free[1] + self.costs.latency, sender.parent == to && from > 0);
        self.agents[to as usize].traffic[0].add(bytes);
        self.arrive(at, depth + 1, What::Frame { to, from: is_child.then_some(from), frame });
    }

    fn start_children(&mut self, agent: u32, (time, depth): (u64, u32)) {
        for child in self.agents[agent as usize].relay.children().to_vec() {
            let started = self.work(agent, time, self.costs.start_ssh);
            self.arrive(started + self.costs.ssh, depth + 1, What::Mark(child.start));
        }
    }

    fn take(&mut self, time: u64, depth: u32, what: What) {
        match what {
            What::Mark(child) => {
                let parent = self.agents[child as usize].parent;
                let now = (self.work(parent, time, self.costs.frame), depth);
                let hosts = self.agents[child as usize].subtree.clone().map(|host| format!("node{host:06}"));
                let you = Order::You { number: child, hosts: hosts.collect() };
                self.send(parent, child, now, Frame::new(child, &you));
                self.send(parent, child, now, self.launch.clone());
            }
            What::Frame { to, from, frame } => {
                let now = (self.work(to, time, self.costs.frame), depth);
                match from {
                    Some(child) => self.event(to, child, now, frame),
                    None => self.order(to, now, &frame),
                }
            }
            What::Ask { rank, request } => {
                let agent = self.places.home(rank).node;
                let now = (self.work(agent, time, self.costs.frame), depth);
                self.request(agent, rank, now, request);
            }
            What::Joins(rank) => self.join(rank, (time, depth)),
            What::Told { rank, of } => self.connect(rank, of, (time, depth)),
            What::Message { to, from } => self.receive(to, from, (time, depth)),
        }
    }

    /// An agent gets an order, or gives itself one.
    fn order(&mut self, agent: u32, now: (u64, u32), frame: &Frame) {
        let order = frame.open();
        if let Some(Order::Begin(_)) = order {
            self.start_children(agent, now);
            return self.is_here(agent, now);
        }
        let way = self.agents[agent as usize].relay.down(frame);
        if way == Way::All {
            for child in self.agents[agent as usize].relay.children().to_vec() {
                self.send(agent, child.start, now, frame.clone());
            }
        }
        match order {
            Some(Order::Start { agents, places }) => {
                self.agents[agent as usize].relay.place(agents);
                for rank in places.ranks_on(agent, self.shape.ranks) {
                    let started = self.work(agent, now.0, self.costs.start_rank);
                    self.tell(agent, (started, now.1), &Event::Started { rank, pid: 100_000 + rank });
                    self.arrive(started + self.costs.init, now.1, What::Joins(rank));
                }
                self.tell(agent, now, &Event::AllStarted { cpus: Vec::new() });
            }
            Some(Order::Cards(said)) => self.cards(agent, Side::Parent, now, said),
            Some(Order::Exit) => self.reach(3, now),
            _ => {}
        }
    }

    /// An agent has read of a job.
    fn is_here(&mut self, agent: u32, now: (u64, u32)) {
        // As long as a name, and what other agents find out by whether they are on this machine.
        let host = format!("{agent:0MEETING$}");
        let here = Here { host, cores: self.shape.per_host, bound: Vec::new(), room: None, meeting: None };
        self.tell(agent, now, &Event::Here(here));
    }

    /// An agent tells mpirun's own something.
    fn tell(&mut self, agent: u32, now: (u64, u32), event: &Event) {
        match agent {
            0 => self.judge(now, event),
            _ => self.send(agent, self.agents[agent as usize].parent, now, Frame::new(agent, event)),
        }
    }

    /// An agent gets a frame of one that it has started.
    fn event(&mut self, agent: u32, child: u32, now: (u64, u32), frame: Frame) {
        match frame.open() {
            Some(Event::Cards(said)) => self.cards(agent, Side::Child(child), now, said),
            Some(event) if agent == 0 => self.judge(now, &event),
            _ => self.send(agent, self.agents[agent as usize].parent, now, frame),
        }
    }

    /// What mpirun's own agent makes of an event.
    fn judge(&mut self, now: (u64, u32), event: &Event) {
        match event {
            Event::Here(_) => {
                self.here += 1;
                self.reach(0, now);
                if self.here == self.hosts {
                    let (agents, places) = (self.places.clone(), self.places.clone());
                    self.order(0, now, &Frame::new(ALL, &Order::Start { agents, places }));
                }
            }
            Event::Empty { written: true } => {
                self.empty += 1;
                self.reach(3, now);
                if self.empty == self.hosts {
                    self.order(0, now, &Frame::new(ALL, &Order::Exit));
                }
            }
            _ => {}
        }
    }

    fn cards(&mut self, agent: u32, from: Side, now: (u64, u32), said: Cards) {
        for (to, said) in self.agents[agent as usize].relay.cards(from, said) {
            match (to, said) {
                (Side::Rank(to), Cards::Card { rank, business_card }) => {
                    let reply = Reply::BusinessCard { rank, business_card };
                    self.answer(to, &reply);
                    self.arrive(now.0 + self.costs.socket, now.1 + 1, What::Told { rank: to, of: rank });
                }
                (Side::Rank(_), Cards::Lookup { .. }) => {}
                (Side::Child(child), said) => {
                    self.send(agent, child, now, Frame::new(child, &Order::Cards(said)));
                }
                (Side::Parent, said) => self.tell(agent, now, &Event::Cards(said)),
            }
        }
    }

    fn request(&mut self, agent: u32, rank: u32, now: (u64, u32), request: Request) {
        match request {
            Request::Hello { .. } => self.tell(agent, now, &Event::Joined { rank }),
            Request::Publish { business_card } => {
                self.cards(agent, Side::Rank(rank), now, Cards::Card { rank, business_card });
            }
            Request::Lookup { rank: wanted } => {
                self.cards(agent, Side::Rank(rank), now, Cards::Lookup { rank: wanted });
            }
            request => {
                let is_last = request == Request::Finalized;
                self.tell(agent, now, &Event::Request { rank, request });
                if is_last {
                    self.end(agent, rank, now);
                }
            }
        }
    }

    /// A rank's process ends.
    fn end(&mut self, agent: u32, rank: u32, now: (u64, u32)) {
        let ended = Ended { rank, end: End::Code(0), out_of_memory: false };
        self.tell(agent, now, &Event::Ended(vec![ended]));
        let this = &mut self.agents[agent as usize];
        this.through += 1;
        if this.through == this.ranks {
            self.tell(agent, now, &Event::Empty { written: false });
            self.tell(agent, now, &Event::Empty { written: true });
        }
    }

    fn figures(&self) -> Figures {
        let most = |pick: fn(&Agent) -> u64| self.agents.iter().skip(1).max_by_key(|agent| pick(agent));
        let busiest = most(|agent| agent.traffic[0].bytes + agent.traffic[1].bytes);
        let tables = |agent: &Agent| agent.relay.bytes() + agent::sizes(agent.ranks as usize, None);
        let first = &self.agents[0];
        let names = self.hosts as usize * ("node000000".len() + size_of::<String>());
        let job = agent::sizes(first.ranks as usize, Some((self.shape.ranks as usize, self.hosts as usize)));
        Figures {
            hosts: self.hosts,
            agents: self.reached[0],
            init: self.reached[1],
            allreduce: self.reached[2],
            end: self.reached[3],
            first: first.traffic,
            busiest: busiest.map(|agent| agent.traffic).unwrap_or_default(),
            rank_bytes: self.ranks.iter().map(|rank| rank.bytes).max().unwrap_or(0),
            lookups: self.lookups,
            connections: [
                self.pairs.values().filter(|pair| pair.connected.is_some()).count() as u64,
                self.ranks.iter().map(|rank| rank.connections).max().unwrap_or(0),
            ],
            tables: [
                first.relay.bytes() + names + job,
                self.agents.iter().skip(1).map(tables).max().unwrap_or(0),
            ],
        }
    }
}

#[cfg(test)]
mod tests;
