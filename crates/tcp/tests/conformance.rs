//! The suite that every fabric passes, over loopback connections.

use banyan_tcp::{Options, Tcp};
use banyan_transport::conformance::down;
use banyan_transport::{Fabric, Peer};

fn ends(n: usize, options: &Options) -> Vec<Tcp> {
    let make = |me| Tcp::new(Peer(me), n as u32, 77, [5; 32], options.clone()).expect("a fabric");
    let (mut ends, business_cards): (Vec<Tcp>, Vec<Vec<u8>>) = (0..n as u32).map(make).unzip();
    for (me, end) in ends.iter_mut().enumerate() {
        for (peer, business_card) in business_cards.iter().enumerate().filter(|&(peer, _)| peer != me) {
            end.connect(Peer(peer as u32), business_card).expect("a card");
        }
    }
    ends
}

banyan_transport::conformance!(plain, |n| ends(n, &Options::default()));
banyan_transport::conformance!(small_queue, |n| ends(n, &Options { queue: 1, ..Options::default() }));

#[test]
fn a_peer_that_goes_is_reported_once() {
    down(&|n| ends(n, &Options::default()), |ends| drop(ends.pop()));
}
