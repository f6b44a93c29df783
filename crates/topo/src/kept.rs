//! Where the [`Profile`] of a machine is kept, and beside it what jobs have learnt there ([`KnownWays`]): a file in the user's cache
//! directory, named by processor, kernel and topology. It is written whole or not at all; what is absent, unreadable, of another
//! machine or no profile is as if it were not there.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::cpus::CpuSet;
use crate::known::KnownWays;
use crate::machine::{Reader, SYSTEM, size, text};
use crate::profile::{Profile, SharedCache};

/// Most bytes of a file's name.
const LONGEST_NAME: usize = 200;

/// Most bytes of a profile's file.
const MOST_BYTES: u64 = 16 << 10;

/// A machine as far as profiles tell machines apart, and the user's folder for what is kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The machine's name: processor, kernel, CPUs, NUMA nodes, last-level cache of the first CPU.
    machine: String,
    /// The profile for this family of processors.
    built_in: Profile,
    folder: Option<PathBuf>,
}

impl Kept {
    /// Of this machine and this user.
    pub fn here() -> Kept {
        let folder = machines();
        Kept::of((text, Path::new(SYSTEM)), &kernel(), folder)
    }

    /// Of the machine that is described below `root` (which stands for `/sys/devices/system`), with this kernel.
    pub fn of((reader, root): (Reader, &Path), kernel: &str, folder: Option<PathBuf>) -> Kept {
        let read = |path: &str| reader(&root.join(path)).unwrap_or_default();
        let modalias = read("cpu/modalias");
        let processor = modalias.split(":feature").next().unwrap_or_default().trim_start_matches("cpu:type:");
        let cache = last_level_cache((reader, root));
        let shared = cache.as_ref().and_then(|cache| shared_cache((reader, root), cache));
        let cache = cache.map(|(size, at)| size + "-" + &read(&format!("{at}/shared_cpu_list")));
        let parts = [
            processor,
            kernel,
            &read("cpu/online"),
            &read("node/online"),
            cache.as_deref().unwrap_or_default(),
        ];
        let part = |part: &&str| -> String {
            let plain = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '-' };
            part.split_whitespace().collect::<String>().chars().map(plain).collect()
        };
        let machine = parts.iter().map(part).collect::<Vec<_>>().join("_");
        let built_in = Profile::of_processor(&modalias).with_last_level_cache(shared);
        Kept { machine, built_in, folder }
    }

    /// The machine's name.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// The built-in profile for this family of processors.
    pub fn built_in(&self) -> Profile {
        self.built_in
    }

    /// The file; none if the user has no folder for it.
    pub fn file(&self) -> Option<PathBuf> {
        let name = &self.machine[..self.machine.len().min(LONGEST_NAME)];
        Some(self.folder.as_ref()?.join(format!("{name}.profile")))
    }

    /// The text that is kept for this machine, and the profile in it. What was not measured is as the built-in profile has it today, whatever
    /// it was when the file was written.
    fn read(&self) -> Option<(String, Profile)> {
        let text = read(&self.file()?).ok()?;
        let (profile, machine) = Profile::parse(&text).ok()?;
        (machine == Some(&self.machine)).then_some(())?;
        let today = profile.based_on(self.built_in);
        let text = if today == profile { text } else { today.file(&self.machine, &KnownWays::parse(&text)) };
        Some((text, today))
    }

    /// The profile that is kept for this machine.
    pub fn load(&self) -> Option<Profile> {
        Some(self.read()?.1)
    }

    /// What earlier jobs have measured on this machine of the ways of long messages.
    pub fn known_ways(&self) -> KnownWays {
        self.read().map_or(KnownWays::default(), |(text, _)| KnownWays::parse(&text))
    }

    /// The profile that holds here: the one that is kept, or else the built-in one.
    pub fn profile(&self) -> Profile {
        self.load().unwrap_or(self.built_in)
    }

    /// Keeps a profile, in the place of the one before, beside what jobs have learnt; gives the file.
    ///
    /// # Errors
    /// If the user has no such folder, or the system refuses; then what was kept before is unchanged.
    pub fn keep(&self, profile: &Profile) -> io::Result<PathBuf> {
        self.write(profile, &self.known_ways())
    }

    /// Keeps what a job has learnt of ways, beside the profile; gives the file, or nothing if none of it is new. It is kept only where
    /// there is a folder already: a job makes none in a user's home.
    ///
    /// # Errors
    /// If the system refuses; then what was kept before is unchanged.
    pub fn learn(&self, job: &KnownWays) -> io::Result<Option<PathBuf>> {
        if !self.folder.as_ref().is_some_and(|folder| folder.is_dir()) {
            return Ok(None);
        }
        let mut known = self.known_ways();
        match known.learn(job) {
            true => self.write(&self.profile(), &known).map(Some),
            false => Ok(None),
        }
    }

    /// Writes the file anew. Whoever reads meanwhile finds the old one or the new one whole.
    fn write(&self, profile: &Profile, known: &KnownWays) -> io::Result<PathBuf> {
        let file =
            self.file().ok_or_else(|| io::Error::other("neither XDG_CACHE_HOME nor HOME names a folder"))?;
        let folder = file.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder)?;
        let draft = folder.join(format!(".{}-{}.draft", crate::hostname(), std::process::id()));
        let write = || {
            let mut open = std::fs::File::create(&draft)?;
            open.write_all(profile.file(&self.machine, known).as_bytes())?;
            open.sync_all()?;
            std::fs::rename(&draft, &file)
        };
        write().inspect_err(|_| drop(std::fs::remove_file(&draft)))?;
        Ok(file)
    }
}

/// The text of a job's setting for what a user has asked for: nothing (the profile of this machine), the name of a built-in
/// profile, or the path of a profile's file (it has a `/`).
///
/// # Errors
/// A sentence that says what is wrong with what the user has asked for.
pub fn setting(asked: Option<&str>) -> Result<String, String> {
    let Some(asked) = asked.filter(|text| !text.is_empty()) else {
        // Most users keep none: then the machine needs no name, which takes most of the time at each start of a job.
        if !machines().is_some_and(|folder| folder.is_dir()) {
            let system: (Reader, &Path) = (text, Path::new(SYSTEM));
            let cache = last_level_cache(system).and_then(|cache| shared_cache(system, &cache));
            return Ok(Profile::built_in().with_last_level_cache(cache).text(""));
        }
        let kept = Kept::here();
        return Ok(kept.read().map_or_else(|| kept.built_in.text(""), |(text, _)| text));
    };
    let text = match asked.contains('/') {
        true => read(Path::new(asked)).map_err(|why| format!("{asked}: {why}"))?,
        false => asked.to_owned(),
    };
    match Profile::parse(&text) {
        Ok(_) => Ok(text),
        Err(why) => Err(format!("{asked}: {why}")),
    }
}

/// The size of the first CPU's last-level cache, as the kernel writes it, and the folder that describes it. The last cache that is there is that
/// one: of instructions, and of data on three levels.
fn last_level_cache((reader, root): (Reader, &Path)) -> Option<(String, String)> {
    let folders = (0..4).rev().map(|index| format!("cpu/cpu0/cache/index{index}"));
    let sizes = folders.map(|at| (reader(&root.join(format!("{at}/size"))).unwrap_or_default(), at));
    sizes.into_iter().find(|(size, _)| !size.is_empty())
}

/// That cache, if cores share it. The kernel does not know of every cache: where the last one that it knows is a core's own, others may lie behind.
fn shared_cache((reader, root): (Reader, &Path), (bytes, at): &(String, String)) -> Option<SharedCache> {
    let cpus = reader(&root.join(format!("{at}/shared_cpu_list"))).and_then(|cpus| cpus.trim().parse().ok());
    let cpus = cpus.map_or(1, |cpus: CpuSet| cpus.len());
    // The third level is for more than one core on a machine that has them.
    if at.ends_with("index3") || cpus > 1 { Some(SharedCache { bytes: size(bytes)?, cpus }) } else { None }
}

/// The folder for what Banyan keeps of this user; none if the user has no such folder. It need not be there.
pub fn user_folder() -> Option<PathBuf> {
    cache_folder(|name| std::env::var_os(name))
}

/// The folder for profiles. Other things that are kept have folders of their own beside it: where it is, somebody wants profiles kept.
fn machines() -> Option<PathBuf> {
    Some(user_folder()?.join("machines"))
}

/// The folder for what Banyan keeps of this user, by these variables.
fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    Some(caches?.join("banyan"))
}

fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(std::fs::File::open(path)?, MOST_BYTES), &mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of a test's own, which goes with the value.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("banyan-kept-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn kept(&self, kernel: &str) -> Kept {
            Kept::of((text, &self.0.join("sys")), kernel, Some(self.0.join("cache/banyan")))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn what_is_kept_is_found_again_and_by_its_machine_alone() {
        let folder = Folder::new("found");
        for (file, text) in [
            ("cpu/modalias", "cpu:type:x86,ven0000fam0006mod00CF:feature:,0000,0001\n"),
            ("cpu/online", "0-1\n"),
            ("node/online", "0\n"),
            ("cpu/cpu0/cache/index2/size", "2048K\n"),
            ("cpu/cpu0/cache/index3/size", "266240K\n"),
            ("cpu/cpu0/cache/index3/shared_cpu_list", "0,1\n"),
        ] {
            let path = folder.0.join("sys").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let kept = folder.kept("6.18.44");
        assert_eq!(kept.machine(), "x86-ven0000fam0006mod00CF_6.18.44_0-1_0_266240K-0-1");
        let cache = SharedCache { bytes: 266_240 << 10, cpus: 2 };
        let xeon = Profile::named("xeon").unwrap().with_last_level_cache(Some(cache));
        // Two cores of many have a part of the cache that is told.
        assert_eq!(xeon.last_level_cache, f64::from(112 << 20));
        assert_eq!((kept.load(), kept.profile()), (None, xeon));
        let measured = kept.built_in().with([("turn", 1e-5)]);
        let file = kept.keep(&measured).unwrap();
        assert_eq!((kept.load(), kept.profile()), (Some(measured), measured));
        // A copy under another machine's name is not taken, nor is a part, nor what is no text.
        let other = folder.kept("6.19");
        std::fs::copy(&file, other.file().unwrap()).unwrap();
        assert_eq!(other.load(), None);
        let text = std::fs::read(&file).unwrap();
        for wrong in [&text[..text.len() / 2], b"", b"\xff\xfe", &[b'x'; 100_000]] {
            std::fs::write(&file, wrong).unwrap();
            assert_eq!((kept.load(), kept.profile()), (None, kept.built_in()));
        }
        // Jobs' findings stand beside the profile, and both replace what was no file of it.
        let line = |time| KnownWays::parse(&format!("way near 65536 one-way ring {time} - - - -"));
        assert_eq!(kept.learn(&line("2e-10")).unwrap(), Some(file.clone()));
        assert_eq!((kept.profile(), kept.known_ways()), (kept.built_in(), line("2e-10")));
        assert_eq!(kept.learn(&line("2.1e-10")).unwrap(), None);
        kept.keep(&measured).unwrap();
        assert_eq!((kept.profile(), kept.known_ways()), (measured, line("2e-10")));
        kept.learn(&line("4e-10")).unwrap();
        assert_eq!((kept.profile(), kept.known_ways()), (measured, line("4e-10")));
        // Nothing is left beside the two files.
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 2);
        // One that was made before there was this family: what it has not measured is that of the family.
        let older = Profile::named("epyc").unwrap().with([("turn", 1e-5)]);
        std::fs::write(&file, older.file(kept.machine(), &line("4e-10"))).unwrap();
        assert_eq!((kept.profile(), kept.known_ways()), (measured, line("4e-10")));
        // The next one replaces it.
        kept.keep(&measured.with([("turn", 2e-5)])).unwrap();
        assert_eq!(kept.profile().turn, 2e-5);
    }

    #[test]
    fn what_cannot_be_kept_leaves_what_was() {
        let folder = Folder::new("refused");
        let kept = folder.kept("1");
        std::fs::write(folder.0.join("cache"), "a file where the folder should be").unwrap();
        assert!(kept.keep(&Profile::default()).is_err());
        assert_eq!(kept.profile(), Profile::default());
        let homeless = Kept::of((text, &folder.0), "1", None);
        assert!(homeless.keep(&Profile::default()).is_err() && homeless.load().is_none());
        // A job makes no folder.
        let known = KnownWays::parse("way near 65536 one-way ring 2e-10 - - - -");
        let without = Kept::of((text, &folder.0), "1", Some(folder.0.join("none")));
        assert_eq!((without.learn(&known).unwrap(), homeless.learn(&known).unwrap()), (None, None));
        assert!(!folder.0.join("none").exists());
        // A folder in the place of the file: the draft is taken away again.
        let blocked = Kept::of((text, &folder.0), "2", Some(folder.0.join("blocked")));
        std::fs::create_dir_all(blocked.file().unwrap().join("inside")).unwrap();
        assert!(blocked.keep(&Profile::default()).is_err() && blocked.learn(&known).is_err());
        assert_eq!(std::fs::read_dir(folder.0.join("blocked")).unwrap().count(), 1);
    }

    #[test]
    fn the_folder_is_the_users() {
        let folder = |xdg: &'static str, home: &'static str| {
            cache_folder(move |name| match name {
                "XDG_CACHE_HOME" => Some(xdg.into()),
                _ => Some(home.into()),
            })
        };
        assert_eq!(folder("/x", "/h"), Some("/x/banyan".into()));
        assert_eq!(folder("", "/h"), Some("/h/.cache/banyan".into()));
        assert_eq!(folder("relative", "/h"), Some("/h/.cache/banyan".into()));
        assert_eq!(folder("", ""), None);
        assert_eq!(cache_folder(|_| None), None);
    }

    #[test]
    fn a_user_names_a_profile_or_a_file() {
        assert_eq!(setting(Some("epyc")), Ok("epyc".to_owned()));
        assert!(setting(Some("abacus")).unwrap_err().contains("epyc, zen, zen3, xeon"));
        assert!(setting(Some("/nowhere/at.all")).unwrap_err().starts_with("/nowhere/at.all: "));
        let kept = Kept::here();
        assert_eq!(Profile::parse(&setting(None).unwrap()).unwrap().0, kept.profile());
    }
}
