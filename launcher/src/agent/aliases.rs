//! What moves ranks between agents before any of them is started: hosts that are one machine, and `ppr` over parts of hosts.
//!
//! Names of one machine: an agent that finds itself on the machine of an earlier one hands its ranks over to that one.
//! So they share memory and cores as ranks of one host do, because they are.
//!
//! Which agents are worth asking is seen from hints in what they tell; the answer is a handshake on memory (`pmi::Offer`). Agents in
//! containers of their own, of another user, or with other CPUs stay apart.

use std::collections::{BTreeMap, HashMap};

use banyan_pmi::{MOST_RANKS, Offer};

use super::{Agent, Member};
use crate::frames::{Meeting, Order};
use crate::placement::numbered;
use crate::plan::too_many;
use crate::pmi1;
use crate::verdict::Failure;

/// Who may be on one machine, and who is.
#[derive(Default)]
pub(super) struct Aliases {
    /// By agent: its cores, and how others find out whether they are on its machine.
    meetings: Vec<Option<(u32, Meeting)>>,
    /// The number of answers that are missing, once agents were asked.
    missing: Option<u32>,
    /// By agent: the earlier one whose machine it is on.
    first: Vec<Option<u32>>,
}

impl Aliases {
    /// An agent is there.
    pub(super) fn take(&mut self, agent: u32, cores: u32, meeting: Option<Meeting>) {
        let at = agent as usize;
        if self.missing.is_none() {
            self.meetings.resize(self.meetings.len().max(at + 1), None);
            self.meetings[at] = meeting.map(|meeting| (cores, meeting));
        }
    }

    /// What to ask of which agents.
    fn questions(&self) -> Vec<(u32, Order)> {
        let mut alike: HashMap<(u32, &str), Vec<(u32, Offer)>> = HashMap::new();
        let mut questions = Vec::new();
        for (agent, meeting) in (0..).zip(&self.meetings) {
            let Some((cores, Meeting { whereabouts, offer })) = meeting else { continue };
            let earlier = alike.entry((*cores, whereabouts)).or_default();
            if !earlier.is_empty() {
                questions.push((agent, Order::Meet(earlier.clone())));
            }
            earlier.push((agent, offer.clone()));
        }
        questions
    }

    /// The first agent of the machine that an agent is on.
    fn first_of(&self, agent: u32) -> u32 {
        let earlier = self.first.get(agent as usize).copied().flatten();
        earlier.map_or(agent, |earlier| self.first_of(earlier))
    }
}

impl Agent {
    /// Asks agents that may be on one machine; true while answers are missing.
    pub(super) fn looks_for_aliases(&mut self) -> bool {
        if self.hosts.aliases.missing.is_none() {
            let separate = self.plan.global.separate_hosts;
            let questions = if separate { Vec::new() } else { self.hosts.aliases.questions() };
            self.hosts.aliases.missing = Some(questions.len() as u32);
            for (agent, question) in questions {
                self.order(agent, question);
            }
        }
        self.hosts.aliases.missing != Some(0)
    }

    /// An agent says whose machine it is on. When all have, ranks move.
    pub(super) fn met(&mut self, agent: u32, first: Option<u32>) {
        let aliases = &mut self.hosts.aliases;
        let Some(missing) = aliases.missing.as_mut().filter(|missing| **missing > 0) else { return };
        *missing -= 1;
        aliases.first.resize(self.plan.hosts.len(), None);
        aliases.first[agent as usize] = first;
        if *missing == 0 {
            self.merge();
            self.begin();
        }
    }

    /// Gives the ranks of agents on one machine to the first of them.
    fn merge(&mut self) {
        let aliases = &self.hosts.aliases;
        let first_of = |rank| aliases.first_of(self.plan.agent_of(rank));
        let places = (0..self.plan.size).map(first_of).collect();
        for agent in 1..self.plan.hosts.len() as u32 {
            let first = self.hosts.aliases.first_of(agent);
            if first != agent && self.plan.global.verbose {
                let hosts = &self.plan.hosts;
                let (name, same) = (&hosts[agent as usize], &hosts[first as usize]);
                self.say(&format!("host {name} is the same machine as {same}: its ranks are there"));
            }
        }
        self.place(places, false);
    }

    /// Deals out ranks that are counted by the parts of hosts, if that has not been done; true if so.
    pub(super) fn deals_out(&mut self) -> bool {
        let Some(agents) = self.plan.undealt.take() else { return false };
        let room = |&agent: &u32| {
            let room = match agent {
                0 => self.here.plan.room(),
                _ => self.hosts.others[agent as usize - 1].room,
            };
            // Another name of a machine adds nothing to it.
            if self.hosts.aliases.first_of(agent) == agent { room.unwrap_or(0) as usize } else { 0 }
        };
        let mut places: Vec<u32> =
            agents.iter().flat_map(|agent| std::iter::repeat_n(*agent, room(agent))).collect();
        let (asked, most) = (self.plan.size as usize, places.len());
        if asked > most {
            let why =
                format!("--map-by ppr has room for {most} ranks on these hosts, and {asked} are asked for");
            self.fail_with(None, Failure::System(why));
            return true;
        }
        places.truncate(if asked == 0 { most } else { asked });
        if places.len() > MOST_RANKS as usize {
            self.fail_with(None, Failure::System(too_many().message));
            return true;
        }
        self.plan.size = places.len() as u32;
        self.ranks = vec![Member::default(); places.len()];
        self.place(places, true);
        true
    }

    /// Tells agents that get other ranks than they had; all of them, if ranks are dealt out for the first time.
    fn place(&mut self, agents: Vec<u32>, is_first: bool) {
        let size = self.plan.size;
        let before = std::mem::replace(&mut self.plan.places, numbered(agents));
        let mut changed: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        if is_first {
            changed.extend((0..self.plan.hosts.len() as u32).map(|agent| (agent, Vec::new())));
        }
        for (old, new) in (0..size).map(|rank| (before.home(rank).node, self.plan.agent_of(rank))) {
            if old != new {
                changed.extend([(old, Vec::new()), (new, Vec::new())]);
            }
        }
        let on = |agent| self.plan.places.ranks_on(agent, size);
        changed.iter_mut().for_each(|(agent, ranks)| ranks.extend(on(*agent)));
        self.pmi = pmi1::Job::new(self.plan.hosts_with_ranks());
        for agent in changed.keys() {
            if let Some(other) = self.hosts.of(*agent) {
                other.here = None;
            }
        }
        for (agent, ranks) in changed {
            self.order(agent, Order::Ranks { size, ranks });
        }
    }
}

/// True if the process that makes this offer is on this machine, and its ranks would use and see the same as those of this one.
pub(super) fn is_same_host(offer: &Offer) -> bool {
    const LINKS: [&str; 6] = ["ns/mnt", "ns/net", "ns/ipc", "ns/uts", "ns/user", "root"];
    const STATUS: [&str; 5] = ["Uid:", "Gid:", "Groups:", "Cpus_allowed:", "Mems_allowed:"];
    let other = offer.pid().to_string();
    let link = |process: &str, link: &str| std::fs::read_link(format!("/proc/{process}/{link}")).ok();
    let status = |process: &str| {
        let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let is_it = |line: &&str| STATUS.iter().any(|name| line.starts_with(name));
        Some(text.lines().filter(is_it).map(str::to_owned).collect::<Vec<_>>())
    };
    let is_equal = |name: &&str| link("self", name).is_some_and(|own| link(&other, name) == Some(own));
    let is_alike =
        LINKS.iter().all(is_equal) && status("self").is_some_and(|own| status(&other) == Some(own));
    is_alike && offer.open().is_some()
}
