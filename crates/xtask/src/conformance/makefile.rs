//! Reads what a folder's automake file says of its programs: sources, definitions, libraries.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::project;

/// How the programs of a folder are built, beyond one source of the same name.
#[derive(Default)]
pub(crate) struct Makefile {
    variables: BTreeMap<String, String>,
}

/// A program of the folder.
pub(crate) struct Recipe {
    pub(crate) sources: Vec<PathBuf>,
    pub(crate) flags: Vec<String>,
    /// It links MPICH's library of datatypes.
    pub(crate) dtypes: bool,
}

impl Makefile {
    /// Reads the makefile of `folder`.
    pub(crate) fn read(folder: &Path) -> Result<Makefile> {
        Ok(Makefile::parse(&project::read(&folder.join("Makefile.am"))?))
    }

    fn parse(text: &str) -> Makefile {
        let mut variables = BTreeMap::new();
        for line in text.replace("\\\n", " ").lines() {
            let Some((name, value)) = line.split_once('=') else { continue };
            let name = name.trim_end_matches('+').trim();
            if name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                continue;
            }
            let entry: &mut String = variables.entry(name.to_owned()).or_default();
            entry.push(' ');
            entry.push_str(value.trim());
        }
        Makefile { variables }
    }

    /// How one program is built.
    pub(crate) fn recipe(&self, folder: &Path, program: &str) -> Recipe {
        let mut sources: Vec<PathBuf> = self
            .words(&format!("{program}_SOURCES"))
            .filter(|name| name.ends_with(".c"))
            .map(|name| folder.join(name))
            .collect();
        if sources.is_empty() {
            sources.push(folder.join(format!("{program}.c")));
        }
        let flags = self.words(&format!("{program}_CPPFLAGS")).filter(|word| word.starts_with("-D"));
        Recipe {
            sources,
            flags: flags.map(str::to_owned).collect(),
            dtypes: self.words(&format!("{program}_LDADD")).any(|word| word == "$(LDADDDATA)"),
        }
    }

    fn words<'a>(&'a self, variable: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.variables.get(variable).map_or("", String::as_str).split_whitespace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_of_one_source_are_told_apart() {
        let text = "noinst_PROGRAMS = one \\\n  two\ntwo_SOURCES = one.c\ntwo_CPPFLAGS = -DTWO $(AM_CPPFLAGS)\n\
                    one_LDADD = $(LDADD) $(LDADDDATA)\n";
        let makefile = Makefile::parse(text);
        assert_eq!(makefile.words("noinst_PROGRAMS").collect::<Vec<_>>(), ["one", "two"]);
        let two = makefile.recipe(Path::new("f"), "two");
        assert_eq!((two.sources[0].to_str(), two.flags), (Some("f/one.c"), vec!["-DTWO".to_owned()]));
        assert!(makefile.recipe(Path::new("f"), "one").dtypes && !two.dtypes);
    }
}
