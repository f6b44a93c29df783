//! The user's say in the choice of algorithms: `BANYAN_COLL="allreduce=ring,bcast=binomial"`, or `BANYAN_COLL=model`.

use crate::{Algorithm, Kind, of_kind};

/// For some collectives, the one algorithm that the user wants.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    forced: Vec<&'static Algorithm>,
    /// The model chooses all others: nothing is measured.
    by_model: bool,
    /// What is measured is shown.
    shows: bool,
}

/// The words for these.
const MODEL: &str = "model";
const SHOW: &str = "show";

const MOST_BYTES: usize = 4096;

impl Overrides {
    /// Reads a comma-separated list of `collective=algorithm`. Spaces around names and empty parts do not
    /// matter; of several algorithms for one collective the last counts. The word `model` among them: for the others the
    /// model chooses, whatever calls take. The word `show`: what is measured is to be shown in the end.
    ///
    /// # Errors
    /// What is wrong, and what is valid.
    pub fn parse(text: &str) -> Result<Overrides, String> {
        if text.len() > MOST_BYTES {
            return Err(format!("longer than {MOST_BYTES} bytes"));
        }
        let mut overrides = Overrides::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part {
                MODEL => overrides.by_model = true,
                SHOW => overrides.shows = true,
                _ => overrides.force(part)?,
            }
        }
        Ok(overrides)
    }

    /// Reads a part `collective=algorithm`.
    fn force(&mut self, part: &str) -> Result<(), String> {
        let form = || {
            let part = printable(part);
            format!("\"{part}\" is neither of the form collective=algorithm, nor {MODEL} or {SHOW}")
        };
        let (kind, name) = part.split_once('=').ok_or_else(form)?;
        let (kind, name) = (kind_named(kind.trim())?, name.trim());
        let row = of_kind(kind).find(|row| row.name == name).ok_or_else(|| {
            let valid = list(of_kind(kind).map(|row| row.name));
            format!("{} has no algorithm \"{}\"; it has: {valid}", kind.name(), printable(name))
        })?;
        self.forced.retain(|other| other.kind != kind);
        self.forced.push(row);
        Ok(())
    }

    /// True if what is measured is to be shown.
    pub fn show(&self) -> bool {
        self.shows
    }

    /// True if the calls of a collective may tell which algorithm is best.
    pub(crate) fn allow_looks(&self, kind: Kind) -> bool {
        !self.by_model && self.of(kind).is_none()
    }

    /// The algorithm that the user wants for a collective.
    pub fn of(&self, kind: Kind) -> Option<&'static Algorithm> {
        self.forced.iter().copied().find(|row| row.kind == kind)
    }
}

/// The collective of that name.
///
/// # Errors
/// That there is none, and which ones there are.
pub(crate) fn kind_named(name: &str) -> Result<Kind, String> {
    Kind::named(name).ok_or_else(|| {
        let valid = list(Kind::ALL.iter().map(|row| row.1));
        format!("there is no collective \"{}\"; there are: {valid}", printable(name))
    })
}

fn list(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The first 40 characters of what the user wrote, without control characters.
fn printable(text: &str) -> String {
    text.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_the_last_counts() {
        let overrides = Overrides::parse(" allreduce = ring ,, bcast=binomial,allreduce=doubling").unwrap();
        assert_eq!(overrides.of(Kind::Allreduce).unwrap().name, "doubling");
        assert_eq!(overrides.of(Kind::Bcast).unwrap().name, "binomial");
        assert!(overrides.of(Kind::Reduce).is_none());
        assert!(Overrides::parse("").unwrap().of(Kind::Bcast).is_none());
        let [some, none] = ["bcast=chain", "model"].map(|text| Overrides::parse(text).unwrap());
        let allowed =
            |overrides: &Overrides| [Kind::Bcast, Kind::Gather].map(|kind| overrides.allow_looks(kind));
        assert_eq!((allowed(&some), allowed(&none)), ([false, true], [false, false]));
    }

    #[test]
    fn errors_name_what_is_valid() {
        let said = |text: &str| Overrides::parse(text).unwrap_err();
        assert_eq!(
            said("bcast=tree"),
            "bcast has no algorithm \"tree\"; it has: binomial, scatter_ring, chain, nodes, cico, single_copy, scratch_pipeline"
        );
        assert!(said("allredcue=ring").contains("allreduce, reduce_scatter"));
        assert!(said("ring").contains("collective=algorithm, nor model or show"));
        assert!(Overrides::parse("show, bcast=chain").unwrap().show() && !Overrides::default().show());
        assert_eq!(said(&"x".repeat(5000)), "longer than 4096 bytes");
        assert!(!said("bcast=\u{1b}[2J").contains('\u{1b}'));
    }

    /// Rows are equal if their names are: two of one name would be one to the tests of all others.
    #[test]
    fn every_row_can_be_asked_for_by_a_name_of_its_own() {
        let mut names = std::collections::HashSet::new();
        for row in crate::all() {
            let text = format!("{row:?}");
            assert_eq!(Overrides::parse(&text).unwrap().of(row.kind), Some(row));
            assert!(names.insert(text), "{row:?} is there twice");
        }
    }
}
