//! Which GPUs users' buffers may be on: what the setting says, what programs are told, and where the GPUs of a communicator's ranks are.

use banyan_coll::Location;
use banyan_memory::{Compiler, Gpus, Platform, current_device, look_for, sees};
use banyan_pmi::{Job, settings};
use banyan_topo::{GpuFigures, GpuLink, GpuLocation, HostMap, gpu_links};

use crate::bail;
use crate::coll_state::OnGpus;
use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::info::Info;
use crate::runtime::Runtime;

/// The values of the setting.
const VALUES: [(&str, Gpus); 4] = [
    ("auto", Gpus::Auto),
    ("cuda", Gpus::Only(Platform::Cuda)),
    ("hip", Gpus::Only(Platform::Hip)),
    ("off", Gpus::Off),
];

/// Users' buffers may be on the devices that the job's setting names from now on.
///
/// # Errors
/// ERR_OTHER if the setting is not known, or what it asks for is not there.
pub(crate) fn look(job: &Job) -> Result<()> {
    let value = job.setting_or_default(settings::GPU);
    let Some(&(value, gpus)) = VALUES.iter().find(|known| known.0 == value) else {
        let known = VALUES.map(|known| known.0).join(", ");
        bail!(ERR_OTHER, "{} is \"{value}\": that is no kind of GPU; known are {known}", settings::GPU)
    };
    Compiler::when_needed(|| {
        let kept_in = banyan_topo::user_folder().map(|folder| folder.join("kernels"));
        Compiler { kept_in }
    });
    look_for(gpus, value)
        .map_err(|why| Error::other(format!("{} is \"{value}\": {why}, or set it to off", settings::GPU)))
}

/// The info key of the kinds of memory that calls take (MPI 5.0, 11.4.3).
const KINDS: &str = "mpi_memory_alloc_kinds";

/// The info key by which a program says what kinds of memory its buffers are (MPI 5.0, 11.4.3).
const ASSERTED: &str = "mpi_assert_memory_alloc_kinds";

/// What these keys call memory of a platform.
const fn prefix(platform: Platform) -> &'static str {
    match platform {
        Platform::Cuda => "cuda",
        Platform::Hip => "rocm",
    }
}

/// True if hints say that all buffers are memory of devices of one platform.
pub(crate) fn says_on_devices(info: &Info) -> Result<bool> {
    let kinds = info.value(ASSERTED)?.unwrap_or_default();
    let are_all =
        |kind: String| kinds.split(|byte| *byte == b',').all(|said| said.trim_ascii() == kind.as_bytes());
    Ok(Platform::ALL.into_iter().any(|platform| are_all(format!("{}:device", prefix(platform)))))
}

/// What a rank tells others of its GPU: whether it knows it, by what it is linked, and the two numbers of its location.
type Told = [u8; 12];

fn told(location: Option<GpuLocation>) -> Told {
    let mut told = [0; 12];
    if let Some(GpuLocation { group, switch, link }) = location {
        (told[0], told[1]) = (1, link as u8);
        told[4..8].copy_from_slice(&group.to_le_bytes());
        told[8..].copy_from_slice(&switch.to_le_bytes());
    }
    told
}

fn location(told: &[u8]) -> Option<GpuLocation> {
    let number = |at: usize| Some(u32::from_le_bytes(told.get(at..at + 4)?.try_into().ok()?));
    let link = *GpuLink::ALL.get(usize::from(*told.get(1)?))?;
    (told[0] == 1).then_some(GpuLocation { group: number(4)?, switch: number(8)?, link })
}

impl Comm {
    /// Where the GPUs of all ranks are, told by each; `None` if a rank has none, or does not know where it is.
    pub(crate) fn gather_gpus(&self) -> Result<Option<OnGpus>> {
        let runtime = self.runtime();
        let here = || -> Option<GpuLocation> {
            let takes = |platform: &Platform| runtime.takes(*platform).unwrap_or(false);
            let address = Platform::ALL.into_iter().filter(takes).find_map(current_device)?;
            HostMap::told(runtime.job().setting(settings::TOPOLOGY)).ok()?.gpu_location(&address)
        };
        let all = self.allgather_bytes(&told(here()))?;
        let gpus: Option<Vec<GpuLocation>> = all.chunks_exact(size_of::<Told>()).map(location).collect();
        let Some(gpus) = gpus else { return Ok(None) };
        let places = self.group().peers().map(|peer| runtime.job().places.home(peer.0).node);
        let locations = places.zip(&gpus).map(|(node, gpu)| Location::of_gpu(node, gpu)).collect();
        let tuning = runtime.tuning.on_gpus(&GpuFigures::ASSUMED, gpu_links(gpus.iter().copied()));
        Ok(Some(OnGpus { tuning, locations }))
    }
}

impl Runtime {
    /// True if buffers may be memory of devices of a platform now. A driver that the program has loaded since MPI was initialized is seen.
    ///
    /// # Errors
    /// None after MPI was initialized with the same setting.
    pub fn takes(&self, platform: Platform) -> Result<bool> {
        look(self.job())?;
        Ok(sees(platform))
    }

    /// Adds to the hints of an object of this runtime which kinds of memory calls take.
    ///
    /// # Errors
    /// As [`Runtime::takes`].
    pub fn add_memory_kinds(&self, info: &Info) -> Result<()> {
        let mut kinds = "mpi,system".to_owned();
        for platform in Platform::ALL {
            if self.takes(platform)? {
                let prefix = prefix(platform);
                kinds += &format!(",{prefix}:host,{prefix}:device,{prefix}:managed");
            }
        }
        info.set(KINDS, kinds)
    }
}
