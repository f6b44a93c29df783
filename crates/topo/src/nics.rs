//! The network interfaces (NICs) of this machine: at which of their addresses processes of other hosts should try to reach it.
//!
//! [`addresses`] asks the system; what it chooses and in which order is pure ([`choose`]).

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::net::if_::InterfaceFlags;

use crate::machine::text;
use crate::rdma::RdmaPort;

/// Beginnings of the names of interfaces that lead to containers and virtual machines of this host, or into tunnels. Their addresses
/// are often the same on every host, and slow where they are not: they come last.
const SECONDARY: &[&str] = &[
    "docker",
    "br-",
    "virbr",
    "veth",
    "cni",
    "flannel",
    "cali",
    "cilium",
    "weave",
    "kube",
    "nodelocaldns",
    "podman",
    "lxc",
    "lxd",
    "vmnet",
    "vboxnet",
    "vnet",
    "tun",
    "tap",
    "wg",
    "tailscale",
    "zt",
    "ppp",
    "ipsec",
    "gre",
    "sit",
    "dummy",
];

/// Flags in `/proc/net/if_inet6` of addresses that cannot be used, or should not be used any more: failed duplicate address
/// detection, deprecated, tentative.
const UNUSABLE: u32 = 0x08 | 0x20 | 0x40;

/// An address of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicAddress {
    /// The interface's name.
    pub nic: String,
    /// The address.
    pub ip: IpAddr,
    /// Length of its subnet's prefix, bits.
    pub prefix: u8,
    /// Of the interface, Mbit/s; 0 if the system does not know.
    pub speed: u32,
    /// The interface is up and running, and the address neither tentative nor deprecated.
    pub usable: bool,
    /// To be tried after all others, as the interface leads to this host's own containers or into a tunnel.
    pub secondary: bool,
}

impl NicAddress {
    /// The address that no other host can reach.
    pub fn loopback() -> NicAddress {
        NicAddress {
            nic: "lo".to_owned(),
            ip: Ipv4Addr::LOCALHOST.into(),
            prefix: 8,
            speed: 0,
            usable: true,
            secondary: false,
        }
    }
}

/// What a user allows, as read by [`nic_filters`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NicFilter {
    /// The interface of this name.
    Name(String),
    /// A port of the RDMA device of this name.
    Port(String, u8),
    /// All addresses in a subnet: one of its addresses, and the length of the prefix.
    Subnet(IpAddr, u8),
}

impl NicFilter {
    fn allows(&self, address: &NicAddress) -> bool {
        match self {
            NicFilter::Name(name) => *name == address.nic,
            // The kernel's names of further addresses of an interface look like that, too.
            NicFilter::Port(name, number) => address.nic == format!("{name}:{number}"),
            &NicFilter::Subnet(of, prefix) => same_subnet(of, address.ip, prefix),
        }
    }
}

/// True if the first `prefix` bits of two addresses are equal.
pub fn same_subnet(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let differ = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
        _ => return false,
    };
    differ.leading_zeros() >= prefix.into()
}

/// Reads names of interfaces and subnets such as `ib0,10.0.0.0/8`; an address alone is the subnet of that address only.
///
/// # Errors
/// A sentence that names what is neither.
pub fn nic_filters(text: &str) -> Result<Vec<NicFilter>, String> {
    let filter = |word: &str| {
        let wrong = || {
            format!(
                "\"{word}\" is neither the name of a network interface, nor an RDMA device or one of its ports such as mlx5_0:1, nor a \
                 subnet such as 10.0.0.0/8"
            )
        };
        let (ip, prefix) = word.split_once('/').map_or((word, None), |(ip, prefix)| (ip, Some(prefix)));
        if let Ok(ip) = ip.parse::<IpAddr>() {
            let longest = if ip.is_ipv4() { 32 } else { 128 };
            let prefix = prefix.map_or(Some(longest), |prefix| prefix.parse().ok());
            let prefix = prefix.filter(|prefix| *prefix <= longest).ok_or_else(wrong)?;
            return Ok(NicFilter::Subnet(ip, prefix));
        }
        let (name, port) = word.rsplit_once(':').map_or((word, None), |(name, port)| (name, Some(port)));
        // The longest name that Linux allows has 15 bytes, that of an RDMA device 63.
        let named =
            (1..64).contains(&name.len()) && !name.contains(|c: char| "/:".contains(c) || c.is_whitespace());
        match port {
            None => named.then(|| NicFilter::Name(name.to_owned())),
            Some(port) => {
                let port = port.parse().ok().filter(|port| named && *port > 0);
                port.map(|port| NicFilter::Port(name.to_owned(), port))
            }
        }
        .ok_or_else(wrong)
    };
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let filters: Vec<NicFilter> = words.map(filter).collect::<Result<_, _>>()?;
    if filters.is_empty() { Err("no network interface is named".to_owned()) } else { Ok(filters) }
}

/// The addresses of this host that processes on other hosts should try, best first. Without `filters` the loopback is left out.
/// Filters that name RDMA devices say nothing of addresses.
///
/// # Errors
/// If there is none that the filters allow: a sentence that lists the addresses there are.
pub fn addresses(filters: &[NicFilter]) -> Result<Vec<NicAddress>, String> {
    let devices = RdmaPort::devices();
    let of_addresses = |filter: &&NicFilter| match filter {
        NicFilter::Name(name) | NicFilter::Port(name, _) => !devices.contains(name),
        NicFilter::Subnet(..) => true,
    };
    let filters: Vec<NicFilter> = filters.iter().filter(of_addresses).cloned().collect();
    choose(all_addresses()?, &filters).map_err(|error| match &devices[..] {
        [] => error,
        _ => format!("{error}; and RDMA devices {}", devices.join(", ")),
    })
}

/// All addresses of this host.
///
/// # Errors
/// If the system does not tell.
pub fn all_addresses() -> Result<Vec<NicAddress>, String> {
    let all = nix::ifaddrs::getifaddrs()
        .map_err(|error| format!("the system lists no network interfaces: {error}"))?;
    let unusable = unusable(&text("/proc/net/if_inet6".as_ref()).unwrap_or_default());
    let read = |of: nix::ifaddrs::InterfaceAddress| {
        let ip = |address: nix::sys::socket::SockaddrStorage| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        let (ip, mask) = (ip(of.address?)?, of.netmask.and_then(ip)?);
        let up = of.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
        let tunnel = of.flags.contains(InterfaceFlags::IFF_POINTOPOINT);
        let speed = text(format!("/sys/class/net/{}/speed", of.interface_name).as_ref());
        Some(NicAddress {
            ip,
            prefix: match mask {
                IpAddr::V4(mask) => mask.to_bits().leading_ones() as u8,
                IpAddr::V6(mask) => mask.to_bits().leading_ones() as u8,
            },
            speed: speed.and_then(|speed| speed.trim().parse().ok()).unwrap_or(0),
            usable: up && !unusable.contains(&ip),
            secondary: tunnel || SECONDARY.iter().any(|start| of.interface_name.starts_with(start)),
            nic: of.interface_name,
        })
    };
    Ok(all.filter_map(read).collect())
}

/// Chooses among the addresses of a host, and puts them into order. Named interfaces count in the order of the filters; otherwise what
/// is secondary comes last, and the quicker interface first.
fn choose(all: Vec<NicAddress>, filters: &[NicFilter]) -> Result<Vec<NicAddress>, String> {
    let fit = |address: &NicAddress| {
        let of_many = !address.ip.is_unspecified() && !address.ip.is_multicast();
        let local = match address.ip {
            IpAddr::V4(ip) => filters.is_empty() && (ip.is_link_local() || ip.is_loopback()),
            // A link-local address of version 6 means nothing without the interface of the one who connects.
            IpAddr::V6(ip) => ip.is_unicast_link_local() || filters.is_empty() && ip.is_loopback(),
        };
        address.usable && of_many && !local
    };
    let mut chosen: Vec<(usize, NicAddress)> = all
        .iter()
        .filter(|address| fit(address))
        .filter_map(|address| {
            let rank = filters.iter().position(|filter| filter.allows(address));
            let rank = if filters.is_empty() { usize::from(address.secondary) } else { rank? };
            let secondary = address.secondary && filters.is_empty();
            Some((rank, NicAddress { secondary, ..address.clone() }))
        })
        .collect();
    chosen.sort_by_key(|(rank, address)| (*rank, Reverse(address.speed)));
    if chosen.is_empty() {
        let one = |address: &NicAddress| {
            let why = if address.usable { "" } else { ", not usable now" };
            format!("{} ({}/{}{why})", address.nic, address.ip, address.prefix)
        };
        let all: Vec<String> = all.iter().map(one).collect();
        let what = if filters.is_empty() { "that other hosts could reach" } else { "that is allowed" };
        return Err(format!("this host has no address {what}: it has {}", all.join(", ")));
    }
    Ok(chosen.into_iter().map(|(_, address)| address).collect())
}

/// The addresses in the text of `/proc/net/if_inet6` that are not to be used.
fn unusable(text: &str) -> Vec<IpAddr> {
    let unusable = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let ip = u128::from_str_radix(words.next()?, 16).ok()?;
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        (flags & UNUSABLE != 0).then(|| IpAddr::V6(Ipv6Addr::from_bits(ip)))
    };
    text.lines().filter_map(unusable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A host: each line an interface, its address, its speed, and `down` if it is not to be used.
    fn host(lines: &str) -> Vec<NicAddress> {
        let address = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (ip, prefix) = words[1].split_once('/').unwrap();
            NicAddress {
                nic: words[0].to_owned(),
                ip: ip.parse().unwrap(),
                prefix: prefix.parse().unwrap(),
                speed: words[2].parse().unwrap(),
                usable: !words.contains(&"down"),
                secondary: SECONDARY.iter().any(|start| words[0].starts_with(start)),
            }
        };
        lines.lines().map(str::trim).filter(|line| !line.is_empty()).map(address).collect()
    }

    fn chosen(lines: &str, filters: &str) -> Vec<String> {
        let filters = if filters.is_empty() { Vec::new() } else { nic_filters(filters).unwrap() };
        choose(host(lines), &filters).unwrap().into_iter().map(|address| address.ip.to_string()).collect()
    }

    const DOCKER: &str = "
        lo 127.0.0.1/8 0
        docker0 172.17.0.1/16 10000
        br-5f2c 172.18.0.1/16 10000
        enp3s0 192.168.1.20/24 1000
        enp4s0 10.1.0.20/24 25000
        enp5s0 10.2.0.20/24 100000 down
        enp3s0 fe80::1/64 1000";

    #[test]
    fn real_hosts_have_their_best_address_first() {
        // A host with docker: its bridges come last. What is down never comes.
        assert_eq!(chosen(DOCKER, ""), ["10.1.0.20", "192.168.1.20", "172.17.0.1", "172.18.0.1"]);
        // A pod of Kubernetes.
        assert_eq!(
            chosen("lo 127.0.0.1/8 0\neth0 10.244.1.7/24 10000\neth0 fe80::2/64 10000", ""),
            ["10.244.1.7"]
        );
        // A node of Kubernetes.
        let node = "eth0 172.31.5.9/20 0\nflannel.1 10.244.1.0/32 0\ncni0 10.244.1.1/24 10000\nnodelocaldns 169.254.20.10/32 0";
        assert_eq!(chosen(node, ""), ["172.31.5.9", "10.244.1.1", "10.244.1.0"]);
        // Two subnets of like speed keep the system's order.
        let two = "ib0 10.10.0.3/16 0\nib1 10.11.0.3/16 0";
        assert_eq!(chosen(two, ""), ["10.10.0.3", "10.11.0.3"]);
        // IPv6 alone, with an address that is deprecated.
        let six = "lo ::1/128 0\neth0 2001:db8::9/64 0 down\neth0 2001:db8::5/64 0\neth0 fe80::5/64 0";
        assert_eq!(chosen(six, ""), ["2001:db8::5"]);
        // A tunnel does not come before the network that it goes through.
        let vpn = "wg0 10.8.0.2/24 0\ntun0 10.9.0.2/24 10\nwlan0 192.168.178.30/24 0";
        assert_eq!(chosen(vpn, ""), ["192.168.178.30", "10.9.0.2", "10.8.0.2"]);
        // A host whose only interface has such a name is reached at it.
        assert_eq!(chosen("lo 127.0.0.1/8 0\nveth7 10.77.0.2/24 10000", ""), ["10.77.0.2"]);
    }

    #[test]
    fn what_the_user_names_counts_in_that_order() {
        assert_eq!(chosen(DOCKER, "enp3s0"), ["192.168.1.20"]);
        assert_eq!(chosen(DOCKER, "192.168.0.0/16, 10.0.0.0/8"), ["192.168.1.20", "10.1.0.20"]);
        assert_eq!(chosen(DOCKER, "docker0,enp4s0"), ["172.17.0.1", "10.1.0.20"]);
        assert_eq!(chosen(DOCKER, "lo"), ["127.0.0.1"]);
        let chosen = choose(host(DOCKER), &nic_filters("docker0").unwrap()).unwrap();
        assert!(!chosen[0].secondary, "what is named is as good as any");
    }

    #[test]
    fn filters_that_match_nothing_list_what_there_is() {
        for filters in ["eth7", "10.3.0.0/16", "enp5s0"] {
            let error = choose(host(DOCKER), &nic_filters(filters).unwrap()).unwrap_err();
            for part in [
                "no address that is allowed",
                "enp4s0 (10.1.0.20/24)",
                "enp5s0 (10.2.0.20/24, not usable now)",
            ] {
                assert!(error.contains(part), "{filters}: {error}");
            }
        }
        let error = choose(host("lo 127.0.0.1/8 0"), &[]).unwrap_err();
        assert!(
            error.contains("no address that other hosts could reach: it has lo (127.0.0.1/8)"),
            "{error}"
        );
    }

    #[test]
    fn filters_are_names_or_subnets() {
        let v4 = |ip: [u8; 4], prefix| NicFilter::Subnet(ip.into(), prefix);
        let name = |name: &str| NicFilter::Name(name.to_owned());
        assert_eq!(nic_filters("ib0, 10.0.0.0/8,"), Ok(vec![name("ib0"), v4([10, 0, 0, 0], 8)]));
        assert_eq!(nic_filters("mlx5_0:1"), Ok(vec![NicFilter::Port("mlx5_0".to_owned(), 1)]));
        assert_eq!(nic_filters("10.1.2.3"), Ok(vec![v4([10, 1, 2, 3], 32)]));
        assert!(matches!(nic_filters("fd00::/8").as_deref(), Ok([NicFilter::Subnet(IpAddr::V6(_), 8)])));
        for wrong in [
            "",
            ",",
            "10.0.0.0/33",
            "10.0.0.0/x",
            "fd00::/129",
            "eth0/8",
            "a name",
            "mlx5_0:0",
            "mlx5_0:x",
            "a:b:1",
            "a-name-of-sixty-four-bytes-that-no-device-of-any-kind-ever-has-got",
            "10.0.0.0/",
        ] {
            assert!(nic_filters(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn deprecated_addresses_are_known() {
        let text = "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n\
                    20010db8000000000000000000000009 04 40 00 a0     eth0\n\
                    fd000000000000000000000000000002 04 40 00 c0     eth0\nnonsense\n";
        assert_eq!(unusable(text), ["2001:db8::9", "fd00::2"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn this_host_has_a_loopback() {
        let found = addresses(&nic_filters("127.0.0.0/8").unwrap()).unwrap();
        let lo = found.iter().find(|address| address.ip == IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        assert_eq!((lo.nic.as_str(), lo.prefix, lo.usable), ("lo", 8, true));
    }

    proptest! {
        #[test]
        fn subnets_are_prefixes(one: u32, other: u32, prefix in 0u8..=32) {
            let whole = |ip: u32| u64::from(ip) >> (32 - u32::from(prefix));
            let [a, b] = [one, other].map(|ip| IpAddr::V4(Ipv4Addr::from_bits(ip)));
            prop_assert_eq!(same_subnet(a, b, prefix), whole(one) == whole(other));
            prop_assert!(same_subnet(a, a, 32) && !same_subnet(a, IpAddr::V6(Ipv6Addr::LOCALHOST), 0));
        }

        #[test]
        fn any_text_is_filters_or_refused(text: String, near in "[a-f0-9.:/, ]{0,30}") {
            for text in [text, near] {
                let _ = unusable(&text);
                if let Ok(filters) = nic_filters(&text) { prop_assert!(!filters.is_empty()); }
            }
        }
    }
}
