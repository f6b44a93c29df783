//! [`HostPart`]: what an agent does for the ranks of its own host. It starts them, owns their pipes and bootstrap sockets, and
//! reaps and kills them. It judges nothing: it tells what happens as events, and does what orders say.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use banyan_pmi::{Offer, Reply, status, whereabouts};
use banyan_shm::Shm;
use banyan_topo::KnownWays;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getpid, kill_process_group};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::aliases::is_same_host;
use super::{KILL_AGAIN, Token, WRAPPER_TIME};
use crate::frames::{Event, Frame, Here, Meeting, Order};
use crate::input::Feed;
use crate::links::{Links, PULSE};
use crate::output::{Output, StreamKind};
use crate::plan::HostPlan;
use crate::ranks::{Common, Rank, start};
use crate::report::all_wait;
use crate::start::{Limit, Mask, START_ERROR_BYTES, Stage, StartError, arrived};
use crate::tree::Side;
use crate::trouble::{reason, refused};
use crate::{Trouble, descendants, executable, oom, pmi1, pty};

/// How long killed processes may take to end before they are given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far a host has come with the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// No rank has been started.
    Waiting,
    Running,
    /// All processes are being killed, since this time.
    Killing(Instant),
}

/// What a host part is made of.
pub(super) struct Setup {
    pub(super) plan: HostPlan,
    pub(super) job_id: u64,
    pub(super) secret: [u8; 32],
    pub(super) limit: Limit,
    pub(super) mask: Mask,
    pub(super) pty: pty::Policy,
    /// What rank 0 reads instead of mpirun's own input.
    pub(super) input: Option<OwnedFd>,
    pub(super) epoll: OwnedFd,
    pub(super) children: OwnedFd,
    pub(super) output: Output,
    /// This is not mpirun's own host.
    pub(super) is_remote: bool,
}

pub(super) struct HostPart {
    pub(super) plan: HostPlan,
    pub(super) common: Common,
    pub(super) epoll: OwnedFd,
    children: OwnedFd,
    start_errors: OwnedFd,
    pub(super) output: Output,
    /// The ranks of this host, in order.
    pub(super) ranks: Vec<Rank>,
    /// Ranks by the pid of the process that was started for them.
    pub(super) by_pid: HashMap<i32, usize>,
    /// Number of ranks whose process has not ended.
    pub(super) alive: u32,
    pub(super) progress: Progress,
    /// This process has no descendants any more but those of its links.
    pub(super) childless: bool,
    /// What the host has last said about that: nothing, that it is, and that all output is on its way.
    emptied: u8,
    /// What has happened and was not told yet.
    pub(super) events: VecDeque<Event>,
    /// Frames from the hosts below this one.
    pub(super) passed: Vec<Frame>,
    pub(super) links: Links,
    pub(super) oom: Option<oom::Watch>,
    /// The way to rank 0's input, if that comes from another host.
    feed: Option<Feed>,
    /// What other agents of this machine may find, until ranks are started.
    offered: Option<OwnedFd>,
    /// The server of PMI-1, from a rank's first request on.
    pub(super) pmi: Option<Box<pmi1::Host>>,
    /// What its ranks have measured of the ways of long messages.
    pub(super) measured: KnownWays,
    pub(super) is_remote: bool,
    pulsed: Instant,
    /// When its ranks were last looked at, whether they are stopped.
    looked: Instant,
}

impl HostPart {
    pub(super) fn new(setup: Setup) -> io::Result<HostPart> {
        let Setup { plan, job_id, secret, limit, mask, pty, input, epoll, children, output, is_remote } =
            setup;
        let (start_errors, errors) = pipe_with(PipeFlags::CLOEXEC).map_err(refused("pipe2"))?;
        rustix::io::ioctl_fionbio(&start_errors, true).map_err(refused("ioctl(FIONBIO)"))?;
        for (fd, token) in [(&children, Token::Signals), (&start_errors, Token::StartErrors)] {
            epoll::add(&epoll, fd, token.data(), EventFlags::IN).map_err(refused("epoll_ctl"))?;
        }
        let common = Common {
            job_id,
            secret,
            single_copy: banyan_topo::single_copy(),
            memory: None,
            status: None,
            pty,
            null: File::open("/dev/null").map_err(named("/dev/null, which ranks read,"))?.into(),
            input,
            mask,
            limit,
            errors,
        };
        let mut host = HostPart {
            ranks: Vec::new(),
            plan,
            common,
            epoll,
            children,
            start_errors,
            output,
            by_pid: HashMap::new(),
            alive: 0,
            progress: Progress::Waiting,
            childless: false,
            emptied: 0,
            events: VecDeque::new(),
            passed: Vec::new(),
            links: Links::default(),
            // Before any rank is started: one may be killed before all are.
            oom: oom::Watch::begin(),
            feed: None,
            offered: None,
            pmi: None,
            measured: KnownWays::default(),
            is_remote,
            pulsed: Instant::now(),
            looked: Instant::now(),
        };
        host.seat();
        Ok(host)
    }

    /// Makes what the ranks of the plan share.
    fn seat(&mut self) {
        let HostPart { plan, common, events, .. } = self;
        let count = plan.ranks.len() as u32;
        self.ranks = std::iter::repeat_with(Rank::default).take(plan.ranks.len()).collect();
        (common.memory, common.status) = files_in_memory(count, |text| events.push_back(Event::Said(text)));
        if self.is_remote && plan.input && plan.ranks.first() == Some(&0) && self.feed.is_none() {
            let pipe = pipe_with(PipeFlags::CLOEXEC).ok();
            let ends = pipe.and_then(|(read, write)| Some((read, Feed::new(write).ok()?)));
            (common.input, self.feed) = ends.map_or((None, None), |(read, feed)| (Some(read), Some(feed)));
            plan.input = self.feed.is_some();
        }
    }

    /// Takes other ranks than were planned.
    fn take_ranks(&mut self, size: u32, ranks: Vec<u32>) {
        self.plan.set_ranks(size, ranks);
        let links = self.links.pids().len() as u64;
        match self.plan.bind().and_then(|()| self.plan.raise_limit(links)) {
            Ok(_) => {
                self.seat();
                self.events.push_back(Event::Here(Here::new(&self.plan, None)));
            }
            Err(Trouble { message: why, status }) => {
                let rank = self.plan.ranks.first().copied().unwrap_or(0);
                self.events.push_back(Event::NotStarted { rank, status, why });
            }
        }
    }

    /// What other agents can find out by whether they are on this machine; `None` if the system refuses.
    pub(super) fn meeting(&mut self) -> Option<Meeting> {
        let (file, offer) = Offer::make(0).ok()?;
        self.offered = Some(file);
        Some(Meeting { whereabouts: whereabouts(), offer })
    }

    /// Handles an event of epoll.
    pub(super) fn handle(&mut self, token: Token, flags: EventFlags) {
        match token {
            Token::Signals => {
                arrived(&self.children);
                self.reap();
            }
            Token::StartErrors => self.read_start_errors(),
            Token::Sink(at) => self.output.writable(&self.epoll, at),
            Token::Stream(at) => self.output.read(&self.epoll, at, Instant::now()),
            Token::Channel(at) => self.serve(at, flags),
            Token::Joined(at) => self.joined_ended(at),
            Token::Pmi(at) => self.serve_pmi(at, flags),
            Token::Link(at) => {
                for (child, frame) in self.links.handle(&self.epoll, at) {
                    match frame.open() {
                        Some(Event::Cards(said)) => self.cards(Side::Child(child), said),
                        _ => self.passed.push(frame),
                    }
                }
            }
            Token::Input => self.feed(&[]),
            Token::Control | Token::Parent(_) => {}
        }
    }

    /// Does what is ordered.
    pub(super) fn order(&mut self, order: Order) {
        match order {
            Order::Meet(offers) => {
                let first = offers.iter().find(|(_, offer)| is_same_host(offer)).map(|&(agent, _)| agent);
                self.events.push_back(Event::Met { first });
            }
            Order::Ranks { size, ranks } => self.take_ranks(size, ranks),
            Order::Start { agents, places } => {
                self.offered = None;
                self.links.place(agents);
                self.plan.places = places;
                self.start_ranks();
            }
            Order::Reply { rank, reply } => {
                if let Some(at) = self.plan.index_of(rank) {
                    self.send(at, &reply);
                }
            }
            Order::Cards(said) => self.cards(Side::Parent, said),
            Order::Pmi(down) => self.take_pmi(down),
            Order::Failed { rank, cause } => {
                let reply = Reply::Gone { rank, cause, failed: true };
                (0..self.ranks.len()).for_each(|at| self.send(at, &reply));
            }
            Order::KillRank { rank } => {
                let at = self.plan.index_of(rank);
                if let Some(pid) = at.and_then(|at| self.ranks[at].pid) {
                    let _ = kill_process_group(pid, Signal::KILL);
                }
            }
            Order::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.signal_ranks(signal);
                }
            }
            Order::EndBut { spared, signal } => {
                let Some(signal) = Signal::from_named_raw(signal) else { return };
                for (rank, state) in self.plan.ranks.iter().zip(&self.ranks) {
                    if let Some(pid) = state.pid.filter(|_| spared != Some(*rank)) {
                        let _ = kill_process_group(pid, signal);
                        let _ = kill_process_group(pid, Signal::CONT);
                    }
                }
            }
            Order::Kill { tell } => {
                self.kill_all(tell);
                for agent in self.links.end_starting(&self.epoll) {
                    self.passed.push(Frame::new(agent, &Event::Empty { written: true }));
                }
            }
            Order::States { stopped } => {
                let states = self.plan.ranks.iter().copied().zip(self.states(stopped)).collect();
                self.events.push_back(Event::States { now: status::now(), states });
            }
            Order::Credit { err, bytes } => {
                self.output.credit(&self.epoll, StreamKind::of(err), bytes as usize);
            }
            Order::HangUp { err } => self.output.nobody_reads(&self.epoll, StreamKind::of(err)),
            Order::Input(bytes) if bytes.is_empty() => self.end_feed(),
            Order::Input(bytes) => self.feed(&bytes),
            Order::You { .. } | Order::Begin(_) | Order::Pulse | Order::Exit => {}
        }
    }

    /// Tells of an event of a rank. What the rank has written before goes first.
    pub(super) fn tell(&mut self, at: usize, event: Event) {
        if self.is_remote {
            self.output.pump(&self.epoll, self.plan.ranks[at], Instant::now());
        }
        self.events.push_back(event);
    }

    fn start_ranks(&mut self) {
        self.progress = Progress::Running;
        let mut order: Vec<usize> = (0..self.ranks.len()).collect();
        // Ranks bound to the core that this process runs on start last: they would delay the start of the others.
        let here = sched_getcpu();
        order.sort_by_key(|&at| self.plan.cpus.get(at).is_some_and(|cpus| cpus.contains(here as u32)));
        // This process stays there while it starts ranks that are bound, and so does each child until it binds itself: the kernel
        // would put some of them, or this process when it is woken, behind a rank on another core.
        let own = sched_getaffinity(None).ok().filter(|_| !self.plan.cpus.is_empty());
        if own.is_some() {
            let mut only = CpuSet::new();
            only.set(here);
            let _ = sched_setaffinity(None, &only);
        }
        self.start_each(order);
        let _ = own.map(|cpus| sched_setaffinity(None, &cpus));
        // This copy of rank 0's input must be closed, so that writers notice when rank 0 ends.
        self.common.input = None;
        let cpus = self.plan.cpus.iter().map(ToString::to_string).collect();
        self.events.push_back(Event::AllStarted { cpus });
    }

    /// Starts these ranks, up to the first that cannot be started.
    fn start_each(&mut self, order: Vec<usize>) {
        for at in order {
            if let Err(why) = self.start_rank(at) {
                let full = why.kind() == io::ErrorKind::WouldBlock;
                let hint = if full { " (the limit on processes, ulimit -u?)" } else { "" };
                let (rank, why) = (self.plan.ranks[at], reason(&why) + hint);
                self.events.push_back(Event::NotStarted { rank, status: 1, why });
                break;
            }
        }
    }

    fn start_rank(&mut self, at: usize) -> io::Result<()> {
        let started = start(&self.plan, &self.common, at)?;
        let rank = self.plan.ranks[at];
        self.ranks[at].pid = Some(started.pid);
        self.ranks[at].started_as = Some(started.pid);
        self.by_pid.insert(started.pid.as_raw_pid(), at);
        self.alive += 1;
        let pid = started.pid.as_raw_pid().cast_unsigned();
        self.events.push_back(Event::Started { rank, pid });
        for (kind, pipe) in [StreamKind::Out, StreamKind::Err].into_iter().zip(started.output) {
            if let Some(pipe) = pipe {
                self.output.add(&self.epoll, rank, kind, pipe)?;
            }
        }
        epoll::add(&self.epoll, &started.channel, Token::Channel(at).data(), EventFlags::IN)?;
        self.ranks[at].channel = Some(started.channel);
        epoll::add(&self.epoll, &started.pmi, Token::Pmi(at).data(), EventFlags::IN)?;
        self.ranks[at].pmi = Some(started.pmi);
        Ok(())
    }

    pub(super) fn read_start_errors(&mut self) {
        let mut bytes = [0; START_ERROR_BYTES];
        while let Ok(START_ERROR_BYTES) = rustix::io::read(&self.start_errors, &mut bytes) {
            let StartError { rank, stage, errno } = StartError::decode(&bytes);
            let error = io::Error::from_raw_os_error(errno);
            let why = reason(&error);
            let app = &self.plan.apps[self.plan.app_of(rank)];
            let missing = errno == Errno::NOENT.raw_os_error();
            let (status, why) = match stage {
                Stage::Prepare => (1, refused("dup2")(error).to_string()),
                Stage::Bind => {
                    let why = refused("sched_setaffinity")(error);
                    (1, format!("{why}; --bind-to none does without"))
                }
                Stage::Directory => {
                    let folder = app.directory.as_ref().filter(|_| self.is_remote);
                    let folder =
                        folder.map(|folder| format!(" {}", folder.to_string_lossy())).unwrap_or_default();
                    (1, format!("working directory{folder}: {why}"))
                }
                // The program was there when the job was planned, on the host where that was done.
                Stage::Execute if missing => {
                    (127, executable::missing_interpreter(&app.file()).unwrap_or(why))
                }
                Stage::Execute => (126, why),
            };
            if self.plan.index_of(rank).is_some() {
                self.events.push_back(Event::NotStarted { rank, status, why });
            }
        }
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.output.tick(&self.epoll, now);
        for at in 0..self.ranks.len() {
            if self.ranks[at].joined_gone.is_some_and(|gone| now >= gone + WRAPPER_TIME) {
                self.ranks[at].joined_gone = None;
                if self.ranks[at].phase.is_inside() {
                    let pid = self.ranks[at].joined.as_ref().map_or(0, |joined| joined.0);
                    self.events.push_back(Event::JoinedGone { rank: self.plan.ranks[at], pid });
                }
            }
        }
        if now >= self.looked + PULSE {
            self.looked = now;
            self.look_for_stopped();
        }
        if !self.links.is_empty() {
            self.links.tick(&self.epoll, now);
        }
        self.events.extend(self.links.take_lost());
        let may_be_empty = match self.progress {
            Progress::Waiting => false,
            Progress::Running => self.alive == 0,
            Progress::Killing(_) => true,
        };
        if may_be_empty && !self.childless {
            self.reap();
        }
        if let Progress::Killing(since) = self.progress
            && !self.childless
        {
            descendants::kill_below(getpid(), &self.links.pids());
            if now > since + PATIENCE {
                let left = descendants::below(getpid(), &self.links.pids());
                let pids = left.iter().take(8).map(|pid| pid.as_raw_pid().cast_unsigned()).collect();
                self.events.push_back(Event::Unkillable(pids));
                self.childless = true;
            }
        }
        if self.is_remote {
            self.tell_the_rest(now);
        }
    }

    /// Tells mpirun's own host that this one is there, or that nothing is left here.
    fn tell_the_rest(&mut self, now: Instant) {
        if now >= self.pulsed + PULSE {
            self.pulsed = now;
            let quiet = self.ranks.is_empty() || all_wait(&self.states(false));
            self.events.push_back(Event::Pulse { quiet });
        }
        if self.childless && self.emptied == 0 {
            self.emptied = 1;
            self.events.push_back(Event::Empty { written: false });
        }
        if self.childless && self.emptied == 1 {
            // What is read here goes up before the event.
            let written = self.output.drain(&self.epoll, now);
            let pieces = self.take_output();
            self.events.extend(pieces);
            if written || self.output.drain(&self.epoll, now) {
                self.emptied = 2;
                self.events.push_back(Event::Empty { written: true });
            }
        }
    }

    /// Output that mpirun's own host is to write.
    pub(super) fn take_output(&mut self) -> Vec<Event> {
        // Longer pieces would hold up what else is on its way.
        const MOST: usize = 1 << 20;
        let mut events = Vec::new();
        for (rank, kind, text) in self.output.take_pieces() {
            let err = kind == StreamKind::Err;
            events.extend(text.chunks(MOST).map(|text| Event::Output { rank, err, text: text.to_vec() }));
        }
        events
    }

    /// When [`HostPart::tick`] is to be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let gone =
            self.ranks.iter().filter_map(|rank| rank.joined_gone).map(|gone| gone + WRAPPER_TIME).min();
        let killing = matches!(self.progress, Progress::Killing(_)) && !self.childless;
        let killing = killing.then(|| Instant::now() + KILL_AGAIN);
        // The end of an orphan that another process adopted is not told by a signal.
        let orphans = !self.links.is_empty()
            && self.alive == 0
            && self.progress != Progress::Waiting
            && !self.childless;
        let orphans = orphans.then(|| Instant::now() + KILL_AGAIN);
        let pulse = self.is_remote.then_some(self.pulsed + PULSE);
        let look = (self.alive > 0).then_some(self.looked + PULSE);
        [self.output.next_tick(), gone, killing, orphans, pulse, look, self.links.next_tick()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Passes input on to rank 0, and says how much has been taken.
    fn feed(&mut self, bytes: &[u8]) {
        let Some(feed) = &mut self.feed else { return };
        let taken = feed.write(&self.epoll, Token::Input.data(), bytes);
        if taken > 0 {
            self.events.push_back(Event::InputTaken(taken as u32));
        }
    }

    fn end_feed(&mut self) {
        if let Some(feed) = &mut self.feed {
            feed.end(&self.epoll);
        }
    }
}

/// The memory that ranks share, and their status lines. `say` tells what a job without them lacks.
fn files_in_memory(ranks: u32, mut say: impl FnMut(String)) -> (Option<OwnedFd>, Option<OwnedFd>) {
    if ranks == 0 {
        return (None, None);
    }
    let file = "a file in memory (memfd_create, ftruncate)";
    let memory = Shm::memory(ranks, banyan_topo::private_cache())
        .map_err(|why| if why.raw_os_error().is_some() { refused(file)(why) } else { why })
        .inspect_err(|why| say(format!("no shared memory between ranks: {why}: they use slower ways")));
    let status = status::create(ranks)
        .map_err(refused(file))
        .inspect_err(|why| say(format!("no status lines: {why}: a job that hangs cannot be explained")));
    (memory.ok(), status.ok())
}

/// Puts the name of what cannot be opened in front of the reason.
fn named(what: &str) -> impl Fn(io::Error) -> io::Error {
    move |why| io::Error::other(format!("{what} cannot be opened: {}", reason(&why)))
}
