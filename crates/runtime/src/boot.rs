//! Joining the job: makes an engine with its fabrics from the launcher's description of the job.

use std::os::fd::{AsFd, AsRawFd};

use banyan_coll::{Overrides, Tuning};
use banyan_p2p as p2p;
use banyan_pmi::{self as pmi, Job, settings};
use banyan_shm::{Shm, SingleCopy};
use banyan_tcp::Tcp;
use banyan_transport::Peer;

use crate::engine::Engine;
use crate::error::{Class, Error, Result};
use crate::loopback::Loopback;
use crate::ports::{Ports, Route};
use crate::runtime::JobInfo;
use crate::wait::Policy;

/// What [`start`] makes.
pub(crate) struct Boot {
    pub(crate) engine: Engine,
    pub(crate) job_info: JobInfo,
    pub(crate) tuning: Tuning,
}

/// Joins the job of the launcher, or starts one of a single process.
pub(crate) fn start() -> Result<Boot> {
    let mut client = pmi::attach().map_err(other)?;
    let launched = client.is_some();
    let job = match &client {
        Some(client) => client.job().clone(),
        None => Job::singleton(1),
    };
    let fabrics =
        settings::fabrics(&setting(&job, launched, settings::FABRICS)?.unwrap_or_else(|| "shm,tcp".into()))
            .map_err(other)?;
    let mut shm = None;
    let mut tcp = None;
    if let Some(client) = client.as_mut().filter(|_| job.size > 1) {
        let alone = (0..job.size).all(|rank| job.node_of(rank) == job.node_of(job.rank));
        if fabrics.contains(&"shm") && job.local_size > 1 {
            let memory = client.take_node_memory().map_err(other)?;
            shm = memory.map(|memory| attach_shm(memory, &job)).transpose()?;
        }
        if fabrics.contains(&"tcp") && (shm.is_none() || !alone) {
            let (fabric, business_card) =
                Tcp::new(Peer(job.rank), job.size, job.job_id, job.secret, Default::default())
                    .map_err(|error| other(format!("the tcp fabric does not start: {error}")))?;
            client.publish(&business_card).map_err(other)?;
            tcp = Some(fabric);
        }
    }
    let route: Vec<Route> = (0..job.size)
        .map(|rank| match () {
            () if rank == job.rank => Route::Own,
            () if shm.is_some() && job.node_of(rank) == job.node_of(job.rank) => Route::Shm,
            () if tcp.is_some() => Route::Tcp,
            () => Route::None,
        })
        .collect();
    if let Some(rank) = route.iter().position(|route| *route == Route::None) {
        return Err(other(format!(
            "no fabric reaches rank {rank}: {} allows only \"{}\"; allow shm or tcp",
            settings::FABRICS,
            fabrics.join(",")
        )));
    }
    if let (Some(client), Some(tcp)) = (&client, &mut tcp) {
        tcp.watch(client.as_fd().as_raw_fd()).map_err(other)?;
    }
    let tuning = match setting(&job, launched, settings::COLL)? {
        None => Tuning::default(),
        Some(text) => {
            let overrides =
                Overrides::parse(&text).map_err(|error| other(format!("{}: {error}", settings::COLL)))?;
            Tuning { overrides, ..Tuning::default() }
        }
    };
    let budget = match setting(&job, launched, settings::EAGER_BUDGET)? {
        None => 64 << 20,
        Some(text) => {
            settings::bytes(&text).map_err(|error| other(format!("{}: {error}", settings::EAGER_BUDGET)))?
        }
    };
    if let Some(client) = &mut client {
        client.ready().map_err(other)?;
    }
    let job_info = job_info(&job, client.is_some());
    let ports = Ports::new(Loopback::new(Peer(job.rank)), shm, tcp, route);
    let p2p = p2p::P2p::new(p2p::Config::new(budget as usize, job.size));
    if job.local_size > job.cores {
        // Ranks yield and sleep: beside a busy process each yield or sleep would cost the rest of a long slice.
        banyan_shm::shorten_slices();
    }
    let engine = Engine::new(p2p, ports, client, Policy::new(job.local_size, job.cores));
    Ok(Boot { engine, job_info, tuning })
}

fn attach_shm(memory: std::os::fd::OwnedFd, job: &Job) -> Result<Shm> {
    let node = job.node_of(job.rank);
    let peers: Vec<Peer> = (0..job.size).filter(|&rank| job.node_of(rank) == node).map(Peer).collect();
    let single_copy = if job.single_copy { SingleCopy::Auto } else { SingleCopy::Off };
    let options = banyan_shm::Options { single_copy, crowded: Some(job.local_size > job.cores) };
    Shm::attach(memory, job.local_rank, &peers, options).map_err(|error| {
        other(format!(
            "the shared memory of this host cannot be used: {error}; set BANYAN_FABRICS=tcp to run without it"
        ))
    })
}

fn job_info(job: &Job, launched: bool) -> JobInfo {
    JobInfo {
        rank: job.rank,
        size: job.size,
        node: job.node_of(job.rank),
        one_node: job.local_size == job.size,
        cores: job.cores,
        single_copy: job.single_copy,
        appnum: launched.then_some(job.appnum),
        universe_size: launched.then_some(job.universe_size),
        host: job.host.clone(),
        command: job.command.clone(),
        app_size: job.app_size,
        launched,
    }
}

/// A setting of the job, as the launcher read it; without a launcher that of the environment.
fn setting(job: &Job, launched: bool, name: &str) -> Result<Option<String>> {
    if launched {
        return Ok(job.setting(name).map(str::to_owned));
    }
    match std::env::var(name) {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(other(format!("{name} is not text"))),
    }
}

fn other(error: impl std::fmt::Display) -> Error {
    Error::new(Class::ERR_OTHER, error.to_string())
}
