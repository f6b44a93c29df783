//! How the fabric starts in a job.

use banyan_topo::NicAddress;
use banyan_transport::{Joining, Member, NotStarted};

use crate::fabric::Tcp;
use crate::options::Options;

impl Member for Tcp {
    fn start(joining: Joining<'_>) -> Result<Option<(Tcp, Vec<u8>)>, NotStarted> {
        let Joining {
            me, size, nodes, job, secret, streams, nics, ports, patience, encrypt, reached, ..
        } = joining;
        if reached {
            return Ok(None);
        }
        let mut options = Options { streams, patience, encrypt, ..Options::default() };
        if nodes > 1 {
            options = Options { listen: addresses(nics)?, ports, ..options };
        }
        let started = Tcp::new(me, size, job, secret, options);
        started
            .map(Some)
            .map_err(|error| NotStarted::Fatal(format!("the tcp fabric does not start: {error}")))
    }
}

/// The addresses of this host that peers on other nodes should try.
fn addresses(nics: &str) -> Result<Vec<NicAddress>, String> {
    if nics.is_empty() {
        return banyan_topo::addresses(&[]);
    }
    let named = banyan_topo::nic_filters(nics).and_then(|filters| banyan_topo::addresses(&filters));
    named.map_err(|error| format!("BANYAN_NIC={nics}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use banyan_transport::Peer;

    use super::*;
    use crate::business_card::{Candidate, decode};

    fn candidates(nodes: u32, nics: &str) -> Result<Vec<Candidate>, NotStarted> {
        let started = Tcp::start(Joining {
            me: Peer(0),
            size: 2,
            job: 1,
            secret: [1; 32],
            node: vec![Peer(0)],
            nodes,
            crowded: false,
            single_copy: false,
            streams: 1,
            nics,
            rdma: "",
            turn: 0,
            topology: "",
            ports: None,
            patience: Duration::from_secs(30),
            encrypt: false,
            reached: false,
            node_memory: &mut || Ok(None),
        })?;
        let (_, card) = started.expect("peers are to be reached");
        Ok(decode(&card).expect("a card"))
    }

    #[test]
    fn a_job_on_one_node_listens_at_the_loopback_alone() {
        let only = |candidates: &[Candidate]| candidates.iter().all(|one| one.address.ip().is_loopback());
        assert!(only(&candidates(1, "").expect("a fabric")));
        assert!(only(&candidates(1, "no-such-nic").expect("what is named counts between nodes")));
        // Several nodes: whatever this host has, but no loopback unless it is named.
        if let Ok(found) = candidates(2, "") {
            assert!(!found.is_empty() && found.iter().all(|one| !one.address.ip().is_loopback()));
        }
        assert!(only(&candidates(2, "127.0.0.1").expect("the loopback, as it is named")));
        let NotStarted::Fatal(error) = candidates(2, "no-such-nic").expect_err("there is none") else {
            panic!("the user is to know")
        };
        assert!(error.contains("BANYAN_NIC=no-such-nic") && error.contains("lo (127.0.0.1/8)"), "{error}");
    }
}
