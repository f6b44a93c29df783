//! What follows from what the device tells by itself: a queue pair that has failed is a connection that broke, a port that has changed may
//! serve again, and a device that has failed ends all that goes by it.

use std::time::Instant;

use crate::fabric::Rdma;
use crate::verbs::{About, Event};

impl Rdma {
    /// Acts on all that the device has told; gives how many things that were.
    pub(crate) fn attend_events(&mut self) -> usize {
        let mut events = 0;
        while let Some(Event { about, says }) = self.device.event() {
            events += 1;
            match about {
                About::Device => self.device_ended(&says),
                About::Port => {
                    self.hurry_contacts();
                    self.port_said = Some((Instant::now(), says));
                }
                About::Pair(pair) => {
                    if let Some(&peer) = self.peers.get(&pair) {
                        self.broke(peer, says);
                    }
                }
                About::Other => {}
            }
        }
        events
    }

    /// The device is of no use any more, for this reason: all peers that it connects are gone, and no other one can be reached by it. It is
    /// called when the device says so, and by tests.
    pub fn device_ended(&mut self, why: &str) {
        let why = format!("device {} of {} failed: {why}", self.device.name, host());
        self.links.open().into_iter().for_each(|peer| self.lose(peer, &why));
        self.ended.get_or_insert(why);
    }

    /// Tries contacts that wait for their next greeting at once: what hindered them may be over.
    pub(crate) fn hurry_contacts(&mut self) {
        let now = Instant::now();
        for peer in self.contacting.clone() {
            self.links.end(peer).into_iter().for_each(|end| end.contact.hurry(now));
        }
    }

    /// What has become of a connection, in words that name the port, its device and this host, and what was last heard of that port.
    pub(crate) fn by_port(&self, what: &str) -> String {
        let (port, device) = (self.device.port, &self.device.name);
        let said = self.port_said.as_ref().map_or_else(String::new, |(at, said)| {
            format!("; the device said {:.1} s ago: {said}", at.elapsed().as_secs_f32())
        });
        format!("the connection by port {port} of {device} on {}: {what}{said}", host())
    }
}

/// The name of this host.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
