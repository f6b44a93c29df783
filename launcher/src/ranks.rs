//! [`Rank`]: one rank as the agent sees it, and how its process is made.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use banyan_pmi::{ByteChannel, Channel, Job, Reply, Request, VERSION, fd_value};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use crate::output::StreamKind;
use crate::plan::HostPlan;
use crate::pty;
use crate::start::{Limit, Mask, Spawn, Strings, spawn};
use crate::verdict::{End, Phase};

/// The agent's end of a rank's bootstrap socket.
pub(crate) type RankChannel = Channel<Request, Reply>;

/// One rank, as the agent sees it.
#[derive(Default)]
pub(crate) struct Rank {
    /// The process that was started for it, until it has been waited for.
    pub(crate) pid: Option<Pid>,
    /// The pid of that process, kept after its end for messages.
    pub(crate) started_as: Option<Pid>,
    /// Its bootstrap socket, until the rank closes it.
    pub(crate) channel: Option<RankChannel>,
    /// Its socket for PMI-1, until it is closed.
    pub(crate) pmi: Option<ByteChannel>,
    pub(crate) phase: Phase,
    /// The pid of the process that joined, and its pidfd if it is not the process that was started.
    pub(crate) joined: Option<(u32, Option<OwnedFd>)>,
    /// When the process that joined was seen to have ended, if it is not the process that was started.
    pub(crate) joined_gone: Option<Instant>,
    pub(crate) ended: Option<End>,
    /// A signal has stopped it, when it was looked at last.
    pub(crate) stopped: bool,
}

impl Rank {
    /// Its process: the one that has joined, or else the one that was started.
    pub(crate) fn process(&self) -> Option<Pid> {
        let joined = self.joined.as_ref().and_then(|joined| Pid::from_raw(joined.0.cast_signed()));
        joined.or(self.pid)
    }
}

/// What all ranks of a job share.
pub(crate) struct Common {
    pub(crate) job_id: u64,
    pub(crate) secret: [u8; 32],
    pub(crate) memory: Option<OwnedFd>,
    /// The file of the ranks' status lines.
    pub(crate) status: Option<OwnedFd>,
    /// Whether ranks read each other's memory.
    pub(crate) single_copy: bool,
    /// Whether stdout of ranks is a pseudo-terminal.
    pub(crate) pty: pty::Policy,
    pub(crate) null: OwnedFd,
    /// stdin of rank 0, if it is not mpirun's own.
    pub(crate) input: Option<OwnedFd>,
    pub(crate) mask: Mask,
    pub(crate) limit: Limit,
    /// The pipe on which children report that they could not start.
    pub(crate) errors: OwnedFd,
}

/// A process that was just started, and the agent's ends of its descriptors.
pub(crate) struct Started {
    pub(crate) pid: Pid,
    pub(crate) channel: RankChannel,
    pub(crate) pmi: ByteChannel,
    /// Read ends of stdout and stderr, unless they go to files.
    pub(crate) output: [Option<OwnedFd>; 2],
}

/// Starts the process of rank number `at` of this host.
///
/// # Errors
/// If the system refuses a call, or a file for the output cannot be made.
pub(crate) fn start(plan: &HostPlan, common: &Common, at: usize) -> io::Result<Started> {
    let rank = plan.ranks[at];
    let app = plan.app_of(rank);
    let program = &plan.apps[app];
    let (mut channel, socket) = RankChannel::pair()?;
    let (pmi, pmi_socket) = ByteChannel::pair()?;
    let job = job(plan, common, at, app);
    let welcome = Reply::Welcome { version: VERSION, job: Box::new(job) };
    channel.send(&welcome).map_err(|why| io::Error::other(why.to_string()))?;

    let (ours, [out, err]) = outputs(plan, common, rank)?;
    let stdin = io::stdin();
    let input: BorrowedFd<'_> = match (&common.input, rank) {
        (Some(pipe), 0) => pipe.as_fd(),
        (None, 0) if plan.input => stdin.as_fd(),
        _ => common.null.as_fd(),
    };
    let environment = environment(plan, &program.environment, at, fd_value(&socket)?, pmi_socket.as_raw_fd());
    let mut keep = vec![socket.as_fd(), pmi_socket.as_fd()];
    keep.extend(common.memory.iter().chain(&common.status).map(AsFd::as_fd));
    let pid = spawn(&Spawn {
        rank,
        program: &program.program,
        environment: &environment,
        directory: program.directory.as_deref(),
        standard: [input, out.as_fd(), err.as_fd()],
        keep: &keep,
        cpus: plan.cpus.get(at),
        limit: common.limit,
        mask: common.mask,
        errors: common.errors.as_fd(),
    })?;
    Ok(Started { pid, channel, pmi, output: ours })
}

fn job(plan: &HostPlan, common: &Common, at: usize, app: usize) -> Job {
    Job {
        rank: plan.ranks[at],
        size: plan.size,
        local_rank: at as u32,
        local_size: plan.ranks.len() as u32,
        places: plan.places.clone(),
        appnum: app as u32,
        apps: plan.apps.len() as u32,
        app_size: plan.apps[app].ranks,
        command: plan.apps[app].command.clone(),
        universe_size: plan.size,
        job_id: common.job_id,
        secret: common.secret,
        host: plan.host.clone(),
        settings: plan.settings.clone(),
        single_copy: common.single_copy,
        memory_fd: common.memory.as_ref().map(AsRawFd::as_raw_fd),
        status_fd: common.status.as_ref().map(AsRawFd::as_raw_fd),
    }
}

fn environment<'a>(
    plan: &HostPlan,
    common: &'a [CString],
    at: usize,
    socket: String,
    pmi: i32,
) -> Strings<'a> {
    let (rank, local_size) = (plan.ranks[at], plan.ranks.len());
    let own = [
        format!("{}={socket}", banyan_pmi::FD_VARIABLE),
        format!("BANYAN_RANK={rank}"),
        format!("BANYAN_SIZE={}", plan.size),
        format!("BANYAN_LOCAL_RANK={at}"),
        format!("BANYAN_LOCAL_SIZE={local_size}"),
        // Programs that know other launchers look for these names (DeepSpeed, Accelerate, wrappers that choose a GPU).
        format!("OMPI_COMM_WORLD_RANK={rank}"),
        format!("OMPI_COMM_WORLD_SIZE={}", plan.size),
        format!("OMPI_COMM_WORLD_LOCAL_RANK={at}"),
        format!("OMPI_COMM_WORLD_LOCAL_SIZE={local_size}"),
        format!("MPI_LOCALRANKID={at}"),
        format!("MPI_LOCALNRANKS={local_size}"),
        // How programs built with MPICH find the server of PMI-1.
        format!("PMI_FD={pmi}"),
        format!("PMI_RANK={rank}"),
        format!("PMI_SIZE={}", plan.size),
    ];
    let own = own.into_iter().map(|text| CString::new(text).expect("numbers hold no null byte"));
    Strings::behind(common, own.collect())
}

/// The agent's ends (if any) and the rank's ends of stdout and stderr.
fn outputs(plan: &HostPlan, common: &Common, rank: u32) -> io::Result<([Option<OwnedFd>; 2], [OwnedFd; 2])> {
    let output = |kind| -> io::Result<(Option<OwnedFd>, OwnedFd)> {
        if let Some(file) = plan.files.open(kind, rank, &plan.host)? {
            return Ok((None, file));
        }
        let terminal = if kind == StreamKind::Out { common.pty.open()? } else { None };
        let (read, write) = match terminal {
            Some(ends) => ends,
            None => pipe_with(PipeFlags::CLOEXEC)?,
        };
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((Some(read), write))
    };
    let ((out_read, out), (err_read, err)) = (output(StreamKind::Out)?, output(StreamKind::Err)?);
    Ok(([out_read, err_read], [out, err]))
}
