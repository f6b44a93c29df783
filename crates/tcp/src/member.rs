//! How the fabric starts in a job.

use banyan_transport::{Joining, Member};

use crate::fabric::Tcp;
use crate::options::Options;

impl Member for Tcp {
    fn start(joining: Joining<'_>) -> Result<Option<(Tcp, Vec<u8>)>, String> {
        let Joining { me, size, job, secret, streams, reached, .. } = joining;
        if reached {
            return Ok(None);
        }
        let started = Tcp::new(me, size, job, secret, Options { streams, ..Options::default() });
        started.map(Some).map_err(|error| format!("the tcp fabric does not start: {error}"))
    }
}
