//! The agent: starts the ranks, serves their bootstrap sockets, passes their output on, judges how they end,
//! and leaves nothing behind.
//!
//! It has two parts. The [host part](host) does what one host needs; there is one on each host of a job. The *job part*, which is
//! [`Agent`], is on mpirun's own host only: it judges what the host parts tell it (events), and orders what they do.

mod aliases;
mod bootstrap;
mod check;
mod ending;
mod failed;
mod host;
mod hosts;
mod notices;
mod pmi;
mod processes;
mod remote;
mod state;
mod stopped;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use banyan_pmi::{Places, Request};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event as Polled, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{getpid, set_child_subreaper, setpgid};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::frames::{ALL, Event, Frame, Order};
use crate::options::Options;
use crate::output::Output;
use crate::plan::{JobPlan, kind};
use crate::report::DeadlockDetector;
use crate::start::{Mask, take_signals};
use crate::trouble::{reason, refused};
use crate::verdict::{End, Failure, Phase};
use crate::{Trouble, pmi1, pty};
use host::HostPart;
use hosts::Hosts;
use stopped::Stopped;

/// How often killing is repeated while processes are left.
const KILL_AGAIN: Duration = Duration::from_millis(10);

/// How long a wrapper may take to end after the MPI program that it ran is gone.
const WRAPPER_TIME: Duration = Duration::from_millis(300);

/// What the front hands to the agent.
pub(crate) struct Setup {
    /// `None` for the agent of another host.
    pub(crate) options: Option<Options>,
    /// The front sends signal numbers here; end of file means that the front is dead.
    pub(crate) control: OwnedFd,
    /// What rank 0 reads instead of mpirun's own input.
    pub(crate) input: Option<OwnedFd>,
    pub(crate) mask: Mask,
}

/// Runs the job, or this host's part of it; gives mpirun's status.
pub(crate) fn run(setup: Setup) -> u8 {
    let Setup { options, control, input, mask } = setup;
    let status = match options {
        None => remote::run(control, mask),
        Some(options) if options.global.hosts_check => check::check(&options.global, &control),
        Some(options) => Agent::new(options, control, input, mask).map(Agent::run),
    };
    status.unwrap_or_else(|trouble| trouble.tell())
}

/// Makes this process an agent: gives its event queue, and the descriptor that tells of children's ends.
fn become_agent(control: &OwnedFd) -> std::io::Result<(OwnedFd, OwnedFd)> {
    setpgid(None, None).map_err(refused("setpgid"))?;
    set_child_subreaper(Some(getpid())).map_err(refused("prctl(PR_SET_CHILD_SUBREAPER)"))?;
    rustix::thread::set_name(c"banyan-agent").map_err(refused("prctl(PR_SET_NAME)"))?;
    let (children, _) = take_signals(&[libc::SIGCHLD]).map_err(refused("signalfd"))?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(refused("epoll_create1"))?;
    epoll::add(&epoll, control, Token::Control.data(), EventFlags::IN).map_err(refused("epoll_ctl"))?;
    Ok((epoll, children))
}

/// The source of an epoll event; `usize` is a rank of this host or an index.
#[derive(Clone, Copy)]
enum Token {
    Signals,
    Control,
    StartErrors,
    Sink(usize),
    Stream(usize),
    Channel(usize),
    Joined(usize),
    Link(usize),
    Parent(usize),
    Input,
    Pmi(usize),
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, at) = match self {
            Token::Signals => (0, 0),
            Token::Control => (1, 0),
            Token::StartErrors => (2, 0),
            Token::Sink(at) => (3, at),
            Token::Stream(at) => (4, at),
            Token::Channel(at) => (5, at),
            Token::Joined(at) => (6, at),
            Token::Link(at) => (7, at),
            Token::Parent(at) => (8, at),
            Token::Input => (9, 0),
            Token::Pmi(at) => (10, at),
        };
        kind << 32 | at as u64
    }

    fn decode(token: u64) -> Token {
        let at = (token & 0xffff_ffff) as usize;
        match token >> 32 {
            0 => Token::Signals,
            1 => Token::Control,
            2 => Token::StartErrors,
            3 => Token::Sink(at),
            4 => Token::Stream(at),
            5 => Token::Channel(at),
            6 => Token::Joined(at),
            7 => Token::Link(at),
            8 => Token::Parent(at),
            9 => Token::Input,
            _ => Token::Pmi(at),
        }
    }

    fn data(self) -> EventData {
        EventData::new_u64(self.encode())
    }
}

/// State of the job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobState {
    Running,
    /// Ranks were asked to end, or have ended; processes that are left at this time are killed.
    Ending(Instant),
    /// All processes are being killed.
    Killing,
}

/// One rank, as the job part knows it.
#[derive(Clone, Default)]
struct Member {
    /// The pid of the process that was started for it.
    pid: Option<u32>,
    phase: Phase,
    /// A process has joined the job as this rank.
    joined: bool,
    /// It has asked for the end of the job: its status says nothing more.
    aborts: bool,
    ended: Option<End>,
}

struct Agent {
    plan: JobPlan,
    here: HostPart,
    hosts: Hosts,
    control: OwnedFd,
    ranks: Vec<Member>,
    /// Number of ranks that have started and not ended.
    alive: u32,
    /// The job's part of the server of PMI-1.
    pmi: pmi1::Job,
    state: JobState,
    failure: Option<Failure>,
    /// The rank of `failure`; `None` if it is of no rank.
    culprit: Option<u32>,
    /// Ranks that have failed, and why, while the job went on (`--keep-going`); the first counts.
    failed: Vec<(u32, Failure)>,
    /// Ranks that do not reach another one, which has not ended: who asks, and after whom.
    unreached: Vec<(u32, u32)>,
    /// Number of other ranks that failed with the same error.
    same_failure: u32,
    /// Ranks that ended with status 0 but without MPI_Finalize, where that is allowed.
    unfinalized: Vec<u32>,
    /// Notices of ranks to the user, each with the number of further ranks that sent it.
    notices: Vec<(String, u32)>,
    /// A rank's failure that is not reported yet, with the time when it will be; see `HOLD` in `ending`.
    held: Option<(Instant, u32, Failure)>,
    /// Ranks in MPI that a signal has stopped.
    stopped: Vec<Stopped>,
    deadline: Option<Instant>,
    started: Instant,
    detector: DeadlockDetector,
    /// When the job was last checked for a deadlock.
    deadlock_checked: Instant,
    /// A deadlock was found and reported.
    deadlock_reported: bool,
    /// The states of the ranks were reported because the job takes too long.
    timeout_reported: bool,
    /// mpirun ends without writing the output that is left: the front is gone, the user insists, or nobody reads it.
    drop_output: bool,
    /// Bytes written so far and when that number was reached, once the job has failed and its output waits for a reader.
    unread: Option<(u64, Instant)>,
    /// The final messages have been written.
    summarized: bool,
}

impl Agent {
    fn new(options: Options, control: OwnedFd, input: Option<OwnedFd>, mask: Mask) -> Result<Agent, Trouble> {
        let (plan, here) = JobPlan::new(options)?;
        let links = plan.hosts.len() as u64 - 1;
        let limit = here.raise_limit(links.min(u64::from(plan.global.tree_radix)))?;
        plan.notice(&here);
        let failed = |why: std::io::Error| Trouble::new(format!("cannot start: {}", reason(&why)));
        let (epoll, children) = become_agent(&control).map_err(failed)?;
        let stream = |at| Token::Stream(at).encode();
        let sink = |at| Token::Sink(at).encode();
        let output = Output::new(plan.label(), stream, sink).map_err(failed)?;
        let mut random = [0; 40];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(refused("getrandom")).map_err(failed)?;
        let (id, secret) = random.split_first_chunk::<8>().expect("40 bytes hold 8");
        // Where rank 0 is on another host, the job part reads its input.
        let (input, later) = if plan.has_other_hosts() { (None, input) } else { (input, None) };
        let here = HostPart::new(host::Setup {
            plan: here,
            job_id: u64::from_le_bytes(*id),
            secret: secret.try_into().expect("32 bytes are left of 40"),
            limit,
            mask,
            pty: pty::Policy::of(&plan.global.pty),
            input,
            epoll,
            children,
            output,
            is_remote: false,
        })
        .map_err(failed)?;
        let started = Instant::now();
        let mut agent = Agent {
            deadline: plan.global.timeout.map(|time| started + time),
            started,
            detector: DeadlockDetector::default(),
            deadlock_checked: started,
            deadlock_reported: false,
            timeout_reported: false,
            hosts: Hosts::new(&plan),
            control,
            ranks: vec![Member::default(); plan.size as usize],
            alive: 0,
            pmi: pmi1::Job::new(plan.hosts_with_ranks()),
            plan,
            here,
            state: JobState::Running,
            failure: None,
            culprit: None,
            failed: Vec::new(),
            unreached: Vec::new(),
            same_failure: 0,
            unfinalized: Vec::new(),
            notices: Vec::new(),
            held: None,
            stopped: Vec::new(),
            drop_output: false,
            unread: None,
            summarized: false,
        };
        match agent.plan.has_other_hosts() {
            true => agent.start_agents(later)?,
            false => {
                let HostPart { plan, .. } = &agent.here;
                let all = std::iter::repeat_n(0, plan.ranks.len());
                let places = Places::new(all, |_| kind(plan.cores, &plan.bound));
                let agents = agent.plan.places.clone();
                agent.order(0, Order::Start { agents, places });
            }
        }
        Ok(agent)
    }

    fn run(mut self) -> u8 {
        let mut events: Vec<Polled> = Vec::with_capacity(128);
        self.dispatch();
        loop {
            let now = Instant::now();
            self.tick(now);
            self.dispatch();
            if self.is_over(now) {
                break;
            }
            let timeout = self.next_deadline().map(|at| timespec(at.saturating_duration_since(now)));
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            if let Err(why) = epoll::wait(&self.here.epoll, spare, timeout.as_ref())
                && why != Errno::INTR
            {
                self.fail_with(None, Failure::System(refused("epoll_wait")(why).to_string()));
                self.kill_all();
            }
            for event in &events {
                match Token::decode(event.data.u64()) {
                    Token::Control => self.control(),
                    Token::Input => self.pass_input(),
                    token => self.here.handle(token, event.flags),
                }
                self.dispatch();
            }
        }
        self.here.keep_measured();
        self.failure.as_ref().or(self.failed.first().map(|(_, failure)| failure)).map_or(0, Failure::status)
    }

    /// Gives an order to the host part of an agent, or to those of [`ALL`].
    fn order(&mut self, agent: u32, order: Order) {
        if !self.plan.has_other_hosts() {
            return self.here.order(order);
        }
        if self.here.links.order(&self.here.epoll, &Frame::new(agent, &order)) {
            self.here.order(order);
        }
    }

    /// Handles what host parts have told.
    fn dispatch(&mut self) {
        loop {
            if let Some(event) = self.here.events.pop_front() {
                self.event(0, event);
            } else if self.here.passed.is_empty() {
                return;
            }
            for frame in std::mem::take(&mut self.here.passed) {
                match frame.open() {
                    Some(event) if self.may_tell(frame.host, &event) => self.event(frame.host, event),
                    _ => self.lost(frame.host, frame.host + 1, "it breaks the protocol between agents"),
                }
            }
        }
    }

    /// Handles what the host part of an agent tells.
    fn event(&mut self, agent: u32, event: Event) {
        match event {
            Event::Here(here) => self.host_is_here(agent, here),
            Event::Met { first } => self.met(agent, first),
            Event::Said(text) => self.say_of(agent, &text),
            Event::Started { rank, pid } => {
                self.ranks[rank as usize].pid = Some(pid);
                self.alive += 1;
            }
            Event::AllStarted { cpus } => self.all_started(agent, &cpus),
            Event::NotStarted { rank, status, why } => self.fail(rank, Failure::Start { status, why }),
            Event::Joined { rank } => self.joined(rank),
            Event::Request { rank, request } => self.request(rank, request),
            Event::Cards(_) => {} // the host part's
            Event::Pmi(up) => {
                for (to, down) in self.pmi.receive(agent, up) {
                    self.order(to.unwrap_or(ALL), Order::Pmi(down));
                }
            }
            Event::Broken { rank, why } => self.fail(rank, Failure::Protocol(why)),
            Event::Ended(ended) => self.ended(&ended),
            Event::JoinedGone { rank, pid } => self.joined_gone(rank, pid),
            Event::Stopped { rank, stopped } => self.note_stopped(rank, stopped),
            Event::Output { rank, err, text } => self.take_output(agent, rank, err, &text),
            Event::States { now, states } => self.take_states(agent, now, states),
            Event::Left(list) => self.name_leftovers(agent, &list),
            Event::Unkillable(pids) => {
                let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
                self.say_of(agent, &format!("processes that cannot be killed: {}", pids.join(", ")));
                self.drop_output = true;
            }
            Event::InputTaken(bytes) => self.input_taken(bytes),
            Event::Pulse { quiet } => self.hosts.pulse(agent, quiet),
            Event::Empty { written } => self.hosts.emptied(agent, written),
            Event::Lost { first, end, why } => self.lost(first, end, &why),
        }
    }

    fn request(&mut self, rank: u32, request: Request) {
        match request {
            Request::Unreached { rank: missed } => self.note_unreached(rank, missed),
            Request::Ready => self.ranks[rank as usize].phase = Phase::Running,
            Request::Finalized => self.ranks[rank as usize].phase = Phase::Finalized,
            Request::Notice { text } => self.notice(rank, text),
            Request::Abort { code, message } => {
                self.ranks[rank as usize].aborts = true;
                self.hold(rank, Failure::Abort { code, message });
            }
            // The host part's.
            Request::Hello { .. }
            | Request::Publish { .. }
            | Request::Lookup { .. }
            | Request::Measured { .. } => {}
        }
    }

    fn tick(&mut self, now: Instant) {
        self.here.tick(now);
        self.dispatch();
        if let Some(why) = self.here.output.take_trouble() {
            self.fail_with(None, Failure::Output(reason(&why)));
        }
        let nobody_runs = self.alive == 0 && self.hosts.have_started();
        if self.held.as_ref().is_some_and(|&(due, ..)| now >= due) || nobody_runs {
            self.report_held();
        }
        if self.state == JobState::Running && self.deadline.is_some_and(|deadline| now >= deadline) {
            let time = self.plan.global.timeout.unwrap_or_default();
            if !self.ranks.iter().any(|rank| rank.joined) || self.report_before_the_end(now) {
                self.say_who_is_missing();
                self.fail_with(None, Failure::Timeout(time));
            }
        }
        self.check_stopped(now);
        self.check_deadlock(now);
        self.check_report(now);
        self.give_credit();
        self.watch_hosts(now);
        if nobody_runs && !self.is_childless() && self.state == JobState::Running {
            // Processes that ranks left behind (a `tee` at the end of a pipe) may finish in the grace time.
            self.state = JobState::Ending(now + self.plan.global.grace);
        }
        if let JobState::Ending(until) = self.state
            && now >= until
        {
            self.kill_all();
        }
    }

    /// True if no host has a process of the job left.
    fn is_childless(&self) -> bool {
        self.here.childless && self.hosts.are_childless()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let state = match self.state {
            _ if self.is_childless() => None,
            JobState::Running => self.deadline.filter(|_| !self.reports_before_the_end()),
            JobState::Ending(until) => Some(until),
            JobState::Killing => self.hosts.give_up_at(),
        };
        let held = self.held.as_ref().map(|&(due, ..)| due);
        let unread = self.unread_until().filter(|_| self.is_childless());
        let stopped = self.next_stop_check();
        let of_job = [state, held, stopped, unread, self.next_deadlock_check(), self.hosts.next_tick()];
        of_job.into_iter().chain([self.here.next_deadline()]).flatten().min()
    }

    /// True when no process is left and all output is written, or mpirun gives up on what is left.
    fn is_over(&mut self, now: Instant) -> bool {
        if !self.is_childless() || !self.is_written(now) {
            return false;
        }
        if !std::mem::replace(&mut self.summarized, true) {
            self.summarize();
        }
        self.is_written(now) && self.agents_are_gone(now)
    }
}

/// Bytes that an agent keeps for its own ranks, and mpirun's own agent for all ranks and hosts of the job, beside its
/// [relay](crate::tree::Relay).
#[cfg(feature = "sim")]
pub(crate) fn sizes(here: usize, all: Option<(usize, usize)>) -> usize {
    let job = |(ranks, hosts)| size_of::<Agent>() + ranks * size_of::<Member>() + hosts * hosts::EACH;
    // By rank: itself, its number, and its place by its pid.
    size_of::<HostPart>() + here * (size_of::<crate::ranks::Rank>() + 24) + all.map_or(0, job)
}

fn timespec(time: Duration) -> Timespec {
    // A little late rather than a little early, which would make the loop spin.
    let time = time + Duration::from_micros(100);
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}
