//! Which way long messages take on this node, by the setting `BANYAN_P2P` and the cores that the ranks have.

use std::sync::OnceLock;
use std::time::Instant;

use banyan_p2p::{Choice, Way};
use banyan_pmi::Job;
use banyan_pmi::settings::{MEASURED, P2P, way};
use banyan_transport::Peer;

/// How the way of long messages is chosen, and whether ranks of this node may reach each other's memory for it.
///
/// # Errors
/// If the setting is wrong.
pub(crate) fn choice(job: &Job) -> Result<(Choice, bool), String> {
    let crowded = job.local_size > job.cores();
    match job.setting(P2P).map(way).transpose()? {
        None | Some(MEASURED) if !crowded => Ok((Choice::Measured { me: Peer(job.rank), clock: now }, true)),
        // With more ranks than cores times are those of turns.
        None | Some(MEASURED) => Ok((Choice::Fixed(Way::Read), job.single_copy)),
        Some(name) => match name.parse() {
            Ok(Way::Ring) => Ok((Choice::Fixed(Way::Ring), job.single_copy)),
            Ok(way) => Ok((Choice::Fixed(way), true)),
            Err(()) => Err(format!("{P2P}: \"{name}\" is no way of messages")),
        },
    }
}

/// The time since the first call, ns.
fn now() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    // Not 0, which stands for no time.
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is chosen on one node with these ranks and cores.
    fn chosen(ranks: u32, cores: u32, setting: Option<&str>) -> Result<(String, bool), String> {
        let settings = setting.map(|value| (P2P.to_owned(), value.to_owned())).into_iter().collect();
        let single_copy = ranks > cores;
        let job = Job { size: ranks, local_size: ranks, single_copy, settings, ..Job::singleton(cores) };
        choice(&job).map(|(choice, reached)| match choice {
            Choice::Fixed(way) => (way.name().to_owned(), reached),
            Choice::Measured { .. } => (MEASURED.to_owned(), reached),
        })
    }

    #[test]
    fn the_setting_and_the_cores_decide() {
        let is = |name: &str, reached| Ok((name.to_owned(), reached));
        assert_eq!((chosen(2, 2, None), chosen(3, 2, None)), (is("auto", true), is("read", true)));
        assert_eq!(chosen(2, 2, Some("auto")), is("auto", true));
        assert_eq!(chosen(3, 2, Some("auto")), is("read", true));
        assert_eq!(
            (chosen(2, 2, Some("ring")), chosen(3, 2, Some("ring"))),
            (is("ring", false), is("ring", true))
        );
        assert_eq!(
            (chosen(2, 2, Some("both")), chosen(3, 2, Some("write"))),
            (is("both", true), is("write", true))
        );
        assert!(chosen(2, 2, Some("rings")).is_err());
        let (first, second) = (now(), now());
        assert!(0 < first && first <= second);
    }
}
