//! The descendants of a process: found in `/proc`, killed through pidfds.

use std::collections::HashMap;
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// All descendants of `root`, parents before their children, without the processes `but` and what descends from them.
pub(crate) fn below(root: Pid, but: &[Pid]) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        if let Some(pid) = pid
            && let Some(parent) = parent(pid)
            && !but.iter().any(|but| but.as_raw_pid() == pid)
        {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![root.as_raw_pid()];
    let mut next = 0;
    while next < found.len() {
        found.extend(children.remove(&found[next]).unwrap_or_default());
        next += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

/// Sends SIGKILL to all processes that are [`below`]; gives the number of living processes that it reached.
///
/// It may miss processes that are forked meanwhile: repeat until none is left.
pub(crate) fn kill_below(root: Pid, but: &[Pid]) -> usize {
    let reached = |pid: &Pid| {
        let Ok(pidfd) = pidfd_open(*pid, PidfdFlags::empty()) else { return false };
        // The pid may have been reused before the pidfd was opened: the process must still be a descendant.
        descends(*pid, root) && pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
    };
    below(root, but).iter().filter(|pid| reached(pid)).count()
}

/// True if `pid` descends from `root`.
pub(crate) fn descends(pid: Pid, root: Pid) -> bool {
    let mut at = pid.as_raw_pid();
    for _ in 0..256 {
        match parent(at) {
            Some(parent) if parent == root.as_raw_pid() => return true,
            Some(parent) if parent > 1 => at = parent,
            _ => return false,
        }
    }
    false
}

fn parent(pid: i32) -> Option<i32> {
    field(pid, 1)?.parse().ok()
}

/// The letter of a process's state: R, S, T (stopped), Z (ended, not waited for)...
pub(crate) fn state(pid: Pid) -> Option<char> {
    field(pid.as_raw_pid(), 0)?.chars().next()
}

/// The name of a process, for messages.
pub(crate) fn name(pid: Pid) -> Option<String> {
    let name = fs::read(format!("/proc/{}/comm", pid.as_raw_pid())).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// A field of `/proc/PID/stat`, counted from the state; the name before it is in parentheses and may hold anything.
fn field(pid: i32, number: usize) -> Option<String> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after = stat.iter().rposition(|&byte| byte == b')')?;
    let text = std::str::from_utf8(stat.get(after + 1..)?).ok()?;
    text.split_ascii_whitespace().nth(number).map(str::to_owned)
}
