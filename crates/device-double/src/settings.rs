//! What tests ask for in the environment, and the errors that they ask for.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt::Debug;
use std::str::FromStr;

/// What [the crate](crate) says of its settings.
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) seed: u64,
    pub(crate) memory: usize,
    /// Bytes of devices' memory that the processor can have mapped.
    pub(crate) bar: usize,
    pub(crate) peers: bool,
    pub(crate) ipc: bool,
    pub(crate) shared: bool,
    /// Says on standard error when memory of another process is mapped.
    pub(crate) says: bool,
    pub(crate) kernels: Option<String>,
    errors: Vec<Asked>,
    /// Functions that fail in any case.
    failing: HashMap<String, c_int>,
    calls: HashMap<&'static str, u64>,
}

/// Calls of a function that are to fail.
struct Asked {
    function: String,
    error: c_int,
    first: u64,
    last: u64,
}

fn number<T: FromStr<Err: Debug>>(name: &str, default: T) -> T {
    let text = std::env::var(format!("BANYAN_TEST_CUDA_{name}"));
    text.map_or(default, |text| text.parse().expect("a number in a setting of the stand-in for CUDA"))
}

impl Settings {
    pub(crate) fn read() -> Settings {
        let errors = std::env::var("BANYAN_TEST_CUDA_ERRORS").unwrap_or_default();
        Settings {
            devices: number("DEVICES", 4),
            seed: number("SEED", 1),
            memory: number("MEMORY", 1 << 30),
            bar: number("BAR", 256 << 20),
            peers: number("PEERS", 1) != 0,
            ipc: number("IPC", 1) != 0,
            shared: number("SHARED", 1) != 0,
            says: number("SAYS", 0) != 0,
            kernels: std::env::var("BANYAN_TEST_CUDA_KERNELS").ok(),
            errors: errors.split(',').filter(|text| !text.is_empty()).map(Asked::parse).collect(),
            failing: HashMap::new(),
            calls: HashMap::new(),
        }
    }

    /// How often a function was called; without a name, all of them together.
    pub(crate) fn calls(&self, function: &str) -> u64 {
        let counts = self.calls.iter().filter(|(name, _)| function.is_empty() || **name == function);
        counts.map(|(_, calls)| calls).sum()
    }

    /// From now on a function fails; with 0 it does not.
    pub(crate) fn fail(&mut self, function: &str, error: c_int) {
        self.failing.insert(function.to_owned(), error);
    }

    /// Counts a call of a function; the error that a test asked for.
    pub(crate) fn called(&mut self, function: &'static str) -> c_int {
        let calls = self.calls.entry(function).or_default();
        *calls += 1;
        let asked = self
            .errors
            .iter()
            .find(|asked| asked.function == function && (asked.first..=asked.last).contains(calls));
        asked.map_or_else(|| self.failing.get(function).copied().unwrap_or(0), |asked| asked.error)
    }
}

impl Asked {
    fn parse(text: &str) -> Asked {
        let parts = text.split_once('=').and_then(|(function, rest)| Some((function, rest.split_once('@')?)));
        let (function, (error, when)) = parts.expect("an error is asked for as in cuMemAlloc=2@1-");
        let (first, last) = match when.split_once('-') {
            None => (when, when),
            Some((first, "")) => (first, "18446744073709551615"),
            Some(both) => both,
        };
        let number = |text: &str| text.parse().expect("which calls fail is a number, or as in 2-5");
        Asked {
            function: function.to_owned(),
            error: error.parse().expect("a CUDA error is a number"),
            first: number(first),
            last: number(last),
        }
    }
}
