//! [`Profile`]: what things take on a machine, in seconds or seconds per byte. Those who choose by cost take their figures from it:
//! the one that was measured on this machine ([`kept`](crate::kept)), or else a built-in one for its family of processors.
//!
//! As text a profile is the name of a built-in one, or a file:
//!
//! ```text
//! banyan machine profile 1
//! machine x86-ven0000fam0006mod00CF_6.18.44_0-1_0_266240K-0-1
//! base xeon
//! near.line 1.31e-7
//! ...
//! end
//! ```
//!
//! Figures that the file does not name are those of the built-in profile that is its base. Behind them may be lines that say what jobs
//! have found of the [ways of long messages](KnownWays).

use std::fmt::Write;

use crate::gpu_links::GpuFigures;
use crate::known::{KnownWay, KnownWays};
use crate::ways::{CLASSES, SHORTEST, SingleCopy, Traffic, Way};

/// A message of a fabric, without what goes on above the fabric.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Message {
    /// 8 bytes from one process to another that waits for them, in seconds.
    pub latency: f64,
    /// One more message of a stream both ways, in seconds.
    pub overhead: f64,
    /// A byte of a long message, in seconds.
    pub byte: f64,
}

/// What is between two cores of a host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pair {
    /// A cache line that one core has written, until the other one has it: in seconds.
    pub line: f64,
    /// A byte copied out of the other core's cache, in seconds.
    pub copy: f64,
    /// The same by vectors, in the place of the C library's copy, in seconds.
    pub vector_copy: f64,
    /// A byte of a single copy out of the other process's memory, in seconds.
    pub single_copy: f64,
    /// A message through shared memory.
    pub message: Message,
    /// A byte of a long one that both ends copy by vectors, in seconds.
    pub vector_message: f64,
}

/// How two cores of a host are apart: on two sockets, by two last-level caches of one, by neither. The names of [`Profile::pairs`].
pub const DISTANCES: [&str; 3] = ["sockets", "caches", "near"];

/// Messages between GPUs by each kind of link, to another host by GPUDirect RDMA, and copies to the host: the names of [`Profile::gpu`].
pub const GPU_MESSAGES: [&str; 6] =
    ["gpu_nvswitch", "gpu_nvlink", "gpu_pcie", "gpu_staged", "gpu_direct", "gpu_host"];

/// Where a figure of a profile comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was measured on the machine of the profile.
    Measured,
    /// It was measured on a machine of the family.
    BuiltIn,
    /// Nobody has measured it.
    Assumed,
}

/// A cache that several CPUs share, as the system tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedCache {
    /// Bytes of it.
    pub bytes: u64,
    /// How many CPUs of this machine share it.
    pub cpus: usize,
}

/// What things take on a machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Profile {
    /// The built-in profile that figures come from which were not measured.
    base: &'static str,
    /// A message between hosts. It is never measured.
    pub network: Message,
    /// A message over TCP on one host.
    pub loopback: Message,
    /// What is between two cores, by how they are apart ([`DISTANCES`]).
    pub pairs: [Pair; 3],
    /// A byte copied within the core's own cache, in seconds.
    pub copy: f64,
    /// The same where the target lies a few bytes further in its page than the source, in seconds.
    pub aliased_copy: f64,
    /// A byte of a single copy within this process, from and to the core's own cache, in seconds.
    pub own_single_copy: f64,
    /// The same where the target lies a few bytes further in its page than the source, in seconds.
    pub aliased_single_copy: f64,
    /// A byte copied in memory, where no cache holds it, in seconds.
    pub memory: f64,
    /// A byte of a sum of doubles in the core's own cache, in seconds.
    pub reduce: f64,
    /// A system call that does nothing, in seconds.
    pub system_call: f64,
    /// What a single copy of no bytes takes beyond a system call, in seconds.
    pub single_copy: f64,
    /// What a yield to another process of the core takes beyond a system call, in seconds.
    pub turn: f64,
    /// What a touch of a page takes where another process has had the core meanwhile, beyond one of a page that is at hand, in seconds. The
    /// page's translation and line are to be found anew.
    pub cold_page: f64,
    /// What the CPUs of this machine that share it have of a last-level cache, bytes.
    pub last_level_cache: f64,
    /// What things take on GPUs and between them.
    pub gpu: GpuFigures,
}

/// The built-in profiles by name.
const BUILT_IN: [Profile; 5] = [EPYC, ZEN, ZEN3, XEON, SKYLAKE];

/// What the built-in profiles say of the last-level cache, bytes, until the machine says it: that of most of the processors that Banyan was tuned on.
const LAST_LEVEL_CACHE: f64 = (32 << 20) as f64;

/// How much of a large last-level cache each CPU of a virtual machine may count on, bytes: other machines on the processor use it as well. On a Xeon of
/// model 207 that is told to have 300 MiB for two cores a process on each wrote up to 48 MiB over and over at 23 GB/s, 64 MiB at 11 to 18, past
/// the caches at 20. A machine with all cores of such a processor has the whole cache by this, too.
const SHARE_OF_XEON: f64 = (56 << 20) as f64;

/// A [`Profile::cold_page`] where nobody has measured it. It makes a scan of 8 bytes by messages, on 16 ranks of two cores, as slow as those of the
/// rivals that were measured on five processors (65 to 92 us).
const COLD_PAGE: f64 = 0.007e-6;

/// A server with AMD EPYC processors, on which most of Banyan was tuned. `caches` was measured on a virtual machine of family 25, model 17,
/// while its two cores were by two caches. Nobody has measured two sockets: they count as a little further apart.
const EPYC: Profile = Profile {
    base: "epyc",
    network: Message { latency: 29.4e-6, overhead: 1.5e-6, byte: 1.0 / 1.2e9 },
    loopback: Message { latency: 4e-6, overhead: 1e-6, byte: 1.0 / 3e9 },
    pairs: [
        pair((0.35e-6, 1.0 / 16e9, 1.0 / 6e9), (0.3e-6, 0.12e-6, 1.0 / 8e9)),
        pair((0.3e-6, 1.0 / 18e9, 1.0 / 6.8e9), (0.27e-6, 0.1e-6, 1.0 / 8.8e9)),
        pair((0.055e-6, 0.03e-9, 1.0 / 11e9), (0.35e-6 / 3.0, 0.05e-6, 1.0 / 18e9)),
    ],
    copy: 0.02e-9,
    aliased_copy: 1.0 / 2.8e9,
    own_single_copy: 1.0 / 9e9,
    aliased_single_copy: 1.0 / 1.8e9,
    memory: 1.0 / 11e9,
    reduce: 0.045e-9,
    system_call: 0.1e-6,
    single_copy: 0.9e-6,
    turn: 1.18e-6,
    cold_page: COLD_PAGE,
    last_level_cache: LAST_LEVEL_CACHE,
    gpu: GpuFigures::ASSUMED,
};

/// A server with the first AMD EPYC processors (family 23, models below 48), whose groups of four cores have 8 MiB of last-level cache each. Memory and
/// cold pages were measured on a virtual machine of model 1, whose processor finds all translations anew after each turn.
const ZEN: Profile = Profile {
    base: "zen",
    aliased_copy: EPYC.copy,
    aliased_single_copy: EPYC.own_single_copy,
    memory: 1.0 / 5.5e9,
    cold_page: 0.028e-6,
    last_level_cache: (8 << 20) as f64,
    ..EPYC
};

/// A server with AMD EPYC processors of family 25, models below 16. Copies by vectors were measured on a virtual machine of model 1: there they are as
/// quick as the C library's, but for messages through a ring, of which the latter carries 10 GB/s in one process and 30 in the next.
const ZEN3: Profile = Profile {
    base: "zen3",
    pairs: [EPYC.pairs[0], EPYC.pairs[1], Pair { vector_message: 1.0 / 33e9, ..EPYC.pairs[2] }],
    ..EPYC
};

/// A server with Intel Xeon processors whose cores have a large cache each, and a mesh between them. Nobody has measured distances
/// other than `near`.
const XEON: Profile = Profile {
    base: "xeon",
    network: EPYC.network,
    loopback: Message { latency: 3.1e-6, overhead: 0.8e-6, byte: 0.13e-9 },
    pairs: [
        pair((0.27e-6, 1.0 / 8e9, 0.08e-9), (0.42e-6, 0.14e-6, 0.12e-9)),
        pair((0.19e-6, 1.0 / 11e9, 0.07e-9), (0.3e-6, 0.1e-6, 0.1e-9)),
        pair((0.135e-6, 1.0 / 15e9, 0.06e-9), (0.21e-6, 0.07e-6, 0.076e-9)),
    ],
    copy: 0.025e-9,
    aliased_copy: 0.025e-9,
    own_single_copy: 0.06e-9,
    aliased_single_copy: 0.06e-9,
    memory: 1.0 / 13e9,
    reduce: 0.03e-9,
    system_call: 0.1e-6,
    single_copy: 0.77e-6,
    turn: 0.69e-6,
    cold_page: COLD_PAGE,
    last_level_cache: LAST_LEVEL_CACHE,
    gpu: GpuFigures::ASSUMED,
};

/// A server with Intel Xeon processors of model 85 (Skylake, Cascade Lake and Cooper Lake). Measured on a virtual machine with two cores of
/// one, where a single copy takes 7 to 10 GB/s of what was just written, and 10 to 17 of what was not, and frames are taken for as slow as
/// messages of 32 to 256 KiB. Nobody has measured distances other than `near`: they are as much further as with [`XEON`]. Of the built-in
/// profiles this one alone has copies out of another core's cache by vectors that are quicker: nobody has measured them on other Xeons.
const SKYLAKE: Profile = Profile {
    base: "skylake",
    network: EPYC.network,
    loopback: Message { latency: 3.4e-6, overhead: 0.9e-6, byte: 0.16e-9 },
    pairs: [
        pair((0.24e-6, 1.0 / 7e9, 0.136e-9), (0.26e-6, 0.065e-6, 0.23e-9)),
        pair((0.17e-6, 1.0 / 10e9, 0.119e-9), (0.19e-6, 0.046e-6, 0.19e-9)),
        Pair { vector_copy: 0.06e-9, ..pair((0.12e-6, 0.075e-9, 0.102e-9), (0.13e-6, 0.032e-6, 0.145e-9)) },
    ],
    copy: 1.0 / 26e9,
    aliased_copy: 1.0 / 26e9,
    own_single_copy: 0.102e-9,
    aliased_single_copy: 0.102e-9,
    memory: 1.0 / 13e9,
    reduce: 0.04e-9,
    system_call: 0.095e-6,
    single_copy: 1.1e-6,
    turn: 1.15e-6,
    cold_page: COLD_PAGE,
    last_level_cache: LAST_LEVEL_CACHE,
    gpu: GpuFigures::ASSUMED,
};

const fn pair((line, copy, single_copy): (f64, f64, f64), message: (f64, f64, f64)) -> Pair {
    let (latency, overhead, byte) = message;
    let message = Message { latency, overhead, byte };
    Pair { line, copy, vector_copy: copy, single_copy, message, vector_message: message.byte }
}

impl Default for Profile {
    fn default() -> Profile {
        EPYC
    }
}

/// The first line of a profile's file.
const FIRST_LINE: &str = "banyan machine profile 1";
/// The last one, which a file that was cut off lacks.
const LAST_LINE: &str = "end";
/// The name of the figure that is no time.
const CACHE: &str = "last_level_cache";
/// The name of the one that nobody has measured but for `zen`.
const COLD: &str = "cold_page";
/// The names of those that were measured on a machine of `epyc` alone.
const ALIASED: &str = "aliased_copy_byte";
const OWN_SINGLE_COPY: &str = "own_single_copy_byte";
const ALIASED_SINGLE_COPY: &str = "aliased_single_copy_byte";
const OF_ALIASED: [&str; 3] = [ALIASED, OWN_SINGLE_COPY, ALIASED_SINGLE_COPY];
/// Most seconds that a figure may be.
const MOST: f64 = 1.0;
/// What is quicker by less may as well be chance.
const WORTH: f64 = 0.95;
/// An aliased copy that takes so many times as long as others goes otherwise.
const SHUNNED: f64 = 2.0;
/// Least seconds that a figure may be.
const LEAST: f64 = 1e-15;

/// Bytes that each of so many processes touches, from which on little of them is still in the `cache` that they share when it is wanted again:
/// together they fill half of it.
pub fn fills(cache: f64, processes: f64) -> f64 {
    cache / 2.0 / processes
}

/// What a figure of this name may be.
fn bounds(name: &str) -> std::ops::RangeInclusive<f64> {
    // 64 KiB to 64 GiB.
    if name == CACHE { 65_536.0..=68_719_476_736.0 } else { LEAST..=MOST }
}

impl Profile {
    /// The built-in profile of this name.
    pub fn named(name: &str) -> Option<Profile> {
        BUILT_IN.into_iter().find(|profile| profile.base == name)
    }

    /// The built-in profile for this processor.
    pub(crate) fn built_in() -> Profile {
        // The kernel takes four times as long to write its description of the processor, which has all its features.
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::__cpuid;

            let of_vendor = match &__cpuid(0).ebx.to_le_bytes() {
                b"Genu" => Profile::of_intel,
                b"Auth" => Profile::of_amd,
                _ => return EPYC,
            };
            let signature = __cpuid(1).eax;
            let (family, model) = (signature >> 8 & 0xf, signature >> 12 & 0xf0 | signature >> 4 & 0xf);
            // Families beyond the highest one that fits are counted on from it.
            of_vendor(if family == 0xf { family + (signature >> 20 & 0xff) } else { family }, model)
        }
        #[cfg(not(target_arch = "x86_64"))]
        EPYC
    }

    /// The built-in profile for a processor, as `/sys/devices/system/cpu/modalias` describes it.
    pub fn of_processor(modalias: &str) -> Profile {
        let number = |name: &str| {
            let digits = modalias.split_once(name)?.1.get(..4)?;
            u32::from_str_radix(digits, 16).ok()
        };
        match (number("ven"), number("fam"), number("mod")) {
            (Some(0), Some(family), Some(model)) => Profile::of_intel(family, model),
            (Some(2), Some(family), Some(model)) => Profile::of_amd(family, model),
            _ => EPYC,
        }
    }

    /// The built-in profile for a processor of Intel's.
    fn of_intel(family: u32, model: u32) -> Profile {
        if (family, model) == (6, 85) { SKYLAKE } else { XEON }
    }

    /// The built-in profile for a processor of AMD's.
    fn of_amd(family: u32, model: u32) -> Profile {
        match (family, model) {
            (23, ..48) => ZEN,
            (25, ..16) => ZEN3,
            _ => EPYC,
        }
    }

    /// The same for a machine whose CPUs share this last-level cache; `None`: none is known.
    pub fn with_last_level_cache(self, cache: Option<SharedCache>) -> Profile {
        let share = if self.base == XEON.base { SHARE_OF_XEON } else { f64::INFINITY };
        self.with(cache.map(|cache| (CACHE, (cache.bytes as f64).min(share * cache.cpus as f64))))
    }

    /// The names of all built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|profile| profile.base)
    }

    /// Where the figure of this name comes from.
    pub fn origin(&self, name: &str) -> Origin {
        let guessed = match self.base {
            "zen" => &["network", DISTANCES[0]][..],
            "epyc" | "zen3" => &["network", DISTANCES[0], COLD],
            _ => &["network", DISTANCES[0], DISTANCES[1], COLD],
        };
        let has_aliased = matches!(self.base, "epyc" | "zen3");
        let is_guessed = |part: &str| {
            guessed.contains(&part) || !has_aliased && OF_ALIASED.contains(&part) || part.starts_with("gpu")
        };
        match name.split('.').next().is_some_and(is_guessed) {
            _ if self.own().iter().any(|(own, _)| own == name) => Origin::Measured,
            true => Origin::Assumed,
            false => Origin::BuiltIn,
        }
    }

    /// Where its figures come from, for people.
    pub fn source(&self) -> String {
        // The cache is not measured.
        match self.own().iter().filter(|(name, _)| name != CACHE).count() {
            0 => format!("built in for processors like {}", self.base),
            number => {
                format!("{number} figures measured here, the rest built in for processors like {}", self.base)
            }
        }
    }

    /// A figure and the one that it is compared with. Where the first was not measured, and the file may be of before there was such a figure, both are the
    /// built-in profile's.
    fn together(&self, figures: fn(&Profile) -> (f64, f64)) -> (f64, f64) {
        let (here, built_in) = (figures(self), figures(&Profile::named(self.base).unwrap_or_default()));
        if here.0 == built_in.0 { built_in } else { here }
    }

    /// Whether a process had better copy by vectors what another core has written, by what was measured of two near ones.
    pub fn takes_by_vectors(&self) -> bool {
        let (by_vectors, copy) = self.together(|profile| {
            let [.., Pair { copy, vector_copy, .. }] = profile.pairs;
            (vector_copy, copy)
        });
        by_vectors < WORTH * copy || self.gives_by_vectors()
    }

    /// Whether a process had better copy by vectors what another one is to read, too.
    pub fn gives_by_vectors(&self) -> bool {
        let (by_vectors, byte) = self.together(|profile| {
            let [.., Pair { message, vector_message, .. }] = profile.pairs;
            (vector_message, message.byte)
        });
        by_vectors < WORTH * byte
    }

    /// Whether an aliased copy had better go by vectors.
    pub fn shuns_aliased(&self) -> bool {
        let (aliased, copy) = self.together(|profile| (profile.aliased_copy, profile.copy));
        aliased > SHUNNED * copy
    }

    /// Whether an aliased single copy had better go by way of memory that lies elsewhere in its page: that is a copy more.
    pub fn shuns_aliased_single_copy(&self) -> bool {
        let figures = |profile: &Profile| (profile.aliased_single_copy, profile.own_single_copy);
        let (aliased, own) = self.together(figures);
        aliased > SHUNNED * own
    }

    /// All figures by their names in files, in the order that they are shown in.
    pub fn figures(&mut self) -> Vec<(String, &mut f64)> {
        let single = [
            ("system_call", &mut self.system_call),
            ("turn", &mut self.turn),
            (COLD, &mut self.cold_page),
            ("copy_byte", &mut self.copy),
            (ALIASED, &mut self.aliased_copy),
            ("memory_byte", &mut self.memory),
            ("reduce_byte", &mut self.reduce),
            ("single_copy", &mut self.single_copy),
            (OWN_SINGLE_COPY, &mut self.own_single_copy),
            (ALIASED_SINGLE_COPY, &mut self.aliased_single_copy),
            (CACHE, &mut self.last_level_cache),
        ];
        let mut all: Vec<(String, &mut f64)> =
            single.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect();
        for (distance, pair) in DISTANCES.iter().zip(&mut self.pairs).rev() {
            let parts = [
                ("line", &mut pair.line),
                ("copy_byte", &mut pair.copy),
                ("vector_copy_byte", &mut pair.vector_copy),
                ("single_copy_byte", &mut pair.single_copy),
            ];
            all.extend(parts.map(|(name, figure)| (format!("{distance}.{name}"), figure)));
            message(distance, &mut pair.message, &mut all);
            all.push((format!("{distance}.vector_byte"), &mut pair.vector_message));
        }
        message("loopback", &mut self.loopback, &mut all);
        message("network", &mut self.network, &mut all);
        let GpuFigures { links, direct, to_host, copy, reduce } = &mut self.gpu;
        for (name, figures) in GPU_MESSAGES.iter().zip(links.iter_mut().chain([direct, to_host])) {
            message(name, figures, &mut all);
        }
        all.extend([("gpu.copy_byte".to_owned(), copy), ("gpu.reduce_byte".to_owned(), reduce)]);
        all
    }

    /// What a message of so many bytes takes by a way between two cores that are so apart (a place in [`DISTANCES`]), until its receiver has
    /// it, in seconds.
    pub fn way(&self, way: Way, distance: usize, bytes: f64) -> f64 {
        let Pair { single_copy, message, .. } = self.pairs[distance];
        self.alone(way, distance, bytes, [message.byte, single_copy])
    }

    /// What a message takes that is the only one under way, where a byte takes so long in frames and by single copy.
    fn alone(&self, way: Way, distance: usize, bytes: f64, [in_frames, single_copy]: [f64; 2]) -> f64 {
        let latency = self.pairs[distance].message.latency;
        match way.single_copy() {
            None => latency + bytes * in_frames,
            Some(SingleCopy { share, to_arrive, .. }) => {
                to_arrive * latency + self.system_call + self.single_copy + share * bytes * single_copy
            }
        }
    }

    /// What [`Profile::way`] is for a message that is part of such traffic. In windows nobody waits for the notes around it, and the memory that it goes
    /// to is in no cache, as that of a message is which is so long that both ends' buffers fill it. Both ways each process copies at all times, so that
    /// to share a copy gains nothing.
    pub fn way_in(&self, traffic: Traffic, way: Way, distance: usize, bytes: f64) -> f64 {
        let Pair { single_copy, message, .. } = self.pairs[distance];
        let call = self.system_call + self.single_copy;
        let single_copy = single_copy.max(self.memory);
        let out = if way == Way::NonTemporal { message.byte } else { message.byte.max(self.memory) };
        match (traffic, way.single_copy()) {
            (Traffic::OneWay, _) if bytes < fills(self.last_level_cache, 2.0) => {
                self.way(way, distance, bytes)
            }
            (Traffic::OneWay, _) => self.alone(way, distance, bytes, [out, single_copy]),
            (Traffic::Window, None) => message.overhead + bytes * out,
            (Traffic::Window, Some(SingleCopy { share, .. })) => call + share * bytes * single_copy,
            (Traffic::BothWays, None) => 2.0 * message.overhead + bytes * (message.byte + out),
            (Traffic::BothWays, Some(SingleCopy { share, .. })) => call / share + bytes * single_copy,
        }
    }

    /// What this says of the ways of long messages between two cores that are so apart, as if it had been measured on messages.
    pub fn ways(&self, distance: usize) -> impl Iterator<Item = KnownWay> + use<> {
        let profile = *self;
        (0..CLASSES).flat_map(move |class| {
            Traffic::ALL.map(|traffic| {
                let shortest = (SHORTEST << class) as f64;
                let times = Way::ALL.map(|way| profile.way_in(traffic, way, distance, shortest) / shortest);
                let best =
                    Way::ALL.into_iter().min_by(|a, b| times[*a as usize].total_cmp(&times[*b as usize]));
                KnownWay { distance, class, traffic, way: best.unwrap_or(Way::Ring), times: times.map(Some) }
            })
        })
    }

    /// The same of a message over the loopback.
    pub fn by_tcp(&self, bytes: f64) -> f64 {
        self.loopback.latency + bytes * self.loopback.byte
    }

    /// This profile with what was measured: figures by name, in seconds (the cache in bytes). Those that are out of bounds, or have no name here, are
    /// left out.
    pub fn with<'a>(mut self, measured: impl IntoIterator<Item = (&'a str, f64)>) -> Profile {
        for (name, seconds) in measured {
            self.set(name, seconds);
        }
        self
    }

    /// Sets a figure; false if it is out of bounds, or has no name here.
    fn set(&mut self, name: &str, value: f64) -> bool {
        let mut figures = self.figures();
        let figure = figures.iter_mut().find(|(known, _)| known == name);
        let figure = figure.filter(|_| bounds(name).contains(&value));
        figure.map(|(_, figure)| **figure = value).is_some()
    }

    /// The same with another base: its figures in the place of those that were not measured, and its last-level cache. Costs next to nothing if it is
    /// that base.
    pub(crate) fn based_on(&self, base: Profile) -> Profile {
        let figures = match self.base == base.base {
            true => *self,
            false => base.with(self.own().iter().map(|(name, figure)| (name.as_str(), *figure))),
        };
        Profile { last_level_cache: base.last_level_cache, ..figures }
    }

    /// Names and values of the figures that are not those of its base.
    fn own(&self) -> Vec<(String, f64)> {
        let (mut base, mut own) = (Profile::named(self.base).unwrap_or_default(), *self);
        let pairs = own.figures().into_iter().zip(base.figures());
        pairs.filter(|((_, own), (_, base))| own != base).map(|((name, own), _)| (name, *own)).collect()
    }

    /// As text: the name of a built-in one, or else the file for a `machine` of this name.
    pub fn text(&self, machine: &str) -> String {
        match Profile::named(self.base) == Some(*self) {
            true => self.base.to_owned(),
            false => self.file(machine, &KnownWays::default()),
        }
    }

    /// The file for a `machine` of this name, with what jobs have found there.
    pub fn file(&self, machine: &str, known: &KnownWays) -> String {
        let mut text = format!("{FIRST_LINE}\nmachine {machine}\nbase {}\n", self.base);
        for (name, figure) in self.own() {
            let _ = writeln!(text, "{name} {figure:e}");
        }
        text + &known.text() + LAST_LINE + "\n"
    }

    /// Reads the text of a profile, and of which machine it is (none if it is a built-in one). What it says of ways
    /// [`KnownWays::parse`] reads.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<(Profile, Option<&str>), String> {
        if let Some(profile) = Profile::named(text.trim()) {
            return Ok((profile, None));
        }
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            let known: Vec<_> = Profile::names().collect();
            return Err(format!(
                "no profile of a machine: it is neither {} nor a file of one",
                known.join(", ")
            ));
        }
        let body = text.strip_suffix('\n').and_then(|text| text.strip_suffix(LAST_LINE));
        body.filter(|body| body.ends_with('\n')).ok_or("the profile is cut off")?;
        let mut head = |word: &str| lines.next().and_then(|line| line.strip_prefix(word)?.strip_prefix(' '));
        let machine = head("machine").ok_or("the profile does not say of which machine it is")?;
        let base = head("base").and_then(Profile::named).ok_or("the profile has no base that is known")?;
        let lines = lines.take_while(|line| *line != LAST_LINE).filter(|line| !KnownWays::is_line(line));
        let figures = lines.map(|line| {
            let figure = line.split_once(' ').and_then(|(name, text)| Some((name, text.parse().ok()?)));
            figure.ok_or_else(|| format!("\"{}\" is no figure", line.escape_debug()))
        });
        let figures = figures.collect::<Result<Vec<(&str, f64)>, String>>()?;
        let mut profile = base;
        match figures.iter().all(|(name, seconds)| profile.set(name, *seconds)) {
            true => Ok((profile, Some(machine))),
            false => Err("the profile has figures that are unknown, or out of bounds".to_owned()),
        }
    }
}

fn message<'a>(name: &str, message: &'a mut Message, all: &mut Vec<(String, &'a mut f64)>) {
    let parts =
        [("latency", &mut message.latency), ("overhead", &mut message.overhead), ("byte", &mut message.byte)];
    all.extend(parts.map(|(part, figure)| (format!("{name}.{part}"), figure)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn measured() -> Profile {
        XEON.with([("near.line", 1.5e-7), ("turn", 2.5e-6), ("loopback.byte", 1e-10)])
    }

    #[test]
    fn a_profile_survives_its_text() {
        for profile in BUILT_IN {
            assert_eq!(Profile::parse(&profile.text("any")), Ok((profile, None)));
        }
        let text = measured().text("this");
        assert_eq!(Profile::parse(&text), Ok((measured(), Some("this"))), "{text}");
        assert_eq!(measured().pairs[2].line, 1.5e-7);
        assert_ne!(measured().source(), XEON.source());
        let of_gpus = measured().with([("gpu_nvlink.byte", 2e-11)]);
        assert_eq!((of_gpus.gpu.links[1].byte, of_gpus.origin("gpu_nvlink.byte")), (2e-11, Origin::Measured));
        assert_eq!(
            [of_gpus.origin("gpu_nvlink.latency"), of_gpus.origin("gpu.copy_byte")],
            [Origin::Assumed; 2]
        );
        let origins = ["near.line", "near.copy_byte", "sockets.line", "network.byte", "loopback.byte"];
        assert_eq!(
            origins.map(|name| measured().origin(name)),
            [Origin::Measured, Origin::BuiltIn, Origin::Assumed, Origin::Assumed, Origin::Measured]
        );
    }

    #[test]
    fn what_is_half_written_or_foreign_is_refused() {
        let text = measured().text("this");
        for end in 0..text.len() {
            assert!(Profile::parse(&text[..end]).is_err(), "cut off at {end}");
        }
        for (from, to) in [
            ("near.line", "near.lane"),
            ("1.5e-7", "1.5e7"),
            ("1.5e-7", "-1.5e-7"),
            ("1.5e-7", "nan"),
            ("1.5e-7", "x"),
            ("base xeon", "base abacus"),
            ("machine this\n", ""),
            ("profile 1", "profile 2"),
        ] {
            let wrong = text.replacen(from, to, 1);
            assert!(wrong != text && Profile::parse(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_figure_has_a_name_of_its_own_and_is_within_bounds() {
        for mut profile in BUILT_IN {
            let figures = profile.figures();
            assert!(figures.iter().all(|(name, figure)| bounds(name).contains(*figure)));
            let mut names: Vec<_> = figures.into_iter().map(|(name, _)| name).collect();
            names.sort();
            let all = names.len();
            names.dedup();
            // All fields but the name of the base are figures.
            let fields = (size_of::<Profile>() - size_of::<&str>()) / size_of::<f64>();
            assert_eq!((names.len(), all), (all, fields));
        }
    }

    #[test]
    fn vectors_copy_where_that_was_found_to_be_quicker() {
        assert_eq!(BUILT_IN.map(|profile| profile.takes_by_vectors()), [false, false, true, false, true]);
        assert_eq!(BUILT_IN.map(|profile| profile.gives_by_vectors()), [false, false, true, false, false]);
        let as_quick = |seconds| SKYLAKE.with([("near.vector_copy_byte", seconds)]).takes_by_vectors();
        assert_eq!([0.074e-9, 0.07e-9].map(as_quick), [false, true]);
    }

    #[test]
    fn aliased_copies_are_shunned_where_they_were_found_to_be_slow() {
        assert_eq!(BUILT_IN.map(|profile| profile.shuns_aliased()), [true, false, true, false, false]);
        assert_eq!(
            BUILT_IN.map(|profile| profile.shuns_aliased_single_copy()),
            [true, false, true, false, false]
        );
        // As a file has it that is older than such figures.
        let quick = XEON.with([("copy_byte", 1e-11), ("near.copy_byte", 1e-9), ("near.byte", 1e-9)]);
        assert!(!quick.shuns_aliased() && !quick.takes_by_vectors() && !quick.gives_by_vectors());
        let slow = XEON.with([(ALIASED, 1e-9), (ALIASED_SINGLE_COPY, 1e-9)]);
        assert!(slow.shuns_aliased() && slow.shuns_aliased_single_copy());
    }

    #[test]
    fn processors_have_families() {
        let of = |text| Profile::of_processor(text).base;
        assert_eq!(of("cpu:type:x86,ven0000fam0006mod00CF:feature:,0000"), "xeon");
        assert_eq!(of("cpu:type:x86,ven0000fam0006mod0055:feature:,0000"), "skylake");
        assert_eq!(of("cpu:type:x86,ven0002fam0019mod0001:feature:,0000"), "zen3");
        assert_eq!(of("cpu:type:x86,ven0002fam0019mod0011:feature:,0000"), "epyc");
        assert_eq!(of("cpu:type:x86,ven0002fam0017mod0001:feature:,0000"), "zen");
        assert_eq!(of("cpu:type:x86,ven0002fam0017mod0031:feature:,0000"), "epyc");
        assert_eq!(of("cpu:type:aarch64:feature:,0000"), "epyc");
        assert_eq!(of(""), "epyc");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(lines in prop::collection::vec("(machine|base|near\\.line|turn)? ?[a-z0-9.e-]{0,8}", 0..6)) {
            let text = format!("{FIRST_LINE}\n{}\n{LAST_LINE}\n", lines.join("\n"));
            if let Ok((mut profile, _)) = Profile::parse(&text) {
                prop_assert!(profile.figures().iter().all(|(name, figure)| bounds(name).contains(*figure)));
            }
        }
    }
}
