//! Connections that stand are bounded, and so is the memory for what comes by them: one more has that rest which was not used for longest.
//! Both sides end its queue pairs and give its buffers back; what they keep of it is an account of frames, with which either makes it anew.

use std::time::Instant;

use banyan_transport::Peer;

use crate::fabric::Rdma;
use crate::frames::What;
use crate::links::End;

impl Rdma {
    /// Has at most so many connections stand at a time, and at least one.
    pub fn limit_connections(&mut self, most: usize) {
        self.most_connections = most.clamp(1, self.most_connections);
    }

    /// Number of connections that stand, or are about to.
    pub fn connections(&self) -> usize {
        self.windows.in_use()
    }

    /// Gives a connection buffers for what comes, unless it has them.
    ///
    /// # Errors
    /// If there are none for now; another connection is about to rest.
    pub(crate) fn make_window(&mut self, peer: Peer) -> Result<(), String> {
        if self.links.end(peer).is_none_or(|end| end.window) {
            return Ok(());
        }
        if self.windows.in_use() >= self.most_connections {
            self.let_one_rest();
            return Err(format!("all of its {} connections are in use", self.most_connections));
        }
        self.windows.take(&self.device, &self.receives)?;
        if let Some(end) = self.links.end(peer) {
            end.window = true;
        }
        Ok(())
    }

    /// Has the connection rest that was not used for longest, unless one is about to.
    fn let_one_rest(&mut self) {
        let leaves = |end: &End| end.rests() || end.breaking.as_ref().is_some_and(|breaking| breaking.rest);
        if self.links.ends().any(|(_, end)| leaves(end)) {
            return;
        }
        let free = self.links.ends().filter(|(_, end)| end.is_up() && end.moving == 0);
        if let Some((_, peer)) = free.map(|(peer, end)| (end.used, peer)).min() {
            self.resting.push(peer);
            self.say_rest(peer);
        }
    }

    /// Tells a peer that nothing comes any more until the connection is made anew, as soon as nothing is under way but frames.
    fn say_rest(&mut self, peer: Peer) {
        let ready = |end: &&mut End| end.breaking.is_none() && end.moving == 0 && end.credit.is_left();
        if self.links.end(peer).filter(ready).is_some()
            && self.leave(peer, What::Rest, 0, |_| {})
            && let Some(end) = self.links.end(peer)
        {
            end.rest_said = true;
        }
    }

    /// A peer has said that nothing comes any more until the connection is made anew.
    pub(crate) fn hear_rest(&mut self, peer: Peer) {
        if let Some(end) = self.links.end(peer) {
            end.rest_heard = true;
            self.resting.push(peer);
        }
    }

    /// Goes on with connections that are about to rest: ends those by which both sides have said so, and all has arrived.
    pub(crate) fn attend_rests(&mut self) {
        let mut resting = std::mem::take(&mut self.resting);
        resting.retain(|&peer| {
            let Some(end) = self.links.end(peer) else { return false };
            if end.rest_heard && !end.rest_said {
                self.say_rest(peer);
                return true;
            }
            let over = end.rest_heard && end.moving == 0 && end.replay.kept().len() == 0;
            if over {
                self.close(peer, true);
            }
            !over && self.links.end(peer).is_some_and(|end| end.rests())
        });
        self.resting.append(&mut resting);
    }

    /// True if [`Rdma::attend_rests`] has something to do now.
    pub(crate) fn rest_is_due(&self) -> bool {
        let due =
            |end: &End| end.rest_heard && end.moving == 0 && (!end.rest_said || end.replay.kept().len() == 0);
        self.resting.iter().any(|&peer| self.links.look(peer).is_none_or(due))
    }

    /// A connection has ended that is to rest. It is made anew at once if something is still to be sent by it, besides that it rests
    /// (`said`).
    pub(crate) fn rested(&mut self, peer: Peer, said: bool) {
        self.counts.rested += 1;
        let waiting = self.has_transfers(peer);
        let Some(end) = self.links.end(peer) else { return };
        if std::mem::take(&mut end.window) {
            self.windows.give_back();
        }
        if end.replay.kept().len() > usize::from(said) || waiting {
            self.contacting.push(peer);
        }
        let now = Instant::now();
        for peer in self.contacting.clone() {
            let hindered = self.links.end(peer).filter(|end| end.pairs.is_none());
            hindered.into_iter().for_each(|end| end.contact.hurry(now));
        }
    }
}
