//! How the fabric starts in a job, and the entry point of the library that it is in.

use banyan_topo::{NicFilter, nic_filters};
use banyan_transport::{Joining, Member, NotStarted};

use crate::fabric::{Options, Rdma};
use crate::settings::Settings;

impl Member for Rdma {
    /// Uses the port that `nics` names, which the other side of the table has chosen, and its addresses in the subnets that stand there, too.
    fn start(joining: Joining<'_>) -> Result<Option<(Rdma, Vec<u8>)>, NotStarted> {
        let Joining { me, size, job, secret, nics, rdma, patience, .. } = joining;
        let (mut ports, mut subnets) = (Vec::new(), Vec::new());
        for named in nic_filters(nics)? {
            match named {
                NicFilter::Port(device, number) => ports.push((device, number)),
                NicFilter::Subnet(ip, prefix) => subnets.push((ip, prefix)),
                NicFilter::Name(_) => {}
            }
        }
        let port = ports.into_iter().next();
        let (device, port) = port.ok_or_else(|| format!("\"{nics}\" names no port of an RDMA device"))?;
        let settings = Settings::of(rdma, &format!("{device}:{port}"))?;
        let options = Options { device, port, subnets, patience, settings };
        Rdma::new(me, size, job, secret, &options).map(Some).map_err(NotStarted::Broken)
    }
}

banyan_plugin::export!(Rdma);
