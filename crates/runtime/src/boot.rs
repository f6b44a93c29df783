//! Joining the job: makes an engine with its fabrics from the launcher's description of the job.

use std::io;
#[cfg(feature = "sim")]
use std::os::fd::OwnedFd;

use banyan_coll::{Model, Overrides, Tuning};
use banyan_p2p as p2p;
use banyan_pmi::{self as pmi, Client, Here, Job, settings};
use banyan_shm::Shm;
use banyan_topo::{HardwareMap, Profile, fills, kept};
use banyan_transport::NotStarted;
#[cfg(feature = "sim")]
use banyan_transport::sim::SimFabric;

use crate::business_cards;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::long;
use crate::ports::{Ports, Route, Start};
use crate::wait::Policy;

/// What [`start`] makes.
pub(crate) struct Boot {
    pub(crate) engine: Engine,
    pub(crate) job: Job,
    pub(crate) shares_memory: bool,
    pub(crate) tuning: Tuning,
}

/// Joins the job of the launcher, or starts one of a single process.
#[inline(never)]
pub(crate) fn start() -> Result<Boot> {
    let mut client = pmi::attach(here).map_err(Error::other)?;
    let job = match &client {
        Some(client) => client.job().clone(),
        None => Job { settings: settings::of_environment().map_err(Error::other)?, ..Job::singleton(1) },
    };
    let allowed = settings::fabrics(job.setting_or_default(settings::FABRICS)).map_err(Error::other)?;
    let shares_memory = allowed.contains(&Route::Shm.name());
    let ports = connect(&mut Start {
        job: &job,
        client: client.as_mut(),
        allowed,
        node_memory: None,
        #[cfg(feature = "sim")]
        sim: None,
    })?;
    boot(job, client, ports, shares_memory)
}

/// What this process brings to a job of another launcher.
fn here() -> Here {
    let memory = |ranks| match ranks <= Shm::MOST_RANKS {
        true => Shm::memory(ranks, banyan_topo::private_cache()),
        false => Err(io::Error::other("too many ranks share a node")),
    };
    Here {
        memory,
        cpus: banyan_topo::CpuSet::allowed().iter().collect(),
        cores: banyan_topo::usable_cores(),
        settings: || {
            let mut settings = settings::of_environment()?;
            settings::resolve(&mut settings, settings::MACHINE, kept::setting)?;
            settings::resolve(&mut settings, settings::TOPOLOGY, HardwareMap::setting)?;
            Ok(settings)
        },
        single_copy: banyan_topo::single_copy,
    }
}

/// Joins `job`, which no launcher knows, over a simulated network, and the shared memory of its node, if there is any.
#[cfg(feature = "sim")]
pub(crate) fn start_over(sim: SimFabric, node_memory: Option<OwnedFd>, job: &Job) -> Result<Boot> {
    let shares_memory = node_memory.is_some();
    let fabrics: &[Route] = if shares_memory { &[Route::Shm, Route::Sim] } else { &[Route::Sim] };
    let ports = connect(&mut Start {
        job,
        client: None,
        allowed: fabrics.iter().map(|fabric| fabric.name()).collect(),
        node_memory,
        sim: Some(sim),
    })?;
    boot(job.clone(), None, ports, shares_memory)
}

/// Starts the fabrics, and publishes this process's business card.
#[inline(never)]
fn connect(start: &mut Start<'_>) -> Result<Ports> {
    let ports = Ports::start(start)?;
    if let Some(rank) = ports.unreached() {
        let why = |(route, NotStarted::Absent(why) | NotStarted::Broken(why) | NotStarted::Fatal(why)): &(
            Route,
            _,
        )| { format!("; {} has not started: {why}", route.name()) };
        return Err(Error::other(format!(
            "no fabric reaches rank {rank}: {} allows only \"{}\"; allow one of {}{}",
            settings::FABRICS,
            start.allowed.join(","),
            settings::FABRIC_NAMES.join(", "),
            ports.not_started.iter().map(why).collect::<String>()
        )));
    }
    if let Some(client) = start.client.as_mut().filter(|_| ports.needs_cards()) {
        let card = business_cards::encode(ports.cards.iter().map(|(route, card)| (route.name(), &**card)))
            .map_err(Error::other)?;
        client.publish(&card).map_err(Error::other)?;
    }
    say_what_is_broken(start, &ports)?;
    Ok(ports)
}

/// Tells the user of fabrics that should have started here and have not.
fn say_what_is_broken(start: &mut Start<'_>, ports: &Ports) -> Result<()> {
    for (route, why) in &ports.not_started {
        let NotStarted::Broken(why) = why else { continue };
        let said = format!("fabric {} is not used: {why}", route.name());
        let shown = start.client.as_mut().map_or(Ok(false), |client| client.notice(&said));
        if !shown.map_err(Error::other)? && start.job.rank == 0 {
            eprintln!("banyan: rank 0 on {}: {said}", start.job.host);
        }
    }
    Ok(())
}

#[inline(never)]
fn boot(mut job: Job, mut client: Option<Client>, mut ports: Ports, shares_memory: bool) -> Result<Boot> {
    let bad = |name, error: &dyn std::fmt::Display| Error::other(format!("{name}: {error}"));
    let overrides = job.setting(settings::COLL).map_or(Ok(Overrides::default()), Overrides::parse);
    // A single process chooses nothing.
    let profile = match job.setting(settings::MACHINE).filter(|_| job.size > 1) {
        Some(text) => Profile::parse(text).map_err(|error| bad(settings::MACHINE, &error))?.0,
        None => Profile::default(),
    };
    banyan_memory::vectors::choose(banyan_memory::vectors::Choice {
        taken: profile.takes_by_vectors(),
        given: profile.gives_by_vectors(),
        aliased: profile.shuns_aliased(),
        aliased_single_copy: profile.shuns_aliased_single_copy(),
        past: fills(profile.last_level_cache, 1.0) as usize,
    });
    let tuning = Tuning {
        model: Model::of(&profile, job.hosts()),
        overrides: overrides.map_err(|error| bad(settings::COLL, &error))?,
        gpu: profile.gpu,
        ..Tuning::default()
    };
    let budget = settings::bytes(job.setting_or_default(settings::EAGER_BUDGET))
        .map_err(|error| bad(settings::EAGER_BUDGET, &error))?;
    if let Some(client) = &mut client {
        client.ready().map_err(Error::other)?;
        job = client.job().clone();
    }
    let asked = settings::memory_alloc_kinds_of_environment();
    settings::resolve(&mut job.settings, settings::MEMORY_ALLOC_KINDS, |of_launcher| {
        Ok(asked.or(of_launcher.map(str::to_owned)).unwrap_or_default())
    })
    .map_err(Error::other)?;
    let (choice, _) = long::choice(&job).map_err(Error::other)?;
    let p2p = p2p::P2p::new(p2p::Config {
        choice,
        known: long::known(&job, &profile),
        ipc_from: settings::ipc_from(job.setting_or_default(settings::GPU_IPC)).map_err(Error::other)?,
        ..p2p::Config::new(budget as usize, job.size)
    });
    let policy = Policy::new((job.local_size, job.cores()), ports.by_kernel());
    let engine = Engine::new(p2p, ports, client, policy);
    Ok(Boot { engine, job, shares_memory, tuning })
}
