//! [`Model`]: what the parts of a [`Cost`] take on a machine, by its [`Profile`].

use banyan_topo::{GpuFigures, GpuLinks, Message, Profile, SingleCopy, Way, fills};

use crate::segments::{self, Products};
use crate::shape::{PAGE, SCRATCH_IN_CACHE};
use crate::{Cost, Kind, LEVELS, SharedCaps, Topology};

/// What passes between two ranks takes, in seconds or seconds per byte.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Latency of a message.
    pub alpha: f64,
    /// Handling of a message whose latency is hidden behind that of others.
    pub overhead: f64,
    /// A byte of a message.
    pub beta: f64,
    /// Transfer of a cache line from the other rank's core, if both are on one node.
    pub transfer: f64,
}

impl Link {
    /// Of two links what takes longer.
    fn or_worse(&self, other: &Link) -> Link {
        Link {
            alpha: self.alpha.max(other.alpha),
            overhead: self.overhead.max(other.overhead),
            beta: self.beta.max(other.beta),
            transfer: self.transfer.max(other.transfer),
        }
    }
}

/// What the parts of a [`Cost`] take, in seconds or seconds per byte.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    /// By level, between ranks that are apart there: on two hosts, on two sockets, by two caches. At last, between ranks of which
    /// that is not known.
    pub links: [Link; LEVELS + 1],
    /// By the outermost level at which the ranks of a ring are apart, its narrowest link, where its order was chosen by links; else none: the links of a
    /// ring are those between any two.
    pub ring: Option<[Link; LEVELS + 1]>,
    /// A byte reduced.
    pub gamma: f64,
    /// A byte copied, within a core's cache or out of another's.
    pub copy: f64,
    /// A byte copied out of another core's cache, or over what is in one.
    pub copy_across: f64,
    /// A byte copied over what another core has read last, beside the copy.
    pub rewrite: f64,
    /// One more cache line, where what is published is in another one than the word that announces it.
    pub apart: f64,
    /// A single-copy get out of another process: the call.
    pub get: f64,
    /// A single-copy get out of another process: a byte.
    pub single_copy_byte: f64,
    /// A byte copied in memory.
    pub memory: f64,
    /// A byte got by single copy, beside that, where several ranks get it at a time.
    pub shared_byte: f64,
    /// A byte got by single copy, beside that, which its owner has just written: it comes out of that one's cache.
    pub fresh_byte: f64,
    /// A switch to another rank that shares the core.
    pub turn: f64,
    /// A page that is touched first since others had the core.
    pub cold_page: f64,
    /// Bytes of a core's last-level cache.
    pub cache: f64,
}

/// What it takes to publish and to look, beside the transfer of the cache line: on an EPYC with 0.055 us a line 0.1 us were taken, on
/// a Xeon with 0.135 us 0.18 were measured.
const LOOK: f64 = 0.045e-6;

/// A message of a schedule goes by way of a round, a key and the engine: so much longer it takes than a bare frame, and so much more of
/// its handling is not hidden by others. That is the work of a core, and does not grow with the distance between two. Measured: 0.93 us
/// (a dissemination barrier of 2 ranks) beside a frame of 0.21 on a Xeon, and 0.63 (an allreduce by doubling) beside 0.05 to 0.09 on an EPYC
/// of family 26.
const SCHEDULED: (f64, f64) = (0.6e-6, 0.14e-6);

/// A call that sends a block goes by rounds, one without messages by a plan that is compiled: beside what [`SCHEDULED`] says so much longer
/// it takes. On two ranks of a Xeon (model 207) a block of 32 KiB of a gatherv took 9.9 us by message, where the message alone takes 4.8, and the
/// root's own block 0.6.
const BY_ROUNDS: f64 = 2e-6;

/// In a round a rank sends and receives at a time, and through a ring its core copies both. Over a socket the kernel does.
const BOTH_WAYS: [f64; 2] = [2.0, 1.0];

/// A rank that gets its core back finds the caches with what others put there: so many times a bare yield. On 2 cores of a Xeon with
/// 1.0 the choice for a reduce of 4 KiB on 16 ranks took 100 us instead of 28, with 2.0 that for an allreduce of 8 KiB on 4 ranks
/// 16 us instead of 9.
const TURN: f64 = 1.25;

/// A rank that gets its core back touches so many cold pages for a message that it waited for, and for one whose latency others hide. On 16 ranks of an EPYC of
/// family 23, where such a page takes 0.028 us, a step of an allreduce by doubling took 5 us more than by the other figures, and a message of an alltoall by
/// `spread` 1.2. With cores to themselves ranks find what they touch where they left it.
const COLD_PAGES: (f64, f64) = (180.0, 43.0);

/// Bytes of a cache line.
const LINE: f64 = 64.0;
/// A core that writes over lines which another one has read has them one after the other, but for so many that are under way at a time: 8 ns
/// were measured for each where a line takes 55 ns from core to core, and 26 where it takes 230 (EPYC of family 25, model 17).
const LINES_AT_A_TIME: f64 = 8.0;

/// The least bytes of the shared scratch that are used, where there are as many.
const LEAST_SCRATCH: u64 = 256 << 10;

/// Seconds, or seconds per byte, of what is not done.
const NEVER: f64 = 1.0;

/// The most bytes of a block that goes by two copies where each rank has a core: of a longer one a message copies some pieces while
/// others are copied at the other end.
const LONGEST_COPIED: f64 = 262_144.0;
/// On more ranks than cores: the part of the last-level cache that the blocks of a root fill which are copied twice, so that they stay there on their
/// way. On an EPYC of family 23 a single copy is quicker from 256 KiB on 4 ranks, 100 on 8 and 64 on 16.
const ROOT_TWICE: f64 = 0.1;
/// The same of the blocks of all ranks, where all give all: from 200, 50 and 16 KiB.
const ALL_TWICE: f64 = 0.3;

/// The way that long messages of a collective take beside the ring, if that is quicker; the ring if there is none.
pub(crate) fn way_beside(kind: Kind, topology: &Topology) -> Way {
    // From the root or to it, or from the first of two ranks to the second.
    let one_way = kind.rooted() || kind == Kind::Exscan;
    match topology.shared {
        // A rank that reduces combines while the next message could come, which the ring lets it do and a single copy does not.
        Some(shared) if shared.single_copy && !kind.combines(topology.ranks) => {
            match one_way && !topology.crowded() {
                true => Way::Both,
                // The sender receives meanwhile, or shares its receiver's core.
                false => Way::Read,
            }
        }
        _ => Way::Ring,
    }
}

impl Default for Model {
    /// By the default profile, all ranks on one host.
    fn default() -> Model {
        Model::of(&Profile::default(), 1)
    }
}

impl Model {
    /// On machines with this profile, in a job on so many `hosts`: with one, what is between hosts is its loopback.
    pub fn of(profile: &Profile, hosts: u32) -> Model {
        // Over a socket both ends make a system call for a message. In shared memory messages of several ranks come by several rings, whose lines are not fetched ahead as those of a stream are.
        let link = |message: &Message, socket: usize, line: f64| Link {
            alpha: message.latency + SCHEDULED.0,
            overhead: if socket == 0 { message.overhead.max(line) } else { 2.0 * message.overhead }
                + SCHEDULED.1,
            beta: message.byte * BOTH_WAYS[socket],
            transfer: line + LOOK,
        };
        let [sockets, caches, near] = &profile.pairs;
        let far = if hosts > 1 { &profile.network } else { &profile.loopback };
        let [sockets, caches, close] = [sockets, caches, near].map(|pair| link(&pair.message, 0, pair.line));
        Model {
            links: [link(far, 1, profile.pairs[0].line), sockets, caches, close],
            ring: None,
            // One of two operands comes out of another core's cache, and half of what is copied does.
            gamma: profile.reduce + (near.copy - profile.copy) / 2.0,
            copy: (profile.copy + near.copy) / 2.0,
            copy_across: near.copy,
            rewrite: near.line / LINES_AT_A_TIME / LINE,
            apart: near.line,
            get: profile.system_call + profile.single_copy,
            single_copy_byte: near.single_copy,
            memory: profile.memory,
            // The kernel counts the users of each page while it copies, up and down again: the cache line goes from reader to reader.
            shared_byte: 2.0 * close.transfer / PAGE as f64,
            fresh_byte: (near.copy - profile.copy).max(0.0),
            turn: TURN * (profile.system_call + profile.turn),
            cold_page: profile.cold_page,
            cache: profile.last_level_cache,
        }
    }

    /// Bytes of the shared scratch that these ranks use: with a core for each as many as stay in the caches beside their own data.
    pub(crate) fn scratch(&self, topology: &Topology, shared: &SharedCaps) -> u64 {
        let part = (self.cache / f64::from(1 << 25)).min(1.0) * SCRATCH_IN_CACHE as f64;
        match topology.crowded() {
            true => shared.scratch,
            false => shared.scratch.min((part as u64).max(LEAST_SCRATCH)),
        }
    }

    /// Bytes of its own buffers that a rank reads and writes in a call, from which on what is copied there goes past the caches: those of all ranks that
    /// share a cache would fill it.
    pub(crate) fn past(&self, topology: &Topology) -> u64 {
        let ranks = topology.levels.iter().map(|level| level.largest).min().unwrap_or(1).max(1);
        fills(self.cache, ranks.into()) as u64
    }

    /// The same machine where the ranks' buffers are memory of GPUs, which copy from each other by these links: what messages take, and what is done to
    /// their bytes. Cache lines are the host's.
    #[must_use]
    pub fn on_gpus(&self, figures: &GpuFigures, gpus: &GpuLinks) -> Model {
        let link = |level: usize, message: &Message| {
            let host = &self.links[level];
            // Between hosts the network comes on top.
            let network = if level == 0 { (host.alpha, host.beta) } else { (0.0, 0.0) };
            Link {
                alpha: message.latency + SCHEDULED.0 + network.0,
                overhead: message.overhead + SCHEDULED.1,
                beta: message.byte.max(network.1),
                transfer: host.transfer,
            }
        };
        let links: [Link; LEVELS + 1] = std::array::from_fn(|level| link(level, &gpus.levels[level]));
        // One that goes over hosts is on each as it is there alone.
        let narrowest = |level: usize| match link(level, &gpus.ring) {
            ring if level == 0 => ring.or_worse(&links[0]),
            ring if level <= gpus.span => ring,
            _ => links[level],
        };
        Model {
            links,
            ring: Some(std::array::from_fn(narrowest)),
            gamma: figures.reduce,
            copy: figures.copy,
            // No processor reads a GPU's memory.
            get: NEVER,
            single_copy_byte: NEVER,
            // The host's memory has no part in it.
            memory: 0.0,
            ..*self
        }
    }

    /// A byte of a single copy of more than the caches hold.
    fn memory_byte(&self) -> f64 {
        self.memory.max(self.single_copy_byte)
    }

    /// The same for bytes that no cache holds.
    fn in_memory(&self) -> Model {
        Model {
            links: self.links.map(|link| Link { beta: link.beta.max(self.memory), ..link }),
            copy: self.copy.max(self.memory),
            copy_across: self.copy_across.max(self.memory),
            single_copy_byte: self.memory_byte(),
            ..*self
        }
    }

    /// The part of what a root that shares its core moves which comes from memory and goes there, through whatever it goes: the more of it the further it is
    /// beyond the size of its cache, a fifth at twice and two thirds at eight times, as caches do not drop all at once what no longer fits. Of what all
    /// read that is not so: it is in the caches when the second one reads it.
    fn part_in_memory(&self, cost: &Cost, topology: &Topology, kind: Kind) -> f64 {
        if !topology.crowded() || !kind.gathers_or_scatters() {
            return 0.0;
        }
        let by_root = cost.bytes + cost.copied + cost.published + cost.streamed;
        let by_each = cost.got_bytes + cost.put_bytes + cost.copied_by_each;
        let all = by_root.max(by_each * f64::from(topology.per_node()));
        ((all - self.cache) / (all + 3.0 * self.cache)).max(0.0)
    }

    /// What a message takes between any two of the ranks, in the mean. Where `all` send at a time, those of a host share the way
    /// to other hosts.
    fn link(&self, topology: &Topology, all: bool) -> Link {
        let mut far = self.links[topology.span()];
        if !topology.has_levels() {
            return far;
        }
        let (near, largest) = (self.link(&topology.members(), all), topology.groups().largest);
        if all && topology.span() == 0 {
            far.beta *= f64::from(largest);
        }
        let share = f64::from(largest - 1) / f64::from(topology.ranks - 1);
        let mean = |near: f64, far: f64| share * near + (1.0 - share) * far;
        Link {
            alpha: mean(near.alpha, far.alpha),
            overhead: mean(near.overhead, far.overhead),
            beta: mean(near.beta, far.beta),
            transfer: mean(near.transfer, far.transfer),
        }
    }

    /// By which pipelines of these ranks are cut.
    pub(crate) fn products(&self, topology: &Topology) -> Products {
        let link = self.link(topology, false);
        let scratch = segments::product(link.transfer, self.copy_across);
        Products { message: segments::product(link.alpha, link.beta), scratch }
    }

    /// Seconds that the bytes of messages take, of which so many `wait` for one another and `extra` ones do not: by the ring or by the way
    /// `beside` it, whichever is quicker. Where that is a single copy both ends wait to be told, after the announcement, which counts as a step.
    pub(crate) fn sent(&self, link: &Link, (wait, extra): (f64, f64), bytes: f64, beside: Way) -> f64 {
        let told = wait * link.alpha + extra * link.overhead;
        let by_single_copy = |copy: SingleCopy| {
            (copy.to_end - 1.0) * told
                + (wait + extra) * self.get
                + copy.share * self.got(wait + extra, bytes)
        };
        let by_ring = bytes * link.beta;
        beside.single_copy().map_or(by_ring, |copy| by_ring.min(by_single_copy(copy)))
    }

    /// Seconds that it takes to get so many bytes by single copy in so many calls, beside the calls themselves.
    pub(crate) fn got(&self, calls: f64, bytes: f64) -> f64 {
        let long = bytes > calls * SCRATCH_IN_CACHE as f64;
        bytes * if long { self.memory_byte() } else { self.single_copy_byte }
    }

    /// Seconds that it takes to copy a byte to where another rank copies it from, or from there. With a core for each rank the writer copies
    /// over what the reader has in its cache.
    pub(crate) fn copy_between(&self, topology: &Topology) -> f64 {
        if topology.crowded() { self.copy } else { self.copy_across }
    }

    /// The most bytes of a block that goes from one rank of a node to another sooner by two copies through shared memory, one after
    /// the other, than as a message.
    pub(crate) fn longest_copied(&self, kind: Kind, topology: &Topology) -> f64 {
        let (link, copy) = (self.link(topology, false), self.copy_between(topology));
        let until = |once: f64, byte: f64| match 2.0 * copy - byte {
            gain if gain > 0.0 => once / gain,
            _ => f64::INFINITY,
        };
        let ranks = f64::from(topology.ranks);
        let (by_rounds, most) = match topology.crowded() {
            true if kind.gathers_or_scatters() => (0.0, ROOT_TWICE * self.cache / ranks),
            true => (0.0, ALL_TWICE * self.cache / (ranks * ranks)),
            false => (BY_ROUNDS, LONGEST_COPIED),
        };
        let by_single_copy = |copy: SingleCopy| {
            until(by_rounds + copy.to_end * link.alpha + self.get, copy.share * self.single_copy_byte)
        };
        let by_message = way_beside(kind, topology).single_copy().map_or(f64::INFINITY, by_single_copy);
        until(by_rounds + link.alpha, link.beta).min(by_message).min(most)
    }

    /// Seconds that the cost of a collective takes on a communicator.
    pub fn time(&self, cost: &Cost, topology: &Topology, kind: Kind) -> f64 {
        let cached = self.time_in_caches(cost, topology, kind);
        match self.part_in_memory(cost, topology, kind) {
            0.0 => cached,
            part => (1.0 - part) * cached + part * self.in_memory().time_in_caches(cost, topology, kind),
        }
    }

    /// The same of data that caches hold: all ranks work as much as the slowest, or next to nothing beside the root.
    fn time_in_caches(&self, cost: &Cost, topology: &Topology, kind: Kind) -> f64 {
        let all = !kind.gathers_or_scatters();
        let link = match self.ring.filter(|_| cost.around) {
            Some(narrowest) => narrowest[topology.span()],
            None => self.link(topology, all),
        };
        // More ranks than cores take turns on a core: at each wait, and with work that all ranks have.
        let crowd = (f64::from(topology.per_node()) / f64::from(topology.cores.max(1))).max(1.0);
        // With a core for each rank what is written comes again only when other cores have let go of it.
        let elsewhere = 1.0 - 1.0 / f64::from(topology.cores.max(1));
        let turns = if crowd > 1.0 { cost.waits * crowd * self.turn } else { 0.0 };
        let latency = cost.steps * link.alpha + cost.transfers * link.transfer;
        let cold = (cost.steps * COLD_PAGES.0 + cost.extra * COLD_PAGES.1) * self.cold_page;
        let beside = if topology.one_node() { way_beside(kind, topology) } else { Way::Ring };
        let work = cost.extra * link.overhead
            + self.sent(&link, (cost.steps, cost.extra), cost.bytes, beside)
            + cost.reduced * self.gamma
            + cost.copied * self.copy
            + cost.published * self.copy_between(topology)
            + cost.streamed * self.copy_across
            + if crowd > 1.0 { cost.rewritten * self.rewrite * elsewhere + cold } else { 0.0 };
        let got = cost.gets * self.get
            + self.got(cost.gets, cost.got_bytes)
            + cost.shared_bytes * self.shared_byte
            + cost.fresh_bytes * self.fresh_byte;
        let given =
            cost.puts * self.get + cost.put_bytes * self.single_copy_byte + cost.copied_by_each * self.copy;
        // What is got in a scatter all ranks get.
        let by_all = |all: bool, time: f64| if all { time * crowd } else { time };
        let got = by_all(!matches!(kind, Kind::Gather | Kind::Gatherv), got);
        latency + turns + by_all(all, work) + got + by_all(true, given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Groups, Tuning};

    #[test]
    fn the_default_profile_gives_the_constants_that_algorithms_were_tuned_with() {
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} is not {b}");
        let model @ Model { links, gamma, copy, apart, get, single_copy_byte, .. } = Model::default();
        let between_hosts = Model::of(&Profile::default(), 2).links[0];
        let expected = [
            (4.6e-6, 2.14e-6, 3e9, 0.395e-6),
            (0.9e-6, 0.49e-6, 4e9, 0.395e-6),
            (0.87e-6, 0.44e-6, 4.4e9, 0.345e-6),
            (0.35e-6 / 3.0 + 0.6e-6, 0.195e-6, 9e9, 0.1e-6),
            (30e-6, 3.14e-6, 1.2e9, 0.395e-6),
        ];
        for (link, (alpha, overhead, bytes_a_second, transfer)) in
            links.into_iter().chain([between_hosts]).zip(expected)
        {
            near(link.alpha, alpha);
            near(link.overhead, overhead);
            near(link.beta, 1.0 / bytes_a_second);
            near(link.transfer, transfer);
        }
        near(gamma, 1.0 / 20e9);
        near(copy, 1.0 / 40e9);
        near(model.copy_across, 0.03e-9);
        near(model.rewrite, 0.055e-6 / 512.0);
        near(apart, 0.055e-6);
        near(get, 1e-6);
        near(single_copy_byte, 1.0 / 11e9);
        near(model.memory_byte(), 1.0 / 11e9);
        near(model.shared_byte, 0.2e-6 / 4096.0);
        near(model.turn, 1.6e-6);
    }

    /// Collective, bytes, hosts, ranks on each; the algorithm.
    type Choice = ((Kind, u64, u32, u32), &'static str);

    /// What is chosen on machines with this profile, for all collectives and many sizes, on one host and on several.
    fn choices(profile: &Profile) -> Vec<Choice> {
        let mut all = vec![];
        for (hosts, each, cores) in [(1, 2, 2), (1, 8, 2), (1, 16, 16), (8, 1, 1), (4, 4, 4)] {
            let assumed = Topology::assumed(hosts * each, hosts == 1, cores);
            let topology = Topology { levels: Groups::on_nodes(hosts, each), ..assumed };
            let tuning = Tuning { model: Model::of(profile, hosts), ..Tuning::default() };
            for (kind, bytes) in
                Kind::ALL.into_iter().flat_map(|(kind, _)| (3..25).map(move |i| (kind, 1u64 << i)))
            {
                all.push(((kind, bytes, hosts, each), tuning.explain(kind, bytes, &topology).chosen.name));
            }
        }
        all
    }

    /// What `mpirun --machine=measure` has found on an EPYC of family 26, while its two cores shared a cache and while they did not.
    fn measured() -> [Profile; 2] {
        let names = ["line", "copy_byte", "single_copy_byte", "latency", "overhead", "byte"];
        let near = [
            [6.3e-8, 1.1e-11, 6e-11, 5.5e-8, 8.5e-9, 2e-11],
            [3.28e-7, 2.73e-11, 9.1e-11, 2.355e-7, 3.3e-8, 3.28e-11],
        ];
        near.map(|near| {
            let near: Vec<_> = names.iter().map(|name| format!("near.{name}")).zip(near).collect();
            let others =
                [("turn", 1e-6), ("copy_byte", 8.4e-12), ("memory_byte", 4e-11), ("reduce_byte", 3e-11)];
            let near = near.iter().map(|(name, seconds)| (name.as_str(), *seconds));
            Profile::named("epyc").unwrap().with(others.into_iter().chain(near))
        })
    }

    /// Before the work of a schedule was added to a message, 127 of 780 choices on this machine were others, among them messages for 8 bytes, and
    /// took up to six times as long.
    #[test]
    fn what_is_measured_changes_no_choice_for_few_bytes() {
        let built_in = choices(&Profile::named("epyc").unwrap());
        for profile in measured() {
            let here = choices(&profile);
            // Ranks on the two cores of that machine.
            let is_here = |&((_, _, hosts, each), _): &Choice| hosts == 1 && each <= 8;
            let pairs = built_in.iter().zip(&here).filter(|(row, _)| is_here(row));
            let rows: Vec<_> = pairs.filter(|(row, here)| row != here).collect();
            let all = built_in.iter().filter(|row| is_here(row)).count();
            assert!(rows.iter().all(|row| row.0.0.1 >= 1024), "{rows:?}");
            assert!(rows.len() * 10 <= all, "{} of {all}: {rows:?}", rows.len());
        }
    }

    /// A rank that gets its core back for each message finds all that a message needs cold. By the profile that was measured on an EPYC of family 23, without
    /// that, scans of 32 KiB on 16 ranks went by messages, which took three times as long.
    #[test]
    fn ranks_that_share_cores_combine_short_vectors_without_messages() {
        let names = ["turn", "cold_page", "copy_byte", "memory_byte", "near.line", "near.copy_byte"];
        let figures = [1.5e-6, 3.4e-8, 2.7e-11, 1.9e-10, 1.09e-7, 3.5e-11];
        let rest = [("near.single_copy_byte", 8.8e-11), ("near.latency", 1.06e-7), ("near.byte", 4.5e-11)];
        let zen = Profile::named("zen").unwrap();
        let measured = zen.with(names.into_iter().zip(figures).chain(rest));
        for profile in [zen, measured, Profile::named("epyc").unwrap(), Profile::named("xeon").unwrap()] {
            let tuning = Tuning { model: Model::of(&profile, 1), ..Tuning::default() };
            for (kind, ranks) in [Kind::Scan, Kind::Exscan, Kind::Allreduce, Kind::Reduce]
                .into_iter()
                .flat_map(|kind| [4, 8, 16].map(|ranks| (kind, ranks)))
            {
                for bytes in (3..=16).map(|i| 1u64 << i) {
                    let chosen = tuning.explain(kind, bytes, &Topology::assumed(ranks, true, 2)).chosen;
                    assert_ne!(
                        chosen.needs,
                        crate::Needs::Messages,
                        "{chosen:?}: {bytes} bytes, {ranks} ranks"
                    );
                }
            }
        }
    }

    /// In several chunks each byte would be written over what another core has read, which takes three times as long where two cores share no cache.
    #[test]
    fn what_is_longer_than_a_chunk_goes_by_single_copy_where_ranks_share_cores() {
        let [quick, slow] = measured();
        for profile in [quick, slow, Profile::named("epyc").unwrap()] {
            let tuning = Tuning { model: Model::of(&profile, 1), ..Tuning::default() };
            let chosen = |kind, bytes, ranks| {
                tuning.explain(kind, bytes, &Topology::assumed(ranks, true, 2)).chosen.name
            };
            for (bytes, ranks) in [(1 << 20, 4), (4 << 20, 16)] {
                let name = chosen(Kind::Scatter, bytes, ranks);
                assert_eq!(name, "single_copy", "scatter, {bytes} bytes, {ranks} ranks");
            }
            // By messages that the receiver reads, or without.
            assert_ne!(chosen(Kind::Alltoall, 1 << 20, 16), "scratch_pipeline");
            assert_eq!(chosen(Kind::Scatter, 32 << 10, 4), "scratch_pipeline");
            assert_eq!(chosen(Kind::Alltoall, 32 << 10, 4), "scratch_pipeline");
        }
    }

    /// All ranks' copies into the scratch take the root's core, too, before it copies out. On an EPYC of family 25 (model 1) gathers of 4 MiB on 16 ranks
    /// took 25 ms by the scratch, and take 12.
    #[test]
    fn a_long_gather_goes_by_single_copy_where_many_ranks_share_cores() {
        for profile in ["zen3", "epyc"].map(|name| Profile::named(name).unwrap()) {
            let tuning = Tuning { model: Model::of(&profile, 1), ..Tuning::default() };
            let chosen = |bytes, ranks| {
                tuning.explain(Kind::Gather, bytes, &Topology::assumed(ranks, true, 2)).chosen.name
            };
            assert_eq!([chosen(4 << 20, 16), chosen(256 << 10, 4)], ["single_copy", "scratch_pipeline"]);
        }
    }

    #[test]
    fn segments_and_pieces_follow_from_the_profile() {
        let [epyc, xeon] = ["epyc", "xeon"].map(|name| Profile::named(name).unwrap());
        // Cores that share no cache, as they are on an EPYC now and then.
        let apart = epyc.with([("near.line", 0.33e-6), ("near.latency", 2e-6)]);
        let topology = Topology::assumed(4, true, 4);
        let rounds = |profile: &Profile, kind: Kind, name: &str| {
            let mut shape = crate::Shape { kind, ranks: 4, len: 1 << 17, unit: 8, ..crate::Shape::NOTHING };
            shape.on(&topology, &Model::of(profile, 1));
            let row = crate::of_kind(kind).find(|row| row.name == name).unwrap();
            row.rounds(&shape)
        };
        let mut all = vec![];
        for (kind, name) in [
            (Kind::Bcast, "scratch_pipeline"),
            (Kind::Scan, "scratch_chain"),
            (Kind::Bcast, "chain"),
            (Kind::Scan, "chain"),
        ] {
            let [near, far] = [&epyc, &apart].map(|profile| rounds(profile, kind, name));
            assert!(near > far, "{kind:?} by {name}: {near} rounds, with a larger latency {far}");
            all.push(near == rounds(&xeon, kind, name));
        }
        assert!(all.contains(&false), "nothing differs between an EPYC and a Xeon");
    }

    #[test]
    fn on_unlike_machines_other_algorithms_are_chosen() {
        let [epyc, xeon] = ["epyc", "xeon"].map(|name| Profile::named(name).unwrap());
        // A sandbox that looks at each system call.
        let dear = xeon.with([("system_call", 500e-6)]);
        let [on_epyc, on_xeon, on_dear] = [epyc, xeon, dear].map(|profile| choices(&profile));
        let single_copies =
            |choices: &[(_, &str)]| choices.iter().filter(|row| row.1 == "single_copy").count();
        for (one, other) in [(&on_epyc, &on_xeon), (&on_xeon, &on_dear), (&on_epyc, &on_dear)] {
            assert!(one.iter().zip(other).filter(|(one, other)| one != other).count() >= 20);
        }
        // On the Xeon two ranks that copy a half each, without shared memory between them, are quicker than a second copy; not so on
        // the EPYC, and not where system calls are dear.
        let bcast = |choices: &[Choice]| {
            choices.iter().find(|row| row.0 == (Kind::Bcast, 1 << 18, 1, 2)).map(|row| row.1)
        };
        assert_eq!(bcast(&on_epyc), Some("scratch_pipeline"));
        assert_eq!(bcast(&on_xeon), Some("binomial"));
        assert_eq!(bcast(&on_dear), Some("scratch_pipeline"));
        assert!(single_copies(&on_dear) < single_copies(&on_xeon));
    }
}
