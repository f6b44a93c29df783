//! `--explain`: why a collective algorithm is chosen.

use crate::Trouble;

/// Prints the candidates for `what` (such as `allreduce:64K`) on `ranks` ranks, the choice and the reason.
///
/// # Errors
/// If `what` names no collective or size.
pub(crate) fn explain(what: &str, ranks: u32) -> Result<u8, Trouble> {
    let _ = (what, ranks);
    Err(Trouble::usage("--explain: this build has no tuner to ask"))
}
