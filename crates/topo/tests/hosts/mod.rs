//! Hosts that are not here: the files that their kernels would show, with a line for each file or link, which [`Host`] writes into a
//! folder of its own; and topology files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::machines::unfold::unfolded;

/// Two sockets, eight GPUs and eight NICs.
pub(crate) const HGX: &str = include_str!("hgx.sys");
/// The same as a topology file, with its NVSwitches.
pub(crate) const HGX_FILE: &str = include_str!("hgx.toml");
/// Two sockets, eight GPUs in a cube mesh of NVLinks.
pub(crate) const MESH_FILE: &str = include_str!("mesh.toml");
/// Two sockets with one NIC.
pub(crate) const DUAL: &str = include_str!("dual.sys");
/// Sixteen hosts below two levels of switches.
pub(crate) const FAT_TREE: &str = include_str!("fat-tree.toml");

/// A folder that has files as `/` has on a host, as long as this is there.
pub(crate) struct Host(PathBuf);

impl Host {
    /// Writes the files of a description.
    pub(crate) fn new(description: &str) -> Host {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("banyan-host-{}-{number}", std::process::id()));
        for line in description.lines().filter(|line| !line.starts_with('#')).flat_map(unfolded) {
            let (path, text) = line.split_once(' ').unwrap();
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("-> ") {
                Some(target) => {
                    std::fs::create_dir_all(root.join(target)).unwrap();
                    std::os::unix::fs::symlink(root.join(target), path).unwrap();
                }
                None => std::fs::write(path, format!("{text}\n")).unwrap(),
            }
        }
        Host(root)
    }

    /// The folder.
    pub(crate) fn root(&self) -> &Path {
        &self.0
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
