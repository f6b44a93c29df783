//! Building in release and installing: bin, lib, include and share under one prefix.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use crate::process::{End, Job, tail};
use crate::project::{self, Project};
use crate::{hot, rdma};

/// Names of the one compiler wrapper for C, and of the one for C++.
const WRAPPERS: [(&str, &[&str]); 2] =
    [("mpicc.in", &["mpicc", "mpicc_abi"]), ("mpicxx.in", &["mpicxx", "mpic++", "mpicxx_abi"])];

/// pkg-config's description, under the names that programs and build systems (CMake, Meson) ask for.
const PKG_CONFIG: &[&str] =
    &["mpi_abi.pc", "mpi.pc", "mpi-c.pc", "mpi-cxx.pc", "ompi-c.pc", "ompi-cxx.pc", "banyan.pc"];

/// The guide in the repository, and below the folder of the documentation: the links between README and the pages hold in both.
const GUIDE: &str = "docs/src";

/// The library of the RDMA fabric.
const RDMA: &str = "libbanyan_rdma.so";

/// Names an installed Banyan to test, instead of one built from this tree.
pub(crate) const GIVEN: &str = "BANYAN_TEST_PREFIX";

/// Installs into target/banyan, once in the life of this process.
pub(crate) fn once(project: &Project) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(GIVEN) {
        return Ok(PathBuf::from(given));
    }
    static DONE: OnceLock<Result<(), String>> = OnceLock::new();
    let prefix = project.prefix();
    let done = DONE.get_or_init(|| install(project, &prefix).map_err(|error| format!("{error:#}")));
    match done {
        Ok(()) => Ok(prefix),
        Err(error) => bail!("installing failed: {error}"),
    }
}

/// Builds in release and installs below `prefix`.
pub(crate) fn install(project: &Project, prefix: &Path) -> Result<()> {
    let prefix = std::path::absolute(prefix)?;
    build(project)?;
    lay_out(project, &project.target().join("release"), &prefix)?;
    if let Some(reason) = add_rdma(project, &prefix)? {
        eprintln!("xtask: installed without the RDMA fabric ({RDMA}): {reason}");
    }
    Ok(())
}

/// True if the library of the RDMA fabric is installed there.
pub(crate) fn has_rdma(prefix: &Path) -> bool {
    prefix.join("lib").join(RDMA).exists()
}

/// Builds the library of the RDMA fabric and puts it beside the main one; why not, if this machine has not what that takes.
pub(crate) fn add_rdma(project: &Project, prefix: &Path) -> Result<Option<String>> {
    const LIBRARY: [&str; 6] = ["-p", "banyan-rdma", "--lib", "--crate-type=cdylib", "--features", "verbs"];
    let installed = prefix.join("lib").join(RDMA);
    // One of another build is of no use.
    let _ = fs::remove_file(&installed);
    let missing = |what: &str| {
        Some(format!("{what} not there; on Debian: apt-get install {}", rdma::PACKAGES.join(" ")))
    };
    let headers = Job::new("pkg-config").args(["--exists", "libibverbs", "librdmacm"]).run();
    if !headers.is_ok_and(|done| done.end == End::Exit(0)) {
        return Ok(missing("rdma-core's headers are"));
    }
    let cargo = Job::new(env!("CARGO")).args(["rustc", "--release", "--quiet"]).args(LIBRARY);
    let built = cargo.folder(project.root()).limit(1800).run()?;
    match built.end {
        End::Exit(0) => {}
        _ if built.output.contains("Unable to find libclang") => return Ok(missing("libclang is")),
        end => bail!("{RDMA} is not built: {end}\n{}", tail(&built.output, 30)),
    }
    put(&installed, &fs::read(project.target().join("release").join(RDMA))?, 0o755)?;
    Ok(None)
}

/// Puts what is in the folder `built`, and what of the repository needs no building, below `prefix`.
fn lay_out(project: &Project, built: &Path, prefix: &Path) -> Result<()> {
    for folder in ["bin", "lib/pkgconfig", "include", "share/man/man1"] {
        fs::create_dir_all(prefix.join(folder))
            .with_context(|| format!("cannot install into {}", prefix.display()))?;
    }

    put(&prefix.join("bin/mpirun"), &fs::read(built.join("mpirun"))?, 0o755)?;
    link(&prefix.join("bin/mpiexec"), "mpirun")?;
    put(&prefix.join("lib/libmpi_abi.so.1"), &fs::read(built.join("libmpi_abi.so"))?, 0o755)?;
    link(&prefix.join("lib/libmpi_abi.so"), "libmpi_abi.so.1")?;
    link(&prefix.join("lib/libmpi_abi.so.0"), "libmpi_abi.so.1")?;
    for header in ["mpi.h", "mpi-ext.h"] {
        let text = project.read(&format!("abi/include/{header}"))?;
        put(&prefix.join("include").join(header), text.as_bytes(), 0o644)?;
    }
    for (template, names) in WRAPPERS {
        let text = filled(&project.read(&format!("abi/wrappers/{template}"))?, prefix);
        for name in names {
            put(&prefix.join("bin").join(name), text.as_bytes(), 0o755)?;
        }
    }
    let description = filled(&project.read("abi/wrappers/mpi.pc.in")?, prefix);
    for name in PKG_CONFIG {
        put(&prefix.join("lib/pkgconfig").join(name), description.as_bytes(), 0o644)?;
    }
    put(&prefix.join("share/man/man1/mpirun.1"), project.read("docs/mpirun.1")?.as_bytes(), 0o644)?;
    link(&prefix.join("share/man/man1/mpiexec.1"), "mpirun.1")?;
    let doc = prefix.join("share/doc/banyan");
    copy_all(&project.file(GUIDE), &doc.join(GUIDE))?;
    for name in ["README.md", "LICENSE"] {
        put(&doc.join(name), project.read(name)?.as_bytes(), 0o644)?;
    }
    Ok(())
}

/// Copies a folder with all that is in it.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot install into {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type()?.is_dir() {
            true => copy_all(&from, &to)?,
            false => put(&to, &fs::read(&from)?, 0o644)?,
        }
    }
    Ok(())
}

/// The library, and a mpirun that is linked statically where the system has what that takes (glibc's libc.a), at a fixed
/// address, so that nothing of it is written before it runs: without a dynamic linker at work it starts in 0.5 ms instead of 0.9. In both
/// the code that always runs lies together, unless the linker takes no script for that (gold, mold).
fn build(project: &Project) -> Result<()> {
    // Without the library's form for Rust programs the linker may leave out what C cannot call: 10 % less memory in each rank.
    const LIBRARY: [&str; 5] = ["-p", "banyan-abi", "--lib", "--crate-type=cdylib", "--"];
    const MPIRUN: [&str; 8] = [
        "-p",
        "banyan",
        "--bin=mpirun",
        "--",
        "-C",
        "target-feature=+crt-static",
        "-C",
        "relocation-model=static",
    ];
    let cargo = |how: &str, what: &[&str]| {
        let cargo = Job::new(env!("CARGO")).args([how, "--release", "--quiet"]).args(what);
        cargo.folder(project.root()).limit(1800)
    };
    let rustc = |what: &[&str], script: &str| {
        let ordered = format!("link-arg=-Wl,-T,{}", project.file(script).display());
        let ordered: Vec<&str> = what.iter().copied().chain(["-C", &ordered]).collect();
        cargo("rustc", &ordered).run_ok().or_else(|_| cargo("rustc", what).run_ok())
    };
    rustc(&LIBRARY, hot::LIBRARY)?;
    if rustc(&MPIRUN, hot::MPIRUN).is_err() {
        cargo("build", &["-p", "banyan"]).run_ok()?;
    }
    Ok(())
}

/// A template with its `@NAME@` places filled.
fn filled(template: &str, prefix: &Path) -> String {
    let prefix = prefix.to_string_lossy();
    template.replace("@PREFIX@", &prefix).replace("@VERSION@", env!("CARGO_PKG_VERSION"))
}

/// Writes a file if it is not there with this content already, by a rename, so that running programs keep theirs.
fn put(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    if fs::read(path).is_ok_and(|have| have == content) {
        return Ok(());
    }
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    project::write(&partial, content)?;
    fs::set_permissions(&partial, fs::Permissions::from_mode(mode))?;
    fs::rename(&partial, path)?;
    Ok(())
}

fn link(path: &Path, to: &str) -> Result<()> {
    if fs::read_link(path).is_ok_and(|have| have == Path::new(to)) {
        return Ok(());
    }
    let _ = fs::remove_file(path);
    symlink(to, path).with_context(|| format!("cannot link {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs;

    #[test]
    fn what_is_installed_hangs_together() {
        let project = Project::find().unwrap();
        let work = std::env::temp_dir().join(format!("banyan-install-{}", std::process::id()));
        let (built, prefix) = (work.join("built"), work.join("prefix"));
        fs::create_dir_all(&built).unwrap();
        for name in ["mpirun", "libmpi_abi.so"] {
            project::write(&built.join(name), name).unwrap();
        }
        lay_out(&project, &built, &prefix).unwrap();
        for page in docs::pages(&prefix.join("share/doc/banyan")).unwrap() {
            assert_eq!(page.dead_links(), [""; 0], "{}", page.name);
        }
        for name in ["mpirun.1", "mpiexec.1"] {
            let page = project::read(&prefix.join("share/man/man1").join(name)).unwrap();
            assert!(page.contains(".TH mpirun 1"), "{name}");
        }
        for name in ["mpi-cxx", "ompi-c", "ompi-cxx"] {
            let text = project::read(&prefix.join(format!("lib/pkgconfig/{name}.pc"))).unwrap();
            assert!(text.contains("-lmpi_abi") && !text.contains('@'), "{name}: {text}");
        }
        fs::remove_dir_all(&work).unwrap();
    }
}
