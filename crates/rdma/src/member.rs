//! How the fabric starts in a job, and the entry point of the library that it is in.

use banyan_transport::{Joining, Member, NotStarted};

use crate::fabric::{Options, Rdma};
use crate::settings::Settings;

impl Member for Rdma {
    /// Uses the port that `nics` names, which the other side of the table has chosen.
    fn start(joining: Joining<'_>) -> Result<Option<(Rdma, Vec<u8>)>, NotStarted> {
        let Joining { me, size, job, secret, nics, rdma, patience, .. } = joining;
        let port = nics.rsplit_once(':').and_then(|(device, port)| Some((device, port.parse().ok()?)));
        let (device, port) = port.ok_or_else(|| format!("\"{nics}\" is no port of an RDMA device"))?;
        let settings = Settings::read(rdma)?;
        let options = Options { device: device.to_owned(), port, patience, settings };
        Rdma::new(me, size, job, secret, &options).map(Some).map_err(NotStarted::Broken)
    }
}

banyan_plugin::export!(Rdma);
