//! Host lists and host files: accepted as long as they name this machine only.

use std::path::Path;

use crate::Trouble;

/// Most bytes of a host file, or another file that options name.
const MAX_FILE: usize = 1 << 20;

/// A host, and how many ranks it takes if the user said so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Name or address as written.
    pub name: String,
    /// `host:4` or `slots=4`.
    pub slots: Option<u32>,
}

/// Reads `a,b:4`.
///
/// # Errors
/// One line of text that says which part is not a host.
pub fn parse_list(text: &str) -> Result<Vec<Host>, String> {
    text.split(',').map(|part| host(part.trim())).collect()
}

/// Reads a host file: one host a line (`name`, `name:4` or `name slots=4`), `#` starts a comment.
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
                Some(_) => {}
                None => return Err(at_line(format!("'{word}' is not of the form key=value"))),
            }
        }
        hosts.push(entry);
    }
    Ok(hosts)
}

fn host(text: &str) -> Result<Host, String> {
    // More than one colon is an IPv6 address.
    let (name, count) = match text.split_once(':') {
        Some((name, count)) if !count.contains(':') => (name, Some(count)),
        _ => (text, None),
    };
    let ok = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
    if name.is_empty() || name.len() > 255 || !name.chars().all(ok) {
        return Err(format!("'{}' is not a host name", text.escape_debug()));
    }
    Ok(Host { name: name.to_owned(), slots: count.map(slots).transpose()? })
}

fn slots(text: &str) -> Result<u32, String> {
    let count = text.parse::<u32>().ok().filter(|count| (1..=100_000).contains(count));
    count.ok_or_else(|| format!("'{}' is not a number of ranks", text.escape_debug()))
}

/// True if `name` is this machine, called `own`. Nothing is looked up.
pub fn is_this_host(name: &str, own: &str) -> bool {
    let short = |text: &str| text.split('.').next().unwrap_or("").to_ascii_lowercase();
    let loopback = name.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    loopback || name == "localhost" || name.eq_ignore_ascii_case(own) || short(name) == short(own)
}

/// Checks that all hosts named on the command line are this one, called `own`. Gives the number of ranks that they take
/// together, if each of them has a number.
///
/// # Errors
/// If a name is malformed or another host's, or the file cannot be read.
pub(crate) fn check(lists: &[String], file: Option<&Path>, own: &str) -> Result<Option<u32>, Trouble> {
    let mut hosts = Vec::new();
    for list in lists {
        hosts.extend(parse_list(list).map_err(|why| Trouble::usage(format!("--host: {why}")))?);
    }
    if let Some(path) = file {
        let shown = path.display();
        let text = text_of("host file", path)?;
        hosts.extend(parse_file(&text).map_err(|why| Trouble::usage(format!("host file {shown}, {why}")))?);
    }
    match hosts.iter().find(|host| !is_this_host(&host.name, own)) {
        Some(other) => Err(elsewhere("", &other.name, own)),
        None if hosts.is_empty() => Ok(None),
        None => Ok(hosts.iter().try_fold(0u32, |sum, host| sum.checked_add(host.slots?))),
    }
}

/// The error that `host` is not this machine; `before` says where it is named.
pub(crate) fn elsewhere(before: &str, host: &str, own: &str) -> Trouble {
    Trouble::usage(format!(
        "{before}host {host} is not this machine ({own}): running on several hosts is not built yet, it comes in a later version"
    ))
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
        let host = |name: &str, slots| Host { name: name.into(), slots };
        assert_eq!(parse_list("a,b:4, c").unwrap(), [host("a", None), host("b", Some(4)), host("c", None)]);
        assert_eq!(parse_list("::1").unwrap(), [host("::1", None)]);
        let file = "# all\nlocalhost slots=2 max_slots=4\n\nn1:3 # three\n";
        assert_eq!(parse_file(file).unwrap(), [host("localhost", Some(2)), host("n1", Some(3))]);
        for bad in ["", "a,,b", "a:x", "a:0", "a b", "$(reboot)"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_file("a\nb junk").unwrap_err(), "line 2: 'junk' is not of the form key=value");
    }

    #[test]
    fn this_host_is_known() {
        for name in ["localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "vm", "VM.example.org"] {
            assert!(is_this_host(name, "vm"), "{name}");
        }
        assert!(!is_this_host("vm2", "vm"));
        assert!(!is_this_host("10.0.0.1", "vm"));
    }

    proptest! {
        #[test]
        fn any_text_is_handled(text in ".{0,200}") {
            let _ = parse_file(&text);
            let _ = parse_list(&text);
        }
    }
}
