//! How the fabric starts in a job.

use banyan_transport::{Joining, Member, NotStarted};

use crate::fabric::Shm;
use crate::options::{Options, SingleCopy};

impl Member for Shm {
    /// It starts also where another fabric carries the messages: collectives share its memory.
    fn start(joining: Joining<'_>) -> Result<Option<(Shm, Vec<u8>)>, NotStarted> {
        let Joining { me, node, crowded, single_copy, node_memory, .. } = joining;
        let Some(me) = node.iter().position(|&peer| peer == me).filter(|_| node.len() > 1) else {
            return Ok(None);
        };
        let Some(memory) = node_memory()? else { return Ok(None) };
        let single_copy = if single_copy { SingleCopy::Auto } else { SingleCopy::Off };
        let options = Options { single_copy, crowded: Some(crowded) };
        let attached = Shm::attach(memory, me as u32, &node, options);
        attached.map(|shm| Some((shm, Vec::new()))).map_err(|error| {
            NotStarted::Fatal(format!(
                "the shared memory of this host cannot be used: {error}; set BANYAN_FABRICS=tcp to run without it"
            ))
        })
    }
}
