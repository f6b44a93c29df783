//! Which of a port's addresses (GIDs) its connections use. Pure, but for the table, which the kernel shows.

use std::ffi::c_int;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// Where the kernel shows devices.
pub const FOLDER: &str = "/sys/class/infiniband";

/// How packets to a GID travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// InfiniBand, or RoCE v1, which no router passes on.
    Native,
    /// RoCE v2: in UDP.
    RoceV2,
}

/// A line of a port's table of GIDs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its index in the table.
    pub index: u8,
    /// The address.
    pub gid: Ipv6Addr,
    /// How packets to it travel.
    pub kind: Kind,
}

impl Entry {
    /// A line as the kernel shows it below `/sys/class/infiniband/DEVICE/ports/PORT`: the text of `gids/INDEX` and of
    /// `gid_attrs/types/INDEX`. `None` if the line is empty.
    pub fn read(index: u8, gid: &str, kind: &str) -> Option<Entry> {
        let gid: Ipv6Addr = gid.trim().parse().ok()?;
        let kind = if kind.trim() == "RoCE v2" { Kind::RoceV2 } else { Kind::Native };
        (!gid.is_unspecified()).then_some(Entry { index, gid, kind })
    }

    /// What stands for an address of the host, where ports have no GIDs (iWARP).
    pub fn of_ip(ip: IpAddr) -> Entry {
        let gid = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Entry { index: 0, gid, kind: Kind::Native }
    }
}

/// A port's table, as the kernel shows it: so many lines, of which empty ones are left out.
pub fn table((device, number): (&str, u8), length: c_int) -> Vec<Entry> {
    let port = Path::new(FOLDER).join(device).join(format!("ports/{number}"));
    let line = |index: u8| {
        let gid = fs::read_to_string(port.join(format!("gids/{index}"))).ok()?;
        // There is no kind, and no readable file, where there is no address.
        let kind = fs::read_to_string(port.join(format!("gid_attrs/types/{index}"))).unwrap_or_default();
        Entry::read(index, &gid, &kind)
    };
    (0..length.clamp(0, 255) as u8).filter_map(line).collect()
}

/// The best line of a port's table: on Ethernet RoCE v2 before v1, and with it IPv4 before IPv6, and what routers know before
/// link-local; on InfiniBand, and of equals, the first.
pub fn choose(entries: &[Entry], ethernet: bool) -> Option<Entry> {
    let rank = |entry: &Entry| {
        let local = match entry.gid.to_ipv4_mapped() {
            Some(ip) => ip.is_link_local(),
            None => entry.gid.is_unicast_link_local(),
        };
        (entry.kind != Kind::RoceV2, local, entry.gid.to_ipv4_mapped().is_none())
    };
    if ethernet { entries.iter().min_by_key(|entry| rank(entry)) } else { entries.first() }.copied()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn on_ethernet_ipv4_of_roce_v2_is_best() {
        let all = [(LOCAL, V1), (LOCAL, V2), (IPV4, V1), (IPV4, V2), (GLOBAL, V1), (GLOBAL, V2), (EMPTY, V2)];
        let best = |lines: &[(&str, &str)]| choose(&table(lines), true).map(|entry| entry.index);
        assert_eq!(best(&all), Some(3));
        assert_eq!(best(&[(LOCAL, V2), (GLOBAL, V2), (IPV4_LOCAL, V2)]), Some(1));
        assert_eq!(best(&[(LOCAL, V1), (IPV4, V1), (LOCAL, V2)]), Some(2), "v2, whatever its address");
        assert_eq!(best(&[(LOCAL, V2), (LOCAL, V2)]), Some(0), "the first of equals");
        assert_eq!(best(&[(EMPTY, V2), ("", "")]), None);
    }

    #[test]
    fn infiniband_takes_the_first() {
        let guid = "fe80:0000:0000:0000:248a:0703:00a1:b2c3";
        assert_eq!(choose(&table(&[(guid, V1), (GLOBAL, V1)]), false).map(|entry| entry.index), Some(0));
    }
}
