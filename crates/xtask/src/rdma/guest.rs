//! A QEMU guest with RDMA devices in software, for machines whose kernel has none. It runs the kernel of a Debian package, and its files
//! are those of this machine: what it writes stays in its memory, but for what it writes to the build folder.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::siw;
use crate::debian;
use crate::process::{Group, Job, tail};
use crate::project::{self, Project};

/// Debian packages that a guest takes. The kernel's is unpacked and not installed.
const PACKAGES: &[&str] = &["qemu-system-x86", "busybox-static", "kmod", "iproute2", "ibverbs-providers"];
/// The package that depends on the present kernel. Those for clouds have no devices in software.
const KERNEL: &str = "linux-image-amd64";
/// Modules of the kernel that the guest loads, with those that they depend on.
const MODULES: &[&str] = &[
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "ipv6",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "libcrc32c",
    "crc32c_generic",
];
/// The file that names the kernel's version, beside the kernel.
const VERSION: &str = "version";
const INIT: &str = include_str!("init.sh");
const DEVICES: &str = include_str!("devices.sh");
/// The time that a guest may take until it runs the command.
const BOOT: Duration = Duration::from_secs(90);
/// How lines begin that the guest says to this program.
const MARK: &str = "@@ ";

/// Which devices a guest has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Devices {
    /// rxe0 and rxe1: RoCE
    Roce,
    /// siw0 and siw1: iWARP
    Iwarp,
}

impl std::fmt::Display for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Devices::Roce { "RoCE" } else { "iWARP" })
    }
}

/// What a guest boots from.
pub(crate) struct Guest<'a> {
    project: &'a Project,
    devices: Devices,
    kernel: PathBuf,
    initrd: PathBuf,
}

/// How a boot ended.
enum Boot {
    /// The command ran, and gave this exit status.
    Ran(i32),
    /// The guest did not come so far; these are its last lines.
    Failed(String),
}

/// Why no guest can run on this machine, if so; missing packages are installed.
pub(crate) fn why_not(project: &Project) -> Result<Option<String>> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Some("the guest is made for x86-64".into()));
    }
    if let Some(missing) = debian::packages(project, PACKAGES)? {
        return Ok(Some(format!("{} not there: {}", missing.packages.join(" "), missing.reason)));
    }
    let fetched =
        if kernel(project).join(VERSION).exists() { Ok(()) } else { fetch_kernel(project).map(|_| ()) };
    Ok(fetched.err().map(|error| format!("no kernel for it: {error:#}")))
}

/// The folder of the kernel and its modules.
fn kernel(project: &Project) -> PathBuf {
    project.target().join("rdma/kernel")
}

impl Guest<'_> {
    /// Gets the kernel and its modules, once, and makes the guest's first file system.
    pub(crate) fn ready(project: &Project, devices: Devices) -> Result<Guest<'_>> {
        let kernel = kernel(project);
        if !kernel.join(VERSION).exists() {
            unpack_kernel(project, &kernel)?;
        }
        let folder = project.folder("rdma")?;
        let (stage, initrd) = (folder.join("stage"), folder.join("initrd"));
        let _ = fs::remove_dir_all(&stage);
        for place in ["bin", "proc", "sys", "dev", "modules"] {
            fs::create_dir_all(stage.join(place))?;
        }
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].iter().find(|path| Path::new(path).exists());
        fs::copy(busybox.context("busybox is not there")?, stage.join("bin/busybox"))?;
        for module in fs::read_dir(kernel.join("modules"))? {
            let module = module?;
            fs::copy(module.path(), stage.join("modules").join(module.file_name()))?;
        }
        if devices == Devices::Iwarp {
            let module = siw::module(project, &project::read(&kernel.join(VERSION))?)?;
            fs::copy(module, stage.join("modules/99-siw.ko"))?;
        }
        project::write(&stage.join("init"), INIT)?;
        let pack = "chmod +x init && find . | busybox cpio -o -H newc >\"$0\"";
        Job::new("sh").args(["-c", pack]).arg(&initrd).folder(&stage).run_ok()?;
        Ok(Guest { project, devices, kernel: kernel.join("vmlinuz"), initrd })
    }

    /// Runs a command as root in a guest, in the folder of the repository, and hands on each line that it prints; gives its exit status.
    pub(crate) fn run(&self, command: &[String], limit: Duration, show: &mut dyn FnMut(&str)) -> Result<i32> {
        let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
        let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
        let root = quoted(&self.project.root().to_string_lossy());
        let kind = if self.devices == Devices::Roce { "roce" } else { "iwarp" };
        let script = format!(
            "devices={kind}\n{DEVICES}\ncd {root} || exit 1\nexport HOME=/root\n{}\n",
            words.join(" ")
        );
        project::write(&self.project.target().join("rdma/run.sh"), script)?;
        let end = Instant::now() + limit;
        // A machine may have KVM that does not work.
        for kvm in [has_kvm(), false] {
            match self.boot(kvm, end, show)? {
                Boot::Ran(status) => return Ok(status),
                Boot::Failed(console) => eprintln!("xtask: the guest did not start:\n{console}"),
            }
        }
        bail!("the guest started neither time")
    }

    fn boot(&self, kvm: bool, end: Instant, show: &mut dyn FnMut(&str)) -> Result<Boot> {
        let mut qemu = self.qemu(kvm)?;
        let mut child = qemu.spawn().context("cannot start qemu-system-x86_64")?;
        let _group = Group::watch(&child);
        let lines = BufReader::new(child.stdout.take().context("a pipe")?).split(b'\n');
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        let booted = Instant::now() + BOOT;
        let (mut ready, mut console) = (false, String::new());
        loop {
            let deadline = if ready { end } else { end.min(booted) };
            let line = match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(_) if !ready => return Ok(Boot::Failed(tail(&console, 20))),
                Err(RecvTimeoutError::Timeout) => bail!("the command took too long in the guest"),
                Err(RecvTimeoutError::Disconnected) => bail!("the guest ended before the command"),
            };
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches('\r');
            let said = line.find(MARK).map(|at| &line[at + MARK.len()..]);
            match said.and_then(|said| said.strip_prefix("exit ")).map(str::parse) {
                Some(Ok(status)) => return Ok(Boot::Ran(status)),
                _ if said == Some("ready") => ready = true,
                _ if ready => show(line),
                _ => console.push_str(&format!("{line}\n")),
            }
        }
    }

    fn qemu(&self, kvm: bool) -> Result<Command> {
        let target = self.project.target().display().to_string();
        if target.contains([' ', ',']) {
            bail!("the guest cannot use {target}: there is a blank or a comma in it");
        }
        let share = |name: &str, path: &str, how: &str| {
            let folder = format!("local,id={name},path={path},security_model=none,multidevs=remap{how}");
            [
                "-fsdev".into(),
                folder,
                "-device".into(),
                format!("virtio-9p-pci,fsdev={name},mount_tag={name}"),
            ]
        };
        let boot = format!(
            "console=ttyS0 loglevel=1 panic=-1 maxcpus=1 no_timer_check tsc=reliable mitigations=off nokaslr \
             random.trust_cpu=on banyan.target={target}"
        );
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args("-M q35 -smp 2 -m 1536 -nodefaults -no-user-config -display none -serial stdio".split(' '));
        let processor = if kvm { "-accel kvm -cpu host" } else { "-accel tcg,thread=multi -cpu max" };
        qemu.args(processor.split(' ')).arg("-no-reboot");
        qemu.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initrd).args(["-append", &boot]);
        qemu.args(share("host", "/", ",readonly=on")).args(share("target", &target, ""));
        qemu.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        Ok(qemu)
    }
}

/// True if KVM can be expected to work: a module of a processor's maker is behind it.
fn has_kvm() -> bool {
    let made = ["kvm_intel", "kvm_amd"].iter().any(|name| Path::new("/sys/module").join(name).exists());
    made && fs::OpenOptions::new().write(true).open("/dev/kvm").is_ok()
}

/// Fetches the kernel's package, unless it is there; gives its name and its file.
fn fetch_kernel(project: &Project) -> Result<(String, PathBuf)> {
    let package = debian::dependency(project, KERNEL, "linux-image-")?;
    let folder = project.folder(&format!("rdma/{package}"))?;
    let there = project::files_with(&folder, "deb")?.pop();
    let archive = there.map_or_else(|| debian::download(project, &package, &folder), Ok)?;
    Ok((package, archive))
}

/// Unpacks the kernel's package; keeps the kernel, and the modules in the order in which they are to be loaded.
fn unpack_kernel(project: &Project, ready: &Path) -> Result<()> {
    let partial = project.folder("rdma/kernel.partial")?;
    fs::remove_dir_all(&partial)?;
    let (root, modules) = (partial.join("root"), partial.join("modules"));
    fs::create_dir_all(&modules)?;
    let (package, archive) = fetch_kernel(project)?;
    Job::new("dpkg-deb").arg("-x").arg(&archive).arg(&root).run_ok()?;
    if !root.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
    }
    let version = package.trim_start_matches("linux-image-");
    fs::copy(root.join(format!("boot/vmlinuz-{version}")), partial.join("vmlinuz"))?;
    Job::new("depmod").arg("-b").arg(&root).arg(version).run_ok()?;
    let mut paths: Vec<String> = Vec::new();
    for module in MODULES {
        let job = Job::new("modprobe").arg("-d").arg(&root).args(["-S", version, "--show-depends", module]);
        let listed = job.run_ok()?.output;
        let files = listed.lines().filter_map(|line| line.strip_prefix("insmod "));
        paths.extend(files.map(|path| path.trim().to_owned()));
    }
    let mut seen = std::collections::BTreeSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    for (number, path) in paths.iter().enumerate() {
        let name = Path::new(path).file_name().context("a file's name")?.to_string_lossy();
        fs::copy(path, modules.join(format!("{number:02}-{name}")))?;
    }
    project::write(&partial.join(VERSION), version)?;
    fs::remove_dir_all(&root)?;
    fs::remove_dir_all(archive.parent().context("a folder")?)?;
    let _ = fs::remove_dir_all(ready);
    fs::rename(&partial, ready)?;
    Ok(())
}
