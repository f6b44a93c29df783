//! `--explain`: which algorithm a collective would take, and why.

use banyan_coll::{Facts, Overrides, SlotFacts, Tuning, parse_question};
use banyan_pmi::settings::{COLL, FABRICS};
use banyan_shm::Arena;

use crate::environment::check;
use crate::{Trouble, plan};

/// The candidates for `what` (such as `allreduce:64K`) on `ranks` ranks of this host (as many as cores, but at least 2, if
/// that is not said), the choice and the reason; with the user's overrides.
///
/// # Errors
/// If `what` names no collective or size, or a setting is wrong.
pub(crate) fn explain(what: &str, ranks: Option<u32>) -> Result<String, Trouble> {
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
    let cores = banyan_topo::usable_cores();
    let ranks = ranks.unwrap_or(cores.max(2));
    let slots = shared.then(|| {
        let (inline, board) = Arena::sizes(ranks);
        let regions = plan::single_copy(ranks, cores);
        SlotFacts { inline: inline as u64, regions, board: board as u64 }
    });
    // Also when they do not share memory, they are all here.
    let facts = Facts { ranks, shared, cores, per_node: ranks, slots };
    Ok(tuning.explain(kind, bytes, &facts).to_string())
}
