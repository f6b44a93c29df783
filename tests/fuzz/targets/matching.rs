//! Point-to-point messages: a peer may send any frames at any time; it is served or it is down, and nothing breaks.
//!
//! Parser: crates/p2p/src
#![no_main]

use banyan_datatype::Data;
use banyan_memory::HeapBuffer;
use banyan_p2p::{Config, Mode, P2p, RecvArgs, SendArgs};
use banyan_transport::sim::{Net, Options};
use banyan_transport::{Fabric, Head, Peer, Sink};
use libfuzzer_sys::fuzz_target;

const CTX: u64 = 1;
const STRANGER: Peer = Peer(1);

fuzz_target!(|bytes: &[u8]| {
    let net = Net::new(2, 1, Options::default());
    let mut port = net.endpoints().into_iter().next().expect("an endpoint");
    let mut p2p = P2p::new(Config::new(1 << 16, 2));
    p2p.open_context(CTX);
    for length in [0, 100, 20_000] {
        let data = Data::bytes(HeapBuffer::zeroed(length));
        p2p.recv(&mut port, RecvArgs { ctx: CTX, src: None, tag: None, data: &data });
        let mode = Mode::Standard;
        p2p.send(&mut port, SendArgs { peer: STRANGER, ctx: CTX, tag: 3, src_rank: 0, data: &data, mode });
    }
    // Each frame: one byte of length, a head, a body. Only classes that there are.
    let mut rest = bytes;
    while let Some((&length, after)) = rest.split_first() {
        let Some((head, after)) = after.split_first_chunk::<{ Head::BYTES }>() else { return };
        let (body, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        let mut head = *head;
        head[0] %= 4;
        if let Some(head) = Head::decode(&head) {
            p2p.frame(STRANGER, &head, body);
        }
        port.poll(&mut p2p);
        p2p.progress(&mut port);
    }
});
