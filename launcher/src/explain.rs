//! `--explain`: which algorithm a collective would take, or which way a long message, and why.

use banyan_coll::{Groups, Location, Model, Nodes, Overrides, SharedCaps, Topology, Tuning, parse_question};
use banyan_pmi::settings::{COLL, FABRICS, MACHINE, MEASURED, P2P, SHOW, WAYS, bytes, way, way_of};
use banyan_shm::Arena;
use banyan_topo::{Machine, Profile, bound, kept, share};

use crate::Trouble;
use crate::binding::default_parts;
use crate::environment::check;

/// The answer to `--explain`: about long messages, or a collective.
///
/// # Errors
/// If `what` names neither, or no size, or a setting is wrong.
pub(crate) fn explain(what: &str, ranks: Option<u32>, per_host: Option<u32>) -> Result<String, Trouble> {
    check(|name| std::env::var_os(name))?;
    match what.split_once(':').unwrap_or((what, "256K")) {
        (name, size) if name.trim() == "p2p" => {
            let bytes = bytes(size).map_err(|why| Trouble::usage(format!("--explain {what}: {why}")))?;
            Ok(ways(bytes, ranks, per_host))
        }
        _ => collective(what, ranks, per_host),
    }
}

/// A setting, if it is set.
fn text(name: &str) -> Option<String> {
    std::env::var_os(name).and_then(|value| value.into_string().ok()).filter(|text| !text.is_empty())
}

fn shares_memory() -> bool {
    text(FABRICS).is_none_or(|text| text.split(',').any(|fabric| fabric.trim() == "shm"))
}

/// The ways of a message of `bytes` bytes between two ranks of one host: what can be taken here, and what is.
fn ways(bytes: u64, ranks: Option<u32>, per_host: Option<u32>) -> String {
    let cores = banyan_topo::usable_cores();
    let ranks = ranks.unwrap_or(cores.max(2));
    let per_node = per_host.unwrap_or(ranks).min(ranks);
    let mut out =
        format!("a message of {bytes} bytes between ranks of one host, {per_node} ranks on {cores} cores\n");
    if !shares_memory() {
        return out + &format!("no shared memory, by {FABRICS}: it goes by another fabric\n");
    }
    let single_copy = banyan_topo::single_copy();
    for (name, meaning) in WAYS {
        let refused = if single_copy || name == "ring" { "" } else { "; the system refuses that here" };
        out += &format!("  {name:5}  {meaning}{refused}\n");
    }
    // What the setting says was checked before.
    let given = text(P2P).and_then(|text| way(&text).ok());
    let (chosen, why) = match way_of(given, per_node > cores).unwrap_or(MEASURED) {
        _ if bytes <= EAGER => ("ring", "messages of up to 16 KiB are sent eagerly, in one frame".to_owned()),
        _ if !single_copy => ("ring", "the system refuses ranks each other's memory".to_owned()),
        MEASURED => {
            let how = "each pair of ranks measures for itself, one way and both ways apart";
            (MEASURED, format!("{how}; {P2P}={SHOW} shows what it finds when the job ends"))
        }
        name if given == Some(name) => (name, format!("{P2P} says so")),
        name => (name, "with more ranks than cores, a turn on the core costs more than the way".to_owned()),
    };
    out + &format!("chosen: {chosen}: {why}\n")
}

/// Longest message without a choice of ways, bytes.
const EAGER: u64 = 16 << 10;

/// The candidates for `what` (such as `allreduce:64K`) on `ranks` ranks (`None`: as many as cores, but at least 2), all of them on
/// this host, or `per_host` on each of several like it, the choice and the reason; with the user's overrides.
///
/// # Errors
/// If `what` names no collective or size, or a setting is wrong.
fn collective(what: &str, ranks: Option<u32>, per_host: Option<u32>) -> Result<String, Trouble> {
    let (kind, bytes) =
        parse_question(what).map_err(|why| Trouble::usage(format!("--explain {what}: {why}")))?;
    let overrides = text(COLL).map_or_else(|| Ok(Overrides::default()), |text| Overrides::parse(&text));
    let overrides = overrides.map_err(|why| Trouble::usage(format!("{COLL}: {why}")))?;
    let by_shm = shares_memory();
    let cores = banyan_topo::usable_cores();
    let ranks = ranks.unwrap_or(cores.max(2));
    let per_node = per_host.unwrap_or(ranks).min(ranks);
    let machine = kept::setting(text(MACHINE).as_deref()).and_then(|text| Ok(Profile::parse(&text)?.0));
    let profile = machine.map_err(|why| Trouble::usage(format!("{MACHINE}: {why}")))?;
    let tuning = Tuning { overrides, model: Model::of(&profile, ranks.div_ceil(per_node)) };
    let shared = by_shm.then(|| {
        let (inline, scratch) = Arena::sizes(per_node);
        SharedCaps { inline: inline as u64, single_copy: banyan_topo::single_copy(), scratch: scratch as u64 }
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
