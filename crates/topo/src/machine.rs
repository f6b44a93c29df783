//! [`Machine`]: cores, sockets, NUMA nodes and caches, from `/sys`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::cpus::CpuSet;

/// Where Linux describes the machine.
pub(crate) const SYSTEM: &str = "/sys/devices/system";

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
    /// Core, by the number of its first CPU; CPUs that share it are hyperthreads.
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

/// Reads a file of a machine's description; nothing if there is none.
pub type Reader = fn(&Path) -> Option<String>;

/// The CPUs that this process may use, and where more is to be read of them.
#[derive(Clone, Debug)]
pub struct Machine {
    read: Reader,
    root: PathBuf,
    cpus: Vec<Cpu>,
    /// Those of slow cores, on a machine that has fast ones as well.
    slow: CpuSet,
}

impl Machine {
    /// Reads what `/sys` tells about the CPUs of this process's affinity mask.
    pub fn read() -> Machine {
        Machine::read_from(text, Path::new(SYSTEM), &CpuSet::allowed())
    }

    /// Reads below `root` (which stands for `/sys/devices/system`). Where files are missing, there is one socket with
    /// one node, and each CPU is a core.
    pub fn read_from(read: Reader, root: &Path, allowed: &CpuSet) -> Machine {
        let mut machine = Machine { read, root: root.to_owned(), cpus: vec![], slow: CpuSet::default() };
        let nodes = numa_nodes(read, root);
        let cpu = |id| {
            let of = |name: &str| format!("cpu/cpu{id}/topology/{name}");
            // The second name is that of kernels before 5.3. The number in `core_id` begins anew in each cluster of some processors.
            let siblings =
                ["core_cpus_list", "thread_siblings_list"].iter().find_map(|name| machine.list(&of(name)));
            Cpu {
                id,
                socket: machine.number(&of("physical_package_id")).unwrap_or(0),
                core: siblings.and_then(|cpus| cpus.iter().next()).unwrap_or(id),
                node: nodes.iter().find(|(_, cpus)| cpus.contains(id)).map_or(0, |&(node, _)| node),
            }
        };
        machine.cpus = allowed.iter().map(cpu).collect();
        machine.slow = machine.slow();
        machine.sorted()
    }

    /// A machine made of these CPUs, of whose caches nothing is known.
    pub fn of(cpus: Vec<Cpu>) -> Machine {
        Machine { read: |_| None, root: PathBuf::new(), cpus, slow: CpuSet::default() }.sorted()
    }

    fn sorted(mut self) -> Machine {
        let slow = &self.slow;
        self.cpus.sort_by_key(|cpu| (cpu.socket, cpu.node, slow.contains(cpu.id), cpu.core, cpu.id));
        self
    }

    fn text(&self, path: &str) -> Option<String> {
        (self.read)(&self.root.join(path))
    }

    fn number(&self, path: &str) -> Option<u32> {
        self.text(path)?.trim().parse().ok()
    }

    fn list(&self, path: &str) -> Option<CpuSet> {
        self.text(path)?.parse().ok()
    }

    /// The CPUs that Linux calls Atom beside others on an Intel processor, or that have at most half the capacity of the fastest one,
    /// which only processors with several kinds of cores have, and none of x86 without Atoms. None if all are.
    fn slow(&self) -> CpuSet {
        let ids = || self.cpus.iter().map(|cpu| cpu.id);
        let slow: CpuSet = match self.list("../cpu_atom/cpus") {
            Some(atoms) => ids().filter(|&cpu| atoms.contains(cpu)).collect(),
            // Each of these files is a look of some microseconds, at each start of a job.
            None if cfg!(target_arch = "x86_64") && self.root == Path::new(SYSTEM) => CpuSet::default(),
            None => {
                let capacity = |cpu| Some((cpu, self.number(&format!("cpu/cpu{cpu}/cpu_capacity"))?));
                let capacities: Vec<(u32, u32)> = ids().map_while(capacity).collect();
                let most = capacities.iter().map(|(_, capacity)| *capacity).max().unwrap_or(0);
                capacities.iter().filter(|(_, capacity)| *capacity <= most / 2).map(|(cpu, _)| *cpu).collect()
            }
        };
        if slow.len() < self.cpus.len() { slow } else { CpuSet::default() }
    }

    /// The CPUs, sorted by socket, node, core and number; the slow cores of a node come after its fast ones.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// True if `cpu` is part of a slow core, on a machine that has fast ones as well.
    pub fn is_slow(&self, cpu: u32) -> bool {
        self.slow.contains(cpu)
    }

    /// The CPUs that share the last-level cache of `cpu`; itself alone if that is not known.
    pub fn last_level_cache(&self, cpu: u32) -> CpuSet {
        let read = |index: u32| self.list(&format!("cpu/cpu{cpu}/cache/index{index}/shared_cpu_list"));
        (0..MOST_KINDS).rev().find_map(read).unwrap_or_else(|| [cpu].into_iter().collect())
    }

    /// The data and unified caches of `cpu`, nearest first.
    pub fn caches(&self, cpu: u32) -> Vec<Cache> {
        let read = |index: u32| {
            let of = |name: &str| format!("cpu/cpu{cpu}/cache/index{index}/{name}");
            let data = self.text(&of("type"))?.trim() != "Instruction";
            let cache = Cache {
                level: self.number(&of("level"))?,
                bytes: size(&self.text(&of("size"))?)?,
                cpus: self.list(&of("shared_cpu_list"))?,
            };
            data.then_some(cache)
        };
        let mut caches: Vec<Cache> = (0..MAX_CACHES).filter_map(read).collect();
        caches.sort_by_key(|cache| cache.level);
        caches
    }
}

/// The NUMA nodes below `root` (which stands for `/sys/devices/system`), with their CPUs.
pub(crate) fn numa_nodes(read: Reader, root: &Path) -> Vec<(u32, CpuSet)> {
    let list = |path: &str| read(&root.join(path))?.parse::<CpuSet>().ok();
    let node = |node: u32| Some((node, list(&format!("node/node{node}/cpulist"))?));
    list("node/online").unwrap_or_default().iter().filter_map(node).collect()
}

/// Bytes of the cache of level 2 of the first CPU, which is its core's own on most processors; `None` if the system does not tell.
pub fn private_cache() -> Option<u64> {
    size(&text(&Path::new(SYSTEM).join("cpu/cpu0/cache/index2/size"))?)
}

pub(crate) fn text(path: &Path) -> Option<String> {
    // Room for nearly all of them, so that one read is enough.
    let mut text = String::with_capacity(1 << 10);
    File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The names in a folder, sorted; none if it cannot be read.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Reads a cache's size: `32K`, `4M` or plain bytes.
pub(crate) fn size(text: &str) -> Option<u64> {
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
        for cache in machine.caches(machine.cpus()[0].id) {
            assert!(cache.bytes > 0 && !cache.cpus.is_empty());
        }
    }

    #[test]
    fn a_bare_sys_is_one_socket_of_single_cores() {
        let machine = Machine::read_from(text, Path::new("/nonexistent"), &"2-3".parse().unwrap());
        let cpu = |id| Cpu { id, socket: 0, node: 0, core: id };
        assert_eq!(machine.cpus(), [cpu(2), cpu(3)]);
    }
}
