//! Mapping and binding of ranks, by one rule: ranks are mapped to the units of one kind, in turn or so many to each. A rank
//! that is bound to a smaller kind of unit gets the next one inside its unit; to a larger kind, the one around its unit.

use crate::cpus::CpuSet;
use crate::machine::{Cpu, Machine};

/// A part of the machine, smallest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// A core with its hardware threads.
    Core,
    /// A NUMA node.
    Node,
    /// A socket (physical package).
    Socket,
    /// All of the machine.
    Machine,
}

/// How ranks are mapped, and what they are bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Ranks are mapped to the units of this kind.
    pub map_by: Unit,
    /// Each rank is bound to a unit of this kind.
    pub bind_to: Unit,
    /// Each unit gets so many neighbouring ranks (at least 1); `None`: each unit gets one rank in turn.
    pub each: Option<u32>,
    /// A rank that is bound to cores gets so many of them (at least 1).
    pub cores: u32,
}

impl Mapping {
    /// Maps one rank to each unit in turn.
    pub fn in_turn(map_by: Unit, bind_to: Unit) -> Mapping {
        Mapping { map_by, bind_to, each: None, cores: 1 }
    }
}

impl Unit {
    /// Equal for CPUs that are in one unit of this kind.
    fn key(self, cpu: &Cpu) -> (u32, u32, u32) {
        match self {
            Unit::Core => (cpu.socket, cpu.node, cpu.core),
            Unit::Node => (u32::MAX, cpu.node, u32::MAX),
            Unit::Socket => (cpu.socket, u32::MAX, u32::MAX),
            Unit::Machine => (u32::MAX, u32::MAX, u32::MAX),
        }
    }

    /// How many units of this kind `machine` has.
    pub fn count(self, machine: &Machine) -> usize {
        self.split(machine.cpus()).len()
    }

    /// The units of this kind, each with its CPUs, in the order of their first CPU.
    pub(crate) fn split(self, cpus: &[Cpu]) -> Vec<Vec<Cpu>> {
        let mut units: Vec<((u32, u32, u32), Vec<Cpu>)> = Vec::new();
        for cpu in cpus {
            let key = self.key(cpu);
            match units.iter_mut().find(|(unit, _)| *unit == key) {
                Some((_, members)) => members.push(*cpu),
                None => units.push((key, vec![*cpu])),
            }
        }
        units.into_iter().map(|(_, members)| members).collect()
    }
}

/// The CPUs of each of `ranks` ranks that are mapped and bound as `mapping` says. When all units have their ranks, mapping
/// begins again with the first unit. Empty if the machine has no CPU.
pub fn place(machine: &Machine, mapping: &Mapping, ranks: u32) -> Vec<CpuSet> {
    // Several cores for each rank are not inside one core: they are counted off over the whole machine.
    let map_by = match mapping.map_by {
        Unit::Core if mapping.cores > 1 => Unit::Machine,
        other => other,
    };
    let units = map_by.split(machine.cpus());
    if units.is_empty() {
        return Vec::new();
    }
    let targets: Vec<Vec<CpuSet>> =
        units.iter().map(|unit| targets(machine, unit, map_by, mapping)).collect();
    let cpus_of = |rank: usize| {
        let (unit, turn) = match mapping.each.map(|each| each.max(1) as usize) {
            Some(each) => (rank / each, rank / (each * units.len()) * each + rank % each),
            None => (rank, rank / units.len()),
        };
        let targets = &targets[unit % units.len()];
        targets[turn % targets.len()].clone()
    };
    (0..ranks as usize).map(cpus_of).collect()
}

/// The CPUs of each of `ranks` ranks that share the machine's cores evenly: the `parts` in which the neighbouring cores are that
/// are its share. Where there are fast and slow cores, and a fast one for each rank, each gets its share of either. Empty if there is
/// nothing to share: one rank, or more ranks than cores.
pub fn share(machine: &Machine, ranks: u32, parts: Unit) -> Vec<CpuSet> {
    let cores = Unit::Core.split(machine.cpus());
    let ranks = ranks as usize;
    if ranks <= 1 || ranks > cores.len() {
        return Vec::new();
    }
    let (slow, fast): (Vec<_>, Vec<_>) = cores.iter().cloned().partition(|core| machine.is_slow(core[0].id));
    let kinds = if ranks <= fast.len() { vec![fast, slow] } else { vec![cores] };
    let own = |rank: usize| {
        let of = |kind: &Vec<Vec<Cpu>>| {
            let first = |rank: usize| rank * kind.len() / ranks;
            kind[first(rank)..first(rank + 1)].concat()
        };
        kinds.iter().flat_map(of).collect::<Vec<Cpu>>()
    };
    let around = |own: Vec<Cpu>| {
        let touched = |cpu: &&Cpu| own.iter().any(|own| parts.key(own) == parts.key(cpu));
        machine.cpus().iter().filter(touched).map(|cpu| cpu.id).collect()
    };
    (0..ranks).map(own).map(around).collect()
}

/// What the ranks of one unit are bound to, in turn.
fn targets(machine: &Machine, unit: &[Cpu], map_by: Unit, mapping: &Mapping) -> Vec<CpuSet> {
    let bind_to = mapping.bind_to;
    if bind_to <= map_by {
        let parts = bind_to.split(unit);
        let cores = if bind_to == Unit::Core { mapping.cores.max(1) as usize } else { 1 };
        // Cores that are left over at the end of a unit stay free.
        let whole = (parts.len() / cores).max(1);
        return parts.chunks(cores).take(whole).map(|parts| ids(&parts.concat())).collect();
    }
    let around = bind_to.key(&unit[0]);
    vec![machine.cpus().iter().filter(|cpu| bind_to.key(cpu) == around).map(|cpu| cpu.id).collect()]
}

/// Where a rank is that is bound: the numbers of a socket and of a last-level cache. Ranks that may come to use the same one have the
/// same number, and so have ranks that may come to use one with a third rank.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bound {
    /// 0 for all ranks that may use the first one's sockets.
    pub socket: u32,
    /// 0 for all ranks that may use the first one's last-level caches.
    pub cache: u32,
}

/// Where each of the ranks is that are bound to these CPUs.
pub fn bound(machine: &Machine, ranks: &[CpuSet]) -> Vec<Bound> {
    let sockets: Vec<CpuSet> = Unit::Socket.split(machine.cpus()).iter().map(|cpus| ids(cpus)).collect();
    let mut caches: Vec<CpuSet> = vec![];
    for cpu in ranks.iter().flat_map(CpuSet::iter) {
        if !caches.iter().any(|cpus| cpus.contains(cpu)) {
            caches.push(machine.last_level_cache(cpu));
        }
    }
    let [sockets, caches] = [sockets, caches].map(|parts| groups(&parts, ranks));
    sockets.into_iter().zip(caches).map(|(socket, cache)| Bound { socket, cache }).collect()
}

/// By rank, the number of the group that it is in: ranks that may use the same of the `parts` are in one group.
fn groups(parts: &[CpuSet], ranks: &[CpuSet]) -> Vec<u32> {
    // By part, the group of those who may use it.
    let mut group: Vec<u32> = (0..).take(parts.len()).collect();
    let touched = |cpus: &CpuSet| {
        let touched = |part: &usize| parts[*part].iter().any(|cpu| cpus.contains(cpu));
        (0..parts.len()).filter(touched).collect::<Vec<_>>()
    };
    let touched: Vec<Vec<usize>> = ranks.iter().map(touched).collect();
    for own in &touched {
        let joined: Vec<u32> = own.iter().map(|&part| group[part]).collect();
        let Some(&least) = joined.iter().min() else { continue };
        group.iter_mut().filter(|group| joined.contains(group)).for_each(|group| *group = least);
    }
    touched.iter().map(|own| own.first().map_or(0, |&part| group[part])).collect()
}

fn ids(cpus: &[Cpu]) -> CpuSet {
    cpus.iter().map(|cpu| cpu.id).collect()
}
