//! [`Launcher`]: the line to the launcher, over which business cards come that a fabric needs, and word of processes that have
//! ended.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use banyan_pmi::{Client, Event};
use banyan_transport::Peer;

use crate::subsystem::{Informed, Subsystem};

/// Least time between two readings of the line before sleeps: what comes unasked may come late.
const PAUSE: Duration = Duration::from_millis(20);

/// The line to the launcher, if there is one.
pub(crate) struct Launcher {
    pub(crate) client: Option<Client>,
    /// Peers whose business cards fabrics want, and peers that they do not reach at present and that may be gone: it is to be asked for these.
    wanted: Vec<Peer>,
    missing: Vec<Peer>,
    /// A business card was asked for and has not come.
    awaits_card: bool,
    /// Any of these three: each poll looks at this alone.
    has_work: bool,
    /// When the line was last read before a sleep.
    read: Option<Instant>,
    /// The launcher is gone.
    lost: bool,
}

impl Launcher {
    pub(crate) fn new(client: Option<Client>) -> Self {
        let (wanted, missing) = (Vec::new(), Vec::new());
        Self { client, wanted, missing, awaits_card: false, has_work: false, read: None, lost: false }
    }

    /// A fabric wants a peer's business card before frames can leave for it.
    #[cold]
    pub(crate) fn wants(&mut self, peer: Peer) {
        self.wanted.push(peer);
        self.has_work = true;
    }

    /// A fabric does not reach a peer at present.
    #[cold]
    pub(crate) fn misses(&mut self, peer: Peer) {
        self.missing.push(peer);
        self.has_work = true;
    }

    /// What its answer makes readable, if one is awaited.
    pub(crate) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        self.client.as_ref().filter(|_| self.awaits_card).and_then(Client::events)
    }

    /// [`Launcher::awaited`] as a duplicate.
    pub(crate) fn awaited_owned(&self) -> Option<OwnedFd> {
        self.awaited().and_then(|socket| socket.try_clone_to_owned().ok())
    }

    /// Hands on what this process has measured of the ways of long messages, for the next job.
    pub(crate) fn tell_measured(&mut self, ways: String) {
        if let Some(client) = &mut self.client {
            // It is a hint: the launcher's end shows soon enough.
            let _ = client.measured(ways);
        }
    }

    /// Tells the launcher that this process has finalized and may end now.
    pub(crate) fn leave(&mut self) {
        if let Some(client) = &mut self.client {
            // If the launcher is gone there is nobody to tell.
            let _ = client.finalized();
        }
    }
}

impl Subsystem for Launcher {
    type Below<'a> = Informed<'a>;

    #[inline(always)]
    fn has_work(&self) -> bool {
        self.has_work
    }

    /// An answer that is awaited keeps nobody: what needs it is under way elsewhere.
    fn idle(&self) -> bool {
        true
    }

    #[inline(always)]
    fn progress(&mut self, below: Informed<'_>) -> usize {
        if self.has_work() { self.ask(below) } else { 0 }
    }

    /// Reads what the launcher says unasked.
    fn before_sleep(&mut self, below: Informed<'_>) -> Option<Instant> {
        self.client.as_ref()?;
        let now = Instant::now();
        if self.lost || self.read.is_some_and(|read| now < read + PAUSE) {
            return None;
        }
        self.read = Some(now);
        (self.read_events(below) > 0).then_some(now)
    }
}

impl Launcher {
    /// Asks for business cards that a fabric wants, and after peers that it does not reach; gives it the cards that arrived.
    #[inline(never)]
    fn ask(&mut self, below: Informed<'_>) -> usize {
        let (wanted, missing) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.missing));
        self.has_work = false;
        let Some(client) = &mut self.client else { return 0 };
        // A broken connection shows when its next event is read.
        wanted.iter().for_each(|peer| _ = client.lookup(peer.0));
        missing.iter().for_each(|peer| _ = client.report_unreached(peer.0));
        self.awaits_card |= !wanted.is_empty();
        let events = wanted.len() + missing.len();
        let events = if self.awaits_card { events + self.read_events(below) } else { events };
        self.has_work |= self.awaits_card;
        events
    }

    /// Acts on all that the launcher has said. Returns how many things that were.
    fn read_events(&mut self, Informed { p2p, ports, colls, policy }: Informed<'_>) -> usize {
        let Some(client) = self.client.as_mut().filter(|_| !self.lost) else { return 0 };
        let mut events = 0;
        loop {
            match client.try_event() {
                Ok(Some(Event::BusinessCard { rank, business_card })) => {
                    match ports.connect(Peer(rank), &business_card) {
                        Ok(false) => {}
                        Ok(true) => *policy = policy.through_kernel(ports.by_kernel()),
                        Err(cause) => p2p.peer_down(Peer(rank), &cause),
                    }
                }
                Ok(Some(Event::Gone { rank, cause, failed })) => {
                    ports.peer_died(Peer(rank), &cause);
                    if failed {
                        colls.process_failed(Peer(rank), &cause, p2p);
                    }
                }
                Ok(None) => break,
                Err(cause) => {
                    // This process is about to be killed.
                    self.lost = true;
                    eprintln!("banyan: lost the launcher: {cause}");
                    break;
                }
            }
            events += 1;
        }
        self.awaits_card = !self.lost && client.awaits_card();
        events
    }
}
