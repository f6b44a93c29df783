//! Which way long messages take on this node, by the setting `BANYAN_P2P` and the cores that the ranks have.

use std::sync::OnceLock;
use std::time::Instant;

use banyan_p2p::{Choice, Measured, P2p, Way};
use banyan_pmi::Job;
use banyan_pmi::settings::{P2P, SHOW, way, way_of};
use banyan_transport::Peer;

/// How the way of long messages is chosen, and whether ranks of this node may reach each other's memory for it.
///
/// # Errors
/// If the setting is wrong.
pub(crate) fn choice(job: &Job) -> Result<(Choice, bool), String> {
    let crowded = job.local_size > job.cores();
    let name = way_of(job.setting(P2P), crowded)?;
    Ok(match name.parse() {
        Ok(Way::Ring) => (Choice::Fixed(Way::Ring), job.single_copy),
        Ok(fixed) => (Choice::Fixed(fixed), job.single_copy || job.setting(P2P).map(way) == Some(Ok(name))),
        Err(()) => (Choice::Measured { me: Peer(job.rank), clock: now }, true),
    })
}

/// What this process has measured, for people; nothing unless the setting asks for it.
pub(crate) fn shown(job: &Job, p2p: &P2p) -> Option<String> {
    if job.setting(P2P).map(way) != Some(Ok(SHOW)) {
        return None;
    }
    let mut lines =
        vec![format!("banyan: rank {}: ways of long messages, us for the shortest of a class:", job.rank)];
    lines.extend(p2p.measured().map(|measured| line(&measured)));
    if lines.len() == 1 {
        lines.push("  none was measured".to_owned());
    }
    Some(lines.join("\n"))
}

/// Such as "  from rank 0, one way, from 262144 bytes: both, as ring 19.6, read 10.4, write 12.0, both 8.8".
fn line(&Measured { peer, shortest, traffic, way, times }: &Measured) -> String {
    let times = Way::ALL
        .into_iter()
        .zip(times)
        .filter_map(|(way, time)| Some(format!("{} {:.1}", way.name(), time? * shortest as f64 / 1e3)));
    let times = times.collect::<Vec<_>>().join(", ");
    let because = if times.is_empty() { ", not yet measured".to_owned() } else { format!(", as {times}") };
    format!("  from rank {}, {}, from {shortest} bytes: {}{because}", peer.0, traffic.name(), way.name())
}

/// The time since the first call, ns.
fn now() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    // Not 0, which stands for no time.
    FIRST.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

#[cfg(test)]
mod tests {
    use banyan_p2p::Traffic;
    use banyan_pmi::settings::MEASURED;

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
        assert_eq!(
            (chosen(2, 2, Some("show")), chosen(3, 2, Some("show"))),
            (is("auto", true), is("read", true))
        );
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
        let times = [Some(0.1), None, Some(0.05), None];
        let measured =
            Measured { peer: Peer(3), shortest: 1 << 20, traffic: Traffic::BothWays, way: Way::Write, times };
        let shown = "  from rank 3, both ways, from 1048576 bytes: write, as ring 104.9, write 52.4";
        assert_eq!(line(&measured), shown);
        let (first, second) = (now(), now());
        assert!(0 < first && first <= second);
    }
}
