//! Machines that are not here, as the kernel would describe them: files with a line for each file below `/sys/devices/system`, its
//! path and what it says. A list of numbers in brackets stands for a line for each of its numbers, and each list in a line has as many.

pub(crate) mod unfold;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use banyan_topo::Machine;
use unfold::unfolded;

/// The machines by name.
pub(crate) const MACHINES: [(&str, &str); 5] = [
    ("laptop", include_str!("laptop.sys")),
    ("epyc", include_str!("epyc.sys")),
    ("xeon", include_str!("xeon.sys")),
    ("arm", include_str!("arm.sys")),
    ("board", include_str!("board.sys")),
];

/// A machine of [`MACHINES`], all of whose CPUs may be used.
pub(crate) fn machine(name: &str) -> Machine {
    let online = read(&Path::new(name).join("cpu/online")).unwrap();
    Machine::read_from(read, Path::new(name), &online.parse().unwrap())
}

/// Reads a file of a machine, whose name stands for `/sys/devices/system`.
pub(crate) fn read(path: &Path) -> Option<String> {
    static FILES: OnceLock<HashMap<PathBuf, String>> = OnceLock::new();
    let files = || {
        let lines = |(name, text): (&'static str, &'static str)| {
            let lines = text.lines().filter(|line| !line.starts_with('#')).flat_map(unfolded);
            lines.map(move |line| {
                let (path, text) = line.split_once(' ').unwrap();
                (Path::new(name).join(path), format!("{text}\n"))
            })
        };
        MACHINES.into_iter().flat_map(lines).collect()
    };
    FILES.get_or_init(files).get(path).cloned()
}
