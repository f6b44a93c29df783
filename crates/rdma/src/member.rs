//! How the fabric starts in a job, and the entry point of the library that it is in.

use banyan_topo::{NicFilter, nic_filters};
use banyan_transport::{Joining, Member, NotStarted};

use crate::fabric::{Options, Rdma};
use crate::rails::RailOptions;
use crate::settings::Settings;

impl Member for Rdma {
    /// Uses the ports that `nics` names, which the other side of the table has chosen, and their addresses in the subnets that stand there, too.
    fn start(joining: Joining<'_>) -> Result<Option<(Rdma, Vec<u8>)>, NotStarted> {
        let Joining { me, size, job, secret, nics, rdma, topology, patience, .. } = joining;
        let (mut ports, mut subnets) = (Vec::new(), Vec::new());
        for named in nic_filters(nics)? {
            match named {
                NicFilter::Port(device, number) => ports.push((device, number)),
                NicFilter::Subnet(ip, prefix) => subnets.push((ip, prefix)),
                NicFilter::Name(_) => {}
            }
        }
        let as_said = |(device, port): (String, u8)| {
            Settings::of(rdma, &format!("{device}:{port}")).map(|settings| RailOptions {
                device,
                port,
                settings,
            })
        };
        let ports = ports.into_iter().map(as_said).collect::<Result<_, _>>()?;
        let options = Options { ports, subnets, topology: topology.to_owned(), patience };
        Rdma::new(me, size, job, secret, &options).map(Some).map_err(NotStarted::Broken)
    }
}

banyan_plugin::export!(Rdma);
