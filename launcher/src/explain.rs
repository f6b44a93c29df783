//! `--explain`: which algorithm a collective would take, and why.

use banyan_coll::{Groups, Location, Model, Nodes, Overrides, SharedCaps, Topology, Tuning, parse_question};
use banyan_pmi::settings::{COLL, FABRICS, MACHINE};
use banyan_shm::Arena;
use banyan_topo::{Machine, Profile, bound, kept, share};

use crate::binding::default_parts;
use crate::environment::check;
use crate::{Trouble, plan};

/// The candidates for `what` (such as `allreduce:64K`) on `ranks` ranks (`None`: as many as cores, but at least 2), all of them on
/// this host, or `per_host` on each of several like it, the choice and the reason; with the user's overrides.
///
/// # Errors
/// If `what` names no collective or size, or a setting is wrong.
pub(crate) fn explain(what: &str, ranks: Option<u32>, per_host: Option<u32>) -> Result<String, Trouble> {
    let lookup = |name: &str| std::env::var_os(name);
    check(lookup)?;
    let (kind, bytes) =
        parse_question(what).map_err(|why| Trouble::usage(format!("--explain {what}: {why}")))?;
    let text =
        |name: &str| lookup(name).and_then(|value| value.into_string().ok()).filter(|text| !text.is_empty());
    let overrides = text(COLL).map_or_else(|| Ok(Overrides::default()), |text| Overrides::parse(&text));
    let overrides = overrides.map_err(|why| Trouble::usage(format!("{COLL}: {why}")))?;
    let by_shm = text(FABRICS).is_none_or(|text| text.split(',').any(|fabric| fabric.trim() == "shm"));
    let cores = banyan_topo::usable_cores();
    let ranks = ranks.unwrap_or(cores.max(2));
    let per_node = per_host.unwrap_or(ranks).min(ranks);
    let machine = kept::setting(text(MACHINE).as_deref()).and_then(|text| Ok(Profile::parse(&text)?.0));
    let profile = machine.map_err(|why| Trouble::usage(format!("{MACHINE}: {why}")))?;
    let tuning = Tuning { overrides, model: Model::of(&profile, ranks.div_ceil(per_node)) };
    let shared = by_shm.then(|| {
        let (inline, scratch) = Arena::sizes(per_node);
        let single_copy = plan::single_copy(per_node, cores);
        SharedCaps { inline: inline as u64, single_copy, scratch: scratch as u64 }
    });
    // Ranks are on their host even if they do not share its memory, and bound there as without an option.
    let machine = Machine::read();
    let bound = bound(&machine, &share(&machine, per_node, default_parts(per_node < ranks)));
    let location = |rank: u32| {
        let at = bound.get((rank % per_node) as usize).copied().unwrap_or_default();
        Location([rank / per_node, at.socket, at.cache])
    };
    let levels = match by_shm {
        true => Nodes::new((0..ranks).map(location)).levels(),
        false => Groups::on_nodes(ranks, per_node),
    };
    let topology = Topology { ranks, cores, shared, levels };
    let explained = tuning.explain(kind, bytes, &topology).simulated(&tuning);
    Ok(format!("{explained}costs: {}\n", profile.source()))
}
