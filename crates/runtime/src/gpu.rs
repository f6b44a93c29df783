//! Which GPUs users' buffers may be on: what the setting says, what programs are told of kinds of memory, what they say of them, and where the GPUs of a
//! communicator's ranks are.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use banyan_coll::{Call, Location, RingOrder, Tuning};
use banyan_memory::{
    Buffer, Compiler, DeviceStats, Gpus, MappedCopies, Platform, current_device, device_stats, look_for,
    nvlinks, sees, why_not_mapped,
};
use banyan_pmi::{Job, settings};
use banyan_topo::{GPU_ROW, GpuGroup, GpuLinks, GpuRow, HostMap};

use crate::bail;
use crate::coll::bytes_of;
use crate::coll_state::OnGpus;
use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::info::{Info, MAX_INFO_VALUE, MEMORY_ALLOC_KINDS};
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
        .map_err(|why| Error::other(format!("{} is \"{value}\": {why}, or set it to off", settings::GPU)))?;
    if sees(Platform::Cuda) {
        let lengths = settings::gdrcopy(job.setting_or_default(settings::GPU_GDRCOPY));
        let (read, write) = lengths.map_err(Error::other)?;
        MappedCopies { longest_read: read as usize, longest_write: write as usize }.use_from_now_on();
    }
    Ok(())
}

/// What this process has copied from and to GPUs by itself, and why not the rest, for people; nothing where there was nothing to copy.
pub(crate) fn account() -> Option<String> {
    let DeviceStats { mapped_copies, mapped_refused, .. } = device_stats();
    let why = why_not_mapped().map_or(String::new(), |why| format!("; by the driver, as {why}"));
    (mapped_copies + mapped_refused > 0)
        .then(|| format!("copies from and to GPUs by the processor (GDRCopy): {mapped_copies}{why}"))
}

/// The info key by which a program says what kinds of memory its buffers are (MPI 5.0, 11.4.3).
const ASSERTED: &str = "mpi_assert_memory_alloc_kinds";

/// What restricts kinds of memory of a platform.
const OF_PLATFORM: &[&str] = &["host", "device", "managed"];

/// What these keys call memory of a platform (the side document of the MPI Forum on kinds of memory).
const fn prefix(platform: Platform) -> &'static str {
    match platform {
        Platform::Cuda => "cuda",
        Platform::Hip => "rocm",
    }
}

/// True if hints say that all buffers are memory of devices of one platform.
pub(crate) fn says_on_devices(info: &Info) -> bool {
    let said = info.text(ASSERTED).unwrap_or_default();
    let kinds = settings::memory_alloc_kinds(&said).unwrap_or_default();
    let are_all = |device: String| kinds.iter().all(|kind| kind.eq_ignore_ascii_case(&device));
    !kinds.is_empty()
        && Platform::ALL.into_iter().any(|platform| are_all(format!("{}:device", prefix(platform))))
}

/// Where all ranks' GPUs are, as each has told: complete before the first collective for which it matters.
pub(crate) struct ToldGpus {
    told: Buffer,
    /// What it means for collectives; `None` inside: a rank has no GPU, does not know where it is, or has run collectives already.
    found: OnceLock<Option<OnGpus>>,
}

impl ToldGpus {
    /// What algorithms are chosen by, if all know where their GPUs are.
    pub(crate) fn found(&self, runtime: &Runtime, group: &Group) -> Option<&OnGpus> {
        let find = || {
            let told = bytes_of(&self.told);
            let rows: Vec<GpuRow> = told.as_chunks().0.iter().map(GpuRow::decode).collect::<Option<_>>()?;
            let nodes: Vec<u32> = group.peers().map(|peer| runtime.job().places.home(peer.0).node).collect();
            on_gpus(&nodes, &rows, direct(runtime.job()), &runtime.tuning)
        };
        self.found.get_or_init(find).as_ref()
    }
}

/// What collectives go by on ranks of these nodes that have these GPUs, where RDMA devices may be `direct`, as for [`GpuGroup::of`].
fn on_gpus(nodes: &[u32], rows: &[GpuRow], direct: bool, tuning: &Tuning) -> Option<OnGpus> {
    let mut by_node: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (rank, node) in nodes.iter().enumerate() {
        by_node.entry(*node).or_default().push(rank);
    }
    let hosts = by_node.len() as u32;
    let mut places = vec![(0, 0); nodes.len()];
    let mut links: Option<GpuLinks> = None;
    // Most hosts are alike, and the search for a ring over the GPUs of one takes a while.
    let mut known: Vec<(Vec<&GpuRow>, GpuGroup)> = vec![];
    for (node, ranks) in &by_node {
        let of_host: Vec<&GpuRow> = ranks.iter().map(|rank| &rows[*rank]).collect();
        let at = match known.iter().position(|(rows, _)| *rows == of_host) {
            Some(at) => at,
            None => {
                let group = GpuGroup::of(&of_host, (hosts, direct), &tuning.gpu)?;
                known.push((of_host, group));
                known.len() - 1
            }
        };
        let group = &known[at].1;
        for (place, at) in (0..).zip(&group.ring) {
            places[ranks[*at]] = (*node, place);
        }
        links = Some(links.map_or(group.links, |links| links.or_worse(&group.links)));
    }
    let locations =
        nodes.iter().zip(rows).map(|(node, row)| Location::of_gpu(*node, &row.location)).collect();
    let tuning = tuning.on_gpus(&links?, RingOrder::over_hosts(&places));
    Some(OnGpus { tuning, locations })
}

/// True if the job's messages to other hosts may go by RDMA devices that read and write memory of GPUs.
fn direct(job: &Job) -> bool {
    let fabrics = settings::fabrics(job.setting_or_default(settings::FABRICS)).unwrap_or_default();
    let said = job.setting_or_default(settings::RDMA);
    fabrics.contains(&"rdma") && !said.split(',').any(|one| one.trim().ends_with("gpudirect=0"))
}

impl Comm {
    /// The call by which the ranks of this communicator tell each other where their GPUs are, for collectives of `other`, which has the same
    /// ranks; `None` if the hints do not say that all its buffers are there. All ranks give the same hints.
    pub(crate) fn tell_gpus(&self, other: &Comm, hints: &Info) -> Result<Option<Call>> {
        if other.is_inter() || other.size() == 1 || !says_on_devices(hints) {
            return Ok(None);
        }
        let runtime = self.runtime();
        let here = || -> Option<[u8; GPU_ROW]> {
            let takes = |platform: &Platform| runtime.takes(*platform).unwrap_or(false);
            let address = Platform::ALL.into_iter().filter(takes).find_map(current_device)?;
            HostMap::told_with_links(runtime.job().setting(settings::TOPOLOGY), nvlinks)
                .ok()?
                .gpu_row(&address)?
                .encode()
        };
        let here = if other.has_run_collectives() { None } else { here() };
        let (call, told) = self.gathering(&here.unwrap_or([0; GPU_ROW]))?;
        other.coll_state().expect_gpus(ToldGpus { told, found: OnceLock::new() });
        Ok(Some(call))
    }

    /// These hints, without those that the library does not follow: what buffers are, if it does not take all the kinds that are said, and the
    /// kinds that it takes, which are not for the program to set.
    pub(crate) fn followed(&self, hints: &Info) -> Result<Info> {
        let followed = hints.dup();
        let _ = followed.delete(MEMORY_ALLOC_KINDS);
        if let Some(said) = followed.value(ASSERTED)?
            && !self.runtime().takes_all(&said)?
        {
            followed.delete(ASSERTED)?;
        }
        Ok(followed)
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

    /// True if calls take all the kinds of memory that a hint names.
    fn takes_all(&self, said: &[u8]) -> Result<bool> {
        let Some(kinds) = str::from_utf8(said).ok().and_then(|said| settings::memory_alloc_kinds(said).ok())
        else {
            return Ok(false);
        };
        kinds.into_iter().try_fold(true, |all, kind| Ok(all && self.takes_kind(kind)?))
    }

    /// True if calls take memory of a kind: a name, and restrictors behind colons.
    fn takes_kind(&self, kind: &str) -> Result<bool> {
        let mut words = kind.split(':');
        let name = words.next().unwrap_or_default();
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        let platform = Platform::ALL.into_iter().find(|platform| is(prefix(*platform)));
        let restrictors = match platform {
            Some(platform) if self.takes(platform)? => OF_PLATFORM,
            None if is("system") => &[],
            // There are no windows to allocate memory with.
            None if is("mpi") => &["alloc_mem"],
            _ => return Ok(false),
        };
        Ok(words.all(|word| restrictors.iter().any(|known| known.eq_ignore_ascii_case(word))))
    }

    /// Adds to the hints of an object of this runtime which kinds of memory calls take: those that are always named, and what else the user has asked
    /// the launcher for.
    ///
    /// # Errors
    /// As [`Runtime::takes`].
    pub fn add_memory_kinds(&self, info: &Info) -> Result<()> {
        let mut kinds = "mpi,system".to_owned();
        for platform in Platform::ALL {
            if self.takes(platform)? {
                for restrictor in OF_PLATFORM {
                    kinds += &format!(",{}:{restrictor}", prefix(platform));
                }
            }
        }
        let asked = self.job().setting(settings::MEMORY_ALLOC_KINDS).unwrap_or_default();
        for kind in asked.split(',').map(str::trim) {
            let is_named = kinds.split(',').any(|named| named.eq_ignore_ascii_case(kind));
            if !is_named && kinds.len() + kind.len() < MAX_INFO_VALUE && self.takes_kind(kind)? {
                kinds += &format!(",{kind}");
            }
        }
        info.set(MEMORY_ALLOC_KINDS, kinds)
    }
}
