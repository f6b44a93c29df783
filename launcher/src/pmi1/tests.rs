//! Tests of `pmi1.rs`.

use super::*;
use proptest::prelude::*;

/// Hosts with these numbers of ranks, and the job's part, as the agents of a job have them.
struct Net {
    hosts: Vec<Host>,
    job: Job,
    of: Vec<u32>,
}

impl Net {
    fn new(sizes: &[u32]) -> Net {
        let of: Vec<u32> =
            (0..).zip(sizes).flat_map(|(host, &ranks)| std::iter::repeat_n(host, ranks as usize)).collect();
        let about = || About { name: "kvs_1".into(), size: of.len() as u32, mapping: mapping(of.clone()) };
        let ranks =
            |host| (0u32..).zip(&of).filter(move |(_, of)| **of == host).map(|(rank, _)| (rank, rank % 2));
        let hosts = (0..sizes.len() as u32).map(|host| Host::new(about(), ranks(host))).collect();
        Net { hosts, job: Job::new(sizes.len() as u32), of: of.clone() }
    }

    /// Sends bytes as `rank`; gives what is to be done, in order.
    fn send(&mut self, rank: u32, bytes: &str) -> Vec<Action> {
        let host = self.of[rank as usize];
        let mut done = Vec::new();
        for action in self.hosts[host as usize].receive(rank, bytes.as_bytes(), true) {
            let Action::Up(up) = action else {
                done.push(action);
                continue;
            };
            for (to, down) in self.job.receive(host, up) {
                for (at, host) in (0..).zip(&mut self.hosts) {
                    if to.is_none_or(|to| to == at) {
                        done.extend(host.deliver(down.clone()));
                    }
                }
            }
        }
        done
    }

    /// The answer to one request.
    fn ask(&mut self, rank: u32, request: &str) -> String {
        match self.send(rank, &format!("{request}\n")).as_slice() {
            [Action::Reply(to, line)] if *to == rank => line.trim_end().to_owned(),
            other => panic!("{request}: {other:?}"),
        }
    }
}

#[test]
fn a_rank_learns_of_the_job() {
    let mut net = Net::new(&[3, 1]);
    let init = net.send(3, "cmd=init pmi_version=1 pmi_subversion=1\n");
    let answer = "cmd=response_to_init rc=0 msg=success pmi_version=1 pmi_subversion=1\n";
    assert_eq!(init, [Action::Joined(3), Action::Reply(3, answer.into())]);
    assert_eq!(net.ask(3, "cmd=get_maxes"), "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024");
    assert_eq!(net.ask(3, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=1");
    assert_eq!(net.ask(3, "cmd=get_universe_size"), "cmd=universe_size rc=0 size=4");
    assert_eq!(net.ask(3, "cmd=get_my_kvsname"), "cmd=my_kvsname rc=0 kvsname=kvs_1");
    let mapping = net.ask(3, "cmd=get kvsname=kvs_1 key=PMI_process_mapping");
    assert_eq!(mapping, "cmd=get_result rc=0 msg=success value=(vector,(0,1,3),(1,1,1))");
    let ack = Action::Reply(3, "cmd=finalize_ack rc=0\n".into());
    assert_eq!(net.send(3, "cmd=finalize\n"), [Action::Finalized(3), ack]);
}

#[test]
fn values_pass_at_barriers() {
    let mut net = Net::new(&[2, 1]);
    assert!(net.ask(0, "cmd=put kvsname=kvs_1 key=a value=x=1").contains("rc=0"));
    assert!(net.ask(2, "cmd=put kvsname=kvs_1 key=b value=2").contains("rc=0"));
    assert!(net.ask(1, "cmd=get kvsname=kvs_1 key=a").ends_with("value=x=1"));
    assert!(net.ask(2, "cmd=get kvsname=kvs_1 key=a").contains("rc=-1 msg=key_a_not_found"));
    assert_eq!(net.send(2, "cmd=barrier_in\n"), []);
    assert_eq!(net.send(0, "cmd=barrier_in\n"), []);
    let out = |rank| Action::Reply(rank, "cmd=barrier_out rc=0\n".to_owned());
    assert_eq!(net.send(1, "cmd=barrier_in group=WORLD:0\n"), [out(0), out(1), out(2)]);
    assert!(net.ask(2, "cmd=get kvsname=kvs_1 key=a").ends_with("value=x=1"));
    assert!(net.ask(0, "cmd=get kvsname=kvs_1 key=b").ends_with("value=2"));
    for refused in ["cmd=put key=PMI_x value=1", "cmd=put kvsname=other key=x value=1", "cmd=put key=x"] {
        assert!(net.ask(0, refused).starts_with("cmd=put_result rc=-1"), "{refused}");
    }
}

#[test]
fn groups_have_barriers_of_their_own() {
    let mut net = Net::new(&[3, 1]);
    assert_eq!(net.send(0, "cmd=barrier_in group=0,2:7\n"), []);
    assert_eq!(net.send(1, "cmd=barrier_in group=NODE:1\n"), []);
    let out = |rank| Action::Reply(rank, "cmd=barrier_out rc=0 tag=7\n".to_owned());
    assert_eq!(net.send(2, "cmd=barrier_in group=0,2:7\n"), [out(0), out(2)]);
    let node = net.ask(3, "cmd=barrier_in group=NODE:1");
    assert_eq!(node, "cmd=barrier_out rc=0 tag=1", "a node of its own");
    for wrong in ["0,3:1", "2,9:1", "0,1:1", "x"] {
        assert!(net.ask(2, &format!("cmd=barrier_in group={wrong}")).contains("rc=-1"), "{wrong}");
    }
}

#[test]
fn names_are_the_jobs() {
    let mut net = Net::new(&[1, 1]);
    assert!(net.ask(1, "cmd=lookup_name service=s").contains("lookup_result rc=-1"));
    assert!(net.ask(0, "cmd=publish_name service=s port=p").contains("publish_result rc=0"));
    assert!(net.ask(1, "cmd=publish_name service=s port=q").contains("publish_result rc=-1"));
    assert!(net.ask(1, "cmd=lookup_name service=s").ends_with("info=ok port=p"));
    assert!(net.ask(1, "cmd=unpublish_name service=s").contains("unpublish_result rc=0"));
    assert!(net.ask(0, "cmd=lookup_name service=s").contains("rc=-1"));
}

#[test]
fn what_is_not_offered_is_refused_and_never_hangs() {
    let mut net = Net::new(&[2]);
    let spawn =
        |n| format!("mcmd=spawn\nnprocs=1\nexecname=/bin/a b\ntotspawns=2\nspawnssofar={n}\nendcmd\n");
    assert_eq!(net.send(0, &spawn(1)), []);
    let refused = "cmd=spawn_result rc=-1 msg=mpirun_does_not_spawn_processes\n";
    assert_eq!(net.send(0, &spawn(2)), [Action::Reply(0, refused.into())]);
    assert!(net.ask(0, "cmd=invented key=1").starts_with("cmd=invented_result rc=-1"));
    assert!(net.ask(0, "cmd=init pmi_version=2 pmi_subversion=0").starts_with("cmd=response_to_init rc=-1"));
    let taken = net.hosts[0].receive(0, b"cmd=init pmi_version=1 pmi_subversion=1\n", false);
    assert!(matches!(&taken[..], [Action::Reply(0, line)] if line.contains("rc=-1 msg=another_process")));
    let abort = Action::Abort { rank: 1, code: 5, message: "so it is".into() };
    assert_eq!(net.send(1, "cmd=abort exitcode=5 message=so it is\n"), [abort]);
    assert!(matches!(&net.send(1, "GET / HTTP/1.0\n")[..], [Action::Broken(1, _)]));
    let long = net.send(1, &"x".repeat(MAX_LINE + 1));
    assert!(matches!(&long[..], [Action::Broken(1, _)]));
}

#[test]
fn what_ranks_put_is_bounded() {
    let mut net = Net::new(&[1, 1]);
    assert_eq!(net.send(1, "cmd=barrier_in\n"), []);
    let value = "v".repeat(MAX_VALUE);
    let put = |net: &mut Net, at| net.ask(0, &format!("cmd=put key=k{at} value={value}")).contains("rc=0");
    let taken = (0..20_000).take_while(|at| put(&mut net, *at)).count();
    // All of them pass the barrier, in pieces.
    assert_eq!(net.send(0, "cmd=barrier_in\n").len(), 2);
    let last = net.ask(1, &format!("cmd=get key=k{}", taken - 1));
    assert!(last.ends_with(&value), "{last}");
    assert!((MOST_BYTES / 2..=MOST_BYTES).contains(&(taken * value.len())), "{taken} values");
}

#[test]
fn what_no_answer_can_hold_is_refused() {
    let mut net = Net::new(&[2]);
    for (key, value) in [("k", &*"v".repeat(MAX_VALUE + 1)), (&*"k".repeat(MAX_KEY + 1), "v")] {
        let said = net.ask(0, &format!("cmd=put key={key} value={value}"));
        assert_eq!(said, "cmd=put_result rc=-1 msg=key_or_value_is_too_long");
    }
    let port = "p".repeat(MAX_VALUE + 1);
    assert!(net.ask(0, &format!("cmd=publish_name service=s port={port}")).contains("too_long"));
    for odd in ["cmd=\u{e9}", "cmd=get key=a\tb", &format!("cmd=get key={}", "k".repeat(5000))] {
        assert!(net.ask(1, odd).starts_with("cmd=error rc=-1 "), "{odd}");
    }
}

#[test]
fn mappings_are_short() {
    assert_eq!(mapping([0, 0, 1, 1]).unwrap(), "(vector,(0,2,2))");
    assert_eq!(mapping([0, 1, 2, 0, 1, 2]).unwrap(), "(vector,(0,3,1),(0,3,1))");
    assert_eq!(mapping((0..4000).map(|rank| rank % 2)), None);
}

proptest! {
    #[test]
    fn mappings_say_where_each_rank_is(nodes in prop::collection::vec(0u32..4, 1..40)) {
        let text = mapping(nodes.clone()).unwrap();
        let mut said = Vec::new();
        for block in text.trim_start_matches("(vector,(").trim_end_matches("))").split("),(") {
            let numbers: Vec<u32> = block.split(',').map(|number| number.parse().unwrap()).collect();
            for node in 0..numbers[1] {
                said.extend(std::iter::repeat_n(numbers[0] + node, numbers[2] as usize));
            }
        }
        prop_assert_eq!(said, nodes);
    }

    #[test]
    fn cuts_between_bytes_change_nothing(cuts in prop::collection::vec(1usize..20, 0..20)) {
        let text = "cmd=init pmi_version=1 pmi_subversion=1\ncmd=put key=a value=1\ncmd=get key=a\n\
                    mcmd=spawn\nnprocs=1\nendcmd\ncmd=barrier_in\ncmd=get key=b\ncmd=finalize\n";
        let whole = Net::new(&[1]).send(0, text);
        let (mut net, mut rest, mut parts) = (Net::new(&[1]), text, Vec::new());
        for cut in cuts {
            let (part, after) = rest.split_at(cut.min(rest.len()));
            parts.extend(net.send(0, part));
            rest = after;
        }
        parts.extend(net.send(0, rest));
        prop_assert_eq!(parts, whole);
    }

    #[test]
    fn any_bytes_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut host = Host::new(About { name: "k".into(), size: 1, mapping: None }, [(0, 0)].into_iter());
        let _ = host.receive(0, &bytes, true);
    }
}
