//! `--hosts-check`: whether ranks can be started on the hosts that the user names.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::epoll;

use super::hosts::EXIT_TIME;
use super::{Token, become_agent, timespec};
use crate::binding::Binding;
use crate::frames::{ALL, Event, Frame, Here, Launch, Order, Reach};
use crate::links::Links;
use crate::options::Global;
use crate::start::arrived;
use crate::trouble::reason;
use crate::verdict::End;
use crate::{Trouble, hosts, placement};

/// Most hosts whose agents are started at a time.
const CHECKED_AT_ONCE: usize = 64;

/// `--hosts-check`: says of each host whether an agent can be started there.
pub(super) fn check(global: &Global, control: &OwnedFd) -> Result<u8, Trouble> {
    let own = banyan_topo::hostname();
    let mut global = global.clone();
    let binding = Binding::new(&global)?;
    let named = hosts::of_job(&mut global, &binding.hosts(), &own)?;
    if named.is_empty() {
        return Err(Trouble::usage("--hosts-check needs hosts: --host or --hostfile names them"));
    }
    let failed = |why: std::io::Error| Trouble::new(format!("cannot start: {}", reason(&why)));
    let (epoll, children) = become_agent(control).map_err(failed)?;
    epoll::add(&epoll, &children, Token::Signals.data(), epoll::EventFlags::IN)
        .map_err(|why| failed(why.into()))?;
    let version = env!("CARGO_PKG_VERSION");
    let mut all_fine = true;
    for part in named.chunks(CHECKED_AT_ONCE) {
        let others: Vec<&str> =
            part.iter().map(|host| host.name.as_str()).filter(|name| *name != own).collect();
        let mut answers = ask(&others, placement::reach(&global)?, &epoll, &children)?.into_iter();
        for host in part {
            let answer = match host.name == own {
                true => Ok((own.clone(), banyan_topo::usable_cores())),
                false => answers.next().unwrap_or_else(|| Err("it did not answer".to_owned())),
            };
            let line = match &answer {
                Ok((name, cores)) => {
                    format!("{}: fine: called {name}, {cores} cores, version {version}", host.name)
                }
                Err(why) => format!("{}: {why}", host.name),
            };
            all_fine &= answer.is_ok();
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
    Ok(u8::from(!all_fine))
}

/// What the agent of a host calls it, and its cores; or why there is none.
type Answer = Result<(String, u32), String>;

/// Asks the agents of some hosts for their names and cores.
fn ask(names: &[&str], reach: Reach, epoll: &OwnedFd, children: &OwnedFd) -> Result<Vec<Answer>, Trouble> {
    let count = names.len() as u32 + 1;
    let launch = Launch::question(Reach { radix: count, ..reach });
    let begin = Order::Begin(Box::new(launch));
    let frame = Frame::new(ALL, &begin);
    let Order::Begin(launch) = begin else { return Ok(Vec::new()) };
    let mut links = Links::default();
    let hosts: Vec<String> = [""].iter().chain(names).map(|&name| name.to_owned()).collect();
    links.start(epoll, 0, &hosts, &launch, frame, |at| Token::Link(at).encode());
    let mut answers = vec![None; names.len()];
    let mut since = None;
    loop {
        let now = Instant::now();
        links.tick(epoll, now);
        for event in links.take_lost() {
            if let Event::Lost { first, why, .. } = event {
                answers[first as usize - 1].get_or_insert(Err(why));
            }
        }
        if answers.iter().all(Option::is_some) {
            links.exit(epoll);
            if links.are_over() || now >= *since.get_or_insert(now) + EXIT_TIME {
                links.cut(epoll);
                return Ok(answers.into_iter().flatten().collect());
            }
        }
        let next = links.next_tick().into_iter().chain(since.map(|since| since + EXIT_TIME)).min();
        let mut events = Vec::with_capacity(64);
        let wait = next.map(|at| timespec(at.saturating_duration_since(now)));
        let _ = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref());
        for event in &events {
            match Token::decode(event.data.u64()) {
                Token::Signals => {
                    arrived(children);
                    while let Ok(Some((pid, status))) =
                        rustix::process::wait(rustix::process::WaitOptions::NOHANG)
                    {
                        links.ended(pid, End::of(status));
                    }
                }
                Token::Control => return Err(Trouble { message: "interrupted".to_owned(), status: 130 }),
                Token::Link(at) => {
                    for (_, frame) in links.handle(epoll, at) {
                        let answer = match frame.open() {
                            Some(Event::Here(Here { host, cores, .. })) => Ok((host, cores)),
                            Some(Event::Lost { why, .. }) => Err(why),
                            _ => continue,
                        };
                        if let Some(place) = answers.get_mut((frame.host as usize).wrapping_sub(1)) {
                            place.get_or_insert(answer);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}
