//! The command line: clap's table of options, and the parsing of arguments by it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use banyan_pmi::MOST_RANKS;
use banyan_pmi::settings::duration;
use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser};

use crate::Trouble;
use crate::binding::{BindTo, MapBy};
use crate::files::Pattern;
use crate::hosts::text_of;
use crate::machine::About;
use crate::topology::Show;
use crate::translate::{Segment, knows, split};

/// What a command line looks like.
pub const USAGE: &str = "mpirun [OPTIONS] PROGRAM [ARGUMENTS] [: [OPTIONS] PROGRAM [ARGUMENTS]]...";

/// What the command line asks mpirun to do.
#[derive(Debug)]
pub enum Command {
    /// Print this (help, version) and end.
    Print(String),
    /// Explain the choice of a collective algorithm.
    Explain {
        /// Such as `allreduce:64K`.
        what: String,
        /// Ranks of the communicator in question; `None`: one for each core, but at least 2.
        ranks: Option<u32>,
        /// Ranks on each host; `None`: all.
        per_host: Option<u32>,
    },
    /// Show what things take on this machine.
    Machine(About),
    /// Show the hardware of hosts.
    Topology(Show),
    /// Yield the core, time and again, while another mpirun measures that, and touch so many pages between.
    Yield(usize),
    /// Run a job.
    Run(Box<Options>),
    /// Be the agent of a host, as an agent on another host asks by standard input.
    Agent,
}

/// Start programs as the ranks of one MPI job.
///
/// Several programs are joined by `:`, each with its own -n, --env and --wdir. mpirun ends with the status of
/// the first rank to fail: its exit code, 128 plus the signal that killed it, or MPI_Abort's code.
#[derive(Parser, Debug)]
#[command(
    name = "mpirun",
    version,
    long_version = concat!(env!("CARGO_PKG_VERSION"), " (Banyan MPI, MPI 5.0 ABI)"),
    override_usage = USAGE,
    disable_help_subcommand = true
)]
struct First {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    local: Local,
}

/// Options of the programs after the first `:`.
#[derive(Parser, Debug)]
#[command(name = "mpirun", disable_help_flag = true)]
struct Later {
    #[command(flatten)]
    local: Local,
}

/// Options that hold for the whole job.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Give a variable to all programs, with this value or the one it has here
    #[arg(short = 'x', long = "genv", value_name = "NAME[=VALUE]")]
    pub genv: Vec<OsString>,
    /// Give these variables, as they are here, to all programs
    #[arg(long, alias = "envlist", value_name = "NAME,...", value_delimiter = ',')]
    pub genvlist: Vec<OsString>,
    /// Ranks per host; without -n this many are started
    #[arg(long, aliases = ["perhost", "npernode", "N"], short_alias = 'N', value_name = "RANKS",
          value_parser = ranks, allow_negative_numbers = true)]
    pub ppn: Option<u32>,
    /// Hosts to run on, and how many ranks each takes
    #[arg(long, aliases = ["hosts"], short_alias = 'H', value_name = "HOST[:RANKS],...")]
    pub host: Vec<String>,
    /// File with hosts to run on, one a line: HOST, HOST:RANKS or HOST slots=RANKS
    #[arg(long, short = 'f', alias = "machinefile", value_name = "FILE")]
    pub hostfile: Option<PathBuf>,
    /// Say of each host whether ranks can be started there, and why not, and end
    #[arg(long)]
    pub hosts_check: bool,
    /// Command that runs another one on a host, in place of ssh and its options; words are quoted as in a shell
    #[arg(long, value_name = "COMMAND", value_parser = command_words)]
    pub ssh: Option<CommandWords>,
    /// How many seconds ssh may take to connect
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u32).range(1..))]
    pub connect_timeout: u32,
    /// Names that turn out to be one machine stay hosts of their own, whose ranks talk over the network
    #[arg(long)]
    pub separate_hosts: bool,
    /// Folder of Banyan on the other hosts, if it is not where it is here: mpirun is DIR/bin/mpirun
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
    /// Most hosts that one host connects to; they connect to the rest
    #[arg(long, value_name = "HOSTS", default_value = "32", value_parser = clap::value_parser!(u32).range(1..))]
    pub tree_radix: u32,
    /// How long another host, or a rank there, may be silent before it counts as gone
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = duration)]
    pub patience: Duration,
    /// Bind each rank to a part of the machine
    #[arg(long, value_name = "core|numa|socket|node|none")]
    pub bind_to: Option<BindTo>,
    /// Deal ranks out over parts of the machine, in turn (core, numa, socket, node, none) or N to each (ppr:N:socket), with
    /// so many cores each (socket:pe=N)
    #[arg(long, value_name = "PART|ppr:N:PART")]
    pub map_by: Option<MapBy>,
    /// Bind ranks as this file says, in lines such as `rank 0=localhost slot=0-3`
    #[arg(long, alias = "rf", value_name = "FILE", conflicts_with_all = ["map_by", "bind_to"])]
    pub rankfile: Option<PathBuf>,
    /// Put the rank in front of every line of output
    #[arg(long, short = 'l', alias = "prepend-rank")]
    pub tag_output: bool,
    /// Put the time in front of every line of output
    #[arg(long)]
    pub timestamp_output: bool,
    /// Write each rank's output to files rank-N.out and rank-N.err in this folder instead
    #[arg(long, aliases = ["output-filename"], value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Write standard output to files of this name instead; %r is the rank, %h the host
    #[arg(long, alias = "outfile", value_name = "PATTERN", conflicts_with = "output")]
    pub outfile_pattern: Option<Pattern>,
    /// Write standard error to files of this name instead; %r is the rank, %h the host
    #[arg(long, alias = "errfile", value_name = "PATTERN", conflicts_with = "output")]
    pub errfile_pattern: Option<Pattern>,
    /// Read the programs and their options from this file, one program a line
    #[arg(long, value_name = "FILE")]
    pub configfile: Option<PathBuf>,
    /// Which rank reads mpirun's input: 0 or none
    #[arg(long, short = 's', value_name = "0|none", default_value = "0", value_parser = ["0", "none", "all-to-0"])]
    pub stdin: String,
    /// Give ranks a terminal as their stdout: if mpirun's own is one, always, or never
    #[arg(long, value_name = "auto|always|never", default_value = "auto", value_parser = ["auto", "always", "never"])]
    pub pty: String,
    /// End the job after this time (seconds, or 90s, 5m, 2h), with status 124 [default: the variable MPIEXEC_TIMEOUT]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Encrypt all that ranks say to each other over TCP
    #[arg(long)]
    pub encrypt: bool,
    /// How long ranks may take to end after a signal, before they are killed
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration)]
    pub grace: Duration,
    /// A rank that ends with status 0 without MPI_Finalize has not failed (MPI says that it must call it)
    #[arg(long)]
    pub allow_missing_finalize: bool,
    /// A rank that fails, or a host that is lost, does not end the job: calls of the other ranks that need it return
    /// MPI_ERR_PROC_ABORTED. mpirun ends with the status of the first rank that failed
    #[arg(long, aliases = ["enable-recovery", "disable-auto-cleanup"])]
    pub keep_going: bool,
    /// More ranks than cores are meant: no notice
    #[arg(long)]
    pub oversubscribe: bool,
    /// Say nothing but what went wrong
    #[arg(long, short)]
    pub quiet: bool,
    /// Say what is started where
    #[arg(long, short, aliases = ["report-bindings", "display-map"])]
    pub verbose: bool,
    /// Explain which collective algorithm is chosen, such as allreduce:64K, and end (without -n: for as many ranks as cores; with
    /// --ppn: on as many hosts like this one as that takes); p2p:BYTES: which way a message between ranks of one host takes;
    /// p2p:BYTES:gpu: who copies one from and to memory of GPUs; rdma: which RDMA device ranks use, or why none
    #[arg(long, value_name = "COLLECTIVE:BYTES|p2p:BYTES|rdma")]
    pub explain: Option<String>,
    /// Show what things take on this machine, by which algorithms are chosen, and end; measure: measure it anew, in some 0.6 s, and
    /// keep it for jobs to come; curves: what messages of many lengths take by each way, by that and measured now, or drawn in a file
    #[arg(long, value_name = "measure|curves|FILE.svg", num_args = 0..=1, require_equals = true, default_missing_value = "show")]
    pub machine: Option<About>,
    /// Show where NUMA nodes, NICs and GPUs of this host are, how far apart, and which NIC is whose, and end; drawn in a file; or written
    /// to a topology file. Of the hosts of such a file where BANYAN_TOPOLOGY names one
    #[arg(long, value_name = "FILE.svg|FILE.toml", num_args = 0..=1, require_equals = true, default_missing_value = "show")]
    pub topology: Option<Show>,
}

/// Options of one program.
#[derive(Args, Clone, Debug)]
pub struct Local {
    /// Ranks of this program [default: 1]
    #[arg(short = 'n', long = "np", aliases = ["n", "c"], short_alias = 'c', value_name = "RANKS",
          value_parser = ranks, allow_negative_numbers = true)]
    pub ranks: Option<u32>,
    /// Give a variable to this program only
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,
    /// Ask the library to take these kinds of memory, as in mpi,system,cuda:device; programs are told which of them it takes
    #[arg(long, value_name = "KINDS", value_parser = memory_alloc_kinds)]
    pub memory_alloc_kinds: Option<String>,
    /// Working directory of this program
    #[arg(long, aliases = ["wd", "workdir"], value_name = "DIR")]
    pub wdir: Option<PathBuf>,
}

/// Checks a list of kinds of memory.
fn memory_alloc_kinds(text: &str) -> Result<String, String> {
    banyan_pmi::settings::memory_alloc_kinds(text).map(|_| text.to_owned())
}

/// The words of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandWords(pub Vec<String>);

/// Reads the words of a command, quoted as in a shell.
fn command_words(text: &str) -> Result<CommandWords, String> {
    let words = shlex::split(text).filter(|words| !words.is_empty());
    words.map(CommandWords).ok_or_else(|| "no command, or a quote that is not closed".to_owned())
}

/// A job as the command line describes it.
#[derive(Clone, Debug)]
pub struct Options {
    /// What holds for all programs.
    pub global: Global,
    /// The programs, each with at least its name.
    pub programs: Vec<(Local, Vec<OsString>)>,
}

/// All options of a command line before its first `:`.
pub fn table() -> clap::Command {
    let mut table = First::command();
    table.build(); // adds --help and --version to the table
    table
}

/// Reads mpirun's arguments (without its own name).
///
/// # Errors
/// One line on the first error.
pub fn parse(arguments: Vec<OsString>) -> Result<Command, Trouble> {
    if arguments == ["--agent"] {
        return Ok(Command::Agent);
    }
    if let [argument, pages] = &arguments[..]
        && argument == crate::measure::YIELDS
        && let Some(pages) = pages.to_str().and_then(|pages| pages.parse().ok())
    {
        return Ok(Command::Yield(pages));
    }
    // It stays as long as the process: to free its many pieces would take 15 us of each start.
    static TABLE: Mutex<Option<clap::Command>> = Mutex::new(None);
    let mut kept = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let table = kept.get_or_insert_with(table);
    let mut segments = read_configfile(split(arguments, table), table)?.into_iter();
    let first = segments.next().unwrap_or_default();
    let mut parsed = match table.try_get_matches_from_mut(for_clap(&first)) {
        Ok(mut matches) => First::from_arg_matches_mut(&mut matches).map_err(|error| wrong(&error))?,
        Err(error) if !error.use_stderr() => return Ok(Command::Print(error.render().to_string())),
        Err(error) => return Err(wrong(&error)),
    };
    if parsed.global.timeout.is_none() {
        parsed.global.timeout = timeout_variable()?;
    }
    if let Some(how) = parsed.global.machine {
        return Ok(Command::Machine(how));
    }
    if let Some(show) = parsed.global.topology {
        return Ok(Command::Topology(show));
    }
    if let Some(what) = parsed.global.explain {
        let per_host = parsed.global.ppn;
        return Ok(Command::Explain { what, ranks: parsed.local.ranks.or(per_host), per_host });
    }
    let mut last_options = vec![first.options];
    let mut programs = vec![(parsed.local, first.program)];
    for segment in segments {
        let later = Later::try_parse_from(for_clap(&segment));
        let later = later.map_err(|error| wrong_later(&error, table))?;
        programs.push((later.local, segment.program));
        last_options.push(segment.options);
    }
    if let Some(at) = programs.iter().position(|(_, program)| program.is_empty())
        && !parsed.global.hosts_check
    {
        return Err(no_program(at, programs.len(), &last_options[at]));
    }
    Ok(Command::Run(Box::new(Options { global: parsed.global, programs })))
}

/// Replaces `--configfile FILE` by the programs in the file, one a line, after the options of the command line. `#` at the
/// beginning of a line starts a comment, a backslash at its end continues it; words are split and quoted as in a shell.
fn read_configfile(mut segments: Vec<Segment>, table: &clap::Command) -> Result<Vec<Segment>, Trouble> {
    let Some(path) = segments.iter_mut().find_map(|segment| segment.configfile.take()) else {
        return Ok(segments);
    };
    let path = PathBuf::from(path);
    if let Some(program) = segments.iter().flat_map(|segment| &segment.program).next() {
        let program = program.to_string_lossy();
        return Err(Trouble::usage(format!("--configfile names the programs: {program} cannot follow it")));
    }
    let wrong = |why: String| Trouble::usage(format!("configfile {}{why}", path.display()));
    let text = text_of("configfile", &path)?;
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.fold(String::new(), |text, line| match line.strip_suffix('\\') {
        Some(begun) => text + begun + " ",
        None => text + line + "\n",
    });
    let mut words = Vec::new();
    for line in joined.lines() {
        let unclosed = || wrong(format!(": a quote is not closed in '{}'", line.trim().escape_debug()));
        let split = shlex::split(line).ok_or_else(unclosed)?;
        if !split.is_empty() && !words.is_empty() {
            words.push(OsString::from(":"));
        }
        words.extend(split.into_iter().map(OsString::from));
    }
    let mut named = split(words, table);
    if named.iter().any(|segment| segment.configfile.is_some()) {
        return Err(wrong(": names another configfile".to_owned()));
    }
    let given = std::mem::take(&mut segments[0].options);
    named[0].options.splice(..0, given);
    Ok(named)
}

/// The job's time limit in MPICH's variable.
fn timeout_variable() -> Result<Option<Duration>, Trouble> {
    const NAME: &str = "MPIEXEC_TIMEOUT";
    let Some(value) = std::env::var_os(NAME).filter(|value| !value.is_empty()) else { return Ok(None) };
    let value = value.to_string_lossy();
    duration(&value).map(Some).map_err(|why| Trouble::usage(format!("{NAME}={value}: {why}")))
}

fn for_clap(segment: &Segment) -> impl Iterator<Item = OsString> + '_ {
    [OsString::from("mpirun")].into_iter().chain(segment.options.iter().cloned())
}

/// The first line of clap's error, with its suggestion or the possible values.
fn wrong(error: &clap::Error) -> Trouble {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or("").trim_start_matches("error: ").trim_end_matches(':');
    let words = |kind| error.get(kind).map(ToString::to_string).filter(|words| !words.is_empty());
    let hint = match (words(ContextKind::SuggestedArg).or(words(ContextKind::SuggestedValue)), error.kind()) {
        (Some(near), _) => format!(": did you mean {near}?"),
        (None, ErrorKind::InvalidValue) => {
            words(ContextKind::ValidValue).map(|known| format!(": there are {known}")).unwrap_or_default()
        }
        _ => String::new(),
    };
    Trouble::usage(format!("{line}{hint} (see mpirun --help)"))
}

/// The word of `known` that `word` was probably meant to be.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let rated = known.iter().map(|near| (strsim::jaro_winkler(word, near), *near));
    rated.filter(|(alike, _)| *alike > 0.9).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, near)| near)
}

/// The error in the options of a later program. Options for the whole job must come before the first program.
fn wrong_later(error: &clap::Error, table: &clap::Command) -> Trouble {
    let option = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let name = option.trim_start_matches('-').split('=').next().unwrap_or("");
    match error.kind() {
        ErrorKind::UnknownArgument if knows(table, name) => Trouble::usage(format!(
            "{option} holds for all programs: it has its place before the first of them"
        )),
        _ => wrong(error),
    }
}

/// The error that program number `at` is missing; `options` are those in front of it, the last of which may have taken it
/// as its value.
fn no_program(at: usize, programs: usize, options: &[OsString]) -> Trouble {
    let position = match at {
        0 if programs > 1 => " before the first ':'".to_owned(),
        0 => String::new(),
        at => format!(" after ':' number {at}"),
    };
    let swallowed = match options {
        [.., option, value] if !value.as_encoded_bytes().starts_with(b"-") => {
            format!(": '{}' was taken as the value of {}", value.display(), option.display())
        }
        _ => String::new(),
    };
    Trouble::usage(format!("no program is named{position}{swallowed} (see mpirun --help)"))
}

/// Reads a number of ranks.
fn ranks(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST_RANKS).contains(number));
    number.ok_or_else(|| format!("a number of ranks is 1 to {MOST_RANKS}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words() -> impl Strategy<Value = String> {
        let known = [
            "-n", "-np", "-x", "--genv", "-genv", ":", "--", "-", "--=", "-hosts", "--mca", "-env", "-n=2",
            "-vq",
        ];
        prop_oneof![
            prop::sample::select(known.to_vec()).prop_map(str::to_owned),
            "-{0,3}[a-zé]{0,6}={0,2}[0-9a-z]{0,3}",
            "[0-9]{1,12}",
        ]
    }

    proptest! {
        #[test]
        fn any_arguments_are_handled(words in prop::collection::vec(words(), 0..8)) {
            if let Err(trouble) = parse(words.into_iter().map(OsString::from).collect()) {
                prop_assert_eq!(trouble.message.lines().count(), 1, "{}", trouble.message);
            }
        }
    }

    #[test]
    fn the_man_page_has_every_option() {
        let page = include_str!("../../docs/mpirun.1").replace("\\-", "-").replace("\\*(Aq", "'");
        for option in table().get_arguments().filter(|option| !option.is_hide_set()) {
            let long = option.get_long().unwrap_or_default();
            let known = page.contains(&format!("--{long}"));
            assert!(known, "--{long} is not in docs/mpirun.1: run `cargo xtask docs`");
            let about = option.get_help().map(ToString::to_string).unwrap_or_default();
            let same = long == "help" || page.contains(&about); // clap's own has two texts
            assert!(same, "docs/mpirun.1 has other words on --{long}: run `cargo xtask docs`");
        }
    }

    #[test]
    fn times_have_units() {
        let time = |text| duration(text).ok().map(|time| time.as_millis());
        assert_eq!(time("10"), Some(10_000));
        assert_eq!(time("0.5"), Some(500));
        assert_eq!((time("90s"), time("5m"), time("2h")), (Some(90_000), Some(300_000), Some(7_200_000)));
        for bad in ["", "s", "-1", "1d", "nan", "inf", "1e99", "é"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }
}
