//! The agent: starts the ranks, serves their bootstrap sockets, passes their output on, judges how they end,
//! and leaves nothing behind.

mod bootstrap;
mod ending;
mod notices;
mod state;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use banyan_shm::Shm;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, getpid, set_child_subreaper, setpgid};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::kvs::Kvs;
use crate::options::Options;
use crate::output::{Output, StreamKind};
use crate::plan::JobPlan;
use crate::ranks::{Common, Rank, start};
use crate::report::DeadlockDetector;
use crate::start::{Limit, Mask, START_ERROR_BYTES, Stage, StartError, arrived, take_signals};
use crate::trouble::{reason, refused};
use crate::verdict::Failure;
use crate::{Trouble, descendants, executable, oom, pty};

/// How often killing is repeated while processes are left.
const KILL_AGAIN: Duration = Duration::from_millis(10);

/// How long killed processes may take to end before mpirun ends without them.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a wrapper may take to end after the MPI program that it ran is gone.
const WRAPPER_TIME: Duration = Duration::from_millis(300);

/// What the front hands to the agent.
pub(crate) struct Setup {
    pub(crate) options: Options,
    /// The front sends signal numbers here; end of file means that the front is dead.
    pub(crate) control: OwnedFd,
    /// What rank 0 reads instead of mpirun's own input.
    pub(crate) input: Option<OwnedFd>,
    pub(crate) mask: Mask,
}

/// Runs the job; gives mpirun's status.
pub(crate) fn run(setup: Setup) -> u8 {
    match Agent::new(setup) {
        Ok(agent) => agent.run(),
        Err(trouble) => trouble.tell(),
    }
}

/// The source of an epoll event; `usize` is a rank or an index.
#[derive(Clone, Copy)]
enum Token {
    Signals,
    Control,
    StartErrors,
    Sink(usize),
    Stream(usize),
    Channel(usize),
    Joined(usize),
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
            _ => Token::Joined(at),
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
    /// All processes are being killed, since this time.
    Killing(Instant),
}

struct Agent {
    plan: JobPlan,
    common: Common,
    control: OwnedFd,
    children: OwnedFd,
    start_errors: OwnedFd,
    epoll: OwnedFd,
    output: Output,
    ranks: Vec<Rank>,
    /// Ranks by the pid of the process that mpirun started for them.
    by_pid: HashMap<i32, u32>,
    /// Number of ranks whose process has not ended.
    alive: u32,
    kvs: Kvs,
    state: JobState,
    failure: Option<Failure>,
    /// The rank of `failure`; `None` if it is of no rank.
    culprit: Option<u32>,
    /// Number of other ranks that failed with the same error.
    same_failure: u32,
    /// Ranks that ended with status 0 but without MPI_Finalize, where that is allowed.
    unfinalized: Vec<u32>,
    /// Notices of ranks to the user, each with the number of further ranks that sent it.
    notices: Vec<(String, u32)>,
    /// A rank's failure that is not reported yet, with the time when it will be; see `HOLD` in `ending`.
    held: Option<(Instant, u32, Failure)>,
    deadline: Option<Instant>,
    started: Instant,
    detector: DeadlockDetector,
    /// When the job was last checked for a deadlock.
    deadlock_checked: Instant,
    /// A deadlock was found and reported.
    deadlock_reported: bool,
    /// This process has no descendants any more.
    childless: bool,
    /// mpirun ends without writing the output that is left: the front is gone, the user insists, or nobody reads it.
    drop_output: bool,
    /// Bytes written so far and when that number was reached, once the job has failed and its output waits for a reader.
    unread: Option<(u64, Instant)>,
    /// The final messages have been written.
    summarized: bool,
    oom: Option<oom::Watch>,
}

impl Agent {
    fn new(setup: Setup) -> Result<Agent, Trouble> {
        let plan = JobPlan::new(setup.options)?;
        let limit = plan.raise_limit()?;
        plan.notice();
        Agent::with(plan, limit, setup.control, setup.input, setup.mask)
            .map_err(|why| Trouble::new(format!("cannot start: {}", reason(&why))))
    }

    fn with(
        plan: JobPlan,
        limit: Limit,
        control: OwnedFd,
        input: Option<OwnedFd>,
        mask: Mask,
    ) -> std::io::Result<Agent> {
        setpgid(None, None).map_err(refused("setpgid"))?;
        set_child_subreaper(Some(getpid())).map_err(refused("prctl(PR_SET_CHILD_SUBREAPER)"))?;
        rustix::thread::set_name(c"banyan-agent").map_err(refused("prctl(PR_SET_NAME)"))?;
        let (children, _) = take_signals(&[libc::SIGCHLD]).map_err(refused("signalfd"))?;
        let (start_errors, errors_in) = pipe_with(PipeFlags::CLOEXEC).map_err(refused("pipe2"))?;
        rustix::io::ioctl_fionbio(&start_errors, true).map_err(refused("ioctl(FIONBIO)"))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(refused("epoll_create1"))?;
        let watched =
            [(&children, Token::Signals), (&control, Token::Control), (&start_errors, Token::StartErrors)];
        for (fd, token) in watched {
            epoll::add(&epoll, fd, token.data(), EventFlags::IN).map_err(refused("epoll_ctl"))?;
        }
        let stream = |at| Token::Stream(at).encode();
        let sink = |at| Token::Sink(at).encode();
        let mut output = Output::new(plan.label(), stream, sink)?;
        let (memory, status) = files_in_memory(plan.size, |text| output.say(&epoll, &text));
        let mut random = [0; 40];
        getrandom(&mut random, GetRandomFlags::empty()).map_err(refused("getrandom"))?;
        let (id, secret) = random.split_first_chunk::<8>().expect("40 bytes hold 8");
        let common = Common {
            job_id: u64::from_le_bytes(*id),
            secret: secret.try_into().expect("32 bytes are left of 40"),
            single_copy: crate::plan::single_copy(plan.size, plan.cores),
            memory,
            status,
            pty: pty::Policy::of(&plan.global.pty),
            null: File::open("/dev/null").map_err(named("/dev/null, which ranks read,"))?.into(),
            input,
            mask,
            limit,
            errors: errors_in,
        };
        let size = plan.size as usize;
        let started = Instant::now();
        Ok(Agent {
            deadline: plan.global.timeout.map(|time| started + time),
            started,
            detector: DeadlockDetector::default(),
            deadlock_checked: started,
            deadlock_reported: false,
            plan,
            common,
            control,
            children,
            start_errors,
            epoll,
            output,
            ranks: std::iter::repeat_with(Rank::default).take(size).collect(),
            by_pid: HashMap::new(),
            alive: 0,
            kvs: Kvs::new(size),
            state: JobState::Running,
            failure: None,
            culprit: None,
            same_failure: 0,
            unfinalized: Vec::new(),
            notices: Vec::new(),
            held: None,
            childless: false,
            drop_output: false,
            unread: None,
            summarized: false,
            // Before any rank is started: one may be killed before all are.
            oom: oom::Watch::begin(),
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
                self.fail_with(None, Failure::System(refused("epoll_wait")(why).to_string()));
                self.kill_all();
                self.reap();
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
            Token::StartErrors => self.read_start_errors(),
            Token::Sink(at) => self.output.writable(&self.epoll, at),
            Token::Stream(at) => self.output.read(&self.epoll, at, Instant::now()),
            Token::Channel(at) => self.serve(at, flags),
            Token::Joined(at) => self.joined_ended(at),
        }
    }

    fn start_ranks(&mut self) {
        let apps = self.plan.apps.iter().enumerate();
        let mut ranks: Vec<(u32, usize)> =
            (0..).zip(apps.flat_map(|(at, app)| std::iter::repeat_n(at, app.ranks as usize))).collect();
        // Ranks bound to the core that this process runs on start last: they would delay the start of the others.
        let here = rustix::thread::sched_getcpu() as u32;
        let is_here = |rank: u32| self.plan.cpus.get(rank as usize).is_some_and(|cpus| cpus.contains(here));
        ranks.sort_by_key(|&(rank, _)| is_here(rank));
        for (rank, app) in ranks {
            if let Err(why) = self.start_rank(rank, app) {
                let full = why.kind() == std::io::ErrorKind::WouldBlock;
                let hint = if full { " (the limit on processes, ulimit -u?)" } else { "" };
                let why = reason(&why) + hint;
                self.fail(rank, Failure::Start { status: 1, why });
                return;
            }
        }
        // All ranks are started. This copy of rank 0's input must be closed, so that writers notice when rank 0 ends.
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
        for (kind, pipe) in [StreamKind::Out, StreamKind::Err].into_iter().zip(started.output) {
            if let Some(pipe) = pipe {
                self.output.add(&self.epoll, rank, kind, pipe)?;
            }
        }
        epoll::add(&self.epoll, &started.channel, Token::Channel(at).data(), EventFlags::IN)?;
        self.ranks[at].channel = Some(started.channel);
        Ok(())
    }

    /// `-v`: one line that says which process and which CPUs each rank has.
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

    fn read_start_errors(&mut self) {
        let mut bytes = [0; START_ERROR_BYTES];
        while let Ok(START_ERROR_BYTES) = rustix::io::read(&self.start_errors, &mut bytes) {
            let start_error = StartError::decode(&bytes);
            let error = std::io::Error::from_raw_os_error(start_error.errno);
            let why = reason(&error);
            let missing = start_error.errno == Errno::NOENT.raw_os_error();
            let (status, why) = match start_error.stage {
                Stage::Prepare => (1, refused("dup2")(error).to_string()),
                Stage::Bind => {
                    let why = refused("sched_setaffinity")(error);
                    (1, format!("{why}; --bind-to none does without"))
                }
                Stage::Directory => (1, format!("working directory: {why}")),
                Stage::Execute if missing => (127, self.not_there(start_error.rank).unwrap_or(why)),
                Stage::Execute => (126, why),
            };
            if (start_error.rank as usize) < self.ranks.len() {
                self.fail(start_error.rank, Failure::Start { status, why });
            }
        }
    }

    /// Why exec does not find the program of `rank`, which was there when the job was planned.
    fn not_there(&self, rank: u32) -> Option<String> {
        let mut before = 0;
        let app = self.plan.apps.iter().find(|app| {
            before += app.ranks;
            rank < before
        })?;
        executable::missing_interpreter(&app.file())
    }

    fn tick(&mut self, now: Instant) {
        self.output.tick(&self.epoll, now);
        if let Some(why) = self.output.take_trouble() {
            self.fail_with(None, Failure::Output(reason(&why)));
        }
        for at in 0..self.ranks.len() {
            let overdue = self.ranks[at].joined_gone.is_some_and(|gone| now >= gone + WRAPPER_TIME);
            if overdue && self.plan.global.allow_missing_finalize && self.ranks[at].phase.is_inside() {
                self.count_as_finalized(at);
            }
            if overdue && self.ranks[at].ended.is_none() && self.ranks[at].phase.is_inside() {
                let pid = self.ranks[at].joined.as_ref().map_or(0, |joined| joined.0);
                self.fail(at as u32, Failure::JoinedGone { pid });
            }
            if overdue {
                self.ranks[at].joined_gone = None;
            }
        }
        if self.held.as_ref().is_some_and(|&(due, ..)| now >= due) || self.alive == 0 {
            self.report_held();
        }
        if self.state == JobState::Running && self.deadline.is_some_and(|deadline| now >= deadline) {
            let time = self.plan.global.timeout.unwrap_or_default();
            if self.ranks.iter().any(|rank| rank.joined.is_some()) {
                self.report_states();
            }
            self.fail_with(None, Failure::Timeout(time));
        }
        self.check_deadlock(now);
        if self.alive == 0 && !self.childless {
            self.reap();
        }
        if self.alive == 0 && !self.childless && self.state == JobState::Running {
            // Processes that ranks left behind (a `tee` at the end of a pipe) may finish in the grace time.
            self.state = JobState::Ending(now + self.plan.global.grace);
        }
        match self.state {
            JobState::Ending(until) if now >= until => self.kill_all(),
            JobState::Killing(_) if !self.childless => {
                descendants::kill_below(getpid());
            }
            _ => {}
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let gone =
            self.ranks.iter().filter_map(|rank| rank.joined_gone).map(|gone| gone + WRAPPER_TIME).min();
        let state = match self.state {
            _ if self.childless => None,
            JobState::Running => self.deadline,
            JobState::Ending(until) => Some(until),
            JobState::Killing(_) => Some(Instant::now() + KILL_AGAIN),
        };
        let held = self.held.as_ref().map(|&(due, ..)| due);
        let unread = self.unread_until().filter(|_| self.childless);
        [self.output.next_tick(), gone, state, held, unread, self.next_deadlock_check()]
            .into_iter()
            .flatten()
            .min()
    }

    /// True when no process is left and all output is written, or mpirun gives up on what is left.
    fn is_over(&mut self, now: Instant) -> bool {
        if let JobState::Killing(since) = self.state
            && !self.childless
            && now > since + PATIENCE
        {
            let left = descendants::below(getpid());
            let pids: Vec<String> = left.iter().take(8).map(|pid| pid.as_raw_pid().to_string()).collect();
            self.output.say(&self.epoll, &format!("processes that cannot be killed: {}", pids.join(", ")));
            self.childless = true;
            self.drop_output = true;
        }
        if !self.childless || !self.is_written(now) {
            return false;
        }
        if !std::mem::replace(&mut self.summarized, true) {
            self.summarize();
        }
        self.is_written(now)
    }
}

/// The memory that ranks share, and their status lines. `say` tells what a job without them lacks.
fn files_in_memory(ranks: u32, mut say: impl FnMut(String)) -> (Option<OwnedFd>, Option<OwnedFd>) {
    let file = "a file in memory (memfd_create, ftruncate)";
    let memory = Shm::memory(ranks)
        .map_err(|why| if why.raw_os_error().is_some() { refused(file)(why) } else { why })
        .inspect_err(|why| say(format!("no shared memory between ranks: {why}: they use slower ways")));
    let status = banyan_pmi::status::create(ranks)
        .map_err(refused(file))
        .inspect_err(|why| say(format!("no status lines: {why}: a job that hangs cannot be explained")));
    (memory.ok(), status.ok())
}

/// Puts the name of what cannot be opened in front of the reason.
fn named(what: &str) -> impl Fn(std::io::Error) -> std::io::Error {
    move |why| std::io::Error::other(format!("{what} cannot be opened: {}", reason(&why)))
}

fn timespec(time: Duration) -> Timespec {
    // A little late rather than a little early, which would make the loop spin.
    let time = time + Duration::from_micros(100);
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}
