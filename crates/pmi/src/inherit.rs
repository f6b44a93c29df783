//! Inherited descriptors: how a rank finds its bootstrap socket, and how it checks that it is really that socket.
//!
//! The variable holds `FD:INODE:AGENT`. A descriptor number alone may name anything after a wrapper closed and
//! reopened files; the inode of the socket is unique while the job lives. Where the descriptor is not that socket, the
//! agent's process id tells a rank that lost it from a program that only has the variable left over: see
//! [`relation_to_job`].

use std::ffi::{CStr, OsStr};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::fs::{FileType, fstat};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The variable that leads a rank to its agent: `FD:INODE:AGENT`, with the agent's process id.
pub const FD_VARIABLE: &str = match FD_NAME.to_str() {
    Ok(name) => name,
    Err(_) => panic!("plain letters"),
};

/// [`FD_VARIABLE`] for functions of C.
pub const FD_NAME: &CStr = c"BANYAN_PMI_FD";

/// How many ancestors [`relation_to_job`] looks at.
const MAX_ANCESTORS: usize = 64;

/// Value of [`FD_VARIABLE`] for a rank that will inherit `socket` under the same number from this process, its agent.
///
/// # Errors
/// What `fstat` says.
pub fn fd_value(socket: impl AsFd) -> std::io::Result<String> {
    let inode = fstat(&socket)?.st_ino;
    Ok(format!("{}:{inode}:{}", socket.as_fd().as_raw_fd(), std::process::id()))
}

/// Descriptor number, inode and the agent's process id, as the launcher wrote them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SocketRef {
    pub(crate) fd: RawFd,
    pub(crate) inode: u64,
    pub(crate) agent: u32,
}

impl SocketRef {
    pub(crate) fn parse(value: &OsStr) -> Option<SocketRef> {
        let (fd, rest) = value.to_str()?.split_once(':')?;
        let (inode, agent) = rest.split_once(':')?;
        let socket_ref =
            SocketRef { fd: fd.parse().ok()?, inode: inode.parse().ok()?, agent: agent.parse().ok()? };
        (socket_ref.fd > 2).then_some(socket_ref)
    }
}

/// Whether this program has rights that the process that started it does not have (setuid, setgid, file capabilities):
/// then the environment cannot be trusted.
#[allow(unsafe_code, reason = "no safe face of getauxval is at hand, and this module has the right to one")]
pub(crate) fn is_privileged() -> bool {
    // SAFETY: takes a plain number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Bytes of the largest file that this process may write; unlimited if a sandbox refuses to tell.
#[allow(
    unsafe_code,
    reason = "rustix takes this call for one that cannot fail, and this module has the right to one"
)]
pub(crate) fn largest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is ours to be written. If the call fails, it stays as it is.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Adopts the socket and sets it to close on exec; `None` if the descriptor is not that socket.
#[allow(unsafe_code, reason = "a descriptor that arrives by number can be owned in no other way")]
pub(crate) fn adopt_socket(socket_ref: SocketRef) -> Option<OwnedFd> {
    if !is_open(socket_ref.fd) {
        return None;
    }
    // SAFETY: the descriptor is open (just checked), and the launcher's variable gives it to this process. If
    // it turns out to be something else, it is let go below without closing it.
    let fd = unsafe { OwnedFd::from_raw_fd(socket_ref.fd) };
    let ours = fstat(&fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode).is_socket() && stat.st_ino == socket_ref.inode
    });
    if !ours || close_on_exec(&fd).is_err() {
        std::mem::forget(fd);
        return None;
    }
    Some(fd)
}

/// Adopts the socket that another launcher left open under this number, and sets it to close on exec; `None` if it is none.
#[allow(unsafe_code, reason = "a descriptor that arrives by number can be owned in no other way")]
pub(crate) fn adopt_foreign_socket(fd: RawFd) -> Option<OwnedFd> {
    if fd <= 2 || !is_socket(fd) {
        return None;
    }
    // SAFETY: the descriptor is an open socket (just checked), and the launcher's variable gives it to this process.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if close_on_exec(&fd).is_err() {
        std::mem::forget(fd);
        return None;
    }
    Some(fd)
}

/// Adopts the memory that the agent named in its welcome, and sets it to close on exec.
#[allow(unsafe_code, reason = "a descriptor that arrives by number can be owned in no other way")]
pub(crate) fn adopt_memory(fd: RawFd) -> Option<OwnedFd> {
    if fd <= 2 || !is_open(fd) {
        return None;
    }
    // SAFETY: the descriptor is open (just checked), and the agent's welcome gives it to this process. If it
    // turns out to be something else, it is let go below without closing it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let is_file = fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    if !is_file || rustix::fs::fcntl_get_seals(&fd).is_err() || close_on_exec(&fd).is_err() {
        std::mem::forget(fd);
        return None;
    }
    Some(fd)
}

/// Sets the socket by which our launcher serves PMI-1 to close on exec: a program that this rank starts is not the rank.
#[allow(unsafe_code, reason = "a descriptor that arrives by number can be used in no other way")]
pub(crate) fn keep_pmi1_from_children() {
    let fd = std::env::var("PMI_FD").ok().and_then(|fd| fd.parse().ok());
    if let Some(fd) = fd.filter(|&fd| fd > 2 && is_socket(fd)) {
        // SAFETY: the descriptor is open (just checked), and nothing closes it while it is borrowed here.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // If this is refused, programs that this one starts are told that the rank is taken.
        let _ = close_on_exec(fd);
    }
}

/// True if `fd` is an open socket of this process.
#[allow(unsafe_code, reason = "a descriptor that arrives by number can be used in no other way")]
pub(crate) fn is_socket(fd: RawFd) -> bool {
    if !is_open(fd) {
        return false;
    }
    // SAFETY: the descriptor is open (just checked), and nothing closes it while it is borrowed here.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_socket())
}

/// The relation to the job of a process that has the variable but not the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Relation {
    /// A rank below a wrapper that closes descriptors: an ancestor holds the socket, open for its children.
    Wrapped,
    /// A rank that lost the socket: no process between it and the agent holds it, so the rank closed it, or a wrapper that
    /// became the rank by exec.
    Closed,
    /// A program that a rank started: an ancestor has joined the job, and so set the socket to close on exec.
    Child,
    /// No descendant of the agent: the variable was left over.
    Unrelated,
}

/// The relation of this process, which does not have the socket, to the job of the agent. Processes that joined keep the
/// socket until they end, so that their children can tell.
pub(crate) fn relation_to_job(socket_ref: SocketRef) -> Relation {
    let wanted = format!("socket:[{}]", socket_ref.inode);
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..MAX_ANCESTORS {
        if pid == socket_ref.agent {
            return Relation::Closed;
        }
        if pid <= 1 {
            break;
        }
        let held = fs::read_link(format!("/proc/{pid}/fd/{}", socket_ref.fd));
        if held.is_ok_and(|target| target == Path::new(&wanted)) {
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", socket_ref.fd));
            return if info.is_ok_and(|text| survives_exec(&text)) {
                Relation::Wrapped
            } else {
                Relation::Child
            };
        }
        let Some(parent) = parent_of(pid) else { break };
        pid = parent;
    }
    Relation::Unrelated
}

#[allow(unsafe_code, reason = "a descriptor that arrives by number can be used in no other way")]
fn is_open(fd: RawFd) -> bool {
    // SAFETY: takes plain numbers, and only asks.
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}

fn close_on_exec(fd: impl AsFd) -> rustix::io::Result<()> {
    fcntl_setfd(&fd, fcntl_getfd(&fd)? | FdFlags::CLOEXEC)
}

/// True if the descriptor stays open over exec, by the line `flags: 02000002` of its `/proc/PID/fdinfo` file.
fn survives_exec(fdinfo: &str) -> bool {
    const O_CLOEXEC: u32 = 0o2_000_000;
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).is_some_and(|bits| bits & O_CLOEXEC == 0)
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_strictly() {
        let parse = |text: &str| SocketRef::parse(OsStr::new(text));
        assert_eq!(parse("7:1234:9"), Some(SocketRef { fd: 7, inode: 1234, agent: 9 }));
        for bad in [
            "",
            "7",
            "::",
            "7:",
            "7:1",
            "7::1",
            "-1:5:9",
            "2:5:9",
            "7:1:2:3",
            "99999999999:1:9",
            "7:-1:9",
            "7:1:-9",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn fdinfo_tells_whether_exec_closes() {
        assert!(survives_exec("pos:\t0\nflags:\t02\nmnt_id:\t9\n"));
        assert!(!survives_exec("pos:\t0\nflags:\t02000002\nmnt_id:\t9\n"));
        assert!(!survives_exec("garbage"));
    }

    #[test]
    fn only_the_very_socket_is_adopted() {
        let (_ours, theirs) = crate::Channel::<crate::Request, crate::Reply>::pair().unwrap();
        let inode = fstat(&theirs).unwrap().st_ino;
        let (fd, agent) = (theirs.as_raw_fd(), std::process::id());
        assert!(adopt_socket(SocketRef { fd, inode: inode + 1, agent }).is_none());
        assert!(adopt_socket(SocketRef { fd: 1_000_000, inode, agent }).is_none());
        std::mem::forget(theirs);
        let adopted = adopt_socket(SocketRef { fd, inode, agent }).unwrap();
        assert!(fcntl_getfd(&adopted).unwrap().contains(FdFlags::CLOEXEC));
    }
}
