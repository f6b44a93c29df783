//! [`Paths`]: in which order a process tries the candidates of a peer, and which of them are worth a stream each. Pure.

use std::net::SocketAddr;

use banyan_topo::same_subnet;

use crate::business_card::Candidate;

/// Most streams to a peer that are made without being asked for.
const MAX_STRIPES: usize = 4;

/// The candidates of a peer as this process tries them.
pub(crate) struct Paths {
    /// All of them, best first.
    addresses: Vec<SocketAddr>,
    /// So many of the first ones lead through network interfaces of their own, which are alike in speed: large messages are striped
    /// over these. At least 1.
    stripes: usize,
}

impl Paths {
    /// From a process that listens at `own` to a peer that listens at `peer`, at least one.
    ///
    /// The addresses that this host has, too, come last: the same bridge is on many hosts. Before them come those of secondary
    /// interfaces, and before those what is in no subnet of this host. Otherwise the order is the peer's.
    pub(crate) fn new(own: &[Candidate], peer: &[Candidate]) -> Paths {
        let shares = |mine: &Candidate, other: &Candidate| {
            mine.prefix == other.prefix && same_subnet(mine.address.ip(), other.address.ip(), mine.prefix)
        };
        let ours = |other: &Candidate| own.iter().any(|mine| mine.address.ip() == other.address.ip());
        let mut all: Vec<&Candidate> = peer.iter().collect();
        all.sort_by_key(|other| (ours(other), other.secondary, !own.iter().any(|mine| shares(mine, other))));

        let mut stripes: Vec<(&Candidate, &Candidate)> = Vec::new();
        for other in all.iter().filter(|other| !other.secondary && !ours(other)) {
            let fresh =
                |mine: &&Candidate| stripes.iter().all(|one| one.0.nic != mine.nic && one.1.nic != other.nic);
            let mine = own.iter().find(|mine| !mine.secondary && shares(mine, other) && fresh(mine));
            let Some(path) = mine.map(|mine| (mine, *other)).filter(|_| stripes.len() < MAX_STRIPES) else {
                continue;
            };
            if stripes.first().is_none_or(|best| alike(speed(best), speed(&path))) {
                stripes.push(path);
            }
        }
        let rest = all.iter().filter(|other| stripes.iter().all(|one| !std::ptr::eq(one.1, **other)));
        let ordered = stripes.iter().map(|one| &one.1).chain(rest);
        Paths { addresses: ordered.map(|one| one.address).collect(), stripes: stripes.len().max(1) }
    }

    /// Number of streams that this pair is worth.
    pub(crate) fn stripes(&self) -> usize {
        self.stripes
    }

    /// The addresses in the order in which stream `stream` tries them: each begins with an interface of its own, as far as there are.
    pub(crate) fn of(&self, stream: u8) -> Vec<SocketAddr> {
        let mut addresses = self.addresses.clone();
        addresses[..=usize::from(stream) % self.stripes].rotate_right(1);
        addresses
    }
}

/// The speed of a way from one interface to another.
fn speed((mine, other): &(&Candidate, &Candidate)) -> u32 {
    mine.speed.min(other.speed)
}

/// True of two speeds of which neither is more than twice the other, or if neither is known.
fn alike(one: u32, other: u32) -> bool {
    one.max(other) <= one.min(other).saturating_mul(2)
}

/// Most streams that any pair of this process is worth.
pub(crate) fn most_stripes(own: &[Candidate]) -> u8 {
    let mut nics: Vec<u8> = own.iter().filter(|mine| !mine.secondary).map(|mine| mine.nic).collect();
    nics.sort_unstable();
    nics.dedup();
    nics.len().clamp(1, MAX_STRIPES) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A host: its addresses, each with the number of the interface and its speed, and `s` if it is secondary.
    fn host(text: &str) -> Vec<Candidate> {
        let candidate = |word: &str| {
            let parts: Vec<&str> = word.split(',').collect();
            let (ip, prefix) = parts[0].split_once('/').unwrap();
            Candidate {
                address: SocketAddr::new(ip.parse().unwrap(), 7),
                prefix: prefix.parse().unwrap(),
                nic: parts[1].parse().unwrap(),
                speed: parts[2].parse().unwrap(),
                secondary: parts.contains(&"s"),
            }
        };
        text.split_whitespace().map(candidate).collect()
    }

    /// The order, and the number of stripes.
    fn paths(own: &str, peer: &str) -> (Vec<String>, usize) {
        let paths = Paths::new(&host(own), &host(peer));
        (paths.of(0).iter().map(|address| address.ip().to_string()).collect(), paths.stripes())
    }

    #[test]
    fn what_both_have_a_subnet_of_comes_first() {
        // The same bridge on both hosts comes last, though both have its subnet.
        let docker = |last| format!("10.1.0.{last}/24,0,0 172.17.0.1/16,1,10000,s");
        assert_eq!(paths(&docker(1), &docker(2)), (vec!["10.1.0.2".to_owned(), "172.17.0.1".to_owned()], 1));
        // A peer with a quicker interface in a network that this host does not have.
        let (order, stripes) = paths("192.168.1.1/24,0,1000", "10.9.0.2/16,0,100000 192.168.1.2/24,1,1000");
        assert_eq!((order, stripes), (vec!["192.168.1.2".to_owned(), "10.9.0.2".to_owned()], 1));
        // A tunnel that both have, and networks that only routers know.
        let (order, _) = paths("10.1.0.1/24,0,0 10.8.0.1/24,1,0,s", "10.8.0.2/24,1,0,s 10.2.0.2/24,0,0");
        assert_eq!(order, ["10.2.0.2", "10.8.0.2"]);
        // Nothing in common; a host that is this one.
        assert_eq!(paths("10.1.0.1/24,0,0", "10.2.0.2/24,0,0 10.3.0.2/24,1,0").1, 1);
        let two = "10.1.0.1/24,0,0 10.2.0.1/24,1,0";
        assert_eq!(paths(two, two), (vec!["10.1.0.1".to_owned(), "10.2.0.1".to_owned()], 1));
    }

    #[test]
    fn interfaces_of_like_speed_in_one_subnet_are_stripes() {
        let two = |last, speed| {
            format!("10.1.0.{last}/24,0,25000 10.2.0.{last}/24,1,{speed} fd00::{last}/64,0,25000")
        };
        assert_eq!(paths(&two(1, 25000), &two(2, 25000)).1, 2);
        assert_eq!(paths(&two(1, 25000), &two(2, 1000)).1, 1);
        assert_eq!(paths(&two(1, 0), &two(2, 0)).1, 1, "the speed of one is not known");
        assert_eq!(paths("10.1.0.1/24,0,0 10.2.0.1/24,1,0", "10.1.0.2/24,0,0 10.2.0.2/24,1,0").1, 2);
        assert_eq!(paths("10.1.0.1/24,0,0 10.8.0.1/24,1,0,s", "10.1.0.2/24,0,0 10.8.0.2/24,1,0,s").1, 1);
        let six = |last: u8| (0..6).map(|nic| format!("10.{nic}.0.{last}/24,{nic},0 ")).collect::<String>();
        assert_eq!(
            (paths(&six(1), &six(2)).1, most_stripes(&host(&six(1)))),
            (MAX_STRIPES, MAX_STRIPES as u8)
        );
        // Each stream begins with another interface, and then goes through all.
        let paths = Paths::new(&host(&two(1, 25000)), &host(&two(2, 25000)));
        let order = |stream| paths.of(stream).iter().map(|at| at.ip().to_string()).collect::<Vec<_>>();
        assert_eq!(order(0), ["10.1.0.2", "10.2.0.2", "fd00::2"]);
        assert_eq!(order(1), ["10.2.0.2", "10.1.0.2", "fd00::2"]);
        assert_eq!(order(2), order(0));
    }

    fn any_host() -> impl Strategy<Value = Vec<Candidate>> {
        let candidate = (0u8..4, 0u8..4, 0u8..4, any::<bool>(), 0u32..3).prop_map(
            |(net, last, nic, secondary, speed)| {
                let address = SocketAddr::from(([10, net, 0, last], 7));
                Candidate { address, prefix: 24, nic, secondary, speed }
            },
        );
        proptest::collection::vec(candidate, 1..8)
    }

    proptest! {
        #[test]
        fn every_stream_tries_every_candidate(own in any_host(), peer in any_host(), stream in 0u8..16) {
            let paths = Paths::new(&own, &peer);
            let mut tried = paths.of(stream);
            let mut all: Vec<SocketAddr> = peer.iter().map(|candidate| candidate.address).collect();
            tried.sort();
            all.sort();
            prop_assert_eq!(tried, all);
            // Neither side makes streams that the other one does not expect.
            prop_assert!(paths.stripes() <= most_stripes(&own).min(most_stripes(&peer)).into());
        }
    }
}
