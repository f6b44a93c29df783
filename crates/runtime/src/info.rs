//! [`Info`]: ordered pairs of strings that carry hints (MPI 5.0, chapter 10).

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use banyan_pmi::{Job, settings};

use crate::{Result, bail, lock};

/// Longest key, bytes (MPI_MAX_INFO_KEY of the ABI counts the terminating zero too).
pub const MAX_INFO_KEY: usize = 255;

/// Longest value, bytes (MPI_MAX_INFO_VAL of the ABI counts the terminating zero too).
pub const MAX_INFO_VALUE: usize = 1023;

/// The info key of kinds of memory: those that are asked for in MPI_INFO_ENV, and those that calls take in what communicators say (MPI 5.0, 11.4.3).
pub(crate) const MEMORY_ALLOC_KINDS: &str = "mpi_memory_alloc_kinds";

/// Key and value pairs, in the order in which the keys were first set. Any thread may use it at any time,
/// also before initialization. Strings are bytes without zeros: C gives them in any encoding.
#[derive(Default, Debug)]
pub struct Info {
    pairs: Mutex<Vec<Pair>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Pair {
    key: Box<[u8]>,
    value: Box<[u8]>,
}

/// How this process was started, as far as that can change or is forgotten later: [`Info::env`] has the rest of the system.
#[derive(Debug)]
pub struct Start {
    wdir: Option<CString>,
    command: Option<String>,
    processes: Option<u32>,
    /// The kinds of memory that were asked for, in the words of the user.
    memory_alloc_kinds: Option<String>,
}

impl Start {
    /// As far as the process knows by itself; the working directory is that of now.
    pub fn here() -> Start {
        Start {
            wdir: rustix::process::getcwd(Vec::new()).ok(),
            command: None,
            processes: None,
            memory_alloc_kinds: settings::memory_alloc_kinds_of_environment(),
        }
    }

    /// [`Start::here`], and what a launcher has said of the job.
    pub fn in_job(job: &Job) -> Start {
        Start {
            command: Some(job.command.clone()),
            processes: Some(job.app_size),
            memory_alloc_kinds: job.setting(settings::MEMORY_ALLOC_KINDS).map(str::to_owned),
            ..Start::here()
        }
    }
}

impl Info {
    /// An object without keys.
    pub fn new() -> Info {
        Info::default()
    }

    /// The contents of MPI_INFO_ENV and of MPI_Info_create_env (MPI 5.0, 10.2.6 and 11.5): how this process was started. What
    /// is not known is left out. `args` are the command and its arguments, as `main` got them (none: taken from the system).
    pub fn env(args: &[String], start: &Start) -> Info {
        let own: Vec<String>;
        let args = if args.is_empty() {
            own = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
            &own
        } else {
            args
        };
        let Start { wdir, command, processes, memory_alloc_kinds } = start;
        let wdir = wdir.as_ref().map(|wdir| wdir.to_string_lossy().into_owned());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let known = [
            ("command", command.clone().or_else(|| args.first().cloned())),
            ("argv", args.get(1..).filter(|rest| !rest.is_empty()).map(|rest| rest.join(" "))),
            ("maxprocs", processes.map(|processes| processes.to_string())),
            (MEMORY_ALLOC_KINDS, memory_alloc_kinds.clone()),
            ("host", host.map(|name| name.trim().to_owned())),
            ("arch", Some(std::env::consts::ARCH.to_owned())),
            ("wdir", wdir),
        ];
        let pairs = known.into_iter().filter_map(|(key, value)| {
            let value = value?;
            let value = value.as_bytes()[..value.len().min(MAX_INFO_VALUE)].into();
            Some(Pair { key: key.as_bytes().into(), value })
        });
        Info { pairs: Mutex::new(pairs.collect()) }
    }

    /// Sets `key` to `value`; what it had before is replaced, its place in the order stays.
    ///
    /// # Errors
    /// ERR_INFO_KEY if the key is empty or longer than [`MAX_INFO_KEY`], ERR_INFO_VALUE if the value is
    /// longer than [`MAX_INFO_VALUE`]; either if it has a zero byte.
    pub fn set(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (checked_key(key.as_ref())?, value.as_ref());
        if value.len() > MAX_INFO_VALUE {
            bail!(ERR_INFO_VALUE, "the info value has {} bytes, {MAX_INFO_VALUE} are allowed", value.len());
        }
        if value.contains(&0) {
            bail!(ERR_INFO_VALUE, "the info value has a zero byte in it");
        }
        let mut pairs = lock(&self.pairs);
        match pairs.iter_mut().find(|pair| *pair.key == *key) {
            Some(pair) => pair.value = value.into(),
            None => pairs.push(Pair { key: key.into(), value: value.into() }),
        }
        Ok(())
    }

    /// The value of `key`, if it has one.
    ///
    /// # Errors
    /// ERR_INFO_KEY if the key is empty or too long.
    pub fn value(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let key = checked_key(key.as_ref())?;
        Ok(lock(&self.pairs).iter().find(|pair| *pair.key == *key).map(|pair| pair.value.to_vec()))
    }

    /// The value of `key` as text, if it has one and it is UTF-8.
    pub fn text(&self, key: &str) -> Option<String> {
        self.value(key).ok()?.and_then(|value| String::from_utf8(value).ok())
    }

    /// Removes `key` and its value.
    ///
    /// # Errors
    /// ERR_INFO_NOKEY if there is no such key, ERR_INFO_KEY if it is empty or too long.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = checked_key(key.as_ref())?;
        let mut pairs = lock(&self.pairs);
        let Some(at) = pairs.iter().position(|pair| *pair.key == *key) else {
            bail!(ERR_INFO_NOKEY, "the info object has no key \"{}\"", key.escape_ascii());
        };
        pairs.remove(at);
        Ok(())
    }

    /// Sets the keys of `other` to their values there.
    pub(crate) fn update(&self, other: Info) {
        let new = other.pairs.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut pairs = lock(&self.pairs);
        for pair in new {
            match pairs.iter_mut().find(|old| old.key == pair.key) {
                Some(old) => *old = pair,
                None => pairs.push(pair),
            }
        }
    }

    /// Number of keys.
    pub fn nkeys(&self) -> usize {
        lock(&self.pairs).len()
    }

    /// The `n`th key, from 0.
    ///
    /// # Errors
    /// ERR_ARG if there are not that many.
    pub fn nthkey(&self, n: usize) -> Result<Vec<u8>> {
        let pairs = lock(&self.pairs);
        match pairs.get(n) {
            Some(pair) => Ok(pair.key.to_vec()),
            None => bail!(ERR_ARG, "info key number {n} was asked for, the object has {}", pairs.len()),
        }
    }

    /// A copy of its own, keys in the same order.
    pub fn dup(&self) -> Info {
        Info { pairs: Mutex::new(lock(&self.pairs).clone()) }
    }
}

fn checked_key(key: &[u8]) -> Result<&[u8]> {
    match key.len() {
        0 => bail!(ERR_INFO_KEY, "the info key is empty"),
        1..=MAX_INFO_KEY if !key.contains(&0) => Ok(key),
        1..=MAX_INFO_KEY => bail!(ERR_INFO_KEY, "the info key has a zero byte in it"),
        len => bail!(ERR_INFO_KEY, "the info key has {len} bytes, {MAX_INFO_KEY} are allowed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    #[test]
    fn keys_keep_their_order() {
        let info = Info::new();
        for (key, value) in [("one", "1"), ("two", "2"), ("three", "3"), ("one", "uno")] {
            info.set(key, value).unwrap();
        }
        let keys =
            |info: &Info| -> Vec<Vec<u8>> { (0..info.nkeys()).map(|n| info.nthkey(n).unwrap()).collect() };
        assert_eq!(keys(&info), [&b"one"[..], b"two", b"three"]);
        assert_eq!(info.text("one").as_deref(), Some("uno"));
        let copy = info.dup();
        info.delete("two").unwrap();
        let more = Info::new();
        more.set("four", "4").unwrap();
        more.set("one", "1").unwrap();
        let both = info.dup();
        both.update(more);
        assert_eq!(keys(&both), [&b"one"[..], b"three", b"four"]);
        assert_eq!(both.text("one").as_deref(), Some("1"));
        assert_eq!(keys(&info), [&b"one"[..], b"three"]);
        assert_eq!(keys(&copy), [&b"one"[..], b"two", b"three"]);
        assert_eq!(info.value("two").unwrap(), None);
    }

    #[test]
    fn bad_keys_and_values_have_their_classes() {
        let info = Info::new();
        let class = |result: Result<()>| result.unwrap_err().class;
        assert_eq!(class(info.set("", "x")), Class::ERR_INFO_KEY);
        assert_eq!(class(info.set("k".repeat(256), "x")), Class::ERR_INFO_KEY);
        assert_eq!(class(info.set("k", "x".repeat(1024))), Class::ERR_INFO_VALUE);
        assert_eq!(class(info.set(b"a\0b", "x")), Class::ERR_INFO_KEY);
        assert_eq!(class(info.delete("k")), Class::ERR_INFO_NOKEY);
        assert_eq!(class(info.nthkey(0).map(drop)), Class::ERR_ARG);
        assert_eq!(info.nkeys(), 0);
        info.set("k".repeat(255), "x".repeat(1023)).unwrap();
        info.set("empty", "").unwrap();
        assert_eq!(info.value("empty").unwrap().unwrap(), b"");
    }

    #[test]
    fn the_environment_tells_what_is_known() {
        let args = ["./heat", "-n", "4"].map(String::from);
        let kinds = (settings::MEMORY_ALLOC_KINDS.to_owned(), "mpi,none_such".to_owned());
        let job = Job { command: "heat".to_owned(), app_size: 4, settings: vec![kinds], ..Job::singleton(1) };
        let info = Info::env(&args, &Start::in_job(&job));
        assert_eq!(info.text("command").as_deref(), Some("heat"));
        assert_eq!(info.text("mpi_memory_alloc_kinds").as_deref(), Some("mpi,none_such"));
        let alone = Info::env(&args, &Start::here());
        assert_eq!(alone.text("command").as_deref(), Some("./heat"));
        assert_eq!(alone.text("wdir"), std::env::current_dir().unwrap().to_str().map(str::to_owned));
        assert_eq!(info.text("argv").as_deref(), Some("-n 4"));
        assert_eq!(info.text("maxprocs").as_deref(), Some("4"));
        assert_eq!(info.text("arch").as_deref(), Some(std::env::consts::ARCH));
        assert_eq!(info.text("soft"), None);
    }
}
