//! The addresses (GIDs) of ports: which ones a process offers to its peers, and by which pair of them it and a peer reach each other. Pure,
//! but for what the system shows.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::{fmt, fs};

use banyan_topo::{all_addresses, same_subnet};

/// Where the kernel shows devices.
pub const FOLDER: &str = "/sys/class/infiniband";
/// A process offers so many addresses at most.
pub const MOST: usize = 8;

/// How packets to a GID travel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Kind {
    /// In UDP: RoCE v2.
    RoceV2 = 0,
    /// InfiniBand, iWARP, or RoCE v1, which no router passes on.
    Native = 1,
}

/// An address of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The address; one of IPv4 is mapped into IPv6.
    pub gid: Ipv6Addr,
    /// Length of its subnet's prefix, bits of the GID.
    pub prefix: u8,
    /// How packets to it travel.
    pub kind: Kind,
}

impl Address {
    /// One of the host's.
    pub fn of_ip(ip: IpAddr, prefix: u8, kind: Kind) -> Address {
        match ip {
            IpAddr::V4(ip) => Address { gid: ip.to_ipv6_mapped(), prefix: prefix + 96, kind },
            IpAddr::V6(gid) => Address { gid, prefix, kind },
        }
    }

    /// The host's address that it is, or looks like.
    pub fn ip(&self) -> IpAddr {
        self.gid.to_ipv4_mapped().map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }

    /// True if it means something on its own link alone.
    fn is_local(&self) -> bool {
        match self.ip() {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }

    /// How good it is, whoever the peer is: RoCE v2 before v1, what routers know before link-local, IPv4 before IPv6.
    fn rank(&self) -> (Kind, bool, bool) {
        (self.kind, self.is_local(), self.ip().is_ipv6())
    }

    /// How well one of this side's and one of a peer's reach each other, less is better: as [`Address::rank`] has it, but those of one
    /// subnet before others. The addresses themselves come last, so that both sides prefer the same pair. `None`: they do not.
    fn reach(&self, peer: &Address) -> Option<(Kind, u8, bool, [Ipv6Addr; 2])> {
        let alike = |of: &Address| (of.kind, of.is_local(), of.ip().is_ipv6());
        let [one, other] = [self, peer].map(|of| IpAddr::V6(of.gid));
        let distance = match self.is_local() {
            true => 2,
            false => u8::from(!same_subnet(one, other, self.prefix.max(peer.prefix))),
        };
        let both = [self.gid.min(peer.gid), self.gid.max(peer.gid)];
        (alike(self) == alike(peer)).then_some((self.kind, distance, self.ip().is_ipv6(), both))
    }
}

impl fmt::Display for Address {
    /// Such as "10.1.0.1/24".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = if self.ip().is_ipv4() { 96 } else { 0 };
        write!(f, "{}/{}", self.ip(), self.prefix.saturating_sub(before))
    }
}

/// The pair of addresses, of this side's and of a peer's, by which the two reach each other best, by their places. Either side chooses
/// the same pair.
pub fn pair(ours: &[Address], theirs: &[Address]) -> Option<(usize, usize)> {
    let with = |(at, our): (usize, &Address)| {
        let reach = |(to, their)| Some((our.reach(their)?, (at, to)));
        theirs.iter().enumerate().filter_map(reach).min()
    };
    ours.iter().enumerate().filter_map(with).min().map(|(_, pair)| pair)
}

/// A line of a port's table of GIDs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its index in the table.
    pub index: u8,
    /// The address.
    pub address: Address,
}

impl Entry {
    /// A line as the kernel shows it below `/sys/class/infiniband/DEVICE/ports/PORT`: the text of `gids/INDEX` and of
    /// `gid_attrs/types/INDEX`. `None` if the line is empty. Its subnet is taken to be as long as on InfiniBand.
    pub fn read(index: u8, gid: &str, kind: &str) -> Option<Entry> {
        let gid: Ipv6Addr = gid.trim().parse().ok()?;
        let kind = if kind.trim() == "RoCE v2" { Kind::RoceV2 } else { Kind::Native };
        let prefix = if gid.to_ipv4_mapped().is_some() { 128 } else { 64 };
        (!gid.is_unspecified()).then_some(Entry { index, address: Address { gid, prefix, kind } })
    }
}

/// A port's table, as the kernel shows it, without its empty lines. Prefixes are those of the host's addresses, if it has the same.
pub fn table((device, number): (&str, u8)) -> Vec<Entry> {
    let port = Path::new(FOLDER).join(device).join(format!("ports/{number}"));
    let of_host = all_addresses().unwrap_or_default();
    let line = |index: u8| {
        let gid = fs::read_to_string(port.join(format!("gids/{index}"))).ok()?;
        // There is no kind, and no readable file, where there is no address; most lines have none.
        if gid.trim().trim_matches(['0', ':']).is_empty() {
            return Some(None);
        }
        let kind = fs::read_to_string(port.join(format!("gid_attrs/types/{index}"))).unwrap_or_default();
        Some(Entry::read(index, &gid, &kind))
    };
    let known = |mut entry: Entry| {
        let address = &mut entry.address;
        if let Some(of) = of_host.iter().find(|of| of.ip == address.ip()) {
            *address = Address::of_ip(of.ip, of.prefix, address.kind);
        }
        entry
    };
    (0..=u8::MAX).map_while(line).flatten().map(known).collect()
}

/// What of a port's table is offered to peers, best first: on Ethernet each address once, and only those in the subnets that the user
/// names, if there are some; on InfiniBand, where ports have addresses of another kind besides, the first.
pub fn offered(table: &[Entry], ethernet: bool, subnets: &[(IpAddr, u8)]) -> Vec<Entry> {
    let mut all = table.to_vec();
    if !ethernet {
        all.truncate(1);
    }
    let named = |entry: &Entry| {
        let of = |&(of, prefix): &(IpAddr, u8)| same_subnet(of, entry.address.ip(), prefix);
        subnets.iter().any(of)
    };
    if all.iter().any(named) {
        all.retain(named);
    }
    all.sort_by_key(|entry| (entry.address.rank(), entry.address.gid, entry.index));
    all.dedup_by_key(|entry| (entry.address.gid, entry.address.kind));
    all.sort_by_key(|entry| (entry.address.rank(), entry.index));
    all.truncate(MOST);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(lines: &[(&str, &str)]) -> Vec<Entry> {
        let read = |(index, (gid, kind)): (usize, &(&str, &str))| Entry::read(index as u8, gid, kind);
        lines.iter().enumerate().filter_map(read).collect()
    }

    const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
    const LOCAL: &str = "fe80:0000:0000:0000:9a03:9bff:fe9b:1a2c\n";
    const GLOBAL: &str = "2001:0db8:0000:0000:9a03:9bff:fe9b:1a2c\n";
    const IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a09:0001\n";
    const IPV4_LOCAL: &str = "0000:0000:0000:0000:0000:ffff:a9fe:0001\n";
    const V1: &str = "IB/RoCE v1\n";
    const V2: &str = "RoCE v2\n";

    #[test]
    fn on_ethernet_all_are_offered_and_ipv4_of_roce_v2_first() {
        let all = [(LOCAL, V1), (LOCAL, V2), (IPV4, V1), (IPV4, V2), (GLOBAL, V1), (GLOBAL, V2), (EMPTY, V2)];
        let offered = |lines: &[(&str, &str)]| {
            offered(&table(lines), true, &[]).iter().map(|entry| entry.index).collect::<Vec<_>>()
        };
        assert_eq!(offered(&all), [3, 5, 1, 2, 4, 0]);
        assert_eq!(offered(&[(LOCAL, V2), (GLOBAL, V2), (IPV4_LOCAL, V2)]), [1, 2, 0]);
        assert_eq!(offered(&[(LOCAL, V1), (IPV4, V1), (LOCAL, V2)]), [2, 1, 0], "v2, whatever its address");
        assert_eq!(
            offered(&[(LOCAL, V2), (IPV4, V2), (LOCAL, V2)]),
            [1, 0],
            "each once: the first of equals"
        );
        assert_eq!(offered(&[(EMPTY, V2), ("", "")]), []);
        let of_subnet = |ip: &str, prefix| {
            let subnet = (ip.parse().expect("an address"), prefix);
            super::offered(&table(&all), true, &[subnet]).len()
        };
        assert_eq!(
            [of_subnet("10.9.0.0", 16), of_subnet("2001:db8::", 32), of_subnet("10.8.0.0", 16)],
            [2, 2, 6]
        );
        let many: Vec<String> = (1..=20).map(|at| format!("::ffff:10.9.0.{at}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|gid| (&**gid, V2)).collect();
        assert_eq!(offered(&many), (0..MOST as u8).collect::<Vec<_>>());
    }

    #[test]
    fn infiniband_offers_the_first() {
        let guid = "fe80:0000:0000:0000:248a:0703:00a1:b2c3";
        let offered = offered(&table(&[(guid, V1), (GLOBAL, V1)]), false, &[]);
        assert_eq!(offered.iter().map(|entry| entry.index).collect::<Vec<_>>(), [0]);
    }

    /// Addresses of RoCE v2, or v1 where the prefix ends with an exclamation mark.
    fn addresses(text: &str) -> Vec<Address> {
        let address = |word: &str| {
            let (ip, prefix) = word.split_once('/').expect("a prefix");
            let kind = if prefix.ends_with('!') { Kind::Native } else { Kind::RoceV2 };
            let prefix = prefix.trim_end_matches('!').parse().expect("bits");
            Address::of_ip(ip.parse().expect("an address"), prefix, kind)
        };
        text.split_whitespace().map(address).collect()
    }

    #[test]
    fn the_pair_that_routes_is_taken() {
        let taken = |ours: &str, theirs: &str| {
            let (ours, theirs) = (addresses(ours), addresses(theirs));
            let (at, to) = pair(&ours, &theirs)?;
            Some(format!("{} {}", ours[at].ip(), theirs[to].ip()))
        };
        let both = "10.1.0.1/24 10.2.0.1/24 fe80::1/64";
        assert_eq!(taken(both, "10.2.0.2/24 fe80::2/64").as_deref(), Some("10.2.0.1 10.2.0.2"), "one subnet");
        assert_eq!(
            taken(both, "10.9.0.2/24 2001:db8::2/64 fe80::2/64").as_deref(),
            Some("10.1.0.1 10.9.0.2")
        );
        assert_eq!(taken(both, "fe80::2/64").as_deref(), Some("fe80::1 fe80::2"), "link-local last");
        assert_eq!(
            taken("10.1.0.1/24 2001:db8::1/64", "10.9.0.2/24 2001:db8::2/64").as_deref(),
            Some("2001:db8::1 2001:db8::2"),
            "the subnet comes before the kind of address"
        );
        assert_eq!(
            taken("10.1.0.1/24! fe80::1/64", "10.1.0.2/24! fe80::2/64").as_deref(),
            Some("fe80::1 fe80::2"),
            "v2"
        );
        assert_eq!(taken("10.1.0.1/24", "10.1.0.2/24!"), None, "packets of another form");
        assert_eq!(taken("10.1.0.1/24 fe80::1/64", "2001:db8::2/64 169.254.0.2/16"), None);
        assert_eq!(taken(both, both).as_deref(), Some("10.1.0.1 10.1.0.1"), "two processes of one port");
        assert_eq!(taken("10.1.0.1/16", "10.1.9.2/24").as_deref(), Some("10.1.0.1 10.1.9.2"));
    }

    fn any_address() -> impl Strategy<Value = Address> {
        // Few of each, so that subnets and addresses meet.
        let gids = prop_oneof![
            "::ffff:10[.][12][.]0[.][1-4]",
            "::ffff:169[.]254[.]0[.][1-4]",
            "fe80::[1-4]",
            "2001:db8:[12]::[1-4]"
        ];
        (gids, 100u8..=128, any::<bool>()).prop_map(|(gid, prefix, v2)| Address {
            gid: gid.parse().expect("an address"),
            prefix,
            kind: if v2 { Kind::RoceV2 } else { Kind::Native },
        })
    }

    proptest! {
        /// Both sides take one pair: that of the addresses which the other side takes for its own and the peer's.
        #[test]
        fn both_sides_take_the_same_pair(
            mut ours in proptest::collection::vec(any_address(), 0..6),
            mut theirs in proptest::collection::vec(any_address(), 0..6),
            same_host: bool,
        ) {
            if same_host {
                theirs = ours.iter().rev().copied().collect();
            }
            for all in [&mut ours, &mut theirs] {
                all.sort_by_key(|of| (of.gid, of.kind));
                all.dedup_by_key(|of| (of.gid, of.kind));
            }
            let here = pair(&ours, &theirs).map(|(at, to)| (ours[at].gid, theirs[to].gid, ours[at].kind));
            let there = pair(&theirs, &ours).map(|(at, to)| (ours[to].gid, theirs[at].gid, ours[to].kind));
            prop_assert_eq!(here, there);
        }
    }
}
