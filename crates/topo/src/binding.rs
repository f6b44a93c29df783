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
/// are its share. Empty if there is nothing to share: one rank, or more ranks than cores.
pub fn share(machine: &Machine, ranks: u32, parts: Unit) -> Vec<CpuSet> {
    let cores = Unit::Core.split(machine.cpus());
    let ranks = ranks as usize;
    if ranks <= 1 || ranks > cores.len() {
        return Vec::new();
    }
    let first = |rank: usize| rank * cores.len() / ranks;
    let around = |cores: &[Vec<Cpu>]| {
        let touched = |cpu: &&Cpu| cores.iter().flatten().any(|own| parts.key(own) == parts.key(cpu));
        machine.cpus().iter().filter(touched).map(|cpu| cpu.id).collect()
    };
    (0..ranks).map(|rank| around(&cores[first(rank)..first(rank + 1)])).collect()
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

/// Where a rank is that is bound: the numbers of a socket and of a last-level cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bound {
    /// 0 for all ranks, unless each of them is bound to one socket.
    pub socket: u32,
    /// 0 for all ranks, unless each of them is bound to one last-level cache.
    pub cache: u32,
}

/// Where each of the ranks is that are bound to these CPUs.
pub fn bound(machine: &Machine, ranks: &[CpuSet]) -> Vec<Bound> {
    bound_by(machine, ranks, Machine::last_level_cache)
}

/// As [`bound`]; `cache` are the CPUs that share the last-level cache of a CPU.
fn bound_by(machine: &Machine, ranks: &[CpuSet], cache: impl Fn(u32) -> CpuSet) -> Vec<Bound> {
    let sockets: Vec<CpuSet> = Unit::Socket.split(machine.cpus()).iter().map(|cpus| ids(cpus)).collect();
    let mut caches: Vec<CpuSet> = vec![];
    for cpu in ranks.iter().filter_map(|cpus| cpus.iter().next()) {
        if !caches.iter().any(|cpus| cpus.contains(cpu)) {
            caches.push(cache(cpu));
        }
    }
    let [sockets, caches] = [sockets, caches].map(|parts| {
        let part = |cpus: &CpuSet| parts.iter().position(|part| cpus.iter().all(|cpu| part.contains(cpu)));
        let parts: Option<Vec<usize>> = ranks.iter().map(part).collect();
        parts.unwrap_or_else(|| vec![0; ranks.len()])
    });
    sockets
        .into_iter()
        .zip(caches)
        .map(|(socket, cache)| Bound { socket: socket as u32, cache: cache as u32 })
        .collect()
}

fn ids(cpus: &[Cpu]) -> CpuSet {
    cpus.iter().map(|cpu| cpu.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of four cores, of which two each share a cache.
    fn machine() -> Machine {
        Machine::of((0..8).map(|id| Cpu { id, socket: id / 4, node: 0, core: id }).collect())
    }

    fn bound_to(lists: &[&str]) -> Vec<(u32, u32)> {
        let ranks: Vec<CpuSet> = lists.iter().map(|list| list.parse().unwrap()).collect();
        let cache = |cpu: u32| (cpu / 2 * 2..cpu / 2 * 2 + 2).collect();
        bound_by(&machine(), &ranks, cache).iter().map(|bound| (bound.socket, bound.cache)).collect()
    }

    #[test]
    fn ranks_are_where_they_are_bound() {
        assert_eq!(bound_to(&["0", "1", "2", "6-7"]), [(0, 0), (0, 0), (0, 1), (1, 2)]);
        // The second rank may use two caches, and the third both sockets.
        assert_eq!(bound_to(&["0", "4-7"]), [(0, 0), (1, 0)]);
        assert_eq!(bound_to(&["0", "7", "3-4"]), [(0, 0); 3]);
        assert_eq!(bound_to(&[]), []);
        let shared = share(&machine(), 4, Unit::Core);
        let sockets: Vec<u32> = bound(&machine(), &shared).iter().map(|bound| bound.socket).collect();
        assert_eq!(sockets, [0, 0, 1, 1]);
    }
}
