//! Debian packages and sources, by apt with a configuration of our own under target/.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};

use crate::process::{End, Job, tail};
use crate::project::{self, Project};

/// What one missing package means.
pub(crate) struct Missing {
    /// The packages that are not there.
    pub(crate) packages: Vec<String>,
    /// Why they could not be installed.
    pub(crate) reason: String,
}

/// Sees that packages are installed: as root they are installed, otherwise the missing ones are named.
pub(crate) fn packages(project: &Project, names: &[&str]) -> Result<Option<Missing>> {
    let missing: Vec<String> =
        names.iter().filter(|name| !installed(name)).map(|name| (*name).to_owned()).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    if !rustix::process::geteuid().is_root() {
        let reason = format!("not root; `apt-get install {}` would bring them", missing.join(" "));
        return Ok(Some(Missing { packages: missing, reason }));
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        return Ok(Some(Missing { packages: missing, reason: "no apt-get on this machine".into() }));
    }
    let apt = Apt::ready(project)?;
    let mut job = apt.job("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
    job = job.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(&missing);
    let done = job.run()?;
    let missing: Vec<String> = missing.into_iter().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    Ok(Some(Missing { packages: missing, reason: tail(&done.output, 5) }))
}

/// The upstream archive of a Debian source package, in target/downloads.
pub(crate) fn source(project: &Project, name: &str) -> Result<PathBuf> {
    let folder = project.folder("downloads")?;
    if let Some(archive) = archive(&folder, name)? {
        return Ok(archive);
    }
    let apt = Apt::ready(project)?;
    let job = apt.job("apt-get").args(["source", "--quiet", "--download-only", name]);
    let done = job.folder(&folder).run()?;
    // The command may fail on Debian's own patches, which are not needed.
    match archive(&folder, name)? {
        Some(archive) => Ok(archive),
        None => bail!("apt-get source {name} brought no upstream archive:\n{}", tail(&done.output, 10)),
    }
}

/// Unpacks a source package's upstream archive into `target/FOLDER` once; returns the folder.
pub(crate) fn unpacked(project: &Project, name: &str, folder: &str) -> Result<PathBuf> {
    let ready = project.target().join(folder);
    if ready.exists() {
        return Ok(ready);
    }
    let archive = source(project, name)?;
    let parent = ready.parent().context("a folder below target/")?;
    std::fs::create_dir_all(parent)?;
    let partial = parent.join(format!(".{name}.partial"));
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial)?;
    Job::new("tar").args(["--strip-components=1", "-xf"]).arg(&archive).arg("-C").arg(&partial).run_ok()?;
    std::fs::rename(&partial, &ready)?;
    Ok(ready)
}

/// The first package with this beginning that a package depends on.
pub(crate) fn dependency(project: &Project, name: &str, prefix: &str) -> Result<String> {
    let done = Apt::ready(project)?.job("apt-cache").args(["depends", name]).run_ok()?;
    let found = done.output.split_whitespace().find(|word| word.starts_with(prefix) && *word != name);
    Ok(found.with_context(|| format!("{name} depends on no package {prefix}*"))?.to_owned())
}

/// Downloads a package into a folder in which there is no other one, and does not install it; returns the file.
pub(crate) fn download(project: &Project, name: &str, folder: &Path) -> Result<PathBuf> {
    let done =
        Apt::ready(project)?.job("apt-get").args(["download", "--quiet", name]).folder(folder).run()?;
    match project::files_with(folder, "deb")?.pop() {
        Some(file) if done.end == End::Exit(0) => Ok(file),
        _ => bail!("apt-get download {name}: {}\n{}", done.end, tail(&done.output, 10)),
    }
}

fn installed(package: &str) -> bool {
    let job = Job::new("dpkg-query").args(["-W", "-f", "${Status}", package]);
    job.run().is_ok_and(|done| done.output.contains("install ok installed"))
}

fn archive(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    let prefix = format!("{name}_");
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with(&prefix) && file.contains(".orig.tar.") && !file.ends_with(".asc") {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

/// apt with package lists and sources of our own, `deb-src` on.
struct Apt {
    options: Vec<String>,
    /// apt refuses to run twice at a time.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

impl Apt {
    fn ready(project: &Project) -> Result<Apt> {
        let sources = project.folder("apt/sources")?;
        let lists = project.folder("apt/lists")?;
        let list = sources.join("banyan.sources");
        let text = with_sources(&codename()?)?;
        let apt = Apt {
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
            options: vec![
                "Dir::Etc::sourcelist=/dev/null".into(),
                format!("Dir::Etc::sourceparts={}", sources.display()),
                format!("Dir::State::lists={}", lists.display()),
                "APT::Sandbox::User=root".into(),
            ],
        };
        let fresh = std::fs::metadata(lists.join("updated"))
            .and_then(|m| m.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age.as_secs() < 24 * 3600));
        if !fresh || project::read(&list).ok().as_deref() != Some(&text) {
            project::write(&list, &text)?;
            apt.job("apt-get").args(["update", "--quiet"]).run_ok()?;
            project::write(&lists.join("updated"), "")?;
        }
        Ok(apt)
    }

    fn job(&self, program: &str) -> Job {
        let mut job = Job::new(program);
        for option in &self.options {
            job = job.arg("-o").arg(option);
        }
        job
    }
}

/// This Debian's code name, such as `bookworm`.
fn codename() -> Result<String> {
    let release = project::read(Path::new("/etc/os-release"))?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release has no VERSION_CODENAME")?.trim_matches('"').to_owned())
}

/// The machine's own Debian sources with `deb-src` added; other vendors' are left out.
fn with_sources(codename: &str) -> Result<String> {
    let mut stanzas = Vec::new();
    let parts = Path::new("/etc/apt/sources.list.d");
    if parts.exists() {
        for file in project::files_with(parts, "sources")? {
            let text = project::read(&file)?;
            stanzas.extend(text.split("\n\n").filter_map(|stanza| deb822(stanza, codename)));
        }
        for file in project::files_with(parts, "list")? {
            stanzas.extend(project::read(&file)?.lines().filter_map(|line| one_line(line, codename)));
        }
    }
    if let Ok(text) = project::read(Path::new("/etc/apt/sources.list")) {
        stanzas.extend(text.lines().filter_map(|line| one_line(line, codename)));
    }
    if stanzas.is_empty() {
        bail!("no sources of {codename} under /etc/apt");
    }
    Ok(stanzas.join("\n"))
}

fn is_suite(word: &str, codename: &str) -> bool {
    let rest = word.trim_end_matches('/').strip_prefix(codename);
    matches!(rest, Some("" | "-updates" | "-security" | "/updates"))
}

fn deb822(stanza: &str, codename: &str) -> Option<String> {
    let lines: Vec<&str> = stanza.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let suites = lines.iter().find_map(|line| line.strip_prefix("Suites:"))?;
    if !suites.split_whitespace().any(|suite| is_suite(suite, codename)) {
        return None;
    }
    let lines = lines.iter().map(|line| if line.starts_with("Types:") { "Types: deb deb-src" } else { line });
    Some(lines.collect::<Vec<_>>().join("\n") + "\n")
}

/// A line of the old format as a stanza of the new one.
fn one_line(line: &str, codename: &str) -> Option<String> {
    let rest = line.trim().strip_prefix("deb ")?.trim();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let (uri, suite) = (words.next()?, words.next()?);
    if !is_suite(suite, codename) {
        return None;
    }
    let components = words.collect::<Vec<_>>().join(" ");
    let key = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
    let key = key.unwrap_or("/usr/share/keyrings/debian-archive-keyring.gpg");
    Some(format!(
        "Types: deb deb-src\nURIs: {uri}\nSuites: {suite}\nComponents: {components}\nSigned-By: {key}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_added_to_debian_and_to_nothing_else() {
        let stanza = "# a note\nTypes: deb\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates";
        let with = deb822(stanza, "bookworm").unwrap();
        assert!(with.starts_with("Types: deb deb-src\nURIs:"), "{with}");
        assert!(deb822("Types: deb\nSuites: nodistro", "bookworm").is_none());
    }

    #[test]
    fn old_lines_are_understood() {
        let with =
            one_line("deb [arch=amd64 signed-by=/k.gpg] http://m/debian bookworm main", "bookworm").unwrap();
        assert!(with.contains("Suites: bookworm\nComponents: main\nSigned-By: /k.gpg"), "{with}");
        assert!(one_line("deb http://m/x cloud-bookworm main", "bookworm").is_none());
        assert!(one_line("# deb http://m/debian bookworm main", "bookworm").is_none());
    }
}
