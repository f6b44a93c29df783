//! The hosts that a resource manager has given to the job: Slurm, PBS and Torque, LSF, Grid Engine, and the MPI Operator of
//! Kubernetes say in the environment which they are, how many ranks each takes, and how other hosts are reached. Pure, but for
//! `here`.

use std::net::IpAddr;
use std::path::Path;

use crate::Trouble;
use crate::hosts::{Host, is_this_host, parse_file, parse_list};

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
            let names: Vec<&str> = self.hosts.iter().take(SHOWN).map(|(name, _)| &**name).collect();
            let more = if self.hosts.len() > SHOWN { ", ..." } else { "" };
            let (manager, all) = (self.manager, names.join(", "));
            Err(Trouble::usage(format!(
                "host {} is not in the allocation of {manager}: {all}{more}",
                host.name
            )))
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
    if let Some(text) = place.get("LSB_MCPU_HOSTS") {
        let words: Vec<&str> = text.split_whitespace().collect();
        let pair = |pair: &[&str]| match pair {
            [name, slots] => Some(((*name).to_owned(), slots.parse().ok()?)),
            _ => None,
        };
        let hosts: Option<Vec<_>> = words.chunks(2).take(MOST_HOSTS).map(pair).collect();
        return by_ssh(hosts.ok_or("LSB_MCPU_HOSTS is not a list of names and numbers")?);
    }
    match place.file("LSB_DJOB_HOSTFILE")? {
        Some(text) => by_ssh(each_line(&text)?),
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
    by_ssh(hosts.ok_or("a line of PE_HOSTFILE is not a name and a number")?)
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is found with these variables and files.
    fn found(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Result<Option<Allocation>, Trouble> {
        let of = |list: &[(&str, &str)], name: &str| {
            list.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let missing = || std::io::Error::from_raw_os_error(2);
        find(&|name| of(variables, name), &|path| of(files, path.to_str().unwrap()).ok_or_else(missing))
    }

    fn hosts(variables: &[(&str, &str)], files: &[(&str, &str)]) -> (&'static str, String) {
        let allocation = found(variables, files).unwrap().expect("an allocation");
        let hosts: Vec<String> =
            allocation.hosts.iter().map(|(name, slots)| format!("{name}:{slots}")).collect();
        (allocation.manager, hosts.join(","))
    }

    #[test]
    fn nodelists_are_expanded() {
        let names = |text: &str| nodelist(text).map(|names| names.join(" "));
        assert_eq!(names("n1").unwrap(), "n1");
        assert_eq!(names("n[1-4,7],m03").unwrap(), "n1 n2 n3 n4 n7 m03");
        assert_eq!(names("n[08-11]").unwrap(), "n08 n09 n10 n11");
        assert_eq!(names("n[8-11,001]-ib.x").unwrap(), "n8-ib.x n9-ib.x n10-ib.x n11-ib.x n001-ib.x");
        assert_eq!(names("r[1-2]c[0-1]").unwrap(), "r1c0 r1c1 r2c0 r2c1");
        for wrong in
            ["", "n[", "n]", "n[]", "n[1", "n[1-]", "n[2-1]", "n[1,[2]]", "n[000x333]", "a,,b", "n[1]]"]
        {
            assert!(names(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nodelists_are_bounded() {
        for huge in
            ["n[0-999999999]", "a[0-999]b[0-999]c[0-999]", "n[0-18446744073709551615]", "n[1-99999,1-99999]"]
        {
            assert!(nodelist(huge).unwrap_err().contains("more than"), "{huge}");
        }
        assert_eq!(nodelist("n[1-100000]").unwrap().len(), MOST_HOSTS);
        assert!(counts("1(x4294967295)", 3).unwrap().len() <= 4);
    }

    #[test]
    fn slurm_is_read() {
        let list = ("SLURM_JOB_NODELIST", "n[1-3],m");
        let tasks = ("SLURM_TASKS_PER_NODE", "2(x3),1");
        let cores = ("SLURM_JOB_CPUS_PER_NODE", "8(x4)");
        assert_eq!(hosts(&[list, tasks, cores], &[]), ("Slurm", "n1:2,n2:2,n3:2,m:1".into()));
        // In a step of one host the tasks are those of the step.
        let step = ("SLURM_TASKS_PER_NODE", "1");
        assert_eq!(hosts(&[list, step, cores], &[]), ("Slurm", "n1:8,n2:8,n3:8,m:8".into()));
        assert_eq!(hosts(&[list, step], &[]).1, "n1:1,n2:1,n3:1,m:1");
        let Reach::Command(srun) = found(&[list], &[]).unwrap().unwrap().reach else { panic!() };
        assert_eq!((&*srun[0], &**srun.last().unwrap()), ("srun", "--nodelist"));
        assert!(found(&[("SLURM_JOB_NODELIST", "n[1-")], &[]).unwrap_err().message.contains("Slurm: 'n[1-'"));
    }

    #[test]
    fn files_of_pbs_lsf_and_grid_engine_are_read() {
        let pbs = [("PBS_NODEFILE", "/f")];
        assert_eq!(hosts(&pbs, &[("/f", "a\na\nb\n\na\n")]), ("PBS", "a:3,b:1".into()));
        assert_eq!(hosts(&[("LSB_MCPU_HOSTS", "a 2 b 4")], &[]), ("LSF", "a:2,b:4".into()));
        assert_eq!(hosts(&[("LSB_DJOB_HOSTFILE", "/f")], &[("/f", "a\nb\nb\n")]), ("LSF", "a:1,b:2".into()));
        let lines = "a.x 4 all.q@a UNDEFINED\nb.x 2 all.q@b <NULL>\n";
        assert_eq!(hosts(&[("PE_HOSTFILE", "/f")], &[("/f", lines)]), ("Grid Engine", "a.x:4,b.x:2".into()));
        for (variables, files) in [
            (&pbs, &[("/other", "a")]),
            (&pbs, &[("/f", "\n")]),
            (&pbs, &[("/f", "-oProxyCommand=reboot\n")]),
            (&[("LSB_MCPU_HOSTS", "a 2 b")], &[("", "")]),
            (&[("PE_HOSTFILE", "/f")], &[("/f", "a four\n")]),
        ] {
            assert!(found(variables, files).is_err(), "{variables:?} {files:?}");
        }
        assert_eq!(found(&[("HOSTNAME", "a"), ("PBS_NODEFILE", "")], &[]).unwrap(), None);
    }

    #[test]
    fn the_mpi_operator_is_read() {
        let role = ("K_MPI_JOB_ROLE", "launcher");
        let at = "/etc/mpi/hostfile";
        let of = |mpi| match mpi {
            "OpenMPI" => [
                ("OMPI_MCA_orte_default_hostfile", at),
                ("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"),
                role,
            ],
            "Intel" => [
                ("I_MPI_HYDRA_HOST_FILE", at),
                ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "-o ConnectionAttempts=10"),
                role,
            ],
            _ => [("HYDRA_HOST_FILE", at), ("HYDRA_LAUNCH_EXTRA_ARGS", "-o ConnectionAttempts=10"), role],
        };
        let slots = "pi-worker-0.pi.default.svc slots=2\npi-worker-1.pi.default.svc slots=2\n";
        let colons = slots.replace(" slots=", ":");
        for (mpi, text) in [("OpenMPI", slots), ("Intel", &colons), ("MPICH", &colons)] {
            let wanted = "pi-worker-0.pi.default.svc:2,pi-worker-1.pi.default.svc:2";
            assert_eq!(hosts(&of(mpi), &[(at, text)]), ("the MPI Operator", wanted.into()), "{mpi}");
            let reach = found(&of(mpi), &[(at, text)]).unwrap().unwrap().reach;
            assert_eq!(reach, Reach::Ssh(vec!["-o".into(), "ConnectionAttempts=10".into()]), "{mpi}");
        }
        let first =
            [("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh"), ("OMPI_MCA_orte_default_hostfile", at)];
        let reach = found(&first, &[(at, slots)]).unwrap().unwrap().reach;
        assert!(matches!(reach, Reach::Command(words) if words[0] == "sh" && words[2].contains("exec -i")));
        // Outside the operator these variables are another MPI's.
        assert_eq!(found(&[("HYDRA_HOST_FILE", at)], &[(at, slots)]).unwrap(), None);
    }

    #[test]
    fn hosts_outside_the_allocation_are_refused() {
        let allocation = found(&[("SLURM_JOB_NODELIST", "n[1-20].x")], &[]).unwrap().unwrap();
        let check = |list: &str| allocation.check(&parse_list(list).unwrap(), "login");
        assert!(["n1:2,n20.x", "localhost", "login", "10.0.0.1"].iter().all(|list| check(list).is_ok()));
        let why = check("n1,m3").unwrap_err();
        assert!(
            why.message.starts_with("host m3 is not in the allocation of Slurm: n1.x, n2.x"),
            "{}",
            why.message
        );
        assert!(why.message.ends_with("..."));
    }

    proptest! {
        #[test]
        fn any_text_is_handled(text in ".{0,60}", list in "[a-c\\[\\],0-9-]{0,40}", counted in "[0-9(x),]{0,30}") {
            for text in [&text, &list] {
                if let Ok(names) = nodelist(text) {
                    prop_assert!(!names.is_empty() && names.len() <= MOST_HOSTS);
                    prop_assert!(names.iter().all(|name| !name.contains(['[', ']', ','])));
                }
            }
            prop_assert!(counts(&counted, 5).is_none_or(|all| all.len() <= 6));
            for name in ["SLURM_JOB_NODELIST", "LSB_MCPU_HOSTS"] {
                let _ = found(&[(name, &text)], &[]);
            }
            let _ = found(&[("PE_HOSTFILE", "/f")], &[("/f", &text)]);
        }

        #[test]
        fn ranges_are_what_they_say(from in 0u32..2000, more in 0u32..200, width in 1usize..6) {
            let names = nodelist(&format!("n[{from:0width$}-{:0width$}]", from + more)).unwrap();
            let wanted: Vec<String> = (from..=from + more).map(|number| format!("n{number:0width$}")).collect();
            prop_assert_eq!(names, wanted);
        }
    }
}
