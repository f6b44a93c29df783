//! Registered memory of users, on a device: what the [`Cache`] keeps where memory can be watched, what [`GpuMemory`] keeps, and what peers may reach.

use std::collections::HashMap;
use std::sync::Arc;

use banyan_memory::{Buffer, MemoryKind};

use crate::cache::{Access, Cache, Memory, Purpose, Span};
use crate::gpu_memory::GpuMemory;
use crate::locked;
use crate::settings::RAILS;
use crate::verbs::{Device, Local, Region};
use crate::watch::Watch;

/// Memory that is registered for each of the ports that this process uses.
pub(crate) struct Regions(Vec<Region>);

impl Regions {
    /// On the devices of the first rails.
    pub(crate) fn new(by_rail: Vec<Region>) -> Regions {
        Regions(by_rail)
    }

    /// On how many rails work may use it.
    pub(crate) fn rails(&self) -> usize {
        self.0.len()
    }

    /// A part of it, by its address, for work that is posted on a rail.
    pub(crate) fn local(&self, rail: usize, addr: usize, len: u32) -> Local<'static> {
        self.0[rail].local(addr, len)
    }

    /// The keys by which peers reach it, as one number.
    fn key(&self) -> u64 {
        self.0.iter().rev().fold(0, |keys, region| keys << 32 | u64::from(region.rkey()))
    }
}

/// The key by which work on a rail reaches a peer's memory, of which a [`Regions::key`] was told.
pub(crate) fn rkey(keys: u64, rail: usize) -> u32 {
    (keys >> (32 * rail)) as u32
}

/// On how many rails work may reach the peer's memory that has these keys: where memory of a GPU is far from a port it has no key there.
pub(crate) fn rails(keys: u64) -> usize {
    if rkey(keys, 1) == 0 { 1 } else { RAILS }
}

/// The memory of this process, as its devices and its kernel see it.
struct Host {
    devices: Vec<Arc<Device>>,
    watch: Option<Watch>,
    registrations: u64,
}

impl Memory for Host {
    type Region = Regions;

    fn watch(&mut self, pages: &Span) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.add(pages))
    }

    fn unwatch(&mut self, pages: &Span) {
        self.watch.iter().for_each(|watch| watch.remove(pages));
    }

    fn gone(&mut self, tell: &mut dyn FnMut(Span)) {
        self.watch.iter().for_each(|watch| watch.gone(tell));
    }

    fn register(&mut self, span: &Span, access: Access) -> Result<Regions, String> {
        let on = |device| Region::new(device, span, access);
        let regions = Regions(self.devices.iter().map(on).collect::<Result<_, _>>()?);
        self.registrations += regions.0.len() as u64;
        Ok(regions)
    }
}

/// The registrations of users' memory.
pub(crate) struct Registrations {
    cache: Cache<Host>,
    gpus: GpuMemory,
    begun: bool,
    keeps: bool,
    /// What peers may reach, by its key, and how often that was allowed.
    exposed: HashMap<u64, (Arc<Regions>, usize)>,
}

impl Registrations {
    /// None, on these devices, which count what they lock each. `topology` is the text of a topology file, or empty.
    pub(crate) fn new(devices: Vec<Arc<Device>>, topology: &str) -> Registrations {
        let limit = devices.iter().filter_map(|device| device.most_locked).min();
        let most = locked::kept(limit) / devices.len();
        let gpus = GpuMemory::new(devices.clone(), topology);
        let cache = Cache::new(Host { devices, watch: None, registrations: 0 }, most);
        Registrations { cache, gpus, begun: false, keeps: Watch::is_allowed(), exposed: HashMap::new() }
    }

    /// Whether registrations are kept for the next transfer, as far as can be said before any is made.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Number of registrations that were made.
    pub(crate) fn made(&self) -> u64 {
        self.cache.memory().registrations + self.gpus.made()
    }

    /// The memory of GPUs.
    pub(crate) fn gpus(&mut self) -> &mut GpuMemory {
        &mut self.gpus
    }

    /// Why memory of GPUs is staged, if some is.
    pub(crate) fn why_staged(&self) -> Option<&str> {
        self.gpus.why_staged()
    }

    /// A registration of a buffer, which is not empty.
    pub(crate) fn region(
        &mut self,
        buffer: &Buffer,
        access: Access,
        purpose: Purpose,
    ) -> Result<Arc<Regions>, String> {
        match buffer.kind() {
            MemoryKind::Device => return self.gpus.region(buffer, access, purpose),
            MemoryKind::Host => {}
        }
        if !std::mem::replace(&mut self.begun, true) {
            // Where memory cannot be watched each transfer registers its own.
            self.cache.memory_mut().watch = Watch::start().ok();
        }
        let start = buffer.address(buffer.lo());
        self.cache.region(&(start..start + buffer.len()), access, purpose)
    }

    /// Lets peers reach a buffer, until [`Registrations::withdraw`]; gives the key.
    pub(crate) fn expose(&mut self, buffer: &Buffer, access: Access) -> Result<u64, String> {
        let region = self.region(buffer, access, Purpose::Theirs)?;
        let key = region.key();
        self.exposed.entry(key).or_insert((region, 0)).1 += 1;
        Ok(key)
    }

    /// A peer does not need a buffer any more. The registration may be kept for the next time.
    pub(crate) fn withdraw(&mut self, key: u64) {
        if let Some((_, times)) = self.exposed.get_mut(&key) {
            *times -= 1;
            if *times == 0 {
                self.exposed.remove(&key);
            }
        }
    }

    /// From now on no peer reaches what has this key.
    pub(crate) fn revoke(&mut self, key: u64) {
        if let Some((region, _)) = self.exposed.remove(&key) {
            self.cache.forget(&region, Purpose::Theirs);
            self.gpus.forget(&region, Purpose::Theirs);
        }
    }
}
