//! The list of what is not run, or must fail in a known way, each with its reason.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::project;

/// `tests/conformance/mpich.toml`. Keys are `folder/name`, or `folder/name -n 33 ...` for one run only.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Skips {
    /// Cannot be run: name = reason.
    #[serde(default)]
    never: BTreeMap<String, String>,
    /// Does not compile, because this name is not in the MPI 5.0 ABI: name = identifier. Verified.
    #[serde(default)]
    lacks: BTreeMap<String, String>,
    /// Fails and says that this is not built yet in Banyan: name = function or more. Verified.
    #[serde(default)]
    needs: BTreeMap<String, String>,
    /// Too long or too large for CI: name = reason.
    #[serde(default)]
    long: BTreeMap<String, String>,
}

/// What the list says of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Run,
    Never(String),
    Lacks(String),
    Needs(String),
    Long(String),
}

impl Skips {
    /// Reads the list; a name that stands twice is an error.
    pub(crate) fn read(path: &Path) -> Result<Skips> {
        let skips: Skips =
            toml::from_str(&project::read(path)?).with_context(|| path.display().to_string())?;
        let mut seen = BTreeMap::new();
        for name in skips.names() {
            if seen.insert(name, ()).is_some() {
                bail!("{}: {name} stands there twice", path.display());
            }
        }
        Ok(skips)
    }

    /// All names in the list.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let lists = [&self.never, &self.lacks, &self.needs, &self.long];
        lists.into_iter().flat_map(|list| list.keys().map(String::as_str))
    }

    /// What holds for a run with this id and title.
    pub(crate) fn verdict(&self, id: &str, title: &str) -> Verdict {
        let find = |list: &BTreeMap<String, String>| list.get(title).or_else(|| list.get(id)).cloned();
        find(&self.never)
            .map(Verdict::Never)
            .or_else(|| find(&self.lacks).map(Verdict::Lacks))
            .or_else(|| find(&self.needs).map(Verdict::Needs))
            .or_else(|| find(&self.long).map(Verdict::Long))
            .unwrap_or(Verdict::Run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_or_all_runs_of_a_program() {
        let text = "[never]\n\"a/b\" = \"why\"\n[long]\n\"a/c -n 33\" = \"large\"\n";
        let skips: Skips = toml::from_str(text).unwrap();
        assert_eq!(skips.verdict("a/b", "a/b -n 2"), Verdict::Never("why".into()));
        assert_eq!(skips.verdict("a/c", "a/c -n 33"), Verdict::Long("large".into()));
        assert_eq!(skips.verdict("a/c", "a/c -n 2"), Verdict::Run);
    }
}
