//! [`Options`] of the fabric, what can go wrong when it is made, and its listeners.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Interest, Registry, Token};

use crate::business_card::MAX_ADDRESSES;
use crate::fabric::LISTENER;

/// Most streams to a peer.
pub const MAX_STREAMS: u8 = 16;

/// How the fabric behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Addresses at which the peers reach this process, best first; 1 to 16.
    pub listen: Vec<IpAddr>,
    /// Number of streams to each peer, from 1 to [`MAX_STREAMS`], the same at all processes of the job. Frames that need not stay in
    /// order use all of them.
    pub streams: u8,
    /// Bytes that may wait on one stream before sends to it are refused.
    pub queue: usize,
    /// How long a connection at the listening ports may take to prove that it belongs to the job.
    pub proof: Duration,
    /// How many connections at the listening ports may be unproven at a time; beyond that the oldest is dropped.
    pub max_unproven: usize,
    /// How long attempts to connect to a peer may fail before it counts as gone.
    pub patience: Duration,
}

impl Default for Options {
    /// For a job on one machine: listens at the loopback address.
    fn default() -> Self {
        Options {
            listen: vec![Ipv4Addr::LOCALHOST.into()],
            streams: 1,
            queue: 512 * 1024,
            proof: Duration::from_secs(5),
            max_unproven: 64,
            patience: Duration::from_secs(10),
        }
    }
}

/// Why the fabric could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// [`Options::listen`] is empty, too long, or names no definite address.
    #[error("tcp: from 1 to {MAX_ADDRESSES} definite addresses to listen at are needed, not {0:?}")]
    Addresses(Vec<IpAddr>),
    /// An address cannot be listened at.
    #[error("tcp: cannot listen at {0}: {1}")]
    Listen(IpAddr, io::Error),
    /// The system gives no event queue.
    #[error("tcp: no event queue: {0}")]
    Poll(io::Error),
}

impl Options {
    /// Opens the listeners; gives them with the addresses for the business card.
    pub(crate) fn listen_on(
        &self,
        registry: &Registry,
    ) -> Result<(Vec<TcpListener>, Vec<SocketAddr>), Error> {
        let definite = self.listen.iter().all(|ip| !ip.is_unspecified());
        if !definite || !(1..=MAX_ADDRESSES).contains(&self.listen.len()) {
            return Err(Error::Addresses(self.listen.clone()));
        }
        let open = |(number, &ip): (usize, &IpAddr)| {
            let open = || {
                let mut listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
                registry.register(&mut listener, Token(LISTENER + number), Interest::READABLE)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            };
            open().map_err(|error| Error::Listen(ip, error))
        };
        self.listen.iter().enumerate().map(open).collect()
    }
}
