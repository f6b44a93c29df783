//! What a message of 0 bytes costs two ranks in instructions, for `cargo xtask test`: both ranks in one thread, over
//! shared memory, each step scripted, so that nothing waits. The instructions inside `counted` are to be counted; it
//! says how many messages that were.

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_p2p::{Config, Mode, P2p, ReceiveBypass, RecvArgs, SendArgs, Started};
use banyan_shm::{Options, Shm};
use banyan_transport::{Fabric, Head, Peer};

struct Rank {
    me: u32,
    p2p: P2p,
    shm: Shm,
}

impl Rank {
    fn send(&mut self, to: u32, data: &Data) {
        let args = SendArgs { peer: Peer(to), ctx: 1, tag: 7, src_rank: self.me, data, mode: Mode::Standard };
        assert!(self.p2p.send(&mut self.shm, args).is_none(), "there is room and credit");
    }

    /// As a blocking receive takes a message that is there.
    fn receive(&mut self, from: u32, data: &Data) {
        let args = RecvArgs { ctx: 1, src: Some((from, Peer(from))), tag: Some(7), data };
        let mut bypass = ReceiveBypass::new(&mut self.p2p, args, |_: Peer, _: &Head, _: &[u8]| ())
            .expect("nothing came unexpected");
        assert!(self.shm.take(Peer(from), &mut bypass), "a frame is there");
        assert!(bypass.end().is_some(), "it is the message");
    }
}

/// There and back.
#[inline(always)]
fn exchange(a: &mut Rank, b: &mut Rank, data: &Data) {
    a.send(1, data);
    b.receive(0, data);
    b.send(0, data);
    a.receive(1, data);
}

#[inline(never)]
fn counted(a: &mut Rank, b: &mut Rank, data: &Data) {
    (0..500).for_each(|_| exchange(a, b, data));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Shm::memory(2, None)?;
    let rank = |me: u32| -> Result<Rank, Box<dyn std::error::Error>> {
        let shm = Shm::attach(memory.try_clone()?, me, &[Peer(0), Peer(1)], Options::default())?;
        Ok(Rank { me, p2p: P2p::new(Config::new(4 << 20, 2)), shm })
    };
    let (mut a, mut b) = (rank(0)?, rank(1)?);
    let data = Data::bytes(Buffer::empty());
    // First contact goes through a poll.
    for (from, to) in [(0, 1), (1, 0)] {
        let (sender, receiver) = if from == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        sender.send(to, &data);
        receiver.shm.poll(&mut receiver.p2p);
        let args = RecvArgs { ctx: 1, src: Some((from, Peer(from))), tag: Some(7), data: &data };
        assert!(matches!(receiver.p2p.recv(&mut receiver.shm, args), Started::Done(_)));
    }
    counted(&mut a, &mut b, &data);
    println!("messages 1000");
    Ok(())
}
