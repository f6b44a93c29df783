//! What follows from what the device tells by itself: a queue pair that has failed is a connection that broke, a port that has changed may
//! serve again, and a device that has failed ends all that goes by it.

use std::time::Instant;

use crate::fabric::Rdma;
use crate::links::End;
use crate::rails::numbered;
use crate::verbs::{About, Event};

impl Rdma {
    /// Acts on all that the device has told; gives how many things that were.
    pub(crate) fn attend_events(&mut self) -> usize {
        let mut events = self.attend_further_events();
        while let Some(Event { about, says }) = self.device.event() {
            events += 1;
            match about {
                About::Device => self.device_ended(&says),
                About::Port => {
                    self.hurry_contacts();
                    self.port_said = Some((Instant::now(), says));
                }
                About::Pair(pair) => {
                    if let Some(peer) = self.peers.get(pair) {
                        self.broke(peer, says);
                    }
                }
                About::Other => {}
            }
        }
        events
    }

    /// Acts on what the devices of further rails have told.
    fn attend_further_events(&mut self) -> usize {
        let mut events = 0;
        for rail in 1..=self.rails.len() {
            while let Some(Event { about, says }) = self.rails[rail - 1].device.event() {
                events += 1;
                match about {
                    About::Device => self.rail_ended(rail, &says),
                    About::Pair(pair) => {
                        if let Some(peer) = self.peers.get(numbered(rail, pair)) {
                            self.broke(peer, says);
                        }
                    }
                    About::Port | About::Other => {}
                }
            }
        }
        events
    }

    /// The device of a further rail, from 1, is of no use any more, for this reason: connections are made anew without it. It is called when the
    /// device says so, and by tests.
    pub fn rail_ended(&mut self, rail: usize, why: &str) {
        let Some(ended) = self.rails.get_mut(rail - 1) else { return };
        ended.ended.get_or_insert_with(|| why.to_owned());
        let name = ended.device.name.clone();
        for peer in self.links.open() {
            let uses = |end: &End| end.pairs.as_ref().is_some_and(|pairs| pairs.rails() > rail);
            if self.links.look(peer).is_some_and(uses) {
                self.broke(peer, format!("device {name} failed: {why}"));
            }
        }
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
