//! Two hosts, each a network namespace of its own with several interfaces, and a process in each that starts the fabric with the
//! addresses that a job on two nodes would use. The namespaces have no names: they end with the processes in them. Without root, or
//! without `ip`, nothing is tried.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use banyan_memory::HeapBuffer;
use banyan_tcp::{Options, Tcp, business_card};
use banyan_topo::nic_filters;
use banyan_transport::{Class, Fabric, Head, Order, Outcome, Peer, Port, Sink, Token};

const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
const LARGE: usize = 64 << 10;
/// What each interface is to carry.
const ENOUGH: usize = 50 * LARGE;

/// Says to this program that it is a host: its number, and what the user set as BANYAN_NIC.
const HOST: &str = "BANYAN_TEST_HOST";
const NICS: &str = "BANYAN_TEST_NICS";
/// How long an address may be silent, milliseconds.
const STAGGER: &str = "BANYAN_TEST_STAGGER";

#[derive(Default)]
struct Inbox {
    /// The peer has sent, or heard, enough.
    enough: bool,
    left: bool,
}

impl Sink for Inbox {
    fn frame(&mut self, _: Peer, _: &Head, body: &[u8]) {
        self.enough |= body == b"enough";
    }
    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, peer: Peer, cause: &str) {
        self.left = cause.ends_with("it has left the job");
        assert!(self.left, "{peer:?} {cause}");
    }
}

/// A host: this program again, in namespaces of its own.
struct Host {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Host {
    fn start(number: u32, nics: &str, stagger: &str) -> Host {
        // /sys lists the interfaces of the namespace in which it was mounted.
        let script = "mount -t sysfs none /sys && exec \"$0\" --exact --nocapture a_process_on_a_host";
        let program = std::env::current_exe().expect("this program");
        let mut process = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", script])
            .arg(program)
            .env(HOST, number.to_string())
            .env(NICS, nics)
            .env(STAGGER, stagger)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let input = process.stdin.take().expect("a pipe");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut host = Host { process, input, output };
        host.hear("up");
        host
    }

    /// The rest of the next line that begins so.
    fn hear(&mut self, start: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.output.read_line(&mut line).expect("a line") > 0,
                "the host ended before it said {start}"
            );
            // The harness of tests may have begun this line.
            if let Some(at) = line.find(&format!("host says {start}")) {
                return line[at + "host says ".len() + start.len()..].trim().to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the host listens");
    }

    /// Runs `ip` there.
    fn ip(&self, arguments: &str) {
        let target = format!("--target={}", self.process.id());
        let enter = ["--net", "ip"];
        let words = arguments.split_whitespace();
        let done = Command::new("nsenter").arg(target).args(enter).args(words).output().expect("nsenter");
        assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Two hosts with these interfaces and addresses, `#` standing for the number of the host. Those called eth are joined, others lead
/// nowhere. The first one sends to the second until each of `counted` has carried enough. Gives the addresses on its card.
fn talk(interfaces: &[(&str, &str)], nics: &str, counted: &[&str]) -> Option<Vec<String>> {
    let possible = |program: &str, arguments: &[&str]| {
        let quiet =
            Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    };
    let needed = "mount -t sysfs none /sys && ip link add one type veth peer name other && nsenter --version";
    if !possible("unshare", &["--net", "--mount", "sh", "-c", needed]) {
        println!("skipped: network namespaces need root, iproute2 and virtual interfaces (veth)");
        return None;
    }
    // Where each stream is to take its own interface, a host that is slow to answer must not have it take another one.
    let stagger = if counted.len() > 1 { "30000" } else { "100" };
    let mut hosts = [1, 2].map(|number| Host::start(number, nics, stagger));
    for (name, addresses) in interfaces {
        if name.starts_with("eth") {
            let peer = hosts[1].process.id();
            hosts[0].ip(&format!("link add {name} type veth peer name {name} netns {peer}"));
        }
        for (host, number) in hosts.iter().zip(["1", "2"]) {
            if !name.starts_with("eth") {
                host.ip(&format!("link add {name} type veth peer name end-{name}"));
                host.ip(&format!("link set end-{name} up"));
            }
            for address in addresses.split_whitespace() {
                let nodad = if address.contains(':') { "nodad" } else { "" };
                host.ip(&format!("address add {} dev {name} {nodad}", address.replace('#', number)));
            }
            host.ip(&format!("link set {name} up"));
        }
    }
    let names: Vec<&str> = interfaces.iter().map(|(name, _)| *name).collect();
    hosts.iter_mut().for_each(|host| host.tell(&names.join(" ")));
    let cards = [0, 1].map(|host: usize| hosts[host].hear("card"));
    let of_first = hosts[0].hear("addresses");
    for (host, card) in [(0, &cards[1]), (1, &cards[0])] {
        hosts[host].tell(card);
        hosts[host].tell(&counted.join(" "));
    }
    hosts.iter_mut().for_each(|host| drop(host.hear("talked")));
    Some(of_first.split_whitespace().map(str::to_owned).collect())
}

/// What the system says of an interface.
fn read(nic: &str, what: &str) -> String {
    std::fs::read_to_string(format!("/sys/class/net/{nic}/{what}")).expect("an interface").trim().to_owned()
}

/// Not a test: what the processes on the hosts do.
#[test]
fn a_process_on_a_host() {
    let Ok(number) = std::env::var(HOST) else { return };
    let (me, nics) = (number.parse::<u32>().expect("a number") - 1, std::env::var(NICS).expect("a setting"));
    let mut lines = std::io::stdin().lines();
    let mut line = || lines.next().expect("a line").expect("a line");
    println!("\nhost says up");
    // The system says that an interface is running some time after it was told to be.
    let start = Instant::now();
    for nic in line().split_whitespace() {
        while !matches!(read(nic, "operstate").as_str(), "up" | "unknown") {
            assert!(start.elapsed() < Duration::from_secs(60), "{nic} does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let filters = if nics.is_empty() { Vec::new() } else { nic_filters(&nics).expect("filters") };
    let listen = banyan_topo::addresses(&filters).expect("addresses");
    let stagger = Duration::from_millis(std::env::var(STAGGER).expect("a number").parse().expect("a number"));
    let options = Options { listen, streams: 0, stagger, ..Options::default() };
    let (mut tcp, card) = Tcp::new(Peer(me), 2, 1, [1; 32], options).expect("the fabric starts");
    let hex: String = card.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("host says card {hex}");
    let candidates = business_card::decode(&card).expect("a card");
    let ips: Vec<String> = candidates.iter().map(|one| one.address.ip().to_string()).collect();
    println!("host says addresses {}", ips.join(" "));
    let other = line();
    let byte = |at: usize| u8::from_str_radix(&other[at..at + 2], 16).expect("a byte");
    let other: Vec<u8> = (0..other.len()).step_by(2).map(byte).collect();
    let peer = Peer(1 - me);
    tcp.connect(peer, &other).expect("a card");
    let (counted, memory, mut inbox) = (line(), HeapBuffer::zeroed(LARGE), Inbox::default());
    // The first host sends until enough has gone by each interface. Then each says so in a short frame, and the first one leaves.
    let enough = || {
        let sent = |nic: &str| read(nic, "statistics/tx_bytes").parse::<usize>().expect("bytes");
        counted.split_whitespace().all(|nic| sent(nic) > ENOUGH)
    };
    let (mut said, start) = (false, Instant::now());
    while !inbox.left && (me == 1 || !said || !inbox.enough || tcp.unsent()) {
        assert!(start.elapsed() < Duration::from_secs(60), "not enough has gone by {counted}");
        if me == 0 && !said && !enough() {
            let _ = tcp.send_from(peer, &HEAD, (&memory, 0, LARGE), None, Order::Unordered);
        } else if !said && (me == 0 || inbox.enough) {
            said = tcp.send_short(peer, &HEAD, b"enough").is_ok();
        }
        tcp.poll(&mut inbox);
    }
    assert!(said && inbox.enough);
    drop(tcp);
    println!("host says talked");
    // The host stays until the other one has heard of the farewell.
    line();
}

#[test]
fn hosts_with_bridges_and_two_networks_use_both_networks() {
    let interfaces = [("docker0", "172.17.0.1/16"), ("eth0", "10.1.0.#/24"), ("eth1", "10.2.0.#/24")];
    let Some(addresses) = talk(&interfaces, "", &["eth0", "eth1"]) else { return };
    assert_eq!(addresses, ["10.1.0.1", "10.2.0.1", "172.17.0.1"]);
}

#[test]
fn hosts_with_version_6_alone_reach_each_other() {
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        return println!("skipped: this system has no IPv6");
    }
    let Some(addresses) = talk(&[("eth0", "fd77::#/64")], "", &["eth0"]) else { return };
    assert_eq!(addresses, ["fd77::1"]);
}

#[test]
fn a_network_that_swallows_everything_is_passed_over() {
    // What is sent to the other host by way of ens9 is lost without an answer.
    let interfaces = [("ens9", "10.9.0.#/24"), ("eth0", "10.1.0.#/24")];
    let Some(addresses) = talk(&interfaces, "ens9,10.1.0.0/16", &["eth0"]) else { return };
    assert_eq!(addresses, ["10.9.0.1", "10.1.0.1"]);
}
