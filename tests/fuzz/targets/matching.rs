//! The matching engine: a peer may send any frames at any time; it is told off or served, and nothing breaks.
#![no_main]

use banyan_datatype::Data;
use banyan_memory::Scratch;
use banyan_p2p::{Config, Engine, Mode, RecvArgs, SendArgs};
use banyan_transport::sim::{Net, Options};
use banyan_transport::{Fabric, Head, Peer, Sink};
use libfuzzer_sys::fuzz_target;

const CTX: u64 = 1;
const STRANGER: Peer = Peer(1);

fuzz_target!(|bytes: &[u8]| {
    let net = Net::new(2, 1, Options::default());
    let mut port = net.endpoints().into_iter().next().expect("an endpoint");
    let mut engine = Engine::new(Config::new(1 << 16, 2));
    engine.open_context(CTX);
    for length in [0, 100, 20_000] {
        let data = Data::bytes(Scratch::zeroed(length));
        engine.recv(&mut port, RecvArgs { ctx: CTX, src: None, tag: None, data: &data });
        let mode = Mode::Standard;
        engine.send(&mut port, SendArgs { peer: STRANGER, ctx: CTX, tag: 3, src_rank: 0, data: &data, mode });
    }
    // Each frame: one byte of length, a head, a body. The class is the engine's own.
    let mut rest = bytes;
    while let Some((&length, after)) = rest.split_first() {
        let Some((head, after)) = after.split_first_chunk::<{ Head::BYTES }>() else { return };
        let (body, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        let mut head = *head;
        head[0] %= 4;
        if let Some(head) = Head::decode(&head) {
            engine.frame(STRANGER, &head, body);
        }
        port.poll(&mut engine);
        engine.progress(&mut port);
    }
});
