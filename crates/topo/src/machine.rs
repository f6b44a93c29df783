//! [`Machine`]: cores, sockets, NUMA nodes and caches, from `/sys`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::cpus::CpuSet;

/// Most bytes read of any file below `/sys`.
const MAX_FILE: u64 = 16 << 10;

/// Most kinds of caches that a CPU has: of instructions, and of data on three levels.
const MOST_KINDS: u32 = 4;

/// Most caches looked at per CPU.
const MAX_CACHES: u32 = 16;

/// A CPU (hardware thread), and the core, NUMA node and socket that it is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cpu {
    /// The kernel's number.
    pub id: u32,
    /// Socket (physical package).
    pub socket: u32,
    /// NUMA node.
    pub node: u32,
    /// Core, numbered within its socket by the hardware; CPUs that share it are hyperthreads.
    pub core: u32,
}

/// A cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cache {
    /// 1, 2, 3...
    pub level: u32,
    /// Bytes.
    pub bytes: u64,
    /// The CPUs that share it.
    pub cpus: CpuSet,
}

/// The CPUs that this process may use, sorted by socket, node, core and number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    cpus: Vec<Cpu>,
}

impl Machine {
    /// Reads what `/sys` tells about the CPUs of this process's affinity mask.
    pub fn read() -> Machine {
        Machine::read_from(Path::new("/sys/devices/system"), &CpuSet::allowed())
    }

    /// Reads below `root` (which stands for `/sys/devices/system`). Where files are missing, there is one socket with
    /// one node, and each CPU is a core.
    pub fn read_from(root: &Path, allowed: &CpuSet) -> Machine {
        let nodes = numa_nodes(root);
        let mut cpus: Vec<Cpu> = allowed
            .iter()
            .map(|id| {
                let topology = root.join(format!("cpu/cpu{id}/topology"));
                Cpu {
                    id,
                    socket: number(&topology.join("physical_package_id")).unwrap_or(0),
                    core: number(&topology.join("core_id")).unwrap_or(id),
                    node: nodes.iter().find(|(_, cpus)| cpus.contains(id)).map_or(0, |&(node, _)| node),
                }
            })
            .collect();
        cpus.sort_by_key(|cpu| (cpu.socket, cpu.node, cpu.core, cpu.id));
        Machine { cpus }
    }

    /// A machine made of these CPUs.
    pub fn of(mut cpus: Vec<Cpu>) -> Machine {
        cpus.sort_by_key(|cpu| (cpu.socket, cpu.node, cpu.core, cpu.id));
        Machine { cpus }
    }

    /// The CPUs, sorted by socket, node, core and number.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The data and unified caches of `cpu`, nearest first.
    pub fn caches(cpu: u32) -> Vec<Cache> {
        Machine::caches_from(Path::new("/sys/devices/system"), cpu)
    }

    /// The CPUs that share the last-level cache of `cpu`; itself alone if that is not known.
    pub(crate) fn last_level_cache(cpu: u32) -> CpuSet {
        let folder = Path::new("/sys/devices/system/cpu").join(format!("cpu{cpu}/cache"));
        let read = |index: u32| text(&folder.join(format!("index{index}/shared_cpu_list")))?.parse().ok();
        (0..MOST_KINDS).rev().find_map(read).unwrap_or_else(|| [cpu].into_iter().collect())
    }

    /// The caches of `cpu` like [`Machine::caches`], read below `root`.
    pub fn caches_from(root: &Path, cpu: u32) -> Vec<Cache> {
        let folder = root.join(format!("cpu/cpu{cpu}/cache"));
        let read = |index: u32| {
            let index = folder.join(format!("index{index}"));
            let data = text(&index.join("type"))?.trim() != "Instruction";
            let cache = Cache {
                level: number(&index.join("level"))?,
                bytes: size(&text(&index.join("size"))?)?,
                cpus: text(&index.join("shared_cpu_list"))?.parse().ok()?,
            };
            data.then_some(cache)
        };
        let mut caches: Vec<Cache> = (0..MAX_CACHES).filter_map(read).collect();
        caches.sort_by_key(|cache| cache.level);
        caches
    }
}

fn numa_nodes(root: &Path) -> Vec<(u32, CpuSet)> {
    let online = text(&root.join("node/online")).and_then(|text| text.parse::<CpuSet>().ok());
    let read = |node: u32| {
        let list = text(&root.join(format!("node/node{node}/cpulist")))?;
        Some((node, list.parse().ok()?))
    };
    online.unwrap_or_default().iter().filter_map(read).collect()
}

pub(crate) fn text(path: &Path) -> Option<String> {
    // Room for nearly all of them, so that one read is enough.
    let mut text = String::with_capacity(1 << 10);
    File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

fn number(path: &Path) -> Option<u32> {
    text(path)?.trim().parse().ok()
}

/// Reads a cache's size: `32K`, `4M` or plain bytes.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("32K\n"), Some(32 << 10));
        assert_eq!(size("4M"), Some(4 << 20));
        assert_eq!(size("1G"), Some(1 << 30));
        assert_eq!(size("100"), Some(100));
        for bad in ["", "K", "x", "-1K", "99999999999999999999", "18446744073709551615G"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = Machine::read();
        assert_eq!(machine.cpus().len(), CpuSet::allowed().len());
        assert!(!machine.cpus().is_empty());
        for cache in Machine::caches(machine.cpus()[0].id) {
            assert!(cache.bytes > 0 && !cache.cpus.is_empty());
        }
    }

    #[test]
    fn a_bare_sys_is_one_socket_of_single_cores() {
        let machine = Machine::read_from(Path::new("/nonexistent"), &"2-3".parse().unwrap());
        let cpu = |id| Cpu { id, socket: 0, node: 0, core: id };
        assert_eq!(machine.cpus(), [cpu(2), cpu(3)]);
    }
}
