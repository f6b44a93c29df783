//! [`Options`] of the fabric, what can go wrong when it is made, and its listeners.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use banyan_topo::NicAddress;
use banyan_transport::Peer;
use mio::net::TcpListener;
use mio::{Interest, Registry, Token};

use crate::business_card::{Candidate, MAX_ADDRESSES};
use crate::fabric::LISTENER;
use crate::handshake::Features;
use crate::seal::Cipher;

/// Most streams to a peer.
pub const MAX_STREAMS: u8 = 16;

/// How the fabric behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Addresses of this host at which the peers reach this process, best first; of more than 16 the first ones count.
    pub listen: Vec<NicAddress>,
    /// Ports of which one is listened at; otherwise the system chooses one. At all addresses it is the same port if possible.
    pub ports: Option<RangeInclusive<u16>>,
    /// Number of streams to each peer, from 1 to [`MAX_STREAMS`], the same at all processes of the job; 0: one for each pair of network
    /// interfaces of like speed that are in one subnet, up to 4. Frames that need not stay in order use all of them.
    pub streams: u8,
    /// Bytes that may wait on one stream before sends to it are refused.
    pub queue: usize,
    /// How long a connection at the listening ports may take to prove that it belongs to the job.
    pub proof: Duration,
    /// How many connections at the listening ports may be unproven at a time; beyond that the oldest is dropped.
    pub max_unproven: usize,
    /// How long an address of a peer may be silent before the next one is tried beside it.
    pub stagger: Duration,
    /// How long attempts to connect to a peer may fail before it counts as gone: at first contact, and after its connection broke
    /// or fell silent.
    pub patience: Duration,
    /// Streams go on with another connection when one breaks, also where both ends are loopback addresses.
    pub resume: bool,
    /// All bytes after the handshake are encrypted, whether or not the peer asks for it.
    pub encrypt: bool,
}

impl Default for Options {
    /// For a job on one machine: listens at the loopback address.
    fn default() -> Self {
        Options {
            listen: vec![NicAddress::loopback()],
            ports: None,
            streams: 1,
            queue: 512 * 1024,
            proof: Duration::from_secs(5),
            max_unproven: 64,
            stagger: Duration::from_millis(250),
            patience: Duration::from_secs(10),
            resume: false,
            encrypt: false,
        }
    }
}

/// Why the fabric could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// [`Options::listen`] is empty, or this host has none of its addresses any more.
    #[error("tcp: there is no address to listen at")]
    Addresses,
    /// An address cannot be listened at.
    #[error("tcp: cannot listen at {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// No port of [`Options::ports`] is free.
    #[error(
        "tcp: each rank of a host needs a port of its own, and no port of BANYAN_PORTS={first}-{last} is free on {host} ({taken} \
         is in use): end what else uses them, or ask the administrator of the firewall, who named them, for more"
    )]
    Ports {
        /// The first one.
        first: u16,
        /// The last one.
        last: u16,
        /// This host.
        host: String,
        /// What was in use when the last port was tried.
        taken: SocketAddr,
    },
    /// The system gives no event queue.
    #[error("tcp: no event queue: {0}")]
    Poll(io::Error),
}

/// How often the system is asked for a port, until the one that it gives is free at all addresses.
const ONE_PORT: usize = 16;

impl Options {
    /// What this side wants of a connection with that address, and can do. Connections within a host do not break, so they are not
    /// made again.
    pub(crate) fn features(&self, remote: IpAddr) -> Features {
        let all = [
            (Features::RESUME, self.resume || !remote.is_loopback()),
            (Features::ENCRYPT, self.encrypt),
            (Features::AES, Cipher::is_aes_quicker()),
        ];
        all.iter().filter(|(_, holds)| *holds).fold(Features::NONE, |sum, (one, _)| sum.with(*one))
    }

    /// Opens the listeners of peer `me`; gives them with the candidates for the business card.
    pub(crate) fn listen_on(
        &self,
        me: Peer,
        registry: &Registry,
    ) -> Result<(Vec<TcpListener>, Vec<Candidate>), Error> {
        let (mut listeners, mut candidates, mut nics) = (Vec::new(), Vec::new(), Vec::new());
        for (mut listener, of) in self.open(me)? {
            let wrong = |error| Error::Listen(SocketAddr::new(of.ip, 0), error);
            let token = Token(LISTENER + listeners.len());
            registry.register(&mut listener, token, Interest::READABLE).map_err(wrong)?;
            let nic = nics.iter().position(|nic| *nic == of.nic).unwrap_or_else(|| {
                nics.push(of.nic.as_str());
                nics.len() - 1
            });
            let address = listener.local_addr().map_err(wrong)?;
            let (prefix, secondary, speed) = (of.prefix, of.secondary, of.speed);
            candidates.push(Candidate { address, prefix, nic: nic as u8, secondary, speed });
            listeners.push(listener);
        }
        Ok((listeners, candidates))
    }

    /// Listens at one port of all addresses, if one is free at all of them. Within [`Options::ports`] each peer begins at another one,
    /// so that few are tried.
    fn open(&self, me: Peer) -> Result<Vec<Listening<'_>>, Error> {
        let ports: Vec<u16> = self.ports.clone().map_or(vec![0; ONE_PORT], Iterator::collect);
        let first = me.0 as usize % ports.len().max(1);
        let mut taken = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        for &port in ports[first..].iter().chain(&ports[..first]) {
            match self.open_at(port, true) {
                Err(Error::Listen(at, error)) if error.kind() == io::ErrorKind::AddrInUse => taken = at,
                other => return other,
            }
        }
        match &self.ports {
            Some(ports) => {
                let (first, last) = (*ports.start(), *ports.end());
                Err(Error::Ports { first, last, host: banyan_topo::hostname(), taken })
            }
            None => self.open_at(0, false),
        }
    }

    /// Listens at a port of all addresses that this host still has. `alike`: the port that the system chooses for the first one is that
    /// of all.
    fn open_at(&self, mut port: u16, alike: bool) -> Result<Vec<Listening<'_>>, Error> {
        let mut open = Vec::new();
        for of in self.listen.iter().take(MAX_ADDRESSES) {
            let at = SocketAddr::new(of.ip, port);
            match TcpListener::bind(at).and_then(|listener| Ok((listener.local_addr()?.port(), listener))) {
                Ok((given, listener)) => {
                    port = if alike { given } else { port };
                    open.push((listener, of));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
                Err(error) => return Err(Error::Listen(at, error)),
            }
        }
        if open.is_empty() { Err(Error::Addresses) } else { Ok(open) }
    }
}

/// A listener, and the address that it listens at.
type Listening<'a> = (TcpListener, &'a NicAddress);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ips: &[[u8; 4]], ports: Option<RangeInclusive<u16>>) -> Options {
        let address = |&ip: &[u8; 4]| NicAddress { ip: ip.into(), ..NicAddress::loopback() };
        Options { listen: ips.iter().map(address).collect(), ports, ..Options::default() }
    }

    fn ports(open: &[Listening<'_>]) -> Vec<u16> {
        open.iter().map(|(listener, _)| listener.local_addr().unwrap().port()).collect()
    }

    const TWO: &[[u8; 4]] = &[[127, 0, 0, 1], [127, 0, 0, 2]];

    #[test]
    fn one_port_serves_all_addresses() {
        let options = at(TWO, None);
        let open = options.open(Peer(0)).unwrap();
        let ports = ports(&open);
        assert!(ports.len() == 2 && ports[0] == ports[1] && ports[0] != 0, "{ports:?}");
    }

    #[test]
    fn ports_that_are_named_are_used_until_there_is_none() {
        // Two ports next to each other that were free just now.
        let (first, options) = (0..100)
            .find_map(|_| {
                let first = ports(&at(TWO, None).open(Peer(0)).unwrap())[0].checked_sub(1)?;
                let options = at(TWO, Some(first..=first + 1));
                let both = (options.open_at(first, true), options.open_at(first + 1, true));
                (both.0.is_ok() && both.1.is_ok()).then_some((first, options.clone()))
            })
            .expect("two free ports");
        let one = options.open(Peer(5)).unwrap();
        let other = options.open(Peer(7)).unwrap();
        let mut both = [ports(&one), ports(&other)];
        both.sort();
        assert_eq!(both, [[first; 2], [first + 1; 2]]);
        let error = options.open(Peer(0)).unwrap_err().to_string();
        assert!(error.contains(&format!("BANYAN_PORTS={first}-{}", first + 1)), "{error}");
        assert!(
            error.contains("ask the administrator") && error.contains(&banyan_topo::hostname()),
            "{error}"
        );
        drop(one);
        assert_eq!(ports(&options.open(Peer(0)).unwrap()).len(), 2);
    }

    #[test]
    fn addresses_that_have_gone_are_left_out() {
        // Documentation's network: no host has it.
        let options = at(&[[198, 51, 100, 1], [127, 0, 0, 1]], None);
        let open = options.open(Peer(0)).unwrap();
        assert!(open.len() == 1 && open[0].1.ip.is_loopback());
        assert!(matches!(at(&[[198, 51, 100, 1]], None).open(Peer(0)), Err(Error::Addresses)));
        assert!(matches!(at(&[], None).open(Peer(0)), Err(Error::Addresses)));
    }
}
