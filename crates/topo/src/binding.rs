//! Where ranks go, by one rule: ranks are dealt out over the units of the kind to map by, in turn or so many to each;
//! a rank that is bound to something smaller has the next one inside its unit; to something larger, the one around it.

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

/// How ranks are dealt out and what they are bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deal {
    /// Ranks are dealt out over the units of this kind.
    pub map_by: Unit,
    /// Each rank is bound to a unit of this kind.
    pub bind_to: Unit,
    /// So many neighbouring ranks to each unit (at least 1); `None`: to each unit one rank in turn.
    pub each: Option<u32>,
    /// A rank that is bound to cores has so many of them (at least 1).
    pub cores: u32,
}

impl Deal {
    /// One rank to each unit in turn.
    pub fn in_turn(map_by: Unit, bind_to: Unit) -> Deal {
        Deal { map_by, bind_to, each: None, cores: 1 }
    }
}

impl Unit {
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
            match units.iter_mut().find(|(known, _)| *known == key) {
                Some((_, members)) => members.push(*cpu),
                None => units.push((key, vec![*cpu])),
            }
        }
        units.into_iter().map(|(_, members)| members).collect()
    }
}

/// The CPUs of each of `ranks` ranks that are dealt out and bound as `deal` says. When all units have their ranks it
/// begins again with the first. Empty if the machine has no CPU.
pub fn place(machine: &Machine, deal: &Deal, ranks: u32) -> Vec<CpuSet> {
    // Several cores for each rank do not lie in one core: they are counted off over the whole machine.
    let map_by = match deal.map_by {
        Unit::Core if deal.cores > 1 => Unit::Machine,
        other => other,
    };
    let units = map_by.split(machine.cpus());
    if units.is_empty() {
        return Vec::new();
    }
    let targets: Vec<Vec<CpuSet>> = units.iter().map(|unit| targets(machine, unit, map_by, deal)).collect();
    let place = |rank: usize| {
        let (unit, turn) = match deal.each.map(|each| each.max(1) as usize) {
            Some(each) => (rank / each, rank / (each * units.len()) * each + rank % each),
            None => (rank, rank / units.len()),
        };
        let targets = &targets[unit % units.len()];
        targets[turn % targets.len()].clone()
    };
    (0..ranks as usize).map(place).collect()
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
fn targets(machine: &Machine, unit: &[Cpu], map_by: Unit, deal: &Deal) -> Vec<CpuSet> {
    let ids = |cpus: &[Cpu]| cpus.iter().map(|cpu| cpu.id).collect::<CpuSet>();
    let bind_to = deal.bind_to;
    if bind_to <= map_by {
        let parts = bind_to.split(unit);
        let cores = if bind_to == Unit::Core { deal.cores.max(1) as usize } else { 1 };
        // What is left over at the end of a unit stays free.
        let whole = (parts.len() / cores).max(1);
        return parts.chunks(cores).take(whole).map(|parts| ids(&parts.concat())).collect();
    }
    let around = bind_to.key(&unit[0]);
    vec![machine.cpus().iter().filter(|cpu| bind_to.key(cpu) == around).map(|cpu| cpu.id).collect()]
}
