//! The hosts that a resource manager has given to the job: Slurm, PBS and Torque, LSF, Grid Engine, and the MPI Operator of
//! Kubernetes say in the environment which they are, how many ranks each takes, and how other hosts are reached. Pure, but for
//! `here`.

use std::net::IpAddr;
use std::path::Path;

use crate::Trouble;
use crate::hosts::{Host, is_this_host, parse_file, parse_list};
use crate::trouble::listed;

/// Most hosts of an allocation.
const MOST_HOSTS: usize = 100_000;

/// Most bytes of a list of hosts: room for a line for each rank of a large job.
const MAX_FILE: u64 = 64 << 20;

/// The hosts of an allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Who gave it, for messages.
    pub manager: &'static str,
    /// Names, each once, and how many ranks each takes.
    pub hosts: Vec<(String, u32)>,
    /// How a command is run on another of the hosts.
    pub reach: Reach,
}

/// How a command is run on another host of an allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reach {
    /// By ssh, with these options besides mpirun's own.
    Ssh(Vec<String>),
    /// By this command; the name of the host and the words of the other command follow.
    Command(Vec<String>),
}

/// What a manager's variables say: nothing, or hosts and how they are reached.
type Found = Result<Option<(Vec<(String, u32)>, Reach)>, String>;

/// A resource manager: what looks for its variables, and what it is called.
struct Manager {
    name: &'static str,
    find: fn(&Place<'_>) -> Found,
}

const MANAGERS: [Manager; 5] = [
    Manager { name: "Slurm", find: slurm },
    Manager { name: "PBS", find: pbs },
    Manager { name: "LSF", find: lsf },
    Manager { name: "Grid Engine", find: grid_engine },
    Manager { name: "the MPI Operator", find: mpi_operator },
];

/// Where managers are looked for: variables, and what reads a file.
struct Place<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    read: &'a dyn Fn(&Path) -> std::io::Result<String>,
}

impl Place<'_> {
    /// A variable that is set and not empty.
    fn get(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// The text of the file that a variable names.
    fn file(&self, name: &str) -> Result<Option<String>, String> {
        let Some(path) = self.get(name) else { return Ok(None) };
        let text = (self.read)(Path::new(&path));
        text.map(Some).map_err(|why| format!("{name}={path}: {}", crate::trouble::reason(&why)))
    }
}

/// The allocation that this process is in, by its environment.
///
/// # Errors
/// If the environment names one that cannot be understood.
pub(crate) fn here() -> Result<Option<Allocation>, Trouble> {
    let read = |path: &Path| {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_FILE), &mut text)?;
        Ok(text)
    };
    find(&|name| std::env::var(name).ok(), &read)
}

/// The allocation that these variables name; `read` reads a file.
///
/// # Errors
/// If they name one that cannot be understood.
pub fn find(
    variable: &dyn Fn(&str) -> Option<String>,
    read: &dyn Fn(&Path) -> std::io::Result<String>,
) -> Result<Option<Allocation>, Trouble> {
    let place = Place { variable, read };
    for Manager { name: manager, find } in MANAGERS {
        let wrong = |why| {
            Trouble::new(format!(
                "the allocation of {manager}: {why}; --host or --hostfile says it all the same"
            ))
        };
        if let Some((hosts, reach)) = find(&place).map_err(wrong)? {
            let hosts = merged(hosts).map_err(wrong)?;
            return Ok(Some(Allocation { manager, hosts, reach }));
        }
    }
    Ok(None)
}

impl Allocation {
    /// Checks that the hosts that the user named belong to the allocation. `own` is the name of this machine.
    ///
    /// # Errors
    /// If one does not.
    pub fn check(&self, named: &[Host], own: &str) -> Result<(), Trouble> {
        let is_in = |host: &Host| {
            let address = host.name.parse::<IpAddr>().is_ok();
            // An address cannot be compared with names.
            address || self.hosts.iter().any(|(name, _)| is_this_host(&host.name, name))
        };
        let stranger = named.iter().find(|host| !is_in(host) && !is_this_host(&host.name, own));
        stranger.map_or(Ok(()), |host| {
            const SHOWN: usize = 8;
            let (manager, all) = (self.manager, listed(self.hosts.iter().map(|(name, _)| name), SHOWN));
            Err(Trouble::usage(format!("host {} is not in the allocation of {manager}: {all}", host.name)))
        })
    }
}

/// Each host once, with the ranks of all its entries.
fn merged(entries: Vec<(String, u32)>) -> Result<Vec<(String, u32)>, String> {
    let mut hosts: Vec<(String, u32)> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for (name, slots) in entries {
        // What is no name could be an option to ssh.
        parse_list(&name)
            .ok()
            .filter(|list| list.len() == 1 && !name.starts_with('-'))
            .ok_or_else(|| format!("'{}' is not the name of a host", name.escape_debug()))?;
        let at = *known.entry(name.clone()).or_insert(hosts.len());
        match hosts.get_mut(at) {
            Some((_, all)) => *all = all.saturating_add(slots),
            None => hosts.push((name, slots)),
        }
    }
    if hosts.is_empty() {
        return Err("it has no hosts".to_owned());
    }
    Ok(hosts)
}

fn by_ssh(hosts: Vec<(String, u32)>) -> Found {
    Ok(Some((hosts, Reach::Ssh(Vec::new()))))
}

/// The manager's own command in the place of ssh, where its environment says that it is there: in `folder`.
fn by_command(hosts: Vec<(String, u32)>, folder: Option<String>, words: &[&str]) -> Found {
    let Some(folder) = folder else { return by_ssh(hosts) };
    let mut words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    words[0] = format!("{folder}/{}", words[0]);
    Ok(Some((hosts, Reach::Command(words))))
}

fn slurm(place: &Place<'_>) -> Found {
    let Some(list) = place.get("SLURM_JOB_NODELIST").or_else(|| place.get("SLURM_NODELIST")) else {
        return Ok(None);
    };
    let names = nodelist(&list)?;
    // Within a step the number of tasks is the step's, which may have fewer hosts than the job.
    let slots = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"]
        .iter()
        .find_map(|name| counts(&place.get(name)?, names.len()).filter(|counts| counts.len() == names.len()));
    let slots = slots.unwrap_or_else(|| vec![1; names.len()]);
    // A step for each host, beside those that there are. Frames are no lines, so nothing may wait for the end of one.
    let srun = [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        "--overlap",
        "--cpu-bind=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--unbuffered",
        "--quiet",
        "--nodelist",
    ];
    let reach = Reach::Command(srun.map(str::to_owned).to_vec());
    Ok(Some((names.into_iter().zip(slots).collect(), reach)))
}

fn pbs(place: &Place<'_>) -> Found {
    match place.file("PBS_NODEFILE")? {
        Some(text) => by_ssh(each_line(&text)?),
        None => Ok(None),
    }
}

fn lsf(place: &Place<'_>) -> Found {
    // Tasks that are started so belong to the job, which LSF ends and counts.
    let folder = place.get("LSF_BINDIR").filter(|_| place.get("LSB_JOBID").is_some());
    if let Some(text) = place.get("LSB_MCPU_HOSTS") {
        let words: Vec<&str> = text.split_whitespace().collect();
        let pair = |pair: &[&str]| match pair {
            [name, slots] => Some(((*name).to_owned(), slots.parse().ok()?)),
            _ => None,
        };
        let hosts: Option<Vec<_>> = words.chunks(2).take(MOST_HOSTS).map(pair).collect();
        let hosts = hosts.ok_or("LSB_MCPU_HOSTS is not a list of names and numbers")?;
        return by_command(hosts, folder, &["blaunch"]);
    }
    match place.file("LSB_DJOB_HOSTFILE")? {
        Some(text) => by_command(each_line(&text)?, folder, &["blaunch"]),
        None => Ok(None),
    }
}

fn grid_engine(place: &Place<'_>) -> Found {
    let Some(text) = place.file("PE_HOSTFILE")? else { return Ok(None) };
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let hosts: Option<Vec<_>> = lines.take(MOST_HOSTS).map(line).collect();
    let hosts = hosts.ok_or("a line of PE_HOSTFILE is not a name and a number")?;
    let folder = place.get("SGE_ROOT").zip(place.get("ARC")).filter(|_| place.get("JOB_ID").is_some());
    by_command(hosts, folder.map(|(root, system)| format!("{root}/bin/{system}")), &["qrsh", "-inherit"])
}

/// The operator sets the variables of the MPI that a job says it uses. Version 2 of its interface has sshd on its workers; in
/// version 1 a script runs commands there.
fn mpi_operator(place: &Place<'_>) -> Found {
    let script = place.get("OMPI_MCA_plm_rsh_agent").filter(|path| path.ends_with("/kubexec.sh"));
    if script.is_none() && place.get("K_MPI_JOB_ROLE").as_deref() != Some("launcher") {
        return Ok(None);
    }
    // The variable that names the host file, and the one with options for ssh.
    let variables = [
        ("OMPI_MCA_orte_default_hostfile", "OMPI_MCA_plm_rsh_args"),
        ("I_MPI_HYDRA_HOST_FILE", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
        ("HYDRA_HOST_FILE", "HYDRA_LAUNCH_EXTRA_ARGS"),
    ];
    for (file, options) in variables {
        let Some(text) = place.file(file)? else { continue };
        let hosts = parse_file(&text).map_err(|why| format!("{file}, {why}"))?;
        let hosts = hosts.into_iter().map(|host| (host.name, host.slots.unwrap_or(1))).collect();
        let words = place.get(options).and_then(|text| shlex::split(&text)).unwrap_or_default();
        let reach = match &script {
            None => Reach::Ssh(words),
            // The script passes no input on, which agents need, so kubectl is called as it calls it, with input.
            Some(_) => {
                let kubectl = "pod=$1; shift; exec \"$(command -v /opt/kube/kubectl || echo kubectl)\" exec -i \"$pod\" -- \"$@\"";
                Reach::Command(["sh", "-c", kubectl, "sh"].map(str::to_owned).to_vec())
            }
        };
        return Ok(Some((hosts, reach)));
    }
    Ok(None)
}

/// A file with a host on each line, as often as it takes a rank.
fn each_line(text: &str) -> Result<Vec<(String, u32)>, String> {
    let mut hosts: Vec<(String, u32)> = Vec::new();
    for name in text.lines().map(str::trim).filter(|name| !name.is_empty()) {
        match hosts.last_mut() {
            Some((last, slots)) if last == name => *slots += 1,
            _ => hosts.push((name.to_owned(), 1)),
        }
    }
    Ok(hosts)
}

/// Reads Slurm's lists of hosts, such as `n[1-4,07],m03,r[1-2]c[0-1]-ib`.
///
/// # Errors
/// One line of text that says what is wrong, also if there are too many hosts.
pub fn nodelist(text: &str) -> Result<Vec<String>, String> {
    let shown = || text.escape_debug().take(80).collect::<String>();
    let wrong = || format!("'{}' is not a list of hosts", shown());
    let too_many = || format!("'{}' is more than {MOST_HOSTS} hosts", shown());
    let mut hosts = Vec::new();
    for item in split(text).ok_or_else(wrong)? {
        let mut names = vec![String::new()];
        let mut rest = item;
        while let Some((before, after)) = rest.split_once('[') {
            let (inside, behind) = after.split_once(']').ok_or_else(wrong)?;
            names.iter_mut().for_each(|name| name.push_str(before));
            let room = MOST_HOSTS / names.len();
            let numbers = numbers(inside, room).ok_or_else(wrong)?.ok_or_else(too_many)?;
            names = names
                .iter()
                .flat_map(|name| numbers.iter().map(move |number| format!("{name}{number}")))
                .collect();
            rest = behind;
        }
        if item.is_empty() || rest.contains(']') {
            return Err(wrong());
        }
        names.iter_mut().for_each(|name| name.push_str(rest));
        hosts.append(&mut names);
        if hosts.len() > MOST_HOSTS {
            return Err(too_many());
        }
    }
    Ok(hosts)
}

/// The parts of a list at its commas outside brackets; `None` if brackets do not match or stand in each other.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut inside, mut start) = (Vec::new(), false, 0);
    for (at, byte) in text.bytes().enumerate() {
        match (byte, inside) {
            (b'[', false) => inside = true,
            (b']', true) => inside = false,
            (b'[', true) | (b']', false) => return None,
            (b',', false) => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    (!inside).then_some(parts)
}

/// The numbers `1-4,07` as they are written; `None` if it is no such text, `Some(None)` if they are more than `most`.
fn numbers(text: &str, most: usize) -> Option<Option<Vec<String>>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if !digits(first) || !digits(last) {
            return None;
        }
        let (from, to): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if to < from {
            return None;
        }
        if to - from >= (most - all.len().min(most)) as u64 {
            return Some(None);
        }
        let width = first.len();
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(Some(all))
}

/// Reads Slurm's numbers for each host, such as `2(x3),1`; of more than `most` hosts they are left out. `None` if it is no such
/// text.
pub fn counts(text: &str, most: usize) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let times = usize::min(times, (most + 1).saturating_sub(all.len()));
        all.extend(std::iter::repeat_n(count.parse::<u32>().ok()?.max(1), times));
    }
    Some(all)
}

#[cfg(test)]
mod tests;
