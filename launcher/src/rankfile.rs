//! Open MPI's rankfiles: lines such as `rank 0=localhost slot=1:0-2` that say which cores each rank is bound to.

use std::collections::HashMap;
use std::path::Path;

use banyan_topo::{CpuSet, Machine, slots};
use serde::{Deserialize, Serialize};

use crate::hosts::Host;
use crate::{Trouble, hosts};

/// A line of a rankfile: the slots of a host that a rank is bound to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The rank in MPI_COMM_WORLD.
    pub rank: u32,
    /// A host's name, or `+n0` for the first of the job's hosts, `+n1` for the second.
    pub host: String,
    /// As in [`slots`]; `None`: the rank is not bound.
    pub slots: Option<String>,
    /// The line in the file, from 1.
    pub line: u32,
}

/// Reads a rankfile. `#` and `//` start a comment.
///
/// # Errors
/// One line of text: the number of the wrong line, and what is wrong with it.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or("").split("//").next().unwrap_or("").trim();
        if text.is_empty() {
            continue;
        }
        let wrong =
            || format!("line {line}: '{}' is not of the form 'rank 0=HOST slot=0-3'", text.escape_debug());
        let (rank, rest) =
            text.strip_prefix("rank").and_then(|rest| rest.split_once('=')).ok_or_else(wrong)?;
        let rank: u32 = rank.trim().parse().map_err(|_| wrong())?;
        let (host, rest) = match rest.trim().split_once(char::is_whitespace) {
            Some((host, rest)) => (host, Some(rest)),
            None => (rest.trim(), None),
        };
        let slots = rest.map(|rest| {
            let (key, list) = rest.split_once('=')?;
            matches!(key.trim(), "slot" | "slots").then(|| list.split_whitespace().collect::<String>())
        });
        let slots = slots.map(|slots| slots.ok_or_else(wrong)).transpose()?;
        if host.is_empty() || host.contains('=') {
            return Err(wrong());
        }
        if let Some(other) = entries.iter().find(|other| other.rank == rank) {
            return Err(format!("line {line}: rank {rank} was in line {} already", other.line));
        }
        entries.push(Entry { rank, host: host.to_owned(), slots, line });
    }
    if entries.is_empty() {
        return Err("no line names a rank".to_owned());
    }
    Ok(entries)
}

/// A rankfile, as hosts are told of it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Rankfile {
    /// Where it is, for messages.
    path: String,
    entries: Vec<Entry>,
}

impl Rankfile {
    /// Reads the rankfile at `path`.
    pub(crate) fn read(path: &Path) -> Result<Rankfile, Trouble> {
        let text = hosts::text_of("rankfile", path)?;
        let path = path.display().to_string();
        let entries = parse(&text).map_err(|why| Trouble::usage(format!("rankfile {path}, {why}")))?;
        Ok(Rankfile { path, entries })
    }

    /// How many ranks it names.
    pub(crate) fn ranks(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The hosts that it names, each as often as it names it.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let names = self.entries.iter().map(|entry| entry.host.as_str());
        names.filter(|name| !name.starts_with("+n")).map(|name| format!("[{name}]")).collect()
    }

    /// The hosts of `size` ranks, as indices into `named`. This host is called `own`.
    ///
    /// # Errors
    /// If a rank has no line, or its line names another host.
    pub(crate) fn places(&self, named: &[Host], own: &str, size: u32) -> Result<Vec<u32>, Trouble> {
        let path = &self.path;
        let names = || named.iter().map(|host| host.name.as_str());
        let mut known: HashMap<&str, Option<u32>> = HashMap::new();
        let mut find = |name| {
            let find = || match str::strip_prefix(name, "+n") {
                Some(number) => number.parse().ok().filter(|&number: &u32| (number as usize) < named.len()),
                None => {
                    let wanted = hosts::known_as(name, own);
                    names().position(|name| name == wanted).map(|at| at as u32)
                }
            };
            *known.entry(name).or_insert_with(find)
        };
        let of_rank: HashMap<u32, &Entry> = self.entries.iter().map(|entry| (entry.rank, entry)).collect();
        let place = |rank| {
            let entry = of_rank.get(&rank).ok_or_else(|| format!("no line for rank {rank} of {size}"))?;
            find(&entry.host).ok_or_else(|| {
                let names = names().take(8).collect::<Vec<_>>().join(", ");
                format!("line {}: host {} is not one of the job's: {names}", entry.line, entry.host)
            })
        };
        let places = (0..size).map(place).collect::<Result<_, String>>();
        places.map_err(|why| Trouble::usage(format!("rankfile {path}, {why}")))
    }

    /// The CPUs of these ranks, which are on this host.
    pub(crate) fn cpus(&self, machine: &Machine, ranks: &[u32]) -> Result<Vec<CpuSet>, Trouble> {
        let of_rank: HashMap<u32, &Entry> = self.entries.iter().map(|entry| (entry.rank, entry)).collect();
        let of = |rank: &u32| match of_rank
            .get(rank)
            .and_then(|entry| Some((entry.line, entry.slots.as_ref()?)))
        {
            Some((line, list)) => slots(machine, list).map_err(|why| format!("line {line}: {why}")),
            None => Ok(machine.cpus().iter().map(|cpu| cpu.id).collect()),
        };
        let cpus = ranks.iter().map(of).collect::<Result<_, _>>();
        cpus.map_err(|why| Trouble::usage(format!("rankfile {}, {why}", self.path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_say_where_ranks_go() {
        let text = "# mine\nrank 0=localhost slot=1:0-2\nrank  2 = +n0  slot = 0, 4 // both\n\nrank 1=here\n";
        let entry = |rank, host: &str, slots: Option<&str>, line| Entry {
            rank,
            host: host.into(),
            slots: slots.map(Into::into),
            line,
        };
        let expect = [
            entry(0, "localhost", Some("1:0-2"), 2),
            entry(2, "+n0", Some("0,4"), 3),
            entry(1, "here", None, 5),
        ];
        assert_eq!(parse(text).unwrap(), expect);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("", "no line names a rank"),
            ("rank 0=a slot=0\nrank 0=a slot=1", "line 2: rank 0 was in line 1 already"),
            ("0=a slot=0", "line 1: '0=a slot=0' is not of the form"),
            ("rank x=a slot=0", "line 1: 'rank x=a slot=0' is not of the form"),
            ("rank 0= slot=0", "line 1: "),
            ("rank 0=a core=0", "line 1: "),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.starts_with(why), "{text}: {said}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_handled(text in "(rank [0-9]=[a-z+]{0,3} ?(slot=)?.{0,4}\n?){0,4}|.{0,99}") {
            let _ = parse(&text);
        }
    }
}
