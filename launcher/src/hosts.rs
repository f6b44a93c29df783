//! Host lists and host files, and which of the hosts that they name is this machine.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use crate::Trouble;
use crate::allocation::{self, Reach};
use crate::mapping::Room;
use crate::options::{CommandWords, Global, nearest};
use crate::placement;

/// Most bytes of a host file, or another file that options name.
const MAX_FILE: usize = 1 << 20;

/// A host, and how many ranks it takes if the user said so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Name or address as written, without the brackets of an address.
    pub name: String,
    /// `host:4` or `slots=4`.
    pub slots: Option<u32>,
    /// `max_slots=4`.
    pub most: Option<u32>,
}

impl Host {
    /// What the places of ranks depend on.
    pub(crate) fn room(&self) -> Room {
        Room { slots: self.slots.unwrap_or(1), most: self.most }
    }
}

/// Reads `a,b:4`.
///
/// # Errors
/// One line of text that says which part is not a host.
pub fn parse_list(text: &str) -> Result<Vec<Host>, String> {
    text.split(',').map(|part| host(part.trim())).collect()
}

/// Reads a host file: one host a line (`name`, `name:4` or `name slots=4 max_slots=8`), `#` starts a comment. Other words of
/// the form key=value, such as Intel's `binding=`, are passed over.
///
/// # Errors
/// One line of text: the number of the wrong line, and what is wrong with it.
pub fn parse_file(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or("").split_whitespace();
        let Some(first) = words.next() else { continue };
        let at_line = |why: String| format!("line {number}: {why}");
        let mut entry = host(first).map_err(at_line)?;
        for word in words {
            match word.split_once('=') {
                Some(("slots", count)) => entry.slots = Some(slots(count).map_err(at_line)?),
                Some(("max_slots" | "max-slots", count)) => entry.most = Some(slots(count).map_err(at_line)?),
                Some((key, _)) => {
                    if let Some(near) = nearest(key, &["slots", "max_slots"]) {
                        return Err(at_line(format!("'{word}': did you mean {near}?")));
                    }
                }
                None => return Err(at_line(format!("'{word}' is not of the form key=value"))),
            }
        }
        hosts.push(entry);
    }
    Ok(hosts)
}

fn host(text: &str) -> Result<Host, String> {
    let wrong = || format!("'{}' is not a host name", text.escape_debug());
    let (name, count) = match text.strip_prefix('[') {
        // An IPv6 address in brackets, as in [fe80::1]:4.
        Some(rest) => {
            let (name, rest) = rest.split_once(']').ok_or_else(wrong)?;
            (name, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or_else(wrong)?) })
        }
        None => match text.split_once(':') {
            Some((name, count)) if !count.contains(':') => (name, Some(count)),
            // More than one colon is an IPv6 address.
            _ => (text, None),
        },
    };
    let ok = |c: char| c.is_ascii_alphanumeric() || "-._:%@".contains(c);
    // A name that begins with a dash would be an option of ssh.
    if name.is_empty() || name.starts_with('-') || name.len() > 255 || !name.chars().all(ok) {
        return Err(wrong());
    }
    Ok(Host { name: name.to_owned(), slots: count.map(slots).transpose()?, most: None })
}

fn slots(text: &str) -> Result<u32, String> {
    let count = text.parse::<u32>().ok().filter(|count| (1..=100_000).contains(count));
    count.ok_or_else(|| format!("'{}' is not a number of ranks", text.escape_debug()))
}

/// True if `name` is this machine, called `own`, as far as the name alone tells.
pub fn is_this_host(name: &str, own: &str) -> bool {
    let short = |text: &str| text.split('.').next().unwrap_or("").to_ascii_lowercase();
    if let Ok(address) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
        return address.is_loopback();
    }
    name == "localhost" || name.eq_ignore_ascii_case(own) || short(name) == short(own)
}

/// True if `name` is this machine, called `own`: by its name, as one of its addresses, or as a name that `table`, the text of
/// `/etc/hosts`, has for one of them. No name server is asked.
fn is_here(name: &str, own: &str, table: &str) -> bool {
    // Only a machine's own addresses can be bound to; nothing is sent.
    let is_own = |address: IpAddr| address.is_loopback() || UdpSocket::bind((address, 0)).is_ok();
    let in_table = || {
        let lines = table.lines().map(|line| line.split('#').next().unwrap_or("").split_whitespace());
        let mut named =
            lines.filter(|words| words.clone().skip(1).any(|word| word.eq_ignore_ascii_case(name)));
        named.any(|mut words| words.next().and_then(|word| word.parse().ok()).is_some_and(is_own))
    };
    is_this_host(name, own) || name.parse().is_ok_and(is_own) || in_table()
}

/// What a host that the user calls `name` is called in a job: this machine is `own`, whatever it was named as.
pub(crate) fn known_as(name: &str, own: &str) -> String {
    let table = || std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    if is_here(name, own, &table()) { own.to_owned() } else { name.to_owned() }
}

/// The hosts that the user named, each once: mentioning a host again adds its slots, one if no number is given. This machine,
/// called `own`, is called so whatever it was named as.
pub(crate) fn read(lists: &[String], file: Option<&Path>, own: &str) -> Result<Vec<Host>, Trouble> {
    let mut all = Vec::new();
    for list in lists {
        all.extend(parse_list(list).map_err(|why| Trouble::usage(format!("--host: {why}")))?);
    }
    if let Some(path) = file {
        let shown = path.display();
        let text = text_of("host file", path)?;
        all.extend(parse_file(&text).map_err(|why| Trouble::usage(format!("host file {shown}, {why}")))?);
    }
    if all.is_empty() {
        return Ok(all);
    }
    let mut hosts: Vec<Host> = Vec::new();
    let mut known = std::collections::HashMap::new();
    let mut names = std::collections::HashMap::new();
    for mut host in all {
        let name = names.entry(host.name.clone()).or_insert_with(|| known_as(&host.name, own));
        name.clone_into(&mut host.name);
        let at = *known.entry(host.name.clone()).or_insert(hosts.len());
        match hosts.get_mut(at) {
            Some(same) => {
                same.slots = Some(same.room().slots.saturating_add(host.room().slots));
                same.most = same.most.zip(host.most).map(|(one, other)| one.saturating_add(other));
            }
            None => hosts.push(host),
        }
    }
    Ok(hosts)
}

/// The hosts of a job: those that the user named, or else those that a resource manager has given to it. How agents of other
/// hosts are started follows from the manager, too, unless the user said it. This machine is called `own`.
///
/// Without either, they are those of the rankfile, `of_file`.
pub(crate) fn of_job(global: &mut Global, of_file: &[String], own: &str) -> Result<Vec<Host>, Trouble> {
    let named = read(&global.host, global.hostfile.as_deref(), own)?;
    let allocation = match allocation::here() {
        Err(_) if !named.is_empty() => None,
        found => found?,
    };
    let Some(allocation) = allocation else {
        return if named.is_empty() { read(of_file, None, own) } else { Ok(named) };
    };
    allocation.check(&named, own)?;
    let words = match allocation.reach {
        Reach::Command(words) => words,
        Reach::Ssh(options) => [placement::ssh(global), options].concat(),
    };
    global.ssh.get_or_insert(CommandWords(words));
    if !named.is_empty() {
        return Ok(named);
    }
    let lists: Vec<String> =
        allocation.hosts.iter().map(|(name, slots)| format!("[{name}]:{slots}")).collect();
    read(&lists, None, own)
}

/// The text of a file that the user named: a `kind` of file, such as `host file`.
pub(crate) fn text_of(kind: &str, path: &Path) -> Result<String, Trouble> {
    let shown = path.display();
    let text = std::fs::read(path)
        .map_err(|why| Trouble::new(format!("{kind} {shown}: {}", crate::trouble::reason(&why))))?;
    if text.len() > MAX_FILE {
        return Err(Trouble::usage(format!("{kind} {shown}: longer than {MAX_FILE} bytes")));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_and_files() {
        let host = |name: &str, slots| Host { name: name.into(), slots, most: None };
        assert_eq!(parse_list("a,b:4, c").unwrap(), [host("a", None), host("b", Some(4)), host("c", None)]);
        assert_eq!(parse_list("::1").unwrap(), [host("::1", None)]);
        let file = "# all\nlocalhost slots=2 max_slots=4\n\nn1:3 # three\n";
        let most = Host { most: Some(4), ..host("localhost", Some(2)) };
        assert_eq!(parse_file(file).unwrap(), [most, host("n1", Some(3))]);
        assert_eq!(
            parse_list("[fe80::1%eth0]:4,me@n2").unwrap(),
            [host("fe80::1%eth0", Some(4)), host("me@n2", None)]
        );
        // Intel's machinefile.
        assert_eq!(parse_file("n1:2 binding=map=1\n").unwrap(), [host("n1", Some(2))]);
        for bad in ["", "a,,b", "a:x", "a:0", "a b", "$(reboot)", "-oProxyCommand=x", "[::1", "[::1]4"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_file("b slot=2").unwrap_err(), "line 1: 'slot=2': did you mean slots?");
        assert_eq!(parse_file("a\nb junk").unwrap_err(), "line 2: 'junk' is not of the form key=value");
    }

    #[test]
    fn this_host_is_known() {
        for name in ["localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "vm", "VM.example.org"] {
            assert!(is_this_host(name, "vm"), "{name}");
        }
        assert!(!is_this_host("vm2", "vm"));
        assert!(!is_this_host("10.0.0.1", "vm"));
        // An address for documentation, which no machine has.
        let table = "127.0.0.1 localhost mine # theirs\n192.0.2.1 theirs\n";
        assert!(is_here("mine", "vm", table) && !is_here("theirs", "vm", table));
        assert!(!is_here("192.0.2.1", "vm", table) && !is_here("192.0.2.1", "192", table));
    }

    #[test]
    fn hosts_that_are_named_again_have_more_slots() {
        let lists = ["a,b:2".to_owned(), "localhost,a,127.0.0.1:3".to_owned()];
        let hosts = read(&lists, None, "vm").unwrap();
        let slots: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.room().slots)).collect();
        assert_eq!(slots, [("a", 2), ("b", 2), ("vm", 4)]);
    }

    proptest! {
        #[test]
        fn any_text_is_handled(text in ".{0,200}") {
            let _ = parse_file(&text);
            let _ = parse_list(&text);
        }
    }
}
