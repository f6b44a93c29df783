//! The links of an agent to the agents below it: each is a process (ssh) that runs the agent on another host, and its pipes.

mod pipes;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use banyan_pmi::Places;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) use self::pipes::Pipes;
use crate::frames::{ALL, Event, Frame, Greeting, Launch, Order, greeting};
use crate::start::unblock_signals;
use crate::tree::{Cards, Relay, Side, Way};
use crate::trouble::{no_agent, reason};
use crate::verdict::End;

/// Most bytes that a remote shell may say before the agent does.
const MOST_NOISE: usize = 256 << 10;

/// Bytes that are kept of what ssh writes to its standard error.
const MOST_SAID: usize = 4 << 10;

/// How often each end of a link says that it is there.
pub(crate) const PULSE: Duration = Duration::from_secs(1);

/// How long to wait for the status of an ssh whose output has ended, or for the rest of the output of one that has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How far a link has come.
#[derive(PartialEq, Eq, Debug)]
enum Stage {
    /// The agent has not spoken yet.
    Starting,
    Open,
    /// Its output has ended, at this time, or it is not what an agent says; why, if that is known.
    Ending(Instant, Option<String>),
    /// It has been reported as lost, or its job is over.
    Over,
}

/// The link to an agent that this one started.
struct Link {
    subtree: Range<u32>,
    /// The names of its hosts, until the agent is told of them.
    hosts: Vec<String>,
    pid: Option<Pid>,
    status: Option<End>,
    pipes: Pipes,
    errors: Option<OwnedFd>,
    /// The last that ssh wrote to its standard error.
    said: Vec<u8>,
    stage: Stage,
}

/// The links of an agent, and the tree that they are part of.
#[derive(Default)]
pub(crate) struct Links {
    links: Vec<Link>,
    relay: Relay,
    /// The job, for agents that are not there yet.
    begin: Option<Frame>,
    ssh: String,
    patience: Duration,
    pulsed: Option<Instant>,
    /// The job is over: that links end is no loss.
    exiting: bool,
    /// Events of this agent's own: what it has lost.
    lost: Vec<Event>,
}

/// The parts of a link that epoll tells apart.
const PARTS: usize = 3;

impl Links {
    /// Starts the agents below this one, which is agent `number` and the first of a subtree on these `hosts`. `token` makes the
    /// tokens for epoll.
    pub(crate) fn start(
        &mut self,
        epoll: &OwnedFd,
        number: u32,
        hosts: &[String],
        launch: &Launch,
        begin: Frame,
        token: fn(usize) -> u64,
    ) {
        self.relay = Relay::new(&(number..number + hosts.len() as u32), launch.reach.radix);
        self.ssh = launch.reach.ssh.first().cloned().unwrap_or_default();
        self.patience = launch.reach.patience;
        self.begin = Some(begin);
        for (at, subtree) in self.relay.children().to_vec().into_iter().enumerate() {
            let below = &hosts[(subtree.start - number) as usize..(subtree.end - number) as usize];
            match link(epoll, launch, below, subtree.clone(), at, token) {
                Ok(link) => self.links.push(link),
                Err(why) => {
                    let why = format!("{} cannot be run: {}", self.ssh, reason(&why));
                    self.lost.push(Event::Lost { first: subtree.start, end: subtree.end, why });
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// The end of the subtree whose first agent is this one, with this number.
    pub(crate) fn end_of_subtree(&self, number: u32) -> u32 {
        self.links.last().map_or(number + 1, |link| link.subtree.end)
    }

    /// The processes of the links.
    pub(crate) fn pids(&self) -> Vec<Pid> {
        self.links.iter().filter_map(|link| link.pid).collect()
    }

    /// Sends an order to the agents below that it is for; true if it is for this agent, too.
    pub(crate) fn order(&mut self, epoll: &OwnedFd, frame: &Frame) -> bool {
        let way = self.relay.down(frame);
        let children = self.relay.children();
        let child = if let Way::Child(at) = way { children.get(at).cloned() } else { None };
        for link in &mut self.links {
            let is_it = way == Way::All || child.as_ref() == Some(&link.subtree);
            if is_it && link.stage == Stage::Open {
                link.pipes.send(epoll, frame);
            }
        }
        matches!(way, Way::Here | Way::All)
    }

    /// See [`Relay::place`].
    pub(crate) fn place(&mut self, places: Places) {
        self.relay.place(places);
    }

    /// See [`Relay::cards`].
    pub(crate) fn cards(&mut self, from: Side, said: Cards) -> Vec<(Side, Cards)> {
        self.relay.cards(from, said)
    }

    /// Sends an order to the child with this number.
    pub(crate) fn tell(&mut self, epoll: &OwnedFd, child: u32, order: &Order) {
        let mut open = self.links.iter_mut().filter(|link| link.stage == Stage::Open);
        if let Some(link) = open.find(|link| link.subtree.start == child) {
            link.pipes.send(epoll, &Frame::new(child, order));
        }
    }

    /// Handles an event of epoll; gives the frames that have come, and the numbers of the children that they are from.
    pub(crate) fn handle(&mut self, epoll: &OwnedFd, token: usize) -> Vec<(u32, Frame)> {
        let Some(link) = self.links.get_mut(token / PARTS) else { return Vec::new() };
        match token % PARTS {
            0 => self.read(epoll, token / PARTS),
            1 => {
                link.pipes.flush(epoll);
                Vec::new()
            }
            _ => {
                link.listen(epoll);
                Vec::new()
            }
        }
    }

    fn read(&mut self, epoll: &OwnedFd, at: usize) -> Vec<(u32, Frame)> {
        let Links { links, begin, .. } = self;
        let link = &mut links[at];
        let there = link.pipes.read(epoll);
        let mut frames = Vec::new();
        let wrong = match link.greet(epoll, begin.as_ref()) {
            Ok(false) => None,
            Ok(true) => link.pipes.frames().map(|all| frames = all).err(),
            Err(why) => Some(why),
        };
        if (!there || wrong.is_some()) && matches!(link.stage, Stage::Starting | Stage::Open) {
            link.stage = Stage::Ending(Instant::now(), wrong);
        }
        let child = link.subtree.start;
        if links.iter().all(|link| link.stage != Stage::Starting) {
            // All have been told of the job.
            *begin = None;
        }
        frames.into_iter().map(|frame| (child, frame)).collect()
    }

    /// A process has ended; true if it was that of a link.
    pub(crate) fn ended(&mut self, pid: Pid, end: End) -> bool {
        let Some(link) = self.links.iter_mut().find(|link| link.pid == Some(pid)) else { return false };
        (link.pid, link.status) = (None, Some(end));
        if matches!(link.stage, Stage::Starting | Stage::Open) {
            link.stage = Stage::Ending(Instant::now(), None);
        }
        true
    }

    /// Says to the agents below that this one is there, and gives up those that have been silent for too long.
    pub(crate) fn tick(&mut self, epoll: &OwnedFd, now: Instant) {
        let due = self.pulsed.is_none_or(|pulsed| now >= pulsed + PULSE);
        // If this process was stopped for a while, nobody else was silent.
        let slept = self.pulsed.is_some_and(|pulsed| now >= pulsed + 5 * PULSE);
        if due {
            self.pulsed = Some(now);
        }
        for link in &mut self.links {
            if slept {
                link.pipes.heard = now;
            }
            if due && link.stage == Stage::Open {
                link.pipes.send(epoll, &Frame::new(link.subtree.start, &Order::Pulse));
            }
            if matches!(link.stage, Stage::Starting | Stage::Open) && now >= link.pipes.heard + self.patience
            {
                let time = self.patience.as_secs_f64();
                let why = match link.stage {
                    Stage::Starting => format!("it did not answer within {time} s (--patience)"),
                    _ => format!("nothing was heard from it for {time} s (--patience)"),
                };
                link.stage = Stage::Ending(now, Some(why));
            }
            let Stage::Ending(since, why) = &mut link.stage else { continue };
            if why.is_some() || link.pid.is_none() && link.pipes.read.is_none() || now >= *since + LAST_WORDS
            {
                let why = why.take();
                link.listen(epoll);
                let why = why.unwrap_or_else(|| no_agent(&self.ssh, link.status, &link.said));
                if !self.exiting {
                    let Range { start: first, end } = link.subtree;
                    self.lost.push(Event::Lost { first, end, why });
                }
                link.end(epoll);
            }
        }
    }

    /// When [`Links::tick`] is to be called.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let ending = self.links.iter().filter_map(|link| match &link.stage {
            Stage::Ending(since, _) => Some(*since + LAST_WORDS),
            Stage::Starting | Stage::Open => Some(link.pipes.heard + self.patience),
            Stage::Over => None,
        });
        let any = self.links.iter().any(|link| link.stage != Stage::Over);
        let pulse = self.pulsed.filter(|_| any).map(|pulsed| pulsed + PULSE);
        ending.chain(pulse).min()
    }

    /// What has been lost since the last call.
    pub(crate) fn take_lost(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.lost)
    }

    /// Tells all agents below that the job is over. They end, and so do the links.
    pub(crate) fn exit(&mut self, epoll: &OwnedFd) {
        if !self.exiting {
            self.exiting = true;
            self.order(epoll, &Frame::new(ALL, &Order::Exit));
            self.end_starting(epoll);
        }
    }

    /// Ends links whose agents are not there yet, and so were told of no job; gives the agents that nobody will hear of.
    pub(crate) fn end_starting(&mut self, epoll: &OwnedFd) -> Vec<u32> {
        let starting = self.links.iter_mut().filter(|link| link.stage == Stage::Starting);
        let end = |link: &mut Link| {
            link.end(epoll);
            link.subtree.clone()
        };
        starting.flat_map(end).collect()
    }

    /// True if no process of a link is left.
    pub(crate) fn are_over(&self) -> bool {
        self.links.iter().all(|link| link.pid.is_none())
    }

    /// Ends the processes of all links at once.
    pub(crate) fn cut(&mut self, epoll: &OwnedFd) {
        self.exiting = true;
        self.links.iter_mut().for_each(|link| link.end(epoll));
    }
}

impl Link {
    /// Waits for the agent's first line. True if it has come; then the agent has been told of the job.
    fn greet(&mut self, epoll: &OwnedFd, begin: Option<&Frame>) -> Result<bool, String> {
        if self.stage != Stage::Starting {
            return Ok(self.stage == Stage::Open);
        }
        match greeting(&self.pipes.inbox) {
            Greeting::There(at) => {
                self.pipes.inbox.drain(..at);
                self.stage = Stage::Open;
                let (number, hosts) = (self.subtree.start, std::mem::take(&mut self.hosts));
                self.pipes.send(epoll, &Frame::new(number, &Order::You { number, hosts }));
                if let Some(begin) = begin {
                    self.pipes.send(epoll, begin);
                }
                Ok(true)
            }
            Greeting::Version(other) => Err(format!(
                "its mpirun is of another version ({other}): all hosts need the same release of Banyan MPI"
            )),
            Greeting::NotYet if self.pipes.inbox.len() > MOST_NOISE => {
                Err("its shell writes on and on, and no agent answers".to_owned())
            }
            Greeting::NotYet => Ok(false),
        }
    }

    /// Reads what ssh says.
    fn listen(&mut self, epoll: &OwnedFd) {
        let mut buffer = [0; 1024];
        while let Some(errors) = &self.errors {
            match rustix::io::read(errors, &mut buffer) {
                Ok(count @ 1..) => {
                    self.said.extend_from_slice(&buffer[..count]);
                    let over = self.said.len().saturating_sub(MOST_SAID);
                    self.said.drain(..over);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(0) | Err(_) => {
                    let _ = epoll::delete(epoll, errors);
                    self.errors = None;
                }
            }
        }
    }

    /// Closes the pipes, by which the agent ends, and ends ssh, which may not notice.
    fn end(&mut self, epoll: &OwnedFd) {
        self.stage = Stage::Over;
        self.pipes.close(epoll);
        if let Some(errors) = self.errors.take() {
            let _ = epoll::delete(epoll, errors);
        }
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, Signal::TERM);
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

/// Runs the agent of the first of `hosts`, which are those of its subtree.
fn link(
    epoll: &OwnedFd,
    launch: &Launch,
    hosts: &[String],
    subtree: Range<u32>,
    at: usize,
    token: fn(usize) -> u64,
) -> io::Result<Link> {
    let [command, arguments @ ..] = launch.reach.ssh.as_slice() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let quoted = shlex::try_quote(&launch.reach.agent).map_err(io::Error::other)?;
    let mut ssh = Command::new(command);
    ssh.args(arguments).arg(&hosts[0]).args([&*quoted, "--agent"]).process_group(0);
    unblock_signals(&mut ssh);
    let mut child = ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (Some(write), Some(read), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let (write, read, errors): (OwnedFd, OwnedFd, OwnedFd) = (write.into(), read.into(), errors.into());
    let part = |part| token(at * PARTS + part);
    let pipes = Pipes::new(epoll, read, write, [part(0), part(1)])?;
    rustix::io::ioctl_fionbio(&errors, true)?;
    epoll::add(epoll, errors.as_fd(), EventData::new_u64(part(2)), EventFlags::IN)?;
    let pid = Pid::from_raw(child.id().cast_signed());
    Ok(Link {
        subtree,
        hosts: hosts.to_vec(),
        pid,
        status: None,
        pipes,
        errors: Some(errors),
        said: Vec::new(),
        stage: Stage::Starting,
    })
}
