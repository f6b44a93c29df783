//! [`GpuMemory`]: memory of GPUs as this process's RDMA devices get at it by themselves (GPUDirect RDMA): registered as dma-bufs that the GPU's driver
//! exports, where PCIe switches alone are between the two and the device takes it. Otherwise it is staged by who sends it, for a reason that is kept.
//!
//! Registrations are kept, as those of the host's memory are, but by the driver's number of an allocation: one that was freed never comes again under
//! its number, so nobody has to watch. A driver may not have its memory back while it is registered, so what was freed is looked for when an
//! allocation is new.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_memory::{Allocation, Buffer};
use banyan_topo::{GpuPath, HostMap, Place, RdmaPort};

use crate::cache::{Access, Cache, Memory, Purpose, Span, pages};
use crate::registrations::Regions;
use crate::verbs::{Device, DmaBuf, Region};

/// Allocations that are known at a time; then the one that was not used for longest is forgotten.
const MOST: usize = 64;
/// After so many allocations that were refused, and none that was taken, no memory of a GPU is tried any more.
const PATIENCE: u8 = 3;

/// Which memory of GPUs is registered.
pub(crate) struct GpuMemory {
    devices: Vec<Arc<Device>>,
    /// The text of a topology file, if there is one.
    topology: String,
    /// Where GPUs are, and each of the devices' ports; or why that is not known. Read once it is needed.
    places: Option<Result<(HostMap, Vec<Place>), String>>,
    allocations: HashMap<u64, Known>,
    clock: u64,
    made: Arc<AtomicU64>,
    taken: bool,
    refused: u8,
    /// Why memory was refused last.
    why: Option<String>,
}

/// What is known of an allocation.
struct Known {
    start: usize,
    /// When it was used last.
    used: u64,
    /// Its registrations, or why there are none.
    what: Result<Cache<OnGpu>, String>,
}

/// An allocation, on the devices that get at it.
struct OnGpu {
    /// Some memory of it, whose driver exports all of it.
    memory: Buffer,
    devices: Vec<Arc<Device>>,
    made: Arc<AtomicU64>,
}

impl Memory for OnGpu {
    type Region = Regions;

    // It ends with the allocation's number.
    fn watch(&mut self, _pages: &Span) -> bool {
        true
    }

    fn unwatch(&mut self, _pages: &Span) {}

    fn gone(&mut self, _tell: &mut dyn FnMut(Span)) {}

    fn register(&mut self, span: &Span, access: Access) -> Result<Regions, String> {
        let pages = pages(span);
        let exported = self.memory.dma_buf(&pages).map_err(|failure| failure.what)?;
        let offset = (span.start - pages.start) as u64;
        let part = DmaBuf { fd: exported.as_fd(), offset, len: span.len(), address: span.start as u64 };
        let on = |device| Region::of_dmabuf(device, &part, access);
        let regions: Vec<Region> = self.devices.iter().map(on).collect::<Result<_, _>>()?;
        self.made.fetch_add(regions.len() as u64, Ordering::Relaxed);
        Ok(Regions::new(regions))
    }
}

impl GpuMemory {
    /// None yet, on these devices, of which the first one is that of all but long transfers; `topology` is the text of a topology file, or empty.
    pub(crate) fn new(devices: Vec<Arc<Device>>, topology: &str) -> GpuMemory {
        GpuMemory {
            devices,
            topology: topology.to_owned(),
            places: None,
            allocations: HashMap::new(),
            clock: 0,
            made: Arc::default(),
            taken: false,
            refused: 0,
            why: None,
        }
    }

    /// Takes no memory, for this reason.
    pub(crate) fn refuse_all(&mut self, why: &str) {
        (self.refused, self.why) = (PATIENCE, Some(why.to_owned()));
    }

    /// True if it is worth trying whether memory is taken.
    pub(crate) fn may_be_taken(&self) -> bool {
        self.taken || self.refused < PATIENCE
    }

    /// Number of registrations that were made.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Why memory is staged, if some is.
    pub(crate) fn why_staged(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// A registration of memory of a GPU, which is not empty.
    ///
    /// # Errors
    /// Why it is to be staged.
    pub(crate) fn region(
        &mut self,
        memory: &Buffer,
        access: Access,
        purpose: Purpose,
    ) -> Result<Arc<Regions>, String> {
        if !self.may_be_taken() {
            return Err(self.why.clone().unwrap_or_default());
        }
        let Some(allocation) = memory.allocation() else {
            return Err(self.refuse("the driver gives this memory of a device no number".into()));
        };
        let start = memory.address(memory.lo());
        // The last page may have room for more: the driver, which knows better, is to refuse that.
        if (start + memory.len()) as u64 > allocation.start + allocation.len {
            return Err("the memory is longer than its allocation".to_owned());
        }
        self.clock += 1;
        let mut known = match self.allocations.remove(&allocation.id) {
            Some(known) => known,
            None => self.admit(memory, &allocation),
        };
        known.used = self.clock;
        let region = match &mut known.what {
            Ok(cache) => cache.region(&(start..start + memory.len()), access, purpose),
            Err(why) => Err(why.clone()),
        };
        match &region {
            Ok(_) => self.taken = true,
            // What was refused once is not tried again for each message.
            Err(why) if known.what.is_ok() => known.what = Err(self.refuse(why.clone())),
            Err(_) => {}
        }
        self.allocations.insert(allocation.id, known);
        region
    }

    /// One more allocation is staged, for this reason.
    fn refuse(&mut self, why: String) -> String {
        self.refused = self.refused.saturating_add(1);
        self.why = Some(why.clone());
        why
    }

    /// Forgets a registration: it ends as soon as nobody uses it.
    pub(crate) fn forget(&mut self, region: &Arc<Regions>, purpose: Purpose) {
        let caches = self.allocations.values_mut().filter_map(|known| known.what.as_mut().ok());
        caches.for_each(|cache| cache.forget(region, purpose));
    }

    /// What is known of an allocation that is used first; those that were freed meanwhile are forgotten.
    fn admit(&mut self, memory: &Buffer, allocation: &Allocation) -> Known {
        let is_there =
            |id: &u64, known: &mut Known| memory.allocation_at(known.start).is_some_and(|now| now.id == *id);
        self.allocations.retain(is_there);
        if self.allocations.len() >= MOST {
            let oldest = self.allocations.iter().min_by_key(|(_, known)| known.used).map(|(&id, _)| id);
            oldest.and_then(|id| self.allocations.remove(&id));
        }
        let what = match self.near(&allocation.device.to_string()) {
            Ok(devices) => {
                let on_gpu = OnGpu { memory: memory.clone(), devices, made: self.made.clone() };
                Ok(Cache::new(on_gpu, usize::MAX))
            }
            Err(why) => Err(self.refuse(why)),
        };
        Known { start: allocation.start as usize, used: self.clock, what }
    }

    /// Those of the devices that get at memory of the GPU at an address: the first one and, as far as they do, those after it.
    fn near(&mut self, gpu: &str) -> Result<Vec<Arc<Device>>, String> {
        let places = self.places.get_or_insert_with(|| {
            let host = HostMap::told(Some(&self.topology))?;
            let all = RdmaPort::all(&host);
            let place = |device: &Arc<Device>| {
                let port = all.iter().find(|port| port.device == device.name && port.port == device.port);
                port.map_or_else(Place::default, |port| port.at.clone())
            };
            let places = self.devices.iter().map(place).collect();
            Ok((host, places))
        });
        let (host, places) = places.as_ref().map_err(|why| why.clone())?;
        let mut near = Vec::new();
        for (device, place) in self.devices.iter().zip(places) {
            let said = host.gpu_distance(gpu, place);
            let distance = said.ok_or_else(|| format!("nothing says where the GPU at {gpu} is"))?;
            if GpuPath::of(distance) == GpuPath::Staged {
                let far = format!(
                    "the GPU at {gpu} is {distance} from {}:{}, too far for GPUDirect RDMA",
                    device.name, device.port
                );
                return if near.is_empty() { Err(far) } else { Ok(near) };
            }
            near.push(device.clone());
        }
        Ok(near)
    }
}
