//! Where ranks go, by one rule: rank `i` goes to unit `i mod units` of the kind to map by; if it is bound to
//! something smaller, to the next one inside that unit; if to something larger, to the one around it.

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
}

impl Unit {
    fn key(self, cpu: &Cpu) -> (u32, u32, u32) {
        match self {
            Unit::Core => (cpu.socket, cpu.node, cpu.core),
            Unit::Node => (u32::MAX, cpu.node, u32::MAX),
            Unit::Socket => (cpu.socket, u32::MAX, u32::MAX),
        }
    }

    /// The units of this kind, each with its CPUs, in the order of their first CPU.
    fn split(self, cpus: &[Cpu]) -> Vec<Vec<Cpu>> {
        let mut units: Vec<((u32, u32, u32), Vec<Cpu>)> = Vec::new();
        for cpu in cpus {
            let key = self.key(cpu);
            match units.iter_mut().find(|(known, _)| *known == key) {
                Some((_, members)) => members.push(*cpu),
                None => units.push((key, vec![*cpu])),
            }
        }
        units.into_iter().map(|(_, members)| members).collect()
    }
}

/// The CPUs of each of `ranks` ranks that are dealt out over the units `map_by` and bound to a unit `bind_to`.
/// More ranks than units share them in turn. Empty if the machine has no CPU.
pub fn place(machine: &Machine, map_by: Unit, bind_to: Unit, ranks: u32) -> Vec<CpuSet> {
    let units = map_by.split(machine.cpus());
    if units.is_empty() {
        return Vec::new();
    }
    let targets: Vec<Vec<CpuSet>> =
        units.iter().map(|unit| targets(machine, unit, map_by, bind_to)).collect();
    let place = |rank: u32| {
        let targets = &targets[rank as usize % targets.len()];
        targets[rank as usize / units.len() % targets.len()].clone()
    };
    (0..ranks).map(place).collect()
}

/// The CPUs of each of `ranks` ranks that have the machine's cores to themselves, an even share of neighbours each.
/// Empty if there is nothing to share out: one rank, or more ranks than cores.
pub fn share(machine: &Machine, ranks: u32) -> Vec<CpuSet> {
    let cores = Unit::Core.split(machine.cpus());
    let ranks = ranks as usize;
    if ranks <= 1 || ranks > cores.len() {
        return Vec::new();
    }
    let first = |rank: usize| rank * cores.len() / ranks;
    (0..ranks)
        .map(|rank| cores[first(rank)..first(rank + 1)].iter().flatten().map(|cpu| cpu.id).collect())
        .collect()
}

/// What the ranks of one unit are bound to, in turn.
fn targets(machine: &Machine, unit: &[Cpu], map_by: Unit, bind_to: Unit) -> Vec<CpuSet> {
    let ids = |cpus: &[Cpu]| cpus.iter().map(|cpu| cpu.id).collect::<CpuSet>();
    if bind_to <= map_by {
        return bind_to.split(unit).iter().map(|part| ids(part)).collect();
    }
    let around = bind_to.key(&unit[0]);
    vec![machine.cpus().iter().filter(|cpu| bind_to.key(cpu) == around).map(|cpu| cpu.id).collect()]
}
