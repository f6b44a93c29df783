//! Which way long messages take on this node, by the setting `BANYAN_P2P` and the cores that the ranks have; what earlier jobs have
//! found, and what this one hands on.

use std::sync::OnceLock;
use std::time::Instant;

use banyan_p2p::{Choice, Found, Known, Measured, P2p, Way};
use banyan_pmi::settings::{MACHINE, P2P, SHOW, way, way_of};
use banyan_pmi::{Job, Places};
use banyan_topo::ways::SHORTEST;
use banyan_topo::{DISTANCES, KnownWay, KnownWays, Profile};
use banyan_transport::Peer;

use crate::gpu;

/// How the way of long messages is chosen, and whether ranks of this node may reach each other's memory for it.
///
/// # Errors
/// If the setting is wrong.
pub(crate) fn choice(job: &Job) -> Result<(Choice, bool), String> {
    let crowded = job.local_size > job.cores();
    let name = way_of(job.setting(P2P), crowded)?;
    Ok(match name.parse::<Way>() {
        Ok(frames) if frames.in_frames() => (Choice::Fixed(frames), job.single_copy),
        Ok(fixed) => (Choice::Fixed(fixed), job.single_copy || job.setting(P2P).map(way) == Some(Ok(name))),
        Err(()) => (Choice::Measured { me: Peer(job.rank), clock: now }, true),
    })
}

/// What the profile of the machine says of ways, and what earlier jobs have found: that stands in the profile's text, and is read when there is
/// a message that it is about. Nothing where the launcher has given no profile.
pub(crate) fn known(job: &Job, profile: &Profile) -> Known {
    let Some(text) = job.setting(MACHINE) else { return Known::default() };
    let (text, places, me, read) = (text.to_owned(), job.places.clone(), job.rank, OnceLock::new());
    let profile = *profile;
    Known::by(move |peer| {
        let Some(distance) = distance(&places, (me, peer.0)) else { return Vec::new() };
        let found: &KnownWays = read.get_or_init(|| KnownWays::parse(&text));
        let found = found.rows().iter().filter(|row| row.distance == distance);
        let expected = profile.ways(distance).map(|row| (row, Found::NotYet));
        // What was found takes the place of what was expected.
        expected.chain(found.map(|row| (*row, Found::Before))).collect()
    })
}

/// How two ranks are apart, as a place in [`DISTANCES`]; `None` if they are on two nodes. Nothing is known of ranks that are not bound:
/// these count as near.
fn distance(places: &Places, (one, other): (u32, u32)) -> Option<usize> {
    let (one, other) = (places.home(one), places.home(other));
    let apart = [one.socket != other.socket, one.cache != other.cache];
    let near = DISTANCES.len() - 1;
    (one.node == other.node).then(|| apart.into_iter().position(|apart| apart).unwrap_or(near))
}

/// What this process has compared, for the next job: lines of a profile's text. Nothing if there is none.
pub(crate) fn learnt(job: &Job, p2p: &P2p) -> Option<String> {
    let mut learnt = KnownWays::default();
    for Measured { peer, class, traffic, way, times, .. } in
        p2p.measured().filter(|row| row.found == Found::Here)
    {
        if let Some(distance) = distance(&job.places, (job.rank, peer.0)) {
            let times = times.map(|time| Some(time? / 1e9));
            learnt.add(KnownWay { distance, class, traffic, way, times });
        }
    }
    Some(learnt.text()).filter(|text| !text.is_empty())
}

/// What this process has measured, and the accounts of its fabrics, for people; nothing unless the setting asks for it.
pub(crate) fn shown(job: &Job, p2p: &P2p, accounts: impl FnOnce() -> Vec<String>) -> Option<String> {
    if job.setting(P2P).map(way) != Some(Ok(SHOW)) {
        return None;
    }
    let mut lines =
        vec![format!("banyan: rank {}: ways of long messages, us for the shortest of a class:", job.rank)];
    lines.extend(p2p.measured().map(|measured| line(&measured)));
    if lines.len() == 1 {
        lines.push("  none was measured".to_owned());
    }
    lines.extend(
        accounts()
            .into_iter()
            .chain(gpu::account())
            .map(|account| format!("banyan: rank {}: {account}", job.rank)),
    );
    Some(lines.join("\n"))
}

/// Such as "  from rank 0, one way, from 262144 bytes: both, as ring 19.6, read 10.4, write 12.0, both 8.8".
fn line(&Measured { peer, class, traffic, way, times, found }: &Measured) -> String {
    let shortest = SHORTEST << class;
    let times = Way::ALL
        .into_iter()
        .zip(times)
        .filter_map(|(way, time)| Some(format!("{} {:.1}", way.name(), time? * shortest as f64 / 1e3)));
    let times = times.collect::<Vec<_>>().join(", ");
    let because = match times.is_empty() {
        true => ", not yet measured".to_owned(),
        false if found == Found::Before => format!(", as an earlier job measured {times}"),
        false => format!(", as {times}"),
    };
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
    use banyan_pmi::NodeKind;
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
    fn ranks_are_apart_by_sockets_and_caches() {
        let parts = [(0, 0), (0, 0), (0, 1), (1, 1)];
        let places = Places::new([0, 0, 0, 0, 1], |_| NodeKind::new(4, parts));
        let from = |one| (0..5).map(|other| distance(&places, (one, other))).collect::<Vec<_>>();
        assert_eq!(from(0), [Some(2), Some(2), Some(1), Some(0), None]);
        assert_eq!(from(3), [Some(0), Some(0), Some(0), Some(2), None]);
        let unbound = Places::on_one_node(2);
        assert_eq!(distance(&unbound, (0, 1)), Some(2));
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
        let times = [Some(0.1), None, Some(0.05), None, None];
        let (peer, class, traffic, way) = (Peer(3), 6, Traffic::BothWays, Way::Write);
        let measured = |found| Measured { peer, class, traffic, way, times, found };
        let shown = "  from rank 3, both ways, from 1048576 bytes: write, as ring 104.9, write 52.4";
        assert_eq!(line(&measured(Found::Here)), shown);
        assert_eq!(line(&measured(Found::Before)), shown.replace("as", "as an earlier job measured"));
        let (first, second) = (now(), now());
        assert!(0 < first && first <= second);
    }
}
