//! [`CpuSet`]: sets of CPUs in the kernel's list form (`0-3,8`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Highest CPU number that is handled: the highest in the fixed-size set of sched_setaffinity.
pub const MAX_CPU: u32 = 1023;

/// CPUs, in ascending order, each at most [`MAX_CPU`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(Vec<u32>);

/// The error for text that is no list of CPUs.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("not a list of CPUs such as 0-3,8 (each at most {MAX_CPU})")]
pub struct ParseError;

impl CpuSet {
    /// The CPUs of this process's affinity mask.
    pub fn allowed() -> CpuSet {
        let Ok(mask) = rustix::thread::sched_getaffinity(None) else { return CpuSet(vec![0]) };
        (0..=MAX_CPU).filter(|&cpu| mask.is_set(cpu as usize)).collect()
    }

    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// How many CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if `cpu` is one of them.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }
}

impl FromIterator<u32> for CpuSet {
    /// Numbers past [`MAX_CPU`] are left out.
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut cpus: Vec<u32> = cpus.into_iter().filter(|&cpu| cpu <= MAX_CPU).collect();
        cpus.sort_unstable();
        cpus.dedup();
        CpuSet(cpus)
    }
}

impl FromStr for CpuSet {
    type Err = ParseError;

    /// Reads the kernel's list form: `0-3,8,10-11`; empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(CpuSet::default());
        }
        let mut words = [0u64; (MAX_CPU as usize + 1) / 64];
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first)?..=number(last)?;
            if range.is_empty() {
                return Err(ParseError);
            }
            range.for_each(|cpu| words[cpu as usize / 64] |= 1 << (cpu % 64));
        }
        let words = (0..).zip(words).filter(|(_, word)| *word != 0);
        let bits = words.flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at * 64 + bit)
        });
        Ok(CpuSet(bits.collect()))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(cpus: CpuSet) -> String {
        cpus.to_string()
    }
}

fn number(text: &str) -> Result<u32, ParseError> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ParseError);
    }
    text.parse().ok().filter(|&cpu| cpu <= MAX_CPU).ok_or(ParseError)
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|&low, &high| low + 1 == high);
        for (at, run) in runs.enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}
