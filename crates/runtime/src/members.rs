//! [`Member`]: how each fabric of the runtime's list starts.

use std::os::fd::OwnedFd;

use banyan_pmi::{Client, Job};
use banyan_shm::{Shm, SingleCopy};
use banyan_tcp::Tcp;
#[cfg(feature = "sim")]
use banyan_transport::sim::SimFabric;
use banyan_transport::{Fabric, Peer};

use crate::error::{Error, Result};
use crate::loopback::Loopback;
use crate::ports::Route;

/// A fabric of the runtime's list that is not always there.
pub(crate) trait Member: Fabric + Sized {
    /// Short name, as in `BANYAN_FABRICS` and in business cards.
    const NAME: &'static str;

    /// Starts the fabric; `None`: it is not allowed, or this job has no use for it.
    ///
    /// # Errors
    /// If it should start, and cannot.
    fn start(joining: &mut Joining<'_>) -> Result<Option<Self>>;
}

/// Where [`crate::ports::Ports`] has a fabric of the list: the fabric itself, if it is always there, or an option.
pub(crate) trait Slot: Sized {
    type Fabric: Fabric;
    /// See [`Member::NAME`].
    const NAME: &'static str;

    /// See [`Member::start`].
    fn start(joining: &mut Joining<'_>) -> Result<Self>;
    fn get(&self) -> Option<&Self::Fabric>;
    fn get_mut(&mut self) -> Option<&mut Self::Fabric>;
}

impl<F: Member> Slot for Option<F> {
    type Fabric = F;
    const NAME: &'static str = F::NAME;

    fn start(joining: &mut Joining<'_>) -> Result<Self> {
        F::start(joining)
    }

    #[inline(always)]
    fn get(&self) -> Option<&F> {
        self.as_ref()
    }

    #[inline(always)]
    fn get_mut(&mut self) -> Option<&mut F> {
        self.as_mut()
    }
}

impl Slot for Loopback {
    type Fabric = Loopback;
    const NAME: &'static str = "self";

    fn start(joining: &mut Joining<'_>) -> Result<Self> {
        Ok(Loopback::new(Peer(joining.job.rank)))
    }

    #[inline(always)]
    fn get(&self) -> Option<&Loopback> {
        Some(self)
    }

    #[inline(always)]
    fn get_mut(&mut self) -> Option<&mut Loopback> {
        Some(self)
    }
}

/// A job that fabrics are started for.
pub(crate) struct Joining<'a> {
    pub(crate) job: &'a Job,
    pub(crate) client: Option<&'a mut Client>,
    /// The names of the fabrics that may reach other processes, in order of preference.
    pub(crate) allowed: Vec<&'static str>,
    /// The fabric of each rank, among those that have started.
    pub(crate) route: Vec<Route>,
    /// The memory of the node, where no launcher hands it out.
    pub(crate) node_memory: Option<OwnedFd>,
    /// Names and addresses of the fabrics that have some.
    pub(crate) cards: Vec<(&'static str, Vec<u8>)>,
    /// An endpoint of a simulated network, which is its own start.
    #[cfg(feature = "sim")]
    pub(crate) sim: Option<SimFabric>,
}

impl Joining<'_> {
    /// [`Joining::route`] before any fabric has started.
    pub(crate) fn nowhere(job: &Job) -> Vec<Route> {
        vec![Route::None; job.size as usize]
    }

    /// All these names in the order in which the fabrics start: `self`, those allowed, and the others, which start only if the
    /// setting has nothing to say of them.
    pub(crate) fn order(&self, names: &[&'static str]) -> Vec<&'static str> {
        let mut order = vec![Loopback::NAME];
        order.extend(&self.allowed);
        order.extend(names.iter().filter(|name| **name != Loopback::NAME && !self.allowed.contains(name)));
        order
    }

    /// A fabric has started: it carries the ranks that it reaches, and no fabric before it does.
    pub(crate) fn take(&mut self, by: Route, reaches: impl Fn(Peer) -> bool) {
        let ranks = (0..).map(Peer).zip(&mut self.route);
        ranks
            .filter(|(peer, route)| **route == Route::None && reaches(*peer))
            .for_each(|(_, route)| *route = by);
    }
}

impl Member for Shm {
    const NAME: &'static str = "shm";

    fn start(joining: &mut Joining<'_>) -> Result<Option<Self>> {
        let job = joining.job;
        if job.local_size == 1 || !joining.allowed.contains(&Self::NAME) {
            return Ok(None);
        }
        let memory = match (joining.node_memory.take(), joining.client.as_mut()) {
            (None, Some(client)) => client.take_node_memory().map_err(Error::other)?,
            (memory, _) => memory,
        };
        let Some(memory) = memory else { return Ok(None) };
        let node = job.node_of(job.rank);
        let peers: Vec<Peer> = (0..job.size).filter(|&rank| job.node_of(rank) == node).map(Peer).collect();
        let single_copy = if job.single_copy { SingleCopy::Auto } else { SingleCopy::Off };
        let options = banyan_shm::Options { single_copy, crowded: Some(job.local_size > job.cores()) };
        Shm::attach(memory, job.local_rank, &peers, options).map(Some).map_err(|error| {
            Error::other(format!(
                "the shared memory of this host cannot be used: {error}; set BANYAN_FABRICS=tcp to run without it"
            ))
        })
    }
}

impl Member for Tcp {
    const NAME: &'static str = "tcp";

    fn start(joining: &mut Joining<'_>) -> Result<Option<Self>> {
        let job = joining.job;
        if !joining.route.contains(&Route::None) || !joining.allowed.contains(&Self::NAME) {
            return Ok(None);
        }
        let (fabric, addresses) =
            Tcp::new(Peer(job.rank), job.size, job.job_id, job.secret, Default::default())
                .map_err(|error| Error::other(format!("the tcp fabric does not start: {error}")))?;
        joining.cards.push((Self::NAME, addresses));
        Ok(Some(fabric))
    }
}

#[cfg(feature = "sim")]
impl Member for SimFabric {
    const NAME: &'static str = "sim";

    fn start(joining: &mut Joining<'_>) -> Result<Option<Self>> {
        Ok(joining.sim.take())
    }
}
