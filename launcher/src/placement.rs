//! Which hosts a job has, which ranks live on which of them, and what the agents of other hosts are told of it.

use std::collections::HashSet;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use banyan_pmi::{NodeKind, Places};
use banyan_shm::Shm;
use banyan_topo::Unit;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

use crate::Trouble;
use crate::binding::Binding;
use crate::default_variables::complete;
use crate::environment::is_host_bound;
use crate::frames::{Launch, Reach};
use crate::hosts::Host;
use crate::mapping::{Room, places};
use crate::options::Global;
use crate::plan::{App, HostPlan, JobPlan};
use crate::ranks::Common;
use crate::start::Limit;

/// The limits that ranks of other hosts have as those of this one; that on descriptors is treated apart.
const LIMITS: [Resource; 6] =
    [Resource::Core, Resource::Stack, Resource::Data, Resource::As, Resource::Memlock, Resource::Nproc];

/// Bytes of output that all hosts together may have under way.
const WINDOWS: u32 = 16 << 20;

/// The hosts of a job and the places of its ranks; see [`JobPlan`].
pub(crate) struct Placement {
    pub(crate) hosts: Vec<String>,
    pub(crate) places: Places,
    pub(crate) nodes: Vec<u32>,
    pub(crate) undealt: Option<Vec<u32>>,
}

/// Ranks on each host, if the options say so.
pub(crate) fn each(global: &Global, is_here_only: bool) -> Option<u32> {
    let map = global.map_by.as_ref().filter(|map| !is_here_only && map.unit == Some(Unit::Machine));
    map.and_then(|map| map.each).or(global.ppn)
}

impl Placement {
    /// Places `size` ranks on the hosts that the user named, of which this one is called `own`.
    pub(crate) fn new(
        global: &Global,
        binding: &Binding,
        mut named: Vec<Host>,
        own: &str,
        size: u32,
    ) -> Result<Placement, Trouble> {
        if named.is_empty() {
            named = vec![Host { name: own.to_owned(), slots: None, most: None }];
        }
        let by_file = binding.rankfile.as_ref().map(|file| file.places(&named, own, size)).transpose()?;
        if named.iter().all(|host| host.name == own) {
            fits(own, size)?;
            let (hosts, nodes) = (vec![own.to_owned()], vec![0]);
            return Ok(Placement { hosts, places: numbered([]), nodes, undealt: None });
        }
        let each = each(global, false);
        let rooms: Vec<Room> = named
            .iter()
            .map(|host| Room { slots: each.unwrap_or(host.room().slots), ..host.room() })
            .collect();
        let by_node = global.map_by.as_ref().is_some_and(|map| map.by_node && map.each.is_none());
        let later = binding.counts_parts();
        let dealt = || places(&rooms, if later { 0 } else { size }, by_node).map_err(Trouble::usage);
        let nodes_of_ranks = by_file.map_or_else(dealt, Ok)?;
        let mut used = vec![0; named.len()];
        nodes_of_ranks.iter().for_each(|&node| used[node as usize] += 1);
        let (mut hosts, mut nodes, mut agents) = (vec![own.to_owned()], vec![0], vec![0; named.len()]);
        // Hosts that get no rank get no agent either.
        for (node, host) in (0..).zip(named).filter(|&(node, _)| later || used[node as usize] > 0) {
            fits(&host.name, used[node as usize])?;
            match host.name == own {
                true => nodes[0] = node,
                false => {
                    agents[node as usize] = hosts.len() as u32;
                    hosts.push(host.name);
                    nodes.push(node);
                }
            }
        }
        let places = numbered(nodes_of_ranks.into_iter().map(|node| agents[node as usize]));
        Ok(Placement { hosts, places, nodes, undealt: later.then_some(agents) })
    }
}

/// Places of which no more is known than the number of the agent for each rank.
pub(crate) fn numbered(numbers: impl IntoIterator<Item = u32>) -> Places {
    Places::new(numbers, |_| NodeKind::new(1, []))
}

/// Whether a host may have so many ranks.
fn fits(host: &str, ranks: u32) -> Result<(), Trouble> {
    let most = Shm::MOST_RANKS;
    match ranks <= most {
        true => Ok(()),
        false => {
            Err(Trouble::usage(format!("{ranks} ranks on host {host}: at most {most} can be on one host")))
        }
    }
}

/// ssh, with its options.
pub(crate) fn ssh(global: &Global) -> Vec<String> {
    let timeout = format!("ConnectTimeout={}", global.connect_timeout);
    let words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ControlMaster=no", "-o", &timeout];
    words.map(str::to_owned).to_vec()
}

/// What the agents of other hosts need to start more of them.
pub(crate) fn reach(global: &Global) -> Result<Reach, Trouble> {
    let ssh = global.ssh.as_ref().map_or_else(|| ssh(global), |words| words.0.clone());
    let agent = match &global.prefix {
        Some(folder) => Ok(folder.join("bin/mpirun")),
        None => std::env::current_exe(),
    };
    let agent = agent.ok().and_then(|path| path.into_os_string().into_string().ok());
    let agent =
        agent.ok_or_else(|| Trouble::new("the path of this mpirun is not known: --prefix names it"))?;
    Ok(Reach { ssh, agent, radix: global.tree_radix, patience: global.patience })
}

/// All that agents of other hosts are told of a job, whose agent on this host has planned `here`.
pub(crate) fn launch(plan: &JobPlan, here: &HostPlan, common: &Common) -> Result<Launch, Trouble> {
    let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let mask = umask(Mode::empty());
    umask(mask);
    let soft = |resource: &Resource| getrlimit(*resource).current.unwrap_or(u64::MAX);
    let limits = (0..).zip(LIMITS.iter().map(soft)).chain([(u32::MAX, common.limit.soft)]);
    Ok(Launch {
        job_id: common.job_id,
        secret: common.secret,
        places: plan.places.clone(),
        size: plan.size,
        folder: folder.clone(),
        apps: here.apps.iter().map(|app| carried(app, &plan.global, &folder)).collect::<Result<_, _>>()?,
        settings: here.settings.clone(),
        files: here.files.clone(),
        binding: here.binding.clone(),
        input: here.input,
        terminal: common.pty.size(),
        umask: mask.bits(),
        limits: limits.collect(),
        window: (WINDOWS / plan.hosts.len() as u32).clamp(16 << 10, 256 << 10),
        reach: reach(&plan.global)?,
    })
}

/// A program as other hosts are told of it: without variables that mean something here only, and with its whole path.
fn carried(app: &App, global: &Global, folder: &std::path::Path) -> Result<App, Trouble> {
    let given = global.genv.iter().chain(&global.genvlist).chain(&app.given);
    let given: HashSet<&[u8]> = given.map(|given| name_of(given.as_bytes())).collect();
    let goes = |line: &&CString| {
        let name = name_of(line.as_bytes());
        given.contains(name) || !is_host_bound(name)
    };
    let own = app.directory.as_ref().map(|own| OsStr::from_bytes(own.as_bytes())).unwrap_or_default();
    let directory = CString::new(folder.join(own).into_os_string().into_vec());
    Ok(App {
        ranks: app.ranks,
        command: app.command.clone(),
        program: app.program.clone(),
        environment: app.environment.iter().filter(goes).cloned().collect(),
        directory: Some(directory.map_err(|_| Trouble::new("a null byte in the working directory"))?),
        given: Vec::new(),
        settings: Vec::new(),
        unknown_settings: Vec::new(),
    })
}

fn name_of(line: &[u8]) -> &[u8] {
    line.split(|&byte| byte == b'=').next().unwrap_or(line)
}

/// What the agent with this number, which may start so many others, makes of what it was told: its plan, and the limit on
/// descriptors of its ranks. The limits and the umask of this process become those of the job.
///
/// # Errors
/// Why no rank can be started here.
pub(crate) fn plan_of(launch: &mut Launch, number: u32, others: u32) -> Result<(HostPlan, Limit), Trouble> {
    umask(Mode::from_raw_mode(launch.umask));
    // If the folder is not here, ranks cannot start in it, and say so.
    let _ = std::env::set_current_dir(&launch.folder);
    launch.files.prepare()?;
    let ranks: Vec<u32> = launch.places.ranks_on(number, launch.size).collect();
    let mut apps = std::mem::take(&mut launch.apps);
    for app in &mut apps {
        add_own_variables(&mut app.environment);
    }
    let mut plan = HostPlan {
        size: launch.size,
        input: launch.input,
        ranks,
        apps,
        host: banyan_topo::hostname(),
        cores: banyan_topo::usable_cores(),
        settings: launch.settings.clone(),
        cpus: Vec::new(),
        bound: Vec::new(),
        places: launch.places.clone(),
        files: launch.files.clone(),
        binding: launch.binding.clone(),
    };
    plan.bind()?;
    let mut limit = plan.raise_limit(u64::from(launch.reach.radix.min(others)))?;
    for &(at, soft) in &launch.limits {
        match LIMITS.get(at as usize) {
            Some(&resource) => {
                let maximum = getrlimit(resource).maximum;
                let current = Some(soft.min(maximum.unwrap_or(u64::MAX))).filter(|&soft| soft != u64::MAX);
                // What this host does not allow stays as it is.
                let _ = setrlimit(resource, Rlimit { current, maximum });
            }
            None => limit.soft = soft.min(limit.hard),
        }
    }
    Ok((plan, limit))
}

/// Adds this host's values of the variables that are bound to it, and what its own installation needs.
fn add_own_variables(environment: &mut Vec<CString>) {
    let lines = std::mem::take(environment);
    let split = |line: CString| {
        let line = line.into_bytes();
        let at = name_of(&line).len();
        let name = std::ffi::OsString::from_vec(line[..at].to_vec());
        (name, std::ffi::OsString::from_vec(line.get(at + 1..).unwrap_or_default().to_vec()))
    };
    let mut variables: Vec<_> = lines.into_iter().map(split).collect();
    for (name, value) in std::env::vars_os().filter(|(name, _)| is_host_bound(name.as_bytes())) {
        if !variables.iter().any(|(other, _)| *other == name) {
            variables.push((name, value));
        }
    }
    complete(&mut variables);
    environment.extend(variables.into_iter().filter_map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        CString::new(name.into_vec()).ok()
    }));
}
