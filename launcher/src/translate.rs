//! Translates options in the style of other launchers to ours before clap sees them.
//!
//! Users write `-np 4`, `-genv A B`, `-hosts x`, `--mca a b`. [`split`] reads the options up to the program's
//! name, which it finds because clap's own table says which options take a value, and leaves unchanged what
//! follows. Options that have no meaning here are dropped.

use std::ffi::{OsStr, OsString};

use clap::Command;

/// Options of other launchers that mean nothing here, and how many values follow them.
const IGNORED: &[(&str, usize)] = &[
    ("allow-run-as-root", 0),
    ("use-hwthread-cpus", 0),
    ("nolocal", 0),
    ("genvall", 0),
    ("envall", 0),
    ("disable-hostname-propagation", 0),
    ("enable-x", 0),
    ("disable-x", 0),
    ("no-daemonize", 0),
    ("ordered-output", 0),
    ("bootstrap", 1),
    ("bootstrap-exec", 1),
    ("bootstrap-exec-args", 1),
    ("launcher", 1),
    ("launcher-exec", 1),
    ("rmk", 1),
    ("iface", 1),
    ("usize", 1),
    ("pmi-port", 0),
    ("report-state-on-timeout", 0), // mpirun always does
    ("mca", 2),
    ("gmca", 2),
    ("prtemca", 2),
    ("pmixmca", 2),
];

/// Options whose two values `NAME VALUE` are joined to `NAME=VALUE`.
const PAIRS: &[&str] = &["genv", "env"];

/// One program and the options before it, as clap will see them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Translated options.
    pub options: Vec<OsString>,
    /// The program and its arguments, untouched; empty if there is none.
    pub program: Vec<OsString>,
    /// The file that `--configfile` names; clap does not see that option.
    pub configfile: Option<OsString>,
}

/// Splits a command line at `:` into its programs, and translates the options of each. `command` is clap's
/// table of the options.
pub fn split(arguments: Vec<OsString>, command: &Command) -> Vec<Segment> {
    arguments.split(|argument| argument == ":").map(|part| segment(part, command)).collect()
}

fn segment(arguments: &[OsString], command: &Command) -> Segment {
    let mut options = Vec::new();
    let mut configfile = None;
    let mut rest = arguments;
    while let [argument, after @ ..] = rest {
        if argument == "--" {
            return Segment { options, program: after.to_vec(), configfile };
        }
        let Some(text) = argument.to_str().filter(|text| text.len() > 1 && text.starts_with('-')) else {
            break;
        };
        let (option, values) = translate(text, after, command);
        let (given, after) = after.split_at(values.count.min(after.len()));
        rest = after;
        match (option.as_ref().and_then(|option| option.to_str()?.strip_prefix("--configfile")), given) {
            (Some(""), [file]) => configfile = Some(file.clone()),
            (Some(attached), []) if attached.len() > 1 => configfile = Some(OsString::from(&attached[1..])),
            _ => {
                options.extend(option);
                options.extend_from_slice(if values.keep { given } else { &[] });
            }
        }
    }
    Segment { options, program: rest.to_vec(), configfile }
}

/// The values that follow an option: how many, and whether clap is to see them.
struct Values {
    count: usize,
    keep: bool,
}

/// Translates one option, given the arguments after it: the option for clap, if any, and its values.
fn translate(text: &str, after: &[OsString], command: &Command) -> (Option<OsString>, Values) {
    let none = Values { count: 0, keep: true };
    let name = text.trim_start_matches('-');
    let (name, attached) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
    let dashes = text.len() - text.trim_start_matches('-').len();
    let is_long = dashes == 2 || (dashes == 1 && name.chars().count() > 1);

    if is_long && let Some(&(_, count)) = IGNORED.iter().find(|(ignored, _)| *ignored == name) {
        let count = if attached.is_some() { count.saturating_sub(1) } else { count };
        return (None, Values { count, keep: false });
    }
    if is_long
        && PAIRS.contains(&name)
        && attached.is_none()
        && let [variable, value, ..] = after
        && !contains_equals(variable)
    {
        let mut joined = OsString::from(format!("--{name}="));
        joined.push(variable);
        joined.push("=");
        joined.push(value);
        return (Some(joined), Values { count: 2, keep: false });
    }
    if is_long && let Some(takes_value) = takes_value(command, |arg| is_long_name(arg, name)) {
        let option = format!("--{}", text.trim_start_matches('-'));
        let count = usize::from(takes_value && attached.is_none());
        return (Some(option.into()), Values { count, keep: true });
    }
    let mut letters = name.chars();
    let (true, Some(first)) = (dashes == 1, letters.next()) else { return (Some(text.into()), none) };
    let more = letters.as_str();
    let short = |short: char| takes_value(command, |arg| is_short_name(arg, short));
    match short(first) {
        // `-n 4`: the next argument is the value.
        Some(true) if more.is_empty() && attached.is_none() => {
            (Some(text.into()), Values { count: 1, keep: true })
        }
        // `-n4`, `-vq`: clap splits these itself.
        Some(true) if more.is_empty() || more.starts_with(|c: char| c.is_ascii_digit()) => {
            (Some(text.into()), none)
        }
        Some(false) if more.chars().all(|letter| short(letter) == Some(false)) => (Some(text.into()), none),
        // An unknown name: with two dashes clap's error shows the whole name.
        _ => (Some(format!("--{}", text.trim_start_matches('-')).into()), none),
    }
}

/// True if an option of `command` is called `name`, without dashes.
pub(crate) fn knows(command: &Command, name: &str) -> bool {
    let mut letters = name.chars();
    let short = letters.next().filter(|_| letters.next().is_none());
    command
        .get_arguments()
        .any(|arg| is_long_name(arg, name) || short.is_some_and(|short| is_short_name(arg, short)))
}

fn contains_equals(text: &OsStr) -> bool {
    text.as_encoded_bytes().contains(&b'=')
}

fn takes_value(command: &Command, is_it: impl Fn(&clap::Arg) -> bool) -> Option<bool> {
    command
        .get_arguments()
        .find(|arg| is_it(arg))
        .map(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set())
}

fn is_long_name(arg: &clap::Arg, name: &str) -> bool {
    arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
}

fn is_short_name(arg: &clap::Arg, short: char) -> bool {
    arg.get_short() == Some(short) || arg.get_all_short_aliases().is_some_and(|all| all.contains(&short))
}
