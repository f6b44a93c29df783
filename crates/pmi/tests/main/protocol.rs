//! The bootstrap protocol: frames survive any split, hostile bytes are refused, a rank joins and talks.

use banyan_pmi::codec::{self, CodecError, decode_reply, decode_request};
use banyan_pmi::{Channel, Client, Error, Event, Job, NodeKind, Places, Reply, Request, VERSION};
use proptest::prelude::*;

fn job() -> Job {
    Job { size: 6, rank: 2, local_rank: 2, local_size: 6, ..Job::singleton(2) }
}

fn welcome() -> Reply {
    Reply::Welcome { version: VERSION, job: Box::new(job()) }
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(version, pid)| Request::Hello { version, pid }),
        prop::collection::vec(any::<u8>(), 0..300)
            .prop_map(|business_card| Request::Publish { business_card }),
        any::<u32>().prop_map(|rank| Request::Lookup { rank }),
        Just(Request::Ready),
        Just(Request::Finalized),
        (any::<i32>(), ".*").prop_map(|(code, message)| Request::Abort { code, message }),
    ]
}

proptest! {
    #[test]
    fn frames_survive_any_split(frames in prop::collection::vec(request(), 0..8), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        for frame in &frames {
            codec::encode(frame, &mut bytes).unwrap();
        }
        let cut = cut.index(bytes.len() + 1);
        let mut seen = Vec::new();
        let mut inbox = Vec::new();
        for part in [&bytes[..cut], &bytes[cut..]] {
            inbox.extend_from_slice(part);
            while let Some((frame, used)) = decode_request(&inbox).unwrap() {
                seen.push(frame);
                inbox.drain(..used);
            }
        }
        prop_assert_eq!(seen, frames);
        prop_assert!(inbox.is_empty());
    }

    #[test]
    fn any_bytes_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        for outcome in [decode_request(&bytes).map(|x| x.map(|y| y.1)), decode_reply(&bytes).map(|x| x.map(|y| y.1))] {
            if let Ok(Some(used)) = outcome {
                prop_assert!(used <= bytes.len());
            }
        }
    }

    #[test]
    fn a_job_says_where_its_ranks_are(sizes in prop::collection::vec(1u32..5, 1..6)) {
        let all = (0..).zip(&sizes).flat_map(|(node, &size)| std::iter::repeat_n(node, size as usize));
        let flat: Vec<u32> = all.collect();
        let places = Places::new(flat.iter().copied(), |node| NodeKind::new(1 + node, []));
        let job = Job { size: flat.len() as u32, places, ..Job::singleton(1) };
        for (rank, &node) in flat.iter().enumerate() {
            prop_assert_eq!(job.node_of(rank as u32), node);
            prop_assert_eq!(Job { rank: rank as u32, ..job.clone() }.cores(), 1 + node);
        }
    }
}

#[test]
fn lengths_are_bounded() {
    assert_eq!(decode_request(&u32::MAX.to_le_bytes()), Err(CodecError::TooLong(u32::MAX as usize)));
    let huge = Request::Publish { business_card: vec![0; codec::MAX_BODY] };
    let mut out = Vec::new();
    assert!(matches!(codec::encode(&huge, &mut out), Err(CodecError::TooLong(_))));
    assert!(out.is_empty());
    // A body with bytes left over is no frame.
    let mut bytes = Vec::new();
    codec::encode(&Request::Ready, &mut bytes).unwrap();
    bytes[0] += 1;
    bytes.push(0);
    assert_eq!(decode_request(&bytes), Err(CodecError::Malformed));
}

#[test]
fn a_rank_joins_without_waiting_for_the_agent() {
    let (mut agent, theirs) = Channel::<Request, Reply>::pair().unwrap();
    agent.send(&welcome()).unwrap();
    let mut rank = Client::join(theirs).unwrap();
    assert_eq!(rank.job(), &job());
    assert!(rank.take_node_memory().unwrap().is_none());

    rank.publish(b"here").unwrap();
    rank.lookup(4).unwrap();
    rank.lookup(4).unwrap();
    rank.ready().unwrap();
    assert_eq!(rank.try_event().unwrap(), None);
    let pid = std::process::id();
    assert_eq!(agent.receive().unwrap(), Some(Request::Hello { version: VERSION, pid }));
    assert_eq!(agent.receive().unwrap(), Some(Request::Publish { business_card: b"here".to_vec() }));
    assert_eq!(agent.receive().unwrap(), Some(Request::Lookup { rank: 4 }));
    assert_eq!(agent.receive().unwrap(), Some(Request::Ready));
    assert_eq!(agent.receive().unwrap(), None);

    agent.send(&Reply::BusinessCard { rank: 4, business_card: b"there".to_vec() }).unwrap();
    assert_eq!(
        rank.try_event().unwrap(),
        Some(Event::BusinessCard { rank: 4, business_card: b"there".to_vec() })
    );

    rank.abort(-7, &"é".repeat(4000)).unwrap();
    drop(rank);
    let Some(Request::Abort { code: -7, message }) = agent.receive().unwrap() else { panic!("no abort") };
    assert_eq!(message.len(), banyan_pmi::MAX_TEXT);
    // The socket stays open as long as the process lives: by it children of a rank know that it has joined.
    assert_eq!(agent.receive().unwrap(), None);
}

#[test]
fn what_cannot_be_joined_is_refused() {
    let join = |reply: Reply| {
        let (mut agent, theirs) = Channel::<Request, Reply>::pair().unwrap();
        agent.send(&reply).unwrap();
        Client::join(theirs).unwrap_err()
    };
    let old = Reply::Welcome { version: VERSION + 1, job: Box::new(job()) };
    assert!(matches!(join(old), Error::Version { agent } if agent == VERSION + 1));
    assert!(matches!(join(Reply::Refused { pid: 1, reason: "taken".into() }), Error::Refused(_)));
    let unsound = Job { rank: 6, ..job() };
    let unsound = Reply::Welcome { version: VERSION, job: Box::new(unsound) };
    assert!(matches!(join(unsound), Error::Unexpected(_)));
    assert!(matches!(join(Reply::BusinessCard { rank: 0, business_card: vec![] }), Error::Unexpected(_)));
}

#[test]
fn a_lost_agent_is_an_error() {
    let (mut agent, theirs) = Channel::<Request, Reply>::pair().unwrap();
    agent.send(&welcome()).unwrap();
    let mut rank = Client::join(theirs).unwrap();
    drop(agent);
    assert!(rank.try_event().is_err());
    assert!(rank.publish(b"x").is_err());
    assert!(matches!(
        rank.publish(&[0; banyan_pmi::MAX_BUSINESS_CARD + 1]),
        Err(Error::BusinessCardTooLong(_))
    ));
}
