//! The agent: starts the ranks, serves their bootstrap sockets, passes their output on, judges how they end,
//! and leaves nothing behind.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use banyan_pmi::{MAX_CARD, Reply, Request, VERSION, WireError};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, pidfd_open,
    set_child_subreaper, setpgid, wait,
};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::board::Board;
use crate::front::STOPPED;
use crate::output::{Kind, Output};
use crate::plan::{Plan, reason};
use crate::ranks::{Common, Rank, start};
use crate::start::{Limit, Mask, REPORT_BYTES, Report, Stage, arrived, take_signals};
use crate::verdict::{End, Failure, Phase};
use crate::{descendants, memory};

/// A rank that has this much to read gets nothing more before it reads.
const MAX_UNREAD: usize = 1 << 20;

/// How often killing is repeated while processes are left.
const KILL_AGAIN: Duration = Duration::from_millis(10);

/// How long killed processes may take to go before mpirun ends without them.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the failure of a rank in MPI waits for a better explanation: a peer that is just being killed,
/// which others may notice before the system reports its end.
const HOLD: Duration = Duration::from_millis(20);

/// How long a wrapper may take to end after the MPI program that it ran is gone.
const WRAPPER_TIME: Duration = Duration::from_millis(300);

/// What the agent gets from the front.
pub(crate) struct Setup {
    pub(crate) plan: Plan,
    /// Signals come from here; its end is the front's death.
    pub(crate) control: OwnedFd,
    /// What rank 0 reads instead of mpirun's own input.
    pub(crate) input: Option<OwnedFd>,
    pub(crate) mask: Mask,
    pub(crate) limit: Limit,
}

/// Runs the job; gives mpirun's status.
pub(crate) fn run(setup: Setup) -> u8 {
    match Agent::new(setup) {
        Ok(agent) => agent.run(),
        Err(why) => {
            eprintln!("mpirun: cannot start: {why}");
            1
        }
    }
}

/// What an epoll event is about.
#[derive(Clone, Copy)]
enum Token {
    Signals,
    Control,
    Reports,
    Sink(usize),
    Stream(usize),
    Line(usize),
    Joined(usize),
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, at) = match self {
            Token::Signals => (0, 0),
            Token::Control => (1, 0),
            Token::Reports => (2, 0),
            Token::Sink(at) => (3, at),
            Token::Stream(at) => (4, at),
            Token::Line(at) => (5, at),
            Token::Joined(at) => (6, at),
        };
        kind << 32 | at as u64
    }

    fn decode(token: u64) -> Token {
        let at = (token & 0xffff_ffff) as usize;
        match token >> 32 {
            0 => Token::Signals,
            1 => Token::Control,
            2 => Token::Reports,
            3 => Token::Sink(at),
            4 => Token::Stream(at),
            5 => Token::Line(at),
            _ => Token::Joined(at),
        }
    }

    fn data(self) -> EventData {
        EventData::new_u64(self.encode())
    }
}

/// Where the job stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    Running,
    /// Processes have until then to end by themselves.
    Ending(Instant),
    /// Everything is being killed, since then.
    Killing(Instant),
}

struct Agent {
    plan: Plan,
    common: Common,
    control: OwnedFd,
    children: OwnedFd,
    reports: OwnedFd,
    epoll: OwnedFd,
    output: Output,
    ranks: Vec<Rank>,
    /// Ranks by the pid of the process that was started.
    by_pid: HashMap<i32, u32>,
    /// Ranks whose process has not ended.
    alive: u32,
    board: Board,
    course: Course,
    failure: Option<Failure>,
    /// A rank's failure that is not told yet; see [`HOLD`].
    held: Option<(Instant, u32, Failure)>,
    deadline: Option<Instant>,
    /// No process descends from this one any more.
    childless: bool,
    /// Nothing more is to be written: the front is gone, or the user insists.
    hurry: bool,
}

impl Agent {
    fn new(setup: Setup) -> std::io::Result<Agent> {
        let Setup { plan, control, input, mask, limit } = setup;
        setpgid(None, None)?;
        set_child_subreaper(Some(getpid()))?;
        rustix::thread::set_name(c"banyan-agent")?;
        let (children, _) = take_signals(&[libc::SIGCHLD])?;
        let (reports, reports_in) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&reports, true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &children, Token::Signals.data(), EventFlags::IN)?;
        epoll::add(&epoll, &control, Token::Control.data(), EventFlags::IN)?;
        epoll::add(&epoll, &reports, Token::Reports.data(), EventFlags::IN)?;
        let stream = |at| Token::Stream(at).encode();
        let sink = |at| Token::Sink(at).encode();
        let mut output = Output::new(plan.global.tag_output, stream, sink)?;
        let memory = memory::create(plan.size)
            .inspect_err(|why| {
                let text = format!("no shared memory between ranks ({why}): they use slower ways");
                output.say(&epoll, &text);
            })
            .ok();
        let mut random = [0; 40];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let (id, secret) = random.split_first_chunk::<8>().expect("40 bytes hold 8");
        let common = Common {
            job_id: u64::from_le_bytes(*id),
            secret: secret.try_into().expect("32 bytes are left of 40"),
            single_copy: banyan_topo::single_copy(),
            memory,
            null: File::open("/dev/null")?.into(),
            input,
            mask,
            limit,
            reports: reports_in,
        };
        let size = plan.size as usize;
        Ok(Agent {
            deadline: plan.global.timeout.map(|time| Instant::now() + time),
            plan,
            common,
            control,
            children,
            reports,
            epoll,
            output,
            ranks: std::iter::repeat_with(Rank::default).take(size).collect(),
            by_pid: HashMap::new(),
            alive: 0,
            board: Board::new(size),
            course: Course::Running,
            failure: None,
            held: None,
            childless: false,
            hurry: false,
        })
    }

    fn run(mut self) -> u8 {
        self.start_ranks();
        let mut events: Vec<Event> = Vec::with_capacity(128);
        loop {
            let now = Instant::now();
            self.tick(now);
            if self.is_over(now) {
                break;
            }
            let timeout = self.next_deadline().map(|at| timespec(at.saturating_duration_since(now)));
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            if let Err(why) = epoll::wait(&self.epoll, spare, timeout.as_ref())
                && why != Errno::INTR
            {
                self.fail_with(None, Failure::Output(why.to_string()));
                self.kill_all();
            }
            for event in &events {
                self.handle(Token::decode(event.data.u64()), event.flags);
            }
        }
        self.failure.as_ref().map_or(0, Failure::status)
    }

    fn handle(&mut self, token: Token, flags: EventFlags) {
        match token {
            Token::Signals => {
                arrived(&self.children);
                self.reap();
            }
            Token::Control => self.control(),
            Token::Reports => self.read_reports(),
            Token::Sink(at) => self.output.writable(&self.epoll, at),
            Token::Stream(at) => self.output.read(&self.epoll, at, Instant::now()),
            Token::Line(at) => self.serve(at, flags),
            Token::Joined(at) => self.joined_ended(at),
        }
    }

    // Starting

    fn start_ranks(&mut self) {
        let mut rank = 0;
        for app in 0..self.plan.apps.len() {
            for _ in 0..self.plan.apps[app].ranks {
                if let Err(why) = self.start_rank(rank, app) {
                    let full = why.kind() == std::io::ErrorKind::WouldBlock;
                    let hint = if full { " (the limit on processes, ulimit -u?)" } else { "" };
                    let why = reason(&why) + hint;
                    self.fail(rank, Failure::Start { status: 1, why });
                    return;
                }
                rank += 1;
            }
        }
        // The ranks have what they need; rank 0's input must end when it does.
        self.common.input = None;
        self.describe();
    }

    fn start_rank(&mut self, rank: u32, app: usize) -> std::io::Result<()> {
        let started = start(&self.plan, &self.common, rank, app)?;
        let at = rank as usize;
        self.ranks[at].pid = Some(started.pid);
        self.ranks[at].started_as = Some(started.pid);
        self.by_pid.insert(started.pid.as_raw_pid(), rank);
        self.alive += 1;
        if let Some([out, err]) = started.output {
            self.output.add(&self.epoll, rank, Kind::Out, out)?;
            self.output.add(&self.epoll, rank, Kind::Err, err)?;
        }
        epoll::add(&self.epoll, &started.line, Token::Line(at).data(), EventFlags::IN)?;
        self.ranks[at].line = Some(started.line);
        Ok(())
    }

    /// `-v`: one line on who runs where.
    fn describe(&mut self) {
        const MOST: usize = 64;
        if !self.plan.global.verbose {
            return;
        }
        let one = |(at, rank): (usize, &Rank)| {
            let pid = rank.started_as.map_or(0, Pid::as_raw_pid);
            let cpus = self.plan.cpus.get(at).map(|cpus| format!(" on cpu {cpus}")).unwrap_or_default();
            format!("{at} (pid {pid}{cpus})")
        };
        let list: Vec<String> = self.ranks.iter().enumerate().take(MOST).map(one).collect();
        let more = if self.ranks.len() > MOST { ", ..." } else { "" };
        let (id, host) = (self.common.job_id, &self.plan.host);
        let text = format!("job {id:016x} on {host}: ranks {}{more}", list.join(", "));
        self.output.say(&self.epoll, &text);
    }

    fn read_reports(&mut self) {
        let mut bytes = [0; REPORT_BYTES];
        while let Ok(REPORT_BYTES) = rustix::io::read(&self.reports, &mut bytes) {
            let report = Report::decode(&bytes);
            let why = reason(&std::io::Error::from_raw_os_error(report.errno));
            let missing = report.errno == Errno::NOENT.raw_os_error();
            let (status, why) = match report.stage {
                Stage::Prepare => (1, why),
                Stage::Directory => (1, format!("working directory: {why}")),
                Stage::Execute if missing => (127, why),
                Stage::Execute => (126, why),
            };
            if (report.rank as usize) < self.ranks.len() {
                self.fail(report.rank, Failure::Start { status, why });
            }
        }
    }

    // Bootstrap sockets

    /// Handles what a rank sent, and sends what it could not take before.
    fn serve(&mut self, at: usize, flags: EventFlags) {
        let line = self.ranks[at].line.as_mut().filter(|_| flags.contains(EventFlags::OUT));
        let cut = line.is_some_and(|line| line.flush().is_err());
        // Its last words may still be there.
        self.read_requests(at);
        match cut {
            true => self.hang_up(at),
            false => self.watch_line(at),
        }
    }

    fn read_requests(&mut self, at: usize) {
        loop {
            let Some(line) = &mut self.ranks[at].line else { return };
            if line.unsent() > MAX_UNREAD {
                return;
            }
            match line.receive() {
                Ok(None) => return,
                Ok(Some(request)) => self.request(at, request),
                Err(WireError::Closed) => return self.hang_up(at),
                Err(why) => {
                    self.hang_up(at);
                    self.fail(at as u32, Failure::Protocol(why.to_string()));
                    return;
                }
            }
        }
    }

    fn request(&mut self, at: usize, request: Request) {
        let rank = at as u32;
        match request {
            Request::Hello { version, pid } => self.hello(at, version, pid),
            Request::Publish { card } if card.len() > MAX_CARD => {
                self.fail(rank, Failure::Protocol(format!("a card of {} bytes", card.len())));
            }
            Request::Publish { card } => {
                for asker in self.board.publish(rank, card) {
                    self.send_card(asker, rank);
                }
            }
            Request::Lookup { rank: wanted } => {
                match self.board.look_up(rank, wanted).map(|card| card.is_some()) {
                    Some(true) => self.send_card(rank, wanted),
                    Some(false) => {}
                    None => self.fail(
                        rank,
                        Failure::Protocol(format!("looks up rank {wanted}, which does not exist")),
                    ),
                }
            }
            Request::Ready => self.ranks[at].phase = Phase::Running,
            Request::Finalized => self.ranks[at].phase = Phase::Finalized,
            Request::Abort { code, message } => self.hold(rank, Failure::Abort { code, message }),
        }
    }

    fn hello(&mut self, at: usize, version: u32, pid: u32) {
        if let Some((other, _)) = self.ranks[at].joined {
            let state =
                if self.ranks[at].phase == Phase::Finalized { "has finished MPI" } else { "is in MPI" };
            let reason = format!(
                "rank {at} of the job has been taken by process {other}, which {state}: \
                 each rank that mpirun starts can be one MPI program only"
            );
            self.send(at, &Reply::Refused { pid, reason });
            return;
        }
        let started = self.ranks[at].pid;
        let pidfd = Pid::from_raw(pid.cast_signed())
            .filter(|&joined| {
                started.is_some_and(|started| joined != started && descendants::descends(joined, started))
            })
            .and_then(|joined| pidfd_open(joined, PidfdFlags::empty()).ok());
        if let Some(pidfd) = &pidfd {
            let _ = epoll::add(&self.epoll, pidfd, Token::Joined(at).data(), EventFlags::IN);
        }
        self.ranks[at].joined = Some((pid, pidfd));
        if version != VERSION {
            let why =
                format!("its library speaks version {version} of the bootstrap protocol, mpirun {VERSION}");
            return self.fail(at as u32, Failure::Protocol(why));
        }
        self.ranks[at].phase = Phase::InInit;
        let absent = |rank: &Rank| rank.phase == Phase::Outside && rank.ended == Some(End::Code(0));
        if let Some(gone) = self.ranks.iter().position(absent) {
            self.fail(gone as u32, Failure::NoInit);
        }
    }

    fn send_card(&mut self, to: u32, of: u32) {
        if let Some(card) = self.board.card(of) {
            let reply = Reply::Card { rank: of, card: card.to_vec() };
            self.send(to as usize, &reply);
        }
    }

    fn send(&mut self, at: usize, reply: &Reply) {
        let Some(line) = &mut self.ranks[at].line else { return };
        // If the rank is gone, reading from it will tell, after its last words.
        let _ = line.send(reply);
        self.watch_line(at);
    }

    /// Asks epoll for what this line waits for.
    fn watch_line(&self, at: usize) {
        let Some(line) = &self.ranks[at].line else { return };
        let flags = match line.unsent() {
            0 => EventFlags::IN,
            1..=MAX_UNREAD => EventFlags::IN | EventFlags::OUT,
            _ => EventFlags::OUT,
        };
        let _ = epoll::modify(&self.epoll, line, Token::Line(at).data(), flags);
    }

    fn hang_up(&mut self, at: usize) {
        if let Some(line) = self.ranks[at].line.take() {
            let _ = epoll::delete(&self.epoll, &line);
        }
    }

    /// The process that joined, a child of what was started, is gone: the wrapper has a moment to end too.
    fn joined_ended(&mut self, at: usize) {
        if let Some((_, pidfd)) = &mut self.ranks[at].joined
            && let Some(pidfd) = pidfd.take()
        {
            let _ = epoll::delete(&self.epoll, &pidfd);
            self.read_requests(at);
            self.ranks[at].joined_gone = Some(Instant::now());
        }
    }

    // Endings

    fn reap(&mut self) {
        let mut ended = Vec::new();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => ended.extend(self.ended(pid, status)),
                Ok(None) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.childless = true;
                    break;
                }
            }
        }
        // The cause before its consequences: who was killed by a signal comes first.
        ended.sort_by_key(|&(_, end)| matches!(end, End::Code(_)));
        for (rank, end) in ended {
            self.judge(rank, end);
        }
        if let Course::Killing(_) = self.course {
            descendants::kill_below(getpid());
        }
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> Option<(u32, End)> {
        let rank = self.by_pid.remove(&pid.as_raw_pid())?;
        let end = End::of(status);
        let state = &mut self.ranks[rank as usize];
        (state.pid, state.ended) = (None, Some(end));
        self.alive -= 1;
        Some((rank, end))
    }

    fn judge(&mut self, rank: u32, end: End) {
        let at = rank as usize;
        self.read_reports();
        self.read_requests(at);
        let phase = self.ranks[at].phase;
        let others_inside = self.ranks.iter().any(|other| other.phase.is_inside() && other.ended.is_none());
        let Some(failure) = Failure::of(end, phase, others_inside) else { return };
        if let Some((_, first, _)) = self.held
            && (first == rank || !matches!(failure, Failure::Signal { .. }))
        {
            return; // what is held came first
        }
        match failure {
            // After Finalize the others are on their own: the status counts, but nobody is stopped for it.
            Failure::Code(_) if phase == Phase::Finalized => self.note(Some(rank), failure),
            Failure::Code(_) if others_inside => self.hold(rank, failure),
            _ => self.fail(rank, failure),
        }
    }

    /// A rank failed, perhaps only because another one did.
    fn hold(&mut self, rank: u32, failure: Failure) {
        if self.failure.is_none() && self.held.is_none() {
            self.held = Some((Instant::now() + HOLD, rank, failure));
        }
    }

    /// Tells a failure that was held.
    fn release(&mut self) {
        if let Some((_, rank, failure)) = self.held.take() {
            // Who aborts ends by itself, with its output written.
            let aborting = matches!(failure, Failure::Abort { .. }).then_some(rank);
            self.note(Some(rank), failure);
            self.end_but(aborting, Signal::TERM);
        }
    }

    /// A rank failed: the job ends.
    fn fail(&mut self, rank: u32, failure: Failure) {
        self.fail_with(Some(rank), failure);
    }

    fn fail_with(&mut self, rank: Option<u32>, failure: Failure) {
        self.note(rank, failure);
        self.end(Signal::TERM);
    }

    /// Keeps the first failure and says what it is.
    fn note(&mut self, rank: Option<u32>, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.held = None; // a better explanation, or the same
        let mut who = String::new();
        if let Some(rank) = rank {
            self.output.pump(&self.epoll, rank, Instant::now());
            let pid = self.ranks[rank as usize].started_as;
            let pid = pid.map(|pid| format!(", pid {}", pid.as_raw_pid())).unwrap_or_default();
            who = format!("rank {rank} on {}{pid}", self.plan.host);
        }
        if let Some(text) = failure.describe(&who) {
            self.output.say(&self.epoll, &text);
        }
        self.failure = Some(failure);
    }

    /// Asks all ranks to end, and kills what is left after the grace time.
    fn end(&mut self, signal: Signal) {
        self.end_but(None, signal);
    }

    /// The same, but for one rank, which has only the grace time to go by.
    fn end_but(&mut self, spared: Option<u32>, signal: Signal) {
        if self.course != Course::Running {
            return;
        }
        self.course = Course::Ending(Instant::now() + self.plan.global.grace);
        for (rank, state) in (0..).zip(&self.ranks) {
            if let Some(pid) = state.pid.filter(|_| spared != Some(rank)) {
                let _ = kill_process_group(pid, signal);
                let _ = kill_process_group(pid, Signal::CONT);
            }
        }
    }

    fn kill_all(&mut self) {
        if !matches!(self.course, Course::Killing(_)) {
            self.course = Course::Killing(Instant::now());
            self.signal_ranks(Signal::KILL);
        }
        descendants::kill_below(getpid());
    }

    /// Sends a signal to the process groups of all ranks that have not ended.
    fn signal_ranks(&self, signal: Signal) {
        for pid in self.ranks.iter().filter_map(|rank| rank.pid) {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Signals that the front got, or its death.
    fn control(&mut self) {
        let mut signals = [0; 64];
        let count = match rustix::io::read(&self.control, &mut signals) {
            Err(Errno::INTR | Errno::AGAIN) => return,
            Ok(count @ 1..) => count,
            _ => 0,
        };
        if count == 0 {
            let _ = epoll::delete(&self.epoll, &self.control);
            self.failure.get_or_insert(Failure::Interrupted(libc::SIGKILL));
            self.hurry = true;
            return self.kill_all();
        }
        for &number in &signals[..count] {
            self.forward(number.into());
        }
    }

    fn forward(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        match number {
            libc::SIGTSTP => {
                self.signal_ranks(Signal::STOP);
                let _ = rustix::net::send(&self.control, &[STOPPED], rustix::net::SendFlags::NOSIGNAL);
            }
            libc::SIGCONT | libc::SIGUSR1 | libc::SIGUSR2 => self.signal_ranks(signal),
            _ if self.course == Course::Running => {
                self.note(None, Failure::Interrupted(number));
                self.end(signal);
            }
            _ => {
                self.failure.get_or_insert(Failure::Interrupted(number));
                self.hurry = self.childless;
                self.kill_all();
            }
        }
    }

    // Time

    fn tick(&mut self, now: Instant) {
        self.output.tick(&self.epoll, now);
        if let Some(why) = self.output.take_trouble() {
            self.fail_with(None, Failure::Output(reason(&why)));
        }
        for at in 0..self.ranks.len() {
            let overdue = self.ranks[at].joined_gone.is_some_and(|gone| now >= gone + WRAPPER_TIME);
            if overdue && self.ranks[at].ended.is_none() && self.ranks[at].phase.is_inside() {
                let pid = self.ranks[at].joined.as_ref().map_or(0, |joined| joined.0);
                self.fail(at as u32, Failure::JoinedGone { pid });
            }
            if overdue {
                self.ranks[at].joined_gone = None;
            }
        }
        if self.held.as_ref().is_some_and(|&(due, ..)| now >= due) || self.alive == 0 {
            self.release();
        }
        if self.course == Course::Running && self.deadline.is_some_and(|deadline| now >= deadline) {
            let time = self.plan.global.timeout.unwrap_or_default();
            self.fail_with(None, Failure::Timeout(time));
        }
        if self.alive == 0 && !self.childless {
            self.reap();
        }
        if self.alive == 0 && !self.childless && self.course == Course::Running {
            // What ranks left behind may finish (a `tee` at the end of a pipe), but not stay.
            self.course = Course::Ending(now + self.plan.global.grace);
        }
        match self.course {
            Course::Ending(until) if now >= until => self.kill_all(),
            Course::Killing(_) if !self.childless => {
                descendants::kill_below(getpid());
            }
            _ => {}
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let gone =
            self.ranks.iter().filter_map(|rank| rank.joined_gone).map(|gone| gone + WRAPPER_TIME).min();
        let course = match self.course {
            _ if self.childless => None,
            Course::Running => self.deadline,
            Course::Ending(until) => Some(until),
            Course::Killing(_) => Some(Instant::now() + KILL_AGAIN),
        };
        let held = self.held.as_ref().map(|&(due, ..)| due);
        [self.output.next_tick(), gone, course, held].into_iter().flatten().min()
    }

    /// True when no process is left and all is written, or waiting longer makes no sense.
    fn is_over(&mut self, now: Instant) -> bool {
        if let Course::Killing(since) = self.course
            && !self.childless
            && now > since + PATIENCE
        {
            let left = descendants::below(getpid());
            let pids: Vec<String> = left.iter().take(8).map(|pid| pid.as_raw_pid().to_string()).collect();
            self.output.say(&self.epoll, &format!("processes that cannot be killed: {}", pids.join(", ")));
            self.childless = true;
            self.hurry = true;
        }
        self.childless && (self.hurry || self.output.drain(&self.epoll, now))
    }
}

fn timespec(time: Duration) -> Timespec {
    // A little late rather than a little early, which would make the loop spin.
    let time = time + Duration::from_micros(100);
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}
