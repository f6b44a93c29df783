//! The agent of another host than mpirun's: a host part that takes its orders from the agent that started it, by way of
//! standard input, and tells it what happens by way of standard output. It passes on what is for or from the hosts below it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event as Polled};
use rustix::io::Errno;

use super::host::{self, HostPart};
use super::{Token, become_agent, timespec};
use crate::frames::{Event, Frame, Here, Launch, Order};
use crate::links::Pipes;
use crate::output::Output;
use crate::start::Mask;
use crate::trouble::reason;
use crate::verdict::signal_name;
use crate::{Trouble, placement, pty};

/// How long an agent waits to be told of a job.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the agents below may take to end.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// Runs the agent; gives its status.
pub(super) fn run(control: OwnedFd, mask: Mask) -> Result<u8, Trouble> {
    let failed = |why: io::Error| Trouble::new(format!("cannot start: {}", reason(&why)));
    let (epoll, children) = become_agent(&control).map_err(failed)?;
    let (read, write) = (io::stdin().as_fd().try_clone_to_owned(), io::stdout().as_fd().try_clone_to_owned());
    let tokens = [0, 1].map(|part| Token::Parent(part).encode());
    let mut parent =
        Pipes::new(&epoll, read.map_err(failed)?, write.map_err(failed)?, tokens).map_err(failed)?;
    parent.greet(&epoll);
    let Some(Told { number, hosts, frame, rest }) = told(&epoll, &mut parent)? else { return Ok(1) };
    let Some(Order::Begin(launch)) = frame.open() else {
        return Err(Trouble::new("the agent that started this one breaks the protocol"));
    };
    let queue = epoll.try_clone().map_err(failed)?;
    let patience = launch.reach.patience;
    let end = number + hosts.len() as u32;
    match host_part(number, hosts, *launch, frame, (queue, children), mask) {
        Ok(host) => {
            let ticked = Instant::now();
            let remote =
                Remote { host, parent, control, number, patience, ticked, exiting: None, dying: false };
            Ok(remote.run(rest))
        }
        Err(trouble) => {
            let lost = Event::Lost { first: number, end, why: trouble.message };
            parent.send(&epoll, &Frame::new(number, &lost));
            parent.finish(&epoll);
            Ok(1)
        }
    }
}

/// The host part of an agent, with the links to the agents below it.
fn host_part(
    number: u32,
    hosts: Vec<String>,
    mut launch: Launch,
    begin: Frame,
    (epoll, children): (OwnedFd, OwnedFd),
    mask: Mask,
) -> Result<HostPart, Trouble> {
    let (plan, limit) = placement::plan_of(&mut launch, number, hosts.len() as u32 - 1)?;
    let (stream, sink) = (|at| Token::Stream(at).encode(), |at| Token::Sink(at).encode());
    let host = HostPart::new(host::Setup {
        plan,
        job_id: launch.job_id,
        secret: launch.secret,
        limit,
        mask,
        pty: pty::Policy::with(launch.terminal),
        input: None,
        epoll,
        children,
        output: Output::upwards(launch.window as usize, stream, sink),
        is_remote: true,
    });
    let mut host = host.map_err(|why| Trouble::new(reason(&why)))?;
    host.links.start(&host.epoll, number, &hosts, &launch, begin, |at| Token::Link(at).encode());
    let meeting = host.meeting();
    host.events.push_back(Event::Here(Here::new(&host.plan, meeting)));
    Ok(host)
}

/// What an agent is told first.
struct Told {
    number: u32,
    /// The names of the hosts of its subtree, its own first.
    hosts: Vec<String>,
    /// The frame with the job, to be passed on.
    frame: Frame,
    /// Frames that have come behind it.
    rest: Vec<Frame>,
}

/// Waits for the job; `None` if none comes.
fn told(epoll: &OwnedFd, parent: &mut Pipes) -> Result<Option<Told>, Trouble> {
    let start = Instant::now();
    let mut you = None;
    loop {
        let mut frames = parent.frames().map_err(Trouble::new)?.into_iter();
        while let Some(frame) = frames.next() {
            match (you.take(), frame.open()) {
                (None, Some(Order::You { number, hosts })) if !hosts.is_empty() => {
                    you = Some((number, hosts))
                }
                (Some((number, hosts)), Some(Order::Begin(_))) => {
                    return Ok(Some(Told { number, hosts, frame, rest: frames.collect() }));
                }
                (told, Some(Order::Pulse)) => you = told,
                _ => return Err(Trouble::new("the agent that started this one breaks the protocol")),
            }
        }
        let mut events: Vec<Polled> = Vec::with_capacity(8);
        let wait = timespec((start + PATIENCE).saturating_duration_since(Instant::now()));
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Err(why) if why != Errno::INTR => return Err(Trouble::new(why.to_string())),
            _ => {}
        }
        if events.is_empty() && start.elapsed() >= PATIENCE {
            return Ok(None);
        }
        for event in &events {
            match Token::decode(event.data.u64()) {
                Token::Parent(1) => parent.flush(epoll),
                Token::Parent(_) if parent.read(epoll) => {}
                _ => return Ok(None),
            }
        }
    }
}

struct Remote {
    host: HostPart,
    parent: Pipes,
    control: OwnedFd,
    number: u32,
    patience: Duration,
    ticked: Instant,
    /// The job is over, since this time.
    exiting: Option<Instant>,
    /// The job has been lost: all its processes here are killed.
    dying: bool,
}

impl Remote {
    fn run(mut self, rest: Vec<Frame>) -> u8 {
        self.take(rest);
        let mut events: Vec<Polled> = Vec::with_capacity(128);
        loop {
            let now = Instant::now();
            // If this process was stopped for a while, nobody else was silent.
            if now > self.ticked + self.patience / 2 {
                self.parent.heard = now;
            }
            self.ticked = now;
            if now > self.parent.heard + self.patience {
                self.die();
            }
            self.host.tick(now);
            self.tell();
            if self.is_over(now) {
                self.parent.finish(&self.host.epoll);
                return u8::from(self.dying);
            }
            let silence = self.parent.heard + self.patience;
            let exit = self.exiting.map(|since| since + EXIT_TIME);
            let next = self.host.next_deadline().into_iter().chain([silence]).chain(exit).min();
            let wait = next.map(|at| timespec(at.saturating_duration_since(now)));
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            if let Err(why) = epoll::wait(&self.host.epoll, spare, wait.as_ref())
                && why != Errno::INTR
            {
                self.die();
            }
            for event in &events {
                match Token::decode(event.data.u64()) {
                    Token::Control => self.control(),
                    Token::Parent(1) => self.parent.flush(&self.host.epoll),
                    Token::Parent(_) => self.listen(),
                    token => self.host.handle(token, event.flags),
                }
                self.tell();
            }
        }
    }

    /// Takes what has come from the parent.
    fn listen(&mut self) {
        let there = self.parent.read(&self.host.epoll);
        match self.parent.frames() {
            Ok(frames) => self.take(frames),
            Err(_) => self.die(),
        }
        if !there && self.exiting.is_none() {
            self.die();
        }
    }

    fn take(&mut self, frames: Vec<Frame>) {
        for frame in frames {
            if !self.host.links.order(&self.host.epoll, &frame) {
                continue;
            }
            match frame.open() {
                Some(Order::Exit) => {
                    self.exiting.get_or_insert(Instant::now());
                    if !self.host.childless {
                        self.host.order(Order::Kill { tell: false });
                    }
                    self.host.links.exit(&self.host.epoll);
                }
                Some(order) => self.host.order(order),
                None => self.die(),
            }
        }
    }

    /// Tells the parent what has happened here and below. Output goes before the events that came behind it.
    fn tell(&mut self) {
        let mut events: Vec<Event> = self.host.take_output();
        events.extend(self.host.events.drain(..));
        for event in events {
            self.parent.send(&self.host.epoll, &Frame::new(self.number, &event));
        }
        for frame in std::mem::take(&mut self.host.passed) {
            self.parent.send(&self.host.epoll, &frame);
        }
    }

    /// The front has a signal for this process, or is dead. Either way this host is lost to the job.
    fn control(&mut self) {
        let mut signals = [0; 64];
        let why = match rustix::io::read(&self.control, &mut signals) {
            Err(Errno::INTR | Errno::AGAIN) => return,
            Ok(count @ 1..) => {
                let ends = |number: &i32| [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].contains(number);
                let Some(number) = signals[..count].iter().map(|&number| number.into()).find(ends) else {
                    return;
                };
                format!("its agent was ended by {}", signal_name(number))
            }
            _ => {
                let _ = epoll::delete(&self.host.epoll, &self.control);
                "its agent was killed".to_owned()
            }
        };
        let lost = Event::Lost { first: self.number, end: self.host.links.end_of_subtree(self.number), why };
        self.parent.send(&self.host.epoll, &Frame::new(self.number, &lost));
        self.die();
    }

    /// Kills all processes of the job on this host, and lets go of the hosts below.
    fn die(&mut self) {
        if !self.dying {
            self.dying = true;
            self.host.order(Order::Kill { tell: false });
            self.host.links.cut(&self.host.epoll);
        }
    }

    /// True if this agent may end.
    fn is_over(&mut self, now: Instant) -> bool {
        if self.dying {
            return self.host.childless;
        }
        let Some(since) = self.exiting else { return false };
        if now >= since + EXIT_TIME {
            // What is left here is killed, as after a loss.
            self.die();
            return false;
        }
        self.host.links.are_over() && self.parent.is_flushed() && self.host.childless
    }
}
