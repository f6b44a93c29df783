//! The host part's side of the ranks' sockets for PMI-1, by which programs of other MPIs join the job.

use banyan_pmi::{ByteChannel, Request, WireError};
use rustix::event::epoll::{self, EventFlags};

use super::Token;
use super::bootstrap::MAX_UNREAD;
use super::host::HostPart;
use crate::frames::Event;
use crate::pmi1::{About, Action, Down, Host, mapping};

impl HostPart {
    /// Handles a rank's requests, and sends what its socket could not take before.
    pub(super) fn serve_pmi(&mut self, at: usize, flags: EventFlags) {
        if let Some(socket) = self.ranks[at].pmi.as_mut().filter(|_| flags.contains(EventFlags::OUT)) {
            // If the rank is gone, reading shows that, after its last requests.
            let _ = socket.flush();
        }
        self.read_pmi(at);
        if let Some(socket) = &self.ranks[at].pmi {
            self.watch(socket, socket.unsent(), Token::Pmi(at));
        }
    }

    /// Takes what a rank has asked for.
    pub(super) fn read_pmi(&mut self, at: usize) {
        while let Some(socket) = self.ranks[at].pmi.as_mut().filter(|socket| socket.unsent() <= MAX_UNREAD) {
            match socket.receive() {
                Ok(None) => return,
                Ok(Some(bytes)) => self.pmi_bytes(at, &bytes),
                Err(why) => {
                    if let Some(socket) = self.ranks[at].pmi.take() {
                        let _ = epoll::delete(&self.epoll, &socket);
                    }
                    if !matches!(why, WireError::Closed) {
                        self.broken(at, why.to_string());
                    }
                }
            }
        }
    }

    fn pmi_bytes(&mut self, at: usize, bytes: &[u8]) {
        let rank = &self.ranks[at];
        let sender = rank.pmi.as_ref().and_then(ByteChannel::sender);
        // A process may leave the job and join it again.
        let is_sender = |pid: u32| sender.is_some_and(|sender| sender.as_raw_pid().cast_unsigned() == pid);
        let free = rank.joined.as_ref().is_none_or(|joined| is_sender(joined.0));
        let plan = &self.plan;
        let server = self.pmi.get_or_insert_with(|| {
            let nodes = (0..plan.size).map(|rank| plan.places.home(rank).node);
            let name = format!("kvs_{:016x}", self.common.job_id);
            let about = About { name, size: plan.size, mapping: mapping(nodes) };
            Box::new(Host::new(about, plan.ranks.iter().map(|&rank| (rank, plan.app_of(rank) as u32))))
        });
        let actions = server.receive(plan.ranks[at], bytes, free);
        self.pmi_actions(actions);
    }

    /// Takes what the job's part of the server says.
    pub(super) fn take_pmi(&mut self, down: Down) {
        if let Some(server) = &mut self.pmi {
            let actions = server.deliver(down);
            self.pmi_actions(actions);
        }
    }

    fn pmi_actions(&mut self, actions: Vec<Action>) {
        for action in actions {
            let (rank, action) = match action {
                Action::Up(up) => {
                    self.events.push_back(Event::Pmi(up));
                    continue;
                }
                Action::Reply(rank, _) | Action::Joined(rank) | Action::Finalized(rank) => (rank, action),
                Action::Abort { rank, .. } | Action::Broken(rank, _) => (rank, action),
            };
            let Some(at) = self.plan.index_of(rank) else { continue };
            match action {
                Action::Reply(_, line) => {
                    let Some(socket) = &mut self.ranks[at].pmi else { continue };
                    let _ = socket.send(line.as_bytes());
                    if let Some(socket) = self.ranks[at].pmi.as_ref().filter(|socket| socket.unsent() > 0) {
                        self.watch(socket, socket.unsent(), Token::Pmi(at));
                    }
                }
                Action::Joined(_) => {
                    let sender = self.ranks[at].pmi.as_ref().and_then(ByteChannel::sender);
                    self.note_joined(at, sender, 0);
                    self.events.push_back(Event::Joined { rank });
                    self.request(at, Request::Ready);
                }
                Action::Finalized(_) => self.request(at, Request::Finalized),
                Action::Abort { code, message, .. } => self.request(at, Request::Abort { code, message }),
                Action::Broken(_, why) => self.broken(at, why),
                Action::Up(_) => {}
            }
        }
    }
}
