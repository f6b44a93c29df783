//! A server of PMI-1, so that programs built with MPICH (or another MPI that speaks it) run under mpirun. Pure: bytes of ranks
//! in, [`Action`]s out.
//!
//! [`Host`] serves the ranks of one host. It answers most requests from the values that it holds. At a barrier of all ranks it
//! hands the new values on ([`Up::Fence`]) to [`Job`], the part that there is once in a job, and gets those of all hosts back
//! before it lets its ranks go on. A value is visible on other hosts after the next barrier, on its own host at once.
//!
//! A request is `cmd=NAME( KEY=VALUE)*` and a line end. The version is 1.1, with the barriers of groups that 1.2 has.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use banyan_pmi::pmi1::Line;
use serde::{Deserialize, Serialize};

/// Most bytes of a request.
const MAX_LINE: usize = 64 << 10;

/// What clients are told about lengths: of the name of a set of values, of a key, of a value.
const MAX_NAME: usize = 256;
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 1024;

/// Most bytes of an answer: room for a value, and for what stands around it.
const MAX_ANSWER: usize = 2 * MAX_VALUE;

/// Most bytes of keys and values that the ranks of a host may put, and of names that all ranks may publish.
const MOST_BYTES: usize = 8 << 20;

/// About the most bytes of values that go to hosts at a time.
const PIECE: usize = 1 << 20;

/// What all ranks of a job are told alike.
pub struct About {
    /// The name of the job's set of values.
    pub name: String,
    /// Ranks of the job.
    pub size: u32,
    /// Which ranks share a node; see [`mapping`].
    pub mapping: Option<String>,
}

/// Keys and values that ranks have put.
pub type Values = Vec<(String, String)>;

/// What the agent is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a line to a rank.
    Reply(u32, String),
    /// A process has joined the job as this rank.
    Joined(u32),
    /// The rank has left MPI: its process may end with any status.
    Finalized(u32),
    /// The rank ends the job.
    Abort {
        /// That rank.
        rank: u32,
        /// Of MPI_Abort.
        code: i32,
        /// For the user; may be empty.
        message: String,
    },
    /// The rank has broken the protocol, and why.
    Broken(u32, String),
    /// This goes to the job's part.
    Up(Up),
}

/// From a host's part to the job's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Up {
    /// All ranks of the host have entered a barrier of all; the values that they have put since the last one.
    Fence(Values),
    /// A rank publishes a name (with a port), takes it back, or looks it up.
    Name {
        /// That rank.
        rank: u32,
        /// The command.
        command: String,
        /// The name.
        service: String,
        /// What is published.
        port: Option<String>,
    },
}

/// From the job's part to a host's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Down {
    /// Values of all hosts, if they are many: the last of them come with the end of the barrier.
    Values(Values),
    /// All ranks of the job have entered the barrier; the values of all hosts.
    Fence(Values),
    /// The answer to a rank.
    Reply(u32, String),
}

/// The server for the ranks of one host.
pub struct Host {
    about: About,
    ranks: BTreeMap<u32, Rank>,
    values: HashMap<String, String>,
    /// Those of the values that other hosts do not have.
    fresh: Values,
    /// Bytes that ranks of this host have put.
    put: usize,
    /// Who has entered which barrier: by group and tag, as the ranks wrote them; that of all ranks has no name.
    barriers: HashMap<String, BTreeSet<u32>>,
}

struct Rank {
    appnum: u32,
    inbox: Vec<u8>,
    /// The lines of a spawn that is not complete.
    spawn: Option<Vec<String>>,
}

impl Host {
    /// A server for these ranks, each with the number of its program.
    pub fn new(about: About, ranks: impl Iterator<Item = (u32, u32)>) -> Host {
        let rank = |(rank, appnum)| (rank, Rank { appnum, inbox: Vec::new(), spawn: None });
        Host {
            about,
            ranks: ranks.map(rank).collect(),
            values: HashMap::new(),
            fresh: Values::new(),
            put: 0,
            barriers: HashMap::new(),
        }
    }

    /// Takes bytes of `rank`. `free` says whether a process may join as this rank.
    pub fn receive(&mut self, rank: u32, bytes: &[u8], free: bool) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(state) = self.ranks.get_mut(&rank) else { return actions };
        let mut rest = std::mem::take(&mut state.inbox);
        rest.extend_from_slice(bytes);
        let mut used = 0;
        while let Some(length) = rest[used..].iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&rest[used..used + length]).into_owned();
            used += length + 1;
            actions.extend(self.line(rank, line.trim_end_matches('\r'), free));
        }
        rest.drain(..used);
        if rest.len() > MAX_LINE {
            actions.push(Action::Broken(rank, format!("a PMI request of over {MAX_LINE} bytes")));
            rest.clear();
        }
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.inbox = rest;
        }
        actions
    }

    /// Takes what the job's part answers.
    pub fn deliver(&mut self, down: Down) -> Vec<Action> {
        match down {
            Down::Reply(rank, line) => vec![Action::Reply(rank, line)],
            Down::Values(values) => {
                self.values.extend(values);
                Vec::new()
            }
            Down::Fence(values) => {
                self.values.extend(values);
                self.open("")
            }
        }
    }

    fn line(&mut self, rank: u32, line: &str, free: bool) -> Vec<Action> {
        let reply = |line: Line| vec![Action::Reply(rank, written(&line))];
        let Some(state) = self.ranks.get_mut(&rank) else { return Vec::new() };
        if let Some(lines) = &mut state.spawn {
            return match line {
                "endcmd" => {
                    let answer = spawn_answer(&state.spawn.take().unwrap_or_default());
                    answer.into_iter().flat_map(reply).collect()
                }
                _ if lines.iter().map(String::len).sum::<usize>() + line.len() > MAX_LINE => {
                    vec![Action::Broken(rank, format!("a PMI spawn request of over {MAX_LINE} bytes"))]
                }
                _ => {
                    lines.push(line.to_owned());
                    Vec::new()
                }
            };
        }
        if line == "mcmd=spawn" {
            state.spawn = Some(Vec::new());
            return Vec::new();
        }
        let Ok(request) = Line::parse(line) else {
            let shown = line.escape_debug().take(40).collect::<String>();
            return vec![Action::Broken(rank, format!("'{shown}' is no request of PMI-1"))];
        };
        let get = |name: &str| request.get(name);
        let ours = get("kvsname").is_none_or(|name| name == self.about.name);
        match &*request.command {
            "init" => init(rank, get("pmi_version"), free),
            "get_maxes" => {
                let line = done("maxes").with("kvsname_max", MAX_NAME).with("keylen_max", MAX_KEY);
                reply(line.with("vallen_max", MAX_VALUE))
            }
            "get_appnum" => reply(done("appnum").with("appnum", state.appnum)),
            "get_universe_size" => reply(done("universe_size").with("size", self.about.size)),
            "get_my_kvsname" => reply(done("my_kvsname").with("kvsname", &self.about.name)),
            "put" => {
                let put = get("key").zip(get("value")).filter(|_| ours);
                let why =
                    put.map_or(Err("wrong_kvsname_or_no_key_and_value"), |(key, value)| self.put(key, value));
                reply(answer("put_result", why))
            }
            "get" => {
                let value = get("key").filter(|_| ours).and_then(|key| match key {
                    "PMI_process_mapping" => self.about.mapping.as_deref(),
                    key => self.values.get(key).map(String::as_str),
                });
                let failed = get("key").map_or("no_key".to_owned(), |key| format!("key_{key}_not_found"));
                let line = answer("get_result", value.map(|_| ()).ok_or(&failed));
                reply(line.with("value", value.unwrap_or("unknown")))
            }
            "barrier_in" => self.barrier(rank, get("group")),
            "finalize" => {
                vec![Action::Finalized(rank), Action::Reply(rank, written(&done("finalize_ack")))]
            }
            "abort" => {
                let code = get("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
                let message = line.split_once("message=").map_or("", |(_, text)| text).to_owned();
                vec![Action::Abort { rank, code, message }]
            }
            "publish_name" | "unpublish_name" | "lookup_name" => {
                let (command, port) = (request.command.clone(), get("port").map(str::to_owned));
                let service = get("service").unwrap_or_default().to_owned();
                vec![Action::Up(Up::Name { rank, command, service, port })]
            }
            other => {
                reply(answer(&format!("{other}_result"), Err("this_launcher_does_not_know_this_command")))
            }
        }
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        if key.is_empty() || key.starts_with("PMI_") {
            return Err("keys_PMI_are_the_launchers");
        }
        if key.len() > MAX_KEY || value.len() > MAX_VALUE {
            return Err("key_or_value_is_too_long");
        }
        let bytes = key.len() + value.len();
        if self.put + bytes > MOST_BYTES {
            return Err("no_room_for_more_values");
        }
        self.put += bytes;
        self.values.insert(key.to_owned(), value.to_owned());
        self.fresh.push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    /// A rank enters a barrier: of all ranks, or of a group such as `NODE:7` or `0,3,5:7`, where 7 is a tag.
    fn barrier(&mut self, rank: u32, group: Option<&str>) -> Vec<Action> {
        let (name, _) = group.map_or(("WORLD", None), split_tag);
        let here = || self.ranks.keys().copied().collect::<BTreeSet<u32>>();
        let members = match name {
            "WORLD" | "NODE" => Some(here()),
            list => list.split(',').map(|rank| rank.parse().ok()).collect::<Option<BTreeSet<u32>>>(),
        };
        let world =
            name == "WORLD" || members.as_ref().is_some_and(|list| list.len() == self.about.size as usize);
        let members = members.filter(|list| world || list.iter().all(|rank| self.ranks.contains_key(rank)));
        let Some(members) = members.filter(|list| list.contains(&rank)) else {
            let why = answer("barrier_out", Err("not_a_group_of_ranks_on_this_host"));
            return vec![Action::Reply(rank, written(&why))];
        };
        // Barriers of all ranks come one after the other, whatever their tags are.
        let key = if world { "" } else { group.unwrap_or_default() };
        let inside = self.barriers.entry(key.to_owned()).or_default();
        inside.insert(rank);
        match inside.len() {
            count if world && count == self.ranks.len() => {
                vec![Action::Up(Up::Fence(std::mem::take(&mut self.fresh)))]
            }
            count if !world && count == members.len() => self.open(key),
            _ => Vec::new(),
        }
    }

    /// Lets the ranks of a barrier go on.
    fn open(&mut self, key: &str) -> Vec<Action> {
        let out = done("barrier_out");
        let line = written(&split_tag(key).1.map_or(out.clone(), |tag| out.with("tag", tag)));
        let inside = self.barriers.remove(key).unwrap_or_default();
        inside.into_iter().map(|rank| Action::Reply(rank, line.clone())).collect()
    }
}

/// The name of a group and its tag.
fn split_tag(group: &str) -> (&str, Option<&str>) {
    group.split_once(':').map_or((group, None), |(name, tag)| (name, Some(tag)))
}

fn init(rank: u32, version: Option<&str>, free: bool) -> Vec<Action> {
    let why = match (version, free) {
        (Some("1") | None, true) => Ok(()),
        (_, true) => Err("mpirun_speaks_PMI_1.1_only"),
        _ => Err("another_process_has_joined_as_this_rank"),
    };
    let line = answer("response_to_init", why).with("pmi_version", 1).with("pmi_subversion", 1);
    let joined = why.is_ok().then_some(Action::Joined(rank));
    joined.into_iter().chain([Action::Reply(rank, written(&line))]).collect()
}

/// The answer that something was done.
fn done(command: &str) -> Line {
    Line::new(command).with("rc", 0)
}

/// An answer's command and result. `why` is one word, as spaces separate attributes.
fn answer(command: &str, why: Result<(), impl ToString>) -> Line {
    match why {
        Ok(()) => done(command).with("msg", "success"),
        Err(why) => Line::new(command).with("rc", -1).with("msg", why),
    }
}

/// An answer as it is sent; what a client has said, and no line can hold, is not repeated to it.
fn written(line: &Line) -> String {
    let refused = || "cmd=error rc=-1 msg=no_line_can_hold_the_answer\n".to_owned();
    line.encode_within(MAX_ANSWER).unwrap_or_else(|_| refused())
}

/// The answer to a spawn, if `lines` are those of its last program.
fn spawn_answer(lines: &[String]) -> Option<Line> {
    let get = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let number = |name| get(name).and_then(|text| text.parse::<u32>().ok()).unwrap_or(1);
    let last = number("spawnssofar") >= number("totspawns");
    last.then(|| answer("spawn_result", Err("mpirun_does_not_spawn_processes")))
}

/// The part of the server that a job has once.
pub struct Job {
    hosts: u32,
    entered: BTreeSet<u32>,
    values: Values,
    names: HashMap<String, String>,
    published: usize,
}

impl Job {
    /// The part of a job on so many hosts.
    pub fn new(hosts: u32) -> Job {
        Job { hosts, entered: BTreeSet::new(), values: Values::new(), names: HashMap::new(), published: 0 }
    }

    /// Takes what a host's part hands on; gives what goes back to that host (`Some`), or to all (`None`).
    pub fn receive(&mut self, host: u32, up: Up) -> Vec<(Option<u32>, Down)> {
        match up {
            Up::Fence(values) => {
                self.entered.insert(host);
                self.values.extend(values);
                if self.entered.len() < self.hosts as usize {
                    return Vec::new();
                }
                self.entered.clear();
                let (mut pieces, mut bytes) = (vec![Values::new()], 0);
                for (key, value) in std::mem::take(&mut self.values) {
                    bytes += key.len() + value.len();
                    if bytes > PIECE {
                        bytes = 0;
                        pieces.push(Values::new());
                    }
                    pieces.last_mut().expect("there is one").push((key, value));
                }
                let last = pieces.pop().unwrap_or_default();
                let pieces = pieces.into_iter().map(Down::Values).chain([Down::Fence(last)]);
                pieces.map(|down| (None, down)).collect()
            }
            Up::Name { rank, command, service, port } => {
                let line = self.name(&command, service, port);
                vec![(Some(host), Down::Reply(rank, written(&line)))]
            }
        }
    }

    fn name(&mut self, command: &str, service: String, port: Option<String>) -> Line {
        let found = self.names.get(&service).cloned();
        let long = service.len().max(port.as_ref().map_or(0, String::len)) > MAX_VALUE;
        let (result, why) = match (command, found, port) {
            ("publish_name", None, Some(_)) if long => ("publish_result", Err("name_or_port_is_too_long")),
            ("publish_name", None, Some(port))
                if self.published + service.len() + port.len() <= MOST_BYTES =>
            {
                self.published += service.len() + port.len();
                self.names.insert(service, port);
                ("publish_result", Ok(None))
            }
            ("publish_name", None, Some(_)) => ("publish_result", Err("no_room_for_more_names")),
            ("publish_name", None, None) => ("publish_result", Err("no_port")),
            ("publish_name", ..) => ("publish_result", Err("this_name_is_published")),
            ("lookup_name", Some(port), _) => ("lookup_result", Ok(Some(port))),
            ("lookup_name", ..) => ("lookup_result", Err("no_such_name")),
            (_, Some(_), _) => {
                self.names.remove(&service);
                ("unpublish_result", Ok(None))
            }
            _ => ("unpublish_result", Err("no_such_name")),
        };
        // Clients read `info` (MPICH's) or `rc`.
        let line = answer(result, why.as_ref().map(|_| ()));
        let line = line.with("info", if why.is_ok() { "ok" } else { "fail" });
        why.ok().flatten().map_or(line.clone(), |port| line.with("port", port))
    }
}

/// The mapping of ranks to nodes, from the node of each rank, as in `(vector,(0,3,2))`: a row of nodes from 0 on, three of them,
/// with two ranks each. `None` if it is longer than clients take.
pub fn mapping(nodes: impl IntoIterator<Item = u32>) -> Option<String> {
    // Each block is the first node, the number of nodes, and of ranks on each.
    let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for node in nodes {
        match runs.last_mut() {
            Some((last, ranks)) if *last == node => *ranks += 1,
            _ => runs.push((node, 1)),
        }
    }
    for (node, ranks) in runs {
        match blocks.last_mut() {
            Some((first, count, each)) if *first + *count == node && *each == ranks => *count += 1,
            _ => blocks.push((node, 1, ranks)),
        }
    }
    let blocks = blocks.iter().map(|(first, count, ranks)| format!(",({first},{count},{ranks})"));
    let text = format!("(vector{})", blocks.collect::<String>());
    (text.len() <= MAX_VALUE).then_some(text)
}

#[cfg(test)]
mod tests;
