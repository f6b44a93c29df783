//! The module `siw` (iWARP in software), which is in none of Debian's kernel packages: built once from the kernel's sources, for the kernel of
//! the guest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::debian;
use crate::process::Job;
use crate::project::{self, Project};

/// Debian packages that building it takes, besides those that are unpacked only.
const PACKAGES: &[&str] = &["gcc", "make", "xz-utils"];
/// Where it is in the kernel's sources.
const FOLDER: &str = "drivers/infiniband/sw/siw";

/// A mistake of the module (in `siw_try_1seg`), and what it should say: where up to some 40 bytes that are sent, written or read lie on two pages, some of
/// those on the second one are lost.
const MISTAKE: [&str; 2] = ["part = bytes - (PAGE_SIZE - off);", "part = PAGE_SIZE - off;"];

/// The module for the kernel of this version, such as `6.1.0-56-amd64`, which is built if it is not there.
///
/// # Errors
/// If something is missing that it takes, by name.
pub(super) fn module(project: &Project, version: &str) -> Result<PathBuf> {
    let ready = project.target().join(format!("rdma/siw-{version}.ko"));
    if ready.exists() {
        return Ok(ready);
    }
    if let Some(missing) = debian::packages(project, PACKAGES)? {
        bail!("the module siw takes {} to build: {}", missing.packages.join(" "), missing.reason);
    }
    let work = project.target().join("rdma/siw.partial");
    let _ = fs::remove_dir_all(&work);
    let (root, sources) = (work.join("root"), work.join("siw"));
    let built = headers(project, version, &work, &root).and_then(|headers| {
        fetch_sources(project, version, &work, &sources)?;
        let file = sources.join("siw_qp_tx.c");
        project::write(&file, project::read(&file)?.replace(MISTAKE[0], MISTAKE[1]))?;
        // The packages name the very compiler of the kernel, and the place where they would be installed.
        Job::new("make")
            .arg("-C")
            .arg(&headers)
            .arg(format!("M={}", sources.display()))
            .args(["CONFIG_RDMA_SIW=m", "CC=gcc", "modules"])
            .run_ok()?;
        Job::new("strip").arg("--strip-debug").arg(sources.join("siw.ko")).run_ok()?;
        Ok(fs::rename(sources.join("siw.ko"), &ready)?)
    });
    built.context("the module siw cannot be built")?;
    fs::remove_dir_all(&work)?;
    Ok(ready)
}

/// Unpacks what modules are built with; gives the folder where they are.
fn headers(project: &Project, version: &str, work: &Path, root: &Path) -> Result<PathBuf> {
    let package = format!("linux-headers-{version}");
    let common = debian::dependency(project, &package, "linux-headers-")?;
    let kbuild = debian::dependency(project, &package, "linux-kbuild-")?;
    for package in [&package, &common, &kbuild] {
        unpack(project, package, work, root)?;
    }
    let sources = root.join("usr/src");
    let headers = sources.join(&package);
    let makefile = sources.join(common).join("Makefile");
    project::write(&headers.join("Makefile"), format!("include {}\n", makefile.display()))?;
    Ok(headers)
}

/// Takes the module's folder out of the kernel's sources.
fn fetch_sources(project: &Project, version: &str, work: &Path, to: &Path) -> Result<()> {
    let series: Vec<&str> = version.split('.').take(2).collect();
    let name = format!("linux-source-{}", series.join("."));
    let root = work.join("sources");
    unpack(project, &name, work, &root)?;
    let archive = root.join(format!("usr/src/{name}.tar.xz"));
    let folder = format!("{name}/{FOLDER}");
    Job::new("tar").arg("-xf").arg(archive).arg("-C").arg(&root).arg(&folder).run_ok()?;
    Ok(fs::rename(root.join(folder), to)?)
}

/// Downloads a package and unpacks it.
fn unpack(project: &Project, package: &str, work: &Path, to: &Path) -> Result<()> {
    let folder = work.join(format!("{package}.deb"));
    fs::create_dir_all(&folder)?;
    let archive = debian::download(project, package, &folder)?;
    Job::new("dpkg-deb").arg("-x").arg(archive).arg(to).run_ok()?;
    Ok(())
}
