//! [`JobPlan`]: a job, checked as far as that is possible before the first process starts.

use std::ffi::{CString, OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use banyan_pmi::settings::{COMMON, FABRICS, MACHINE, MEMORY_ALLOC_KINDS, TOPOLOGY};
use banyan_pmi::{MOST_RANKS, NodeKind, Places};
use banyan_topo::{Bound, CpuSet, HardwareMap, kept};
use rustix::fs::{Access, access};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::binding::Binding;
use crate::environment::{Environment, check, check_reach};
use crate::files::Files;
use crate::lines::Label;
use crate::options::{Global, Local, Options};
use crate::placement::{self, Placement};
use crate::rankfile::Rankfile;
use crate::start::{Limit, Program};
use crate::trouble::{reason, refused};
use crate::{Trouble, default_variables, hosts};

/// Status when a program is not found, as in a shell.
const NOT_FOUND: u8 = 127;

/// Status when a program cannot be executed, as in a shell.
const NOT_EXECUTABLE: u8 = 126;

/// Descriptors that mpirun needs besides those of the ranks.
const OWN_DESCRIPTORS: u64 = 48;

/// A job, ready to be started, but for what its hosts need for their ranks.
pub(crate) struct JobPlan {
    pub(crate) global: Global,
    /// Number of ranks of all programs together.
    pub(crate) size: u32,
    /// The names of the agents' hosts as the user wrote them; the first is this one, whether or not it has ranks.
    pub(crate) hosts: Vec<String>,
    /// The agent of each rank.
    pub(crate) places: Places,
    /// Numbers of the nodes of the job by agent.
    pub(crate) nodes: Vec<u32>,
    /// The agents of the hosts that the user named, where ranks can be dealt out to them only when they have said how many they
    /// take. Without -n the size of the job is 0 until then.
    pub(crate) undealt: Option<Vec<u32>>,
    /// Variables with our prefix that are no settings.
    unknown_settings: Vec<String>,
}

/// What one host needs to start its ranks.
pub(crate) struct HostPlan {
    /// Number of ranks of the job.
    pub(crate) size: u32,
    /// Those of this host, in order.
    pub(crate) ranks: Vec<u32>,
    pub(crate) apps: Vec<App>,
    /// This host's name.
    pub(crate) host: String,
    /// Number of cores that the job may use.
    pub(crate) cores: u32,
    /// Settings that must be equal at all ranks, as name and value.
    pub(crate) settings: Vec<(String, String)>,
    /// CPUs of each rank of this host; empty if ranks are not bound.
    pub(crate) cpus: Vec<CpuSet>,
    /// Where these ranks are; empty if they are not bound.
    pub(crate) bound: Vec<Bound>,
    /// Where all ranks are.
    pub(crate) places: Places,
    /// The files for the ranks' output.
    pub(crate) files: Files,
    /// Rank 0 reads mpirun's input.
    pub(crate) input: bool,
    /// How ranks are bound.
    pub(crate) binding: Binding,
}

/// One of the programs joined by `:`.
#[derive(Serialize, Deserialize)]
pub(crate) struct App {
    pub(crate) ranks: u32,
    pub(crate) command: String,
    pub(crate) program: Program,
    /// As `NAME=VALUE`, without the variables of single ranks.
    pub(crate) environment: Vec<CString>,
    pub(crate) directory: Option<CString>,
    /// Variables that `--env` gave to this program.
    pub(crate) given: Vec<OsString>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) unknown_settings: Vec<String>,
}

impl App {
    /// The program's file, relative to mpirun's working directory.
    pub(crate) fn file(&self) -> PathBuf {
        let folder = self.directory.as_ref().map(|folder| Path::new(OsStr::from_bytes(folder.as_bytes())));
        folder.unwrap_or(Path::new("")).join(self.program.path())
    }

    /// The value of a variable that all ranks of the program have.
    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        let mut lines = self.environment.iter().map(|line| line.as_bytes());
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(OsStr::from_bytes(value))
    }
}

impl HostPlan {
    /// The number of the program that a rank runs.
    pub(crate) fn app_of(&self, rank: u32) -> usize {
        let mut before = 0;
        let runs = |app: &App| {
            before += app.ranks;
            rank < before
        };
        self.apps.iter().position(runs).unwrap_or(0)
    }

    /// The place of a rank of this host among them.
    pub(crate) fn index_of(&self, rank: u32) -> Option<usize> {
        // Nearly always all ranks are here.
        let at = rank as usize;
        if self.ranks.get(at) == Some(&rank) { Some(at) } else { self.ranks.binary_search(&rank).ok() }
    }

    /// Raises the limit on descriptors as the number of ranks and of links needs; gives the limit before that, which the ranks
    /// get back.
    pub(crate) fn raise_limit(&self, links: u64) -> Result<Limit, Trouble> {
        let failed = |why: std::io::Error| Trouble::new(format!("cannot start: {why}"));
        let limit = Limit::here().map_err(refused("getrlimit")).map_err(failed)?;
        let Limit { soft, hard } = limit;
        let each = 5 - self.files.count();
        let ranks = self.ranks.len();
        let need = OWN_DESCRIPTORS + each * ranks as u64 + 4 * links;
        if need > hard {
            return Err(Trouble::new(format!(
                "{ranks} ranks need {need} file descriptors and the limit (ulimit -Hn) is {hard}: raise it, or start fewer ranks"
            )));
        }
        if need > soft {
            let raised = Rlimit { current: Some(need), maximum: Some(hard) };
            setrlimit(Resource::Nofile, raised).map_err(refused("setrlimit")).map_err(failed)?;
        }
        Ok(limit)
    }

    /// Binds the ranks of this host.
    pub(crate) fn bind(&mut self) -> Result<(), Trouble> {
        (self.cpus, self.bound) = match self.ranks.is_empty() {
            true => Default::default(),
            false => self.binding.cpus(&self.ranks, self.cores, self.ranks.len() as u32 != self.size)?,
        };
        Ok(())
    }

    /// How many ranks this host takes, where they are counted by its parts.
    pub(crate) fn room(&self) -> Option<u32> {
        let ppr = self.binding.ppr().filter(|_| self.binding.counts_parts());
        ppr.map(|(each, parts)| each * parts)
    }

    /// The ranks of this host are these of `size`.
    pub(crate) fn set_ranks(&mut self, size: u32, ranks: Vec<u32>) {
        (self.size, self.ranks) = (size, ranks);
        if let [only] = self.apps.as_mut_slice() {
            only.ranks = size;
        }
    }
}

impl JobPlan {
    /// Plans a job: what all hosts must know, and what this one must.
    pub(crate) fn new(mut options: Options) -> Result<(JobPlan, HostPlan), Trouble> {
        let mut global = options.global;
        let host = banyan_topo::hostname();
        let binding = Binding::new(&global)?;
        let named = hosts::of_job(&mut global, &binding.hosts(), &host)?;
        let is_here_only = named.iter().all(|named| named.name == host);
        let room = if is_here_only { binding.ppr() } else { None };
        if let [(only, _)] = options.programs.as_mut_slice() {
            let each = placement::each(&global, is_here_only);
            let of_hosts = |each: u32| each.saturating_mul(named.len().max(1) as u32);
            let slots = || named.iter().try_fold(0u32, |sum, host| sum.checked_add(host.room().slots));
            let lines = binding.rankfile.as_ref().map(Rankfile::ranks);
            let room = room.map(|(each, parts)| each * parts);
            let unknown = if !is_here_only && binding.counts_parts() { Some(0) } else { None };
            let all = only.ranks.or(lines).or(room).or(unknown).or(each.map(of_hosts));
            only.ranks = all.or_else(|| slots().filter(|&all| all > 0));
        }
        let common = Environment::new(&global)?;
        let apps = options.programs.into_iter().map(|(local, program)| app(local, program, &common));
        let apps = apps.collect::<Result<Vec<App>, Trouble>>()?;
        let mut settings = apps.first().map(|app| app.settings.clone()).unwrap_or_default();
        if let Some(app) = apps.iter().find(|app| app.settings != settings) {
            let names = COMMON.join(", ");
            let why = format!(
                "{} has other settings than the first program: {names} must be the same for all",
                app.command
            );
            return Err(Trouble::usage(why));
        }
        banyan_pmi::settings::resolve(&mut settings, MACHINE, kept::setting).map_err(Trouble::usage)?;
        banyan_pmi::settings::resolve(&mut settings, TOPOLOGY, HardwareMap::setting)
            .map_err(Trouble::usage)?;
        let size = apps.iter().try_fold(0u32, |sum, app| sum.checked_add(app.ranks));
        let size = size.filter(|&size| size <= MOST_RANKS).ok_or_else(too_many)?;
        if let Some((each, parts)) = room.filter(|(each, parts)| size > each * parts) {
            let most = each * parts;
            return Err(Trouble::usage(format!(
                "--map-by ppr allows {each} ranks on each of {parts}, {most} together, and {size} are asked for: leave -n out, or map by another way"
            )));
        }
        let fabrics = settings.iter().find(|(name, _)| name == FABRICS).map(|(_, value)| value.as_str());
        check_reach(fabrics, size)?;
        let mut unknown_settings: Vec<String> =
            apps.iter().flat_map(|app| app.unknown_settings.clone()).collect();
        unknown_settings.sort();
        unknown_settings.dedup();
        let Placement { hosts, places, nodes, undealt } =
            Placement::new(&global, &binding, named, &host, size)?;
        let dealt = if undealt.is_none() { size } else { 0 };
        let ranks = places.ranks_on(0, dealt).collect();
        let files = Files::new(&global, &host)?;
        let cores = banyan_topo::usable_cores();
        let input = global.stdin != "none";
        let (cpus, bound) = Default::default();
        // Where the ranks of other hosts are bound is told at the start.
        let known = Places::on_one_node(cores);
        let mut here = HostPlan {
            size,
            ranks,
            apps,
            host,
            cores,
            settings,
            cpus,
            bound,
            places: known,
            files,
            input,
            binding,
        };
        here.bind()?;
        Ok((JobPlan { size, hosts, places, nodes, undealt, unknown_settings, global }, here))
    }

    /// The number of the agent that a rank belongs to.
    pub(crate) fn agent_of(&self, rank: u32) -> u32 {
        self.places.home(rank).node
    }

    /// Number of hosts that have ranks.
    pub(crate) fn hosts_with_ranks(&self) -> u32 {
        let with_ranks = |agent: &u32| self.places.ranks_on(*agent, self.size).next().is_some();
        (0..self.hosts.len() as u32).filter(with_ranks).count().max(1) as u32
    }

    /// True if the job has other hosts than this one.
    pub(crate) fn has_other_hosts(&self) -> bool {
        self.hosts.len() > 1
    }

    /// The prefix of each line of a rank.
    pub(crate) fn label(&self) -> Label {
        let time = || jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string();
        Label { rank: self.global.tag_output, time: self.global.timestamp_output.then_some(time) }
    }

    /// Warns of variables with our prefix that are no settings. At a terminal, and with -v, it also warns that ranks have to
    /// share cores and that a variable to be passed on is not set. (Not elsewhere: test suites take any line on stderr for a
    /// failure.)
    pub(crate) fn notice(&self, here: &HostPlan) {
        if self.global.quiet {
            return;
        }
        if !self.unknown_settings.is_empty() {
            eprintln!("mpirun: no setting of Banyan is called {}", self.unknown_settings.join(", "));
        }
        if !self.global.verbose && !std::io::stderr().is_terminal() {
            return;
        }
        let meant =
            self.global.oversubscribe || self.global.map_by.as_ref().is_some_and(|map| map.oversubscribe);
        let (ranks, count) = (here.ranks.len(), here.cores);
        if ranks as u64 > u64::from(count) && !meant {
            let cores = if count == 1 { "core" } else { "cores" };
            eprintln!("mpirun: {ranks} ranks share {count} {cores}: they run in turns");
        }
        let passed = self.global.genv.iter().chain(&self.global.genvlist);
        for name in passed.filter(|given| !given.as_bytes().contains(&b'=')) {
            if std::env::var_os(name).is_none() {
                eprintln!("mpirun: {} is to be passed on, but is not set here", name.to_string_lossy());
            }
        }
    }
}

/// What the ranks of a host are told of it: its cores, and where its ranks are if they are bound.
pub(crate) fn kind(cores: u32, bound: &[Bound]) -> NodeKind {
    NodeKind::new(cores, bound.iter().map(|bound| (bound.socket, bound.cache)))
}

pub(crate) fn too_many() -> Trouble {
    Trouble::usage(format!("a job can have {MOST_RANKS} ranks, and no more: start fewer"))
}

fn app(local: Local, program: Vec<OsString>, common: &Environment) -> Result<App, Trouble> {
    let mut environment = common.clone();
    for given in &local.env {
        environment.set(given)?;
    }
    if let Some(kinds) = &local.memory_alloc_kinds {
        environment.set(OsStr::new(&format!("{MEMORY_ALLOC_KINDS}={kinds}")))?;
    }
    default_variables::complete(&mut environment.0);
    let lookup = |name: &str| environment.get(name);
    check(lookup)?;
    let setting = |name: &&str| Some((name.to_string(), lookup(name)?.into_string().ok()?));
    let settings = COMMON.iter().filter_map(setting).filter(|(_, value)| !value.is_empty()).collect();
    if let Some(folder) = &local.wdir {
        let found = std::fs::metadata(folder).and_then(|data| match data.is_dir() {
            true => Ok(access(folder, Access::EXEC_OK)?),
            false => Err(rustix::io::Errno::NOTDIR.into()),
        });
        found.map_err(|why| Trouble::new(format!("--wdir {}: {}", folder.display(), reason(&why))))?;
    }
    let name = &program[0];
    let search = lookup("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let path = resolve(name, local.wdir.as_deref(), &search)?;
    let command = banyan_pmi::cut(&name.to_string_lossy()).to_owned();
    let unknown_settings = environment.unknown_settings();
    let joined = environment.0.into_iter().map(|(mut line, value)| {
        line.push("=");
        line.push(value);
        line
    });
    Ok(App {
        ranks: local.ranks.unwrap_or(1),
        command,
        environment: joined.map(c_string).collect::<Result<_, _>>()?,
        given: local.env,
        settings,
        unknown_settings,
        directory: local.wdir.map(|folder| c_string(folder.into_os_string())).transpose()?,
        program: Program::new(
            c_string(path.into_os_string())?,
            program.into_iter().map(c_string).collect::<Result<_, _>>()?,
        ),
    })
}

fn c_string(text: OsString) -> Result<CString, Trouble> {
    CString::new(text.into_vec()).map_err(|_| Trouble::usage("a null byte on the command line"))
}

/// The file to execute for `name`, relative to the rank's working directory.
fn resolve(name: &OsStr, wdir: Option<&Path>, search: &OsStr) -> Result<PathBuf, Trouble> {
    let from_here = |path: &Path| wdir.map_or_else(|| path.to_owned(), |wdir| wdir.join(path));
    let shown = name.to_string_lossy();
    if name.is_empty() {
        return Err(Trouble::usage("the program's name is empty: a variable that is not set?"));
    }
    if name.as_bytes().contains(&b'/') {
        let path = Path::new(name);
        return match usable(&from_here(path)) {
            Ok(()) => Ok(path.to_owned()),
            Err(why) => Err(why.trouble(&shown)),
        };
    }
    let mut refused = None;
    for folder in std::env::split_paths(search) {
        let path = if folder.as_os_str().is_empty() { Path::new(".").join(name) } else { folder.join(name) };
        match usable(&from_here(&path)) {
            Ok(()) => return Ok(path),
            // A folder that may not be looked into, such as another user's, has no program for this one.
            Err(why) if !why.is_missing() && from_here(&path).exists() => {
                refused = refused.or(Some((path, why)))
            }
            Err(_) => {}
        }
    }
    if let Some((path, why)) = refused {
        return Err(why.trouble(&path.to_string_lossy()));
    }
    let hint = match usable(&from_here(Path::new(name))) {
        Ok(()) => format!("; there is one in this folder: ./{shown}"),
        Err(why) if why.is_missing() => String::new(),
        Err(why) => format!("; the one in this folder {}", why.text()),
    };
    Err(Trouble { message: format!("program {shown} was not found in PATH{hint}"), status: NOT_FOUND })
}

/// Why a file is no program. The words are made only if they are needed: a search in PATH meets many files that are missing.
enum Unusable {
    Unreachable(std::io::Error),
    Folder,
    NotExecutable,
}

impl Unusable {
    fn is_missing(&self) -> bool {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        matches!(self, Unusable::Unreachable(why) if matches!(why.kind(), NotFound | NotADirectory))
    }

    fn text(&self) -> String {
        match self {
            Unusable::Unreachable(why) => reason(why),
            Unusable::Folder => "is a folder".to_owned(),
            Unusable::NotExecutable => "is not executable (chmod +x?)".to_owned(),
        }
    }

    /// The error for the user of the program that was meant.
    fn trouble(&self, program: &str) -> Trouble {
        let status = if self.is_missing() { NOT_FOUND } else { NOT_EXECUTABLE };
        Trouble { message: format!("program {program}: {}", self.text()), status }
    }
}

fn usable(path: &Path) -> Result<(), Unusable> {
    let data = std::fs::metadata(path).map_err(Unusable::Unreachable)?;
    if data.is_dir() {
        return Err(Unusable::Folder);
    }
    access(path, Access::EXEC_OK).map_err(|_| Unusable::NotExecutable)
}
