//! Open MPI's rankfiles: lines such as `rank 0=localhost slot=1:0-2` that say which cores each rank is bound to.

use std::path::Path;

use banyan_topo::{CpuSet, Machine, slots};

use crate::{Trouble, hosts};

/// A line of a rankfile: the slots of a host that a rank is bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The rank in MPI_COMM_WORLD.
    pub rank: u32,
    /// A host's name, or `+n0` for the first of the job's hosts.
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

/// Reads the rankfile at `path`; its hosts must be this one, called `own`.
pub(crate) fn read(path: &Path, own: &str) -> Result<Vec<Entry>, Trouble> {
    let shown = path.display();
    let text = hosts::text_of("rankfile", path)?;
    let entries = parse(&text).map_err(|why| Trouble::usage(format!("rankfile {shown}, {why}")))?;
    match entries.iter().find(|entry| entry.host != "+n0" && !hosts::is_this_host(&entry.host, own)) {
        Some(other) => {
            Err(hosts::elsewhere(&format!("rankfile {shown}, line {}: ", other.line), &other.host, own))
        }
        None => Ok(entries),
    }
}

/// The CPUs of each of `ranks` ranks.
pub(crate) fn cpus(
    path: &Path,
    entries: &[Entry],
    machine: &Machine,
    ranks: u32,
) -> Result<Vec<CpuSet>, Trouble> {
    let of = |rank: u32| {
        let Some(entry) = entries.iter().find(|entry| entry.rank == rank) else {
            return Err(format!("no line for rank {rank} of {ranks}"));
        };
        match &entry.slots {
            Some(list) => slots(machine, list).map_err(|why| format!("line {}: {why}", entry.line)),
            None => Ok(machine.cpus().iter().map(|cpu| cpu.id).collect()),
        }
    };
    let cpus = (0..ranks).map(of).collect::<Result<_, _>>();
    cpus.map_err(|why| Trouble::usage(format!("rankfile {}, {why}", path.display())))
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
