//! The job part's side of the other hosts: their start, their output and input, their loss, and their end.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use banyan_pmi::Places;
use banyan_topo::Bound;

use super::aliases::Aliases;
use super::state::Report;
use super::{Agent, JobState, Token};
use crate::frames::{ALL, Event, Frame, Here, Order};
use crate::input::Source;
use crate::output::StreamKind;
use crate::plan::{HostPlan, JobPlan, kind};
use crate::pmi1::Up;
use crate::trouble::{listed, reason};
use crate::verdict::{End, Failure};
use crate::{Trouble, placement};

/// How long a host may take to kill its processes and say so: longer than it tries.
const KILL_TIME: Duration = Duration::from_secs(7);

/// How long agents may take to end when all is over.
pub(super) const EXIT_TIME: Duration = Duration::from_secs(2);

/// Another host.
#[derive(Default)]
pub(super) struct Other {
    /// Its cores and where its ranks are to run, once its agent is there.
    pub(super) here: Option<(u32, Vec<Bound>)>,
    /// How many ranks it takes, where they are counted by its parts.
    pub(super) room: Option<u32>,
    started: bool,
    childless: bool,
    written: bool,
    quiet: bool,
    lost: bool,
    /// Bytes of its output that were written, by kind, and that it was not told of.
    owed: [u32; 2],
    /// It was told that nobody reads output of this kind.
    hung_up: [bool; 2],
}

/// Bytes that the job part keeps of another host.
#[cfg(feature = "sim")]
pub(super) const EACH: usize = size_of::<Other>();

/// What the job part knows of the other hosts.
#[derive(Default)]
pub(super) struct Hosts {
    pub(super) others: Vec<Other>,
    pub(super) aliases: Aliases,
    /// The ranks of this host have started.
    started_here: bool,
    /// All hosts were there, and were told to start their ranks.
    begun: bool,
    /// What rank 0 reads instead of mpirun's own input.
    input: Option<OwnedFd>,
    /// Input for rank 0 on another host.
    source: Option<Source>,
    window: u32,
    killing: Option<Instant>,
    exiting: Option<Instant>,
    pub(super) report: Option<Report>,
}

impl Hosts {
    pub(super) fn new(plan: &JobPlan) -> Hosts {
        let others = std::iter::repeat_with(Other::default).take(plan.hosts.len() - 1).collect();
        Hosts { others, begun: !plan.has_other_hosts(), ..Hosts::default() }
    }

    /// The other host with this agent. Agents were checked when their frames came.
    pub(super) fn of(&mut self, agent: u32) -> Option<&mut Other> {
        self.others.get_mut((agent as usize).checked_sub(1)?)
    }

    pub(super) fn pulse(&mut self, agent: u32, quiet: bool) {
        if let Some(other) = self.of(agent) {
            other.quiet = quiet;
        }
    }

    pub(super) fn emptied(&mut self, agent: u32, written: bool) {
        if let Some(other) = self.of(agent) {
            (other.childless, other.quiet) = (true, true);
            other.written |= written;
        }
    }

    /// True if all ranks that can be started have been.
    pub(super) fn have_started(&self) -> bool {
        self.started_here && self.others.iter().all(|other| other.started)
    }

    pub(super) fn are_childless(&self) -> bool {
        self.others.iter().all(|other| other.childless)
    }

    pub(super) fn have_written(&self) -> bool {
        self.others.iter().all(|other| other.written)
    }

    /// True if all ranks of the other hosts wait or have ended.
    pub(super) fn are_quiet(&self) -> bool {
        self.others.iter().all(|other| other.quiet)
    }

    /// The other hosts that are there.
    pub(super) fn living(&self) -> usize {
        self.others.iter().filter(|other| !other.lost).count()
    }

    pub(super) fn kill_from(&mut self, now: Instant) {
        self.killing = Some(now);
    }

    /// When hosts that have not ended are given up.
    pub(super) fn give_up_at(&self) -> Option<Instant> {
        self.killing.filter(|_| !self.are_childless()).map(|since| since + KILL_TIME)
    }

    pub(super) fn next_tick(&self) -> Option<Instant> {
        let exit = self.exiting.map(|since| since + EXIT_TIME);
        exit.into_iter().chain(self.report.as_ref().map(|report| report.until)).min()
    }
}

impl Agent {
    /// Starts the agents of the other hosts.
    pub(super) fn start_agents(&mut self, input: Option<OwnedFd>) -> Result<(), Trouble> {
        let here = &mut self.here;
        let launch = placement::launch(&self.plan, &here.plan, &here.common)?;
        self.hosts.window = launch.window;
        self.hosts.input = input;
        self.hosts.aliases.take(0, here.plan.cores, here.meeting());
        let begin = Order::Begin(Box::new(launch));
        let frame = Frame::new(ALL, &begin);
        let Order::Begin(launch) = begin else { return Ok(()) };
        if !frame.is_sound() {
            return Err(Trouble::new(
                "other hosts cannot be told of this job: its environment and arguments are longer than 16 MiB, or a path is no text",
            ));
        }
        here.links.start(&here.epoll, 0, &self.plan.hosts, &launch, frame, |at| Token::Link(at).encode());
        Ok(())
    }

    /// The agent of a host is there. When all of them are, the ranks are started.
    pub(super) fn host_is_here(&mut self, agent: u32, here: Here) {
        let Here { cores, bound, room, meeting, .. } = here;
        let bound = bound.into_iter().map(|(socket, cache)| Bound { socket, cache }).collect();
        self.hosts.aliases.take(agent, cores, meeting);
        if let Some(other) = self.hosts.of(agent) {
            (other.here, other.room) = (Some((cores, bound)), room);
        }
        self.begin();
    }

    /// When all hosts are there, tells them to start their ranks.
    pub(super) fn begin(&mut self) {
        if self.hosts.begun
            || self.state != JobState::Running
            || self.hosts.others.iter().any(|other| other.here.is_none())
            || self.looks_for_aliases()
            || self.deals_out()
        {
            return;
        }
        self.hosts.begun = true;
        let input = self.hosts.input.take();
        match self.plan.agent_of(0) {
            0 => self.here.common.input = input,
            _ if !self.here.plan.input => {}
            _ => match Source::new(input) {
                Ok(source) => self.hosts.source = Some(source),
                Err(why) => {
                    let why = format!("standard input: {}", reason(&why));
                    return self.fail_with(None, Failure::System(why));
                }
            },
        }
        let HostPlan { cores, bound, .. } = &self.here.plan;
        let here = std::iter::once((*cores, bound.as_slice()));
        let others = self.hosts.others.iter().flat_map(|other| &other.here);
        let all = here.chain(others.map(|(cores, bound)| (*cores, bound.as_slice())));
        let known: HashMap<u32, _> = self.plan.nodes.iter().copied().zip(all).collect();
        let node = |rank| self.plan.nodes[self.plan.agent_of(rank) as usize];
        let places = Places::new((0..self.plan.size).map(node), |node| {
            let (cores, bound) = known[&node];
            kind(cores, bound)
        });
        self.order(ALL, Order::Start { agents: self.plan.places.clone(), places });
        self.pass_input();
    }

    /// Says which hosts ranks wait for before they are started; false if they have been.
    pub(super) fn say_who_is_missing(&mut self) -> bool {
        const MOST: usize = 8;
        if self.hosts.begun {
            return false;
        }
        let names = self.plan.hosts.iter().skip(1).zip(&self.hosts.others);
        let missing: Vec<&String> =
            names.filter(|(_, other)| other.here.is_none()).map(|(name, _)| name).collect();
        let list = listed(missing.into_iter(), MOST);
        self.say(&format!("no rank is started yet: no word yet from {list}"));
        true
    }

    /// All ranks of a host have started; `-v` says which process and which CPUs each of them has.
    pub(super) fn all_started(&mut self, agent: u32, cpus: &[String]) {
        const MOST: usize = 64;
        match self.hosts.of(agent) {
            Some(other) => other.started = true,
            None => self.hosts.started_here = true,
        }
        if !self.plan.global.verbose {
            return;
        }
        let all: Vec<u32> = self.plan.places.ranks_on(agent, self.plan.size).collect();
        if all.is_empty() {
            return;
        }
        let one = |(at, &rank): (usize, &u32)| {
            let cpus = cpus.get(at).map(|cpus| format!(" on cpu {cpus}")).unwrap_or_default();
            format!("{rank} (pid {}{cpus})", self.ranks[rank as usize].pid.unwrap_or(0))
        };
        let list = listed(all.iter().enumerate().map(one), MOST);
        let (id, host) = (self.here.common.job_id, &self.plan.hosts[agent as usize]);
        self.say(&format!("job {id:016x} on {host}: ranks {list}"));
    }

    /// True if the agent of `from` may tell this: what it says of a rank is of one of its own.
    pub(super) fn may_tell(&self, from: u32, event: &Event) -> bool {
        let is_own = |rank: u32| rank < self.plan.size && self.plan.agent_of(rank) == from;
        let hosts = self.plan.hosts.len() as u32;
        let known = (1..hosts).contains(&from);
        known
            && match event {
                Event::Started { rank, .. }
                | Event::NotStarted { rank, .. }
                | Event::Joined { rank }
                | Event::Request { rank, .. }
                | Event::Broken { rank, .. }
                | Event::JoinedGone { rank, .. }
                | Event::Stopped { rank, .. }
                | Event::Output { rank, .. } => is_own(*rank),
                Event::Pmi(Up::Name { rank, .. }) => is_own(*rank),
                Event::Ended(all) => all.iter().all(|ended| is_own(ended.rank)),
                Event::States { states, .. } => states.iter().all(|(rank, _)| is_own(*rank)),
                Event::Lost { first, end, .. } => 0 < *first && first < end && *end <= hosts,
                Event::Met { first } => first.is_none_or(|first| first < from),
                Event::Here(_)
                | Event::Pmi(Up::Fence(_))
                | Event::Said(_)
                | Event::AllStarted { .. }
                | Event::Left(_)
                | Event::Unkillable(_)
                | Event::InputTaken(_)
                | Event::Pulse { .. }
                | Event::Empty { .. } => true,
                // The agents on the way take these.
                Event::Cards(_) => false,
            }
    }

    /// The agents from `first` to `end` cannot be reached, or not any more.
    pub(super) fn lost(&mut self, first: u32, end: u32, why: &str) {
        const MOST: u32 = 8;
        let mut missing = 0;
        for agent in first..end {
            let Some(other) = self.hosts.of(agent) else { continue };
            missing += u32::from(!(other.lost || other.childless && other.written));
            (other.lost, other.childless, other.written, other.started, other.quiet) =
                (true, true, true, true, true);
        }
        if missing == 0 {
            return;
        }
        let mut lost = Vec::new();
        for rank in 0..self.plan.size {
            let member = &mut self.ranks[rank as usize];
            if (first..end).contains(&self.plan.agent_of(rank)) && member.ended.is_none() {
                member.ended = Some(End::Signal { number: libc::SIGKILL, core: false });
                self.alive -= u32::from(member.pid.is_some());
                lost.push(rank);
            }
        }
        let host = &self.plan.hosts[first as usize];
        let below = match end - first - 1 {
            0 => String::new(),
            more => format!(" ({more} more cannot be reached without it)"),
        };
        let text = match self.hosts.begun {
            false => format!("no job on host {host}: {why}{below}"),
            true => format!("host {host} is lost: {why}{below}"),
        };
        if let Some(Failure::Host(_)) = self.failure
            && !self.hosts.begun
            && self.hosts.others.iter().filter(|other| other.lost).count() as u32 <= MOST
        {
            self.say(&text);
        }
        if self.plan.global.keep_going && self.hosts.begun && self.state == JobState::Running {
            self.say(&format!("{text}; the job goes on without its ranks (--keep-going)"));
            lost.into_iter().for_each(|rank| self.note_failed(rank, Failure::Host(text.clone())));
        } else {
            self.fail_with(None, Failure::Host(text));
        }
        self.tell_of_ends();
        if let Some(report) = &mut self.hosts.report {
            report.until = Instant::now();
        }
    }

    /// Kills at once what has not begun, and gives up hosts that do not end.
    pub(super) fn watch_hosts(&mut self, now: Instant) {
        if !self.hosts.begun && matches!(self.state, JobState::Ending(_)) {
            self.kill_all();
        }
        if self.hosts.give_up_at().is_some_and(|at| now >= at) {
            for agent in 1..self.plan.hosts.len() as u32 {
                if self.hosts.of(agent).is_some_and(|other| !other.childless) {
                    self.say_of(agent, "it has not said that its processes are gone");
                    self.lost(agent, agent + 1, "it does not answer");
                }
            }
        }
    }

    /// Takes output of a rank of another host.
    pub(super) fn take_output(&mut self, agent: u32, rank: u32, err: bool, text: &[u8]) {
        let here = &mut self.here;
        here.output.take(&here.epoll, rank, StreamKind::of(err), text);
        if let Some(other) = self.hosts.of(agent) {
            other.owed[usize::from(err)] += text.len() as u32;
        }
    }

    /// Tells hosts that output is written, so that they may send more.
    pub(super) fn give_credit(&mut self) {
        for at in 0..self.hosts.others.len() {
            for err in [false, true] {
                let kind = usize::from(err);
                let other = &self.hosts.others[at];
                // Not for each piece: a host may go on as long as a part of its window is free.
                if other.owed[kind] < (self.hosts.window / 4).max(1) || other.hung_up[kind] {
                    continue;
                }
                let Some(nobody_reads) = self.here.output.has_room(StreamKind::of(err)) else { continue };
                let bytes = std::mem::take(&mut self.hosts.others[at].owed[kind]);
                self.hosts.others[at].hung_up[kind] = nobody_reads;
                let order = if nobody_reads { Order::HangUp { err } } else { Order::Credit { err, bytes } };
                self.order(at as u32 + 1, order);
            }
        }
    }

    /// Sends input to the host of rank 0.
    pub(super) fn pass_input(&mut self) {
        let agent = self.plan.agent_of(0);
        while let Some(source) = &mut self.hosts.source
            && let Some(bytes) = source.read(&self.here.epoll, Token::Input.data())
        {
            let is_end = bytes.is_empty();
            self.order(agent, Order::Input(bytes));
            if is_end {
                self.hosts.source = None;
            }
        }
    }

    pub(super) fn input_taken(&mut self, bytes: u32) {
        if let Some(source) = &mut self.hosts.source {
            source.taken(bytes as usize);
            self.pass_input();
        }
    }

    /// When all is over: ends the other agents; true if they are gone.
    pub(super) fn agents_are_gone(&mut self, now: Instant) -> bool {
        let here = &mut self.here;
        if here.links.is_empty() {
            return true;
        }
        let since = *self.hosts.exiting.get_or_insert(now);
        here.links.exit(&here.epoll);
        if now >= since + EXIT_TIME {
            here.links.cut(&here.epoll);
            return true;
        }
        here.links.are_over()
    }
}
