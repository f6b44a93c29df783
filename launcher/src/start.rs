//! Starting processes: signal masks, fork and exec. All `unsafe` of the launcher is here.
//!
//! Before exec a rank only makes system calls: everything it needs (argument and environment arrays, masks,
//! limits) is prepared before.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use banyan_topo::CpuSet;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, set_parent_process_death_signal, waitpid};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::verdict::End;

/// Bytes of an encoded [`StartError`].
pub(crate) const START_ERROR_BYTES: usize = 12;

/// The signals a process had blocked before mpirun changed it; ranks get it back.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// The limit on descriptors that the user set; ranks get it back.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

impl Limit {
    /// The limit of this process. (Not by `rustix`, which assumes that this call cannot fail.)
    ///
    /// # Errors
    /// If a sandbox refuses to tell.
    pub(crate) fn here() -> io::Result<Limit> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is ours to be written.
        match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
            0 => Ok(Limit { soft: limit.rlim_cur, hard: limit.rlim_max }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The step of a start that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Standard input and output.
    Prepare = 0,
    /// Changing to the working directory.
    Directory = 1,
    /// Executing the program.
    Execute = 2,
    /// Binding to cores.
    Bind = 3,
}

/// A child's message that it could not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StartError {
    pub(crate) rank: u32,
    pub(crate) stage: Stage,
    pub(crate) errno: i32,
}

impl StartError {
    pub(crate) fn decode(bytes: &[u8; START_ERROR_BYTES]) -> StartError {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let stage = match word(4) {
            1 => Stage::Directory,
            2 => Stage::Execute,
            3 => Stage::Bind,
            _ => Stage::Prepare,
        };
        StartError { rank: word(0), stage, errno: word(8).cast_signed() }
    }

    fn encode(self) -> [u8; START_ERROR_BYTES] {
        let mut bytes = [0; START_ERROR_BYTES];
        bytes[..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.stage as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&self.errno.to_le_bytes());
        bytes
    }
}

/// Blocks `signals` and gives a descriptor to read them from, and the mask of signals blocked before.
pub(crate) fn take_signals(signals: &[i32]) -> io::Result<(OwnedFd, Mask)> {
    let set = set_of(signals);
    let mut old = MaybeUninit::uninit();
    // SAFETY: a plain system call. (If the process that started mpirun ignored SIGCHLD, children could not be waited for.)
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // SAFETY: both sets are valid; `old` is written by the call.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the set is valid; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is new and ours; sigprocmask succeeded, so `old` is initialized.
    Ok(unsafe { (OwnedFd::from_raw_fd(fd), Mask(old.assume_init())) })
}

/// Makes a program that is run get all signals, whatever this process has blocked.
pub(crate) fn unblock_signals(command: &mut Command) {
    let set = set_of(&[]);
    let unblock = move || {
        // SAFETY: the set is valid.
        match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec a system call is made, and nothing else.
    unsafe { command.pre_exec(unblock) };
}

/// The signals that have arrived at a descriptor of [`take_signals`].
pub(crate) fn arrived(signals: &OwnedFd) -> Vec<i32> {
    const RECORD: usize = size_of::<libc::signalfd_siginfo>();
    let mut buffer = [0u8; 16 * RECORD];
    let mut seen = Vec::new();
    while let Ok(count @ 1..) = rustix::io::read(signals, &mut buffer) {
        let records = buffer[..count].chunks_exact(RECORD);
        seen.extend(records.map(|record| i32::from_ne_bytes([record[0], record[1], record[2], record[3]])));
    }
    seen
}

/// True if the process that started this one set `signal` to be ignored (nohup, background jobs).
pub(crate) fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action only asks; `action` is written by the call.
    let known = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: read only if the call succeeded.
    known && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Stops this process as the terminal's stop key would (in an orphaned process group it does not stop); returns
/// when the process is continued. SIGTSTP must be blocked.
pub(crate) fn stop_self() {
    let set = set_of(&[libc::SIGTSTP]);
    // SAFETY: the set is valid; the disposition of SIGTSTP is the default, so raising it stops and returns.
    unsafe {
        libc::raise(libc::SIGTSTP);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initializes the set; sigaddset refuses numbers that are no signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Splits this process in two: `None` in the child.
///
/// mpirun has one thread, so the child may go on as usual. [`run_in_child`] is not called where other threads matter.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: no other thread holds a lock the child needs.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Runs mpirun with these arguments (without its own name) in a child of this process, which has one thread whatever this process has
/// and dies with the calling thread. Gives its status; 128 and more if a signal killed it.
///
/// # Errors
/// If the system has no room for another process.
///
/// # Safety
/// No other thread of this process holds a lock that the child may need, as that of the allocator or of standard output.
pub unsafe fn run_in_child(arguments: Vec<OsString>) -> io::Result<u8> {
    let parent = getpid();
    let Some(child) = fork()? else {
        let dies = set_parent_process_death_signal(Some(Signal::KILL));
        let is_orphan = dies.is_err() || getppid() != Some(parent);
        std::process::exit(if is_orphan { 1 } else { crate::run(arguments).into() })
    };
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Ok(ended) => {
                return Ok(match End::of(ended.expect("the call waits").1) {
                    End::Code(status) => status,
                    End::Signal { number, .. } => 128 + (number & 0x7f) as u8,
                });
            }
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
}

/// Strings as exec wants them: pointers with a null at the end.
pub(crate) struct Strings<'a> {
    pointers: Vec<*const c_char>,
    owned: Vec<CString>,
    _shared: PhantomData<&'a [CString]>,
}

impl<'a> Strings<'a> {
    pub(crate) fn new(strings: Vec<CString>) -> Strings<'static> {
        Strings::behind(&[], strings)
    }

    /// The strings `shared`, followed by `own`.
    pub(crate) fn behind(shared: &'a [CString], own: Vec<CString>) -> Strings<'a> {
        let pointers = shared.iter().chain(&own).map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        Strings { pointers, owned: own, _shared: PhantomData }
    }
}

/// A program ready to be executed.
pub(crate) struct Program {
    path: CString,
    arguments: Strings<'static>,
    /// For scripts without `#!`, which exec refuses: `/bin/sh` runs them, as a shell would do.
    shell_arguments: Strings<'static>,
}

impl Program {
    pub(crate) fn new(path: CString, arguments: Vec<CString>) -> Program {
        let shell = [c"/bin/sh".to_owned(), path.clone()].into_iter();
        let shell_arguments = Strings::new(shell.chain(arguments.iter().skip(1).cloned()).collect());
        Program { path, arguments: Strings::new(arguments), shell_arguments }
    }

    /// The file, relative to the rank's working directory.
    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.as_bytes()))
    }
}

impl Clone for Program {
    fn clone(&self) -> Program {
        Program::new(self.path.clone(), self.arguments.owned.clone())
    }
}

impl Serialize for Program {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        (&self.path, &self.arguments.owned).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Program {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Program, D::Error> {
        let (path, arguments) = Deserialize::deserialize(from)?;
        Ok(Program::new(path, arguments))
    }
}

/// What is needed to start a rank's process.
pub(crate) struct Spawn<'a> {
    pub(crate) rank: u32,
    pub(crate) program: &'a Program,
    pub(crate) environment: &'a Strings<'a>,
    pub(crate) directory: Option<&'a CStr>,
    /// stdin, stdout, stderr.
    pub(crate) standard: [BorrowedFd<'a>; 3],
    /// Descriptors that stay open in the program, under the same number.
    pub(crate) keep: &'a [BorrowedFd<'a>],
    pub(crate) cpus: Option<&'a CpuSet>,
    pub(crate) limit: Limit,
    pub(crate) mask: Mask,
    /// The pipe to which the child writes a [`StartError`] if it cannot start.
    pub(crate) errors: BorrowedFd<'a>,
}

/// Bytes of a child's stack before exec.
const STACK: usize = 32 << 10;

#[repr(align(16))]
struct Stack(#[expect(dead_code, reason = "only its address is used")] [u8; STACK]);

/// What a child is given for its steps before exec.
struct Child<'a> {
    what: &'a Spawn<'a>,
    cpus: Option<libc::cpu_set_t>,
    parent: u32,
}

/// Starts a process, in a process group of its own, that is killed when the calling thread ends.
///
/// Until exec the child uses this process's memory while this process waits, so that none of the memory need be copied,
/// however large it is.
///
/// # Errors
/// If the system has no room for another process. A failure after that is written to `errors`, and the child ends with 127
/// or 126.
pub(crate) fn spawn(what: &Spawn<'_>) -> io::Result<Pid> {
    let child = Child { what, cpus: what.cpus.map(cpu_mask), parent: std::process::id() };
    // On the heap: a frame so large would touch all its pages.
    let mut stack = Box::<Stack>::new_uninit();
    let top = stack.as_mut_ptr().wrapping_add(1).cast();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: mpirun has one thread, which CLONE_VFORK holds until the child has left this memory by exec or exit:
    // `child` and `stack` live as long as they are used, and nobody else sees what the child writes. It runs
    // `run_child` only, which makes system calls and needs a small part of the stack.
    match unsafe { libc::clone(run_child, top, flags, (&raw const child).cast_mut().cast()) } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid).expect("clone gives a positive number to the parent")),
    }
}

fn cpu_mask(cpus: &CpuSet) -> libc::cpu_set_t {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter() {
        // SAFETY: CpuSet holds numbers up to MAX_CPU, which fit in the set.
        unsafe { libc::CPU_SET(cpu as usize, &mut mask) };
    }
    mask
}

/// The steps of the child from clone to exec.
extern "C" fn run_child(child: *mut c_void) -> c_int {
    // SAFETY: `spawn` gives a `Child` that outlives this use of it. What follows are system calls on memory that
    // was prepared before and lives until exec.
    unsafe {
        let Child { what, cpus, parent } = &*child.cast::<Child<'_>>();
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid().cast_unsigned() != *parent {
            libc::_exit(1); // the agent died before the line above
        }
        for (number, fd) in what.standard.iter().enumerate() {
            let number = number as RawFd;
            if fd.as_raw_fd() != number && libc::dup2(fd.as_raw_fd(), number) < 0 {
                fail(what, Stage::Prepare);
            }
        }
        for fd in what.keep {
            libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0);
        }
        let limit = libc::rlimit { rlim_cur: what.limit.soft, rlim_max: what.limit.hard };
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        if let Some(mask) = cpus
            && libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), mask) != 0
        {
            fail(what, Stage::Bind);
        }
        if let Some(directory) = what.directory
            && libc::chdir(directory.as_ptr()) != 0
        {
            fail(what, Stage::Directory);
        }
        libc::signal(libc::SIGPIPE, libc::SIG_DFL); // Rust's start-up set it to be ignored
        libc::sigprocmask(libc::SIG_SETMASK, &raw const what.mask.0, std::ptr::null_mut());
        let environment = what.environment.pointers.as_ptr();
        libc::execve(what.program.path.as_ptr(), what.program.arguments.pointers.as_ptr(), environment);
        if *libc::__errno_location() == libc::ENOEXEC {
            let arguments = what.program.shell_arguments.pointers.as_ptr();
            libc::execve(c"/bin/sh".as_ptr(), arguments, environment);
        }
        fail(what, Stage::Execute)
    }
}

/// Reports errno and ends the child.
///
/// # Safety
/// To be called in a child of [`spawn`] only.
unsafe fn fail(what: &Spawn<'_>, stage: Stage) -> ! {
    // SAFETY: system calls on memory of this frame.
    unsafe {
        let errno = *libc::__errno_location();
        let error = StartError { rank: what.rank, stage, errno }.encode();
        libc::write(what.errors.as_raw_fd(), error.as_ptr().cast(), error.len());
        libc::_exit(if errno == libc::ENOENT { 127 } else { 126 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_errors_are_read_as_they_were_written() {
        for stage in [Stage::Prepare, Stage::Directory, Stage::Execute, Stage::Bind] {
            let error = StartError { rank: 70_000, stage, errno: 13 };
            assert_eq!(StartError::decode(&error.encode()), error);
        }
    }
}
