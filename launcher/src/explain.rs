//! `--explain`, and the check of the settings that ranks will read: what is wrong is said once, by mpirun.

use std::ffi::{OsStr, OsString};

use banyan_coll::{Facts, Overrides, Tuning, parse_question};
use banyan_pmi::settings::{self, COLL, EAGER_BUDGET, FABRICS};

use crate::Trouble;
use crate::plan;

/// The candidates for `what` (such as `allreduce:64K`) on `ranks` ranks of this host, the choice and the
/// reason; with the user's overrides.
///
/// # Errors
/// If `what` names no collective or size, or a setting is wrong.
pub(crate) fn explain(what: &str, ranks: u32) -> Result<String, Trouble> {
    let lookup = |name: &str| std::env::var_os(name);
    check(lookup)?;
    let (kind, bytes) =
        parse_question(what).map_err(|why| Trouble::usage(format!("--explain {what}: {why}")))?;
    let text =
        |name: &str| lookup(name).and_then(|value| value.into_string().ok()).filter(|text| !text.is_empty());
    let overrides = text(COLL).map_or_else(|| Ok(Overrides::default()), |text| Overrides::parse(&text));
    let overrides = overrides.map_err(|why| Trouble::usage(format!("{COLL}: {why}")))?;
    let tuning = Tuning { overrides, ..Tuning::default() };
    let shared = text(FABRICS).is_none_or(|text| text.split(',').any(|fabric| fabric.trim() == "shm"));
    let mut facts = Facts::supposed(ranks, shared, banyan_topo::usable_cores());
    facts.per_node = ranks; // also when they do not share memory, they are all here
    if let Some(slots) = &mut facts.slots {
        slots.regions = plan::single_copy(ranks, facts.cores);
    }
    Ok(tuning.explain(kind, bytes, &facts).to_string())
}

/// Checks the settings in an environment.
///
/// # Errors
/// The first that is wrong.
pub(crate) fn check(variable: impl Fn(&str) -> Option<OsString>) -> Result<(), Trouble> {
    let wrong = |name: &str, why: String| match why.starts_with(name) {
        true => Trouble::usage(why),
        false => Trouble::usage(format!("{name}: {why}")),
    };
    let is = |name: &str, valid: &dyn Fn(&str) -> Result<(), String>| {
        let Some(value) = variable(name).filter(|value| value != OsStr::new("")) else { return Ok(()) };
        let text = value.to_str().ok_or_else(|| wrong(name, "is not text".to_owned()))?;
        valid(text).map_err(|why| wrong(name, why))
    };
    is(FABRICS, &|text| settings::fabrics(text).map(drop))?;
    is(EAGER_BUDGET, &|text| settings::bytes(text).map(drop))?;
    is(COLL, &|text| Overrides::parse(text).map(drop).map_err(|why| why.to_string()))
}
