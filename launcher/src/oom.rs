//! Whether memory ran out: the kernel counts the processes that it killed for that, but does not name them.

use std::fs;
use std::path::PathBuf;

/// The kernel's count of such kills when the job began.
pub(crate) struct Watch {
    file: PathBuf,
    before: u64,
}

impl Watch {
    /// Reads the count of the smallest group of processes that has one: the control group of this process, or else the
    /// whole machine. `None` if there is no count here.
    pub(crate) fn begin() -> Option<Watch> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let files = groups.lines().filter_map(file_of).chain([PathBuf::from("/proc/vmstat")]);
        files.into_iter().find_map(|file| Some(Watch { before: read(&file)?, file }))
    }

    /// True if a process of the group was killed since [`Watch::begin`] because memory ran out.
    pub(crate) fn has_killed(&self) -> bool {
        read(&self.file).is_some_and(|now| now > self.before)
    }
}

/// The file with the count of a control group, given the group's line in `/proc/PID/cgroup`.
fn file_of(line: &str) -> Option<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    match controllers {
        "" => Some(format!("/sys/fs/cgroup{path}/memory.events").into()),
        "memory" => Some(format!("/sys/fs/cgroup/memory{path}/memory.oom_control").into()),
        _ => None,
    }
}

fn read(file: &PathBuf) -> Option<u64> {
    count(&fs::read_to_string(file).ok()?)
}

/// The number in the line `oom_kill 3`.
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_counted_where_the_kernel_says() {
        assert_eq!(count("low 0\noom 4\noom_kill 3\noom_group_kill 1\n"), Some(3));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"), Some(2));
        assert_eq!(count("nr_free_pages 5\n"), None);
        let file = |line| file_of(line).map(|file| file.to_str().unwrap().to_owned());
        assert_eq!(file("0::/user.slice").unwrap(), "/sys/fs/cgroup/user.slice/memory.events");
        assert_eq!(file("7:memory:/a:b").unwrap(), "/sys/fs/cgroup/memory/a:b/memory.oom_control");
        assert_eq!(file("6:cpu,cpuacct:/x"), None);
    }

    #[test]
    fn a_kill_is_noticed() {
        let file = std::env::temp_dir().join(format!("banyan-oom-{}", std::process::id()));
        fs::write(&file, "oom_kill 1\n").unwrap();
        let watch = Watch { before: 1, file: file.clone() };
        assert!(!watch.has_killed());
        fs::write(&file, "oom_kill 2\n").unwrap();
        assert!(watch.has_killed());
        fs::remove_file(&file).unwrap();
    }
}
