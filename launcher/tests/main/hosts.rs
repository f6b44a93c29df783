//! Jobs on several hosts. In place of ssh a script runs the agents of all hosts on this machine, so that no sshd is needed: ranks
//! of different "hosts" share no memory, and talk by TCP.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::hosts::{agent_of, fine, on, ring, sorted, ssh};
use crate::common::{self, LIMIT, gone, kill, survivors, within};

#[test]
fn ranks_run_where_they_are_mapped() {
    let show = ["sh", "-c", "echo $BANYAN_RANK $BANYAN_LOCAL_RANK $BANYAN_LOCAL_SIZE $HOSTNAME"];
    let out = |hosts: &str, options: &[&str]| {
        let done = on(hosts, &[options, &show].concat()).run();
        sorted(fine(&done)).join(", ")
    };
    assert_eq!(out("h1:2,h2", &[]), "0 0 2 h1, 1 1 2 h1, 2 0 1 h2");
    assert_eq!(out("localhost,h1:2", &[]), "0 0 1 here, 1 0 2 h1, 2 1 2 h1");
    assert_eq!(out("h1,h2,h1", &["-n", "2"]), "0 0 2 h1, 1 1 2 h1");
    assert_eq!(out("h1,h2", &["--ppn", "2"]), "0 0 2 h1, 1 1 2 h1, 2 0 2 h2, 3 1 2 h2");
    assert_eq!(out("h1:2,h2:2", &["--map-by", "node", "-n", "3"]), "0 0 2 h1, 1 0 1 h2, 2 1 2 h1");
    // Each host says how many ranks its parts take.
    let each = |options: &[&str]| {
        let out = out("h1,localhost", options);
        let mut lines: Vec<String> = out.split(", ").map(str::to_owned).collect();
        lines.sort_by_key(|line| line.split(' ').next().and_then(|rank| rank.parse::<u32>().ok()));
        lines
    };
    let all = each(&["--map-by", "ppr:2:socket", "--bind-to", "none"]);
    assert!(all.len() >= 4 && all.len().is_multiple_of(4), "{all:?}");
    let half = all.len() / 2;
    let wanted = |rank| format!("{rank} {} {half} {}", rank % half, if rank < half { "h1" } else { "here" });
    assert_eq!(all, (0..all.len()).map(wanted).collect::<Vec<_>>());
    assert_eq!(each(&["--map-by", "ppr:1:core", "-n", "1"]), ["0 0 1 h1"]);
    let done = on("h1,h2", &["--map-by", "ppr:1:socket", "-n", "1000", "true"]).run();
    assert!(done.status == 1 && done.err.contains("--map-by ppr has room for "), "{}", done.err);
    assert_eq!(out("h1,h2", &["-n", "1", "true", ":", "-n", "1"]), "1 0 1 h2");
}

#[test]
fn programs_work_on_uneven_and_alternating_hosts() {
    let program = ring();
    for (hosts, options) in [
        ("h1:2,h2:2,h3:2", &[][..]),
        ("h1:1,localhost:3,h2:2", &[]),
        ("h1:2,h2:2,h3:1", &["--map-by", "node"]),
        ("localhost:2,h1:1", &["--map-by", "node"]),
    ] {
        let done = on(hosts, &[options, &[&program]].concat()).run();
        let out = fine(&done);
        assert!(out.lines().count() >= 3 && out.lines().all(|line| line.contains("local")), "{out}");
    }
    // Lookups of business cards among the ranks of one host, too.
    let done = on("h1:2,h2:2", &[&program]).env("BANYAN_FABRICS", "tcp").run();
    assert_eq!(fine(&done).lines().count(), 4);
}

#[test]
fn agents_start_each_other() {
    let hosts: Vec<String> = (1..=7).map(|host| format!("h{host}")).collect();
    for radix in ["1", "2", "32"] {
        let done = on(&hosts.join(","), &["--tree-radix", radix, "sh", "-c", "echo $HOSTNAME"]).run();
        assert_eq!(sorted(fine(&done)), hosts);
    }
    let program = ring();
    let done = on("h1,h2,h3,h4", &["--tree-radix", "1", &program]).run();
    assert_eq!(fine(&done).lines().count(), 4);
}

#[test]
fn what_ranks_are_given_is_carried() {
    let script = "pwd; umask; ulimit -c; echo $HOSTNAME ${DISPLAY-none} $A \"$B\"; cat";
    let folder = std::fs::canonicalize(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut job = Command::new("sh");
    let start = format!(
        "cd {} && umask 027 && ulimit -Sc 0 && echo input | exec {} --separate-hosts --host h1 --ssh {} -x A=1 sh -c '{script}'",
        folder.display(),
        env!("CARGO_BIN_EXE_mpirun"),
        ssh()
    );
    job.args(["-c", &start]).env("DISPLAY", "mine").env("B", "two  words");
    let done = common::marked(job).run();
    let wanted = format!("{}\n0027\n0\nh1 none 1 two  words\ninput\n", folder.display());
    assert_eq!(fine(&done), wanted);
    // Nothing of it is on a command line.
    let running = on("h1", &["sh", "-c", "echo; exec sleep 300"]).env("SECRET_OF_MINE", "x").start(1);
    assert!(survivors(&running.mark).iter().all(|process| !process.contains("SECRET")));
    kill("INT", running.pid());
    assert_eq!(running.finish().0, Some(130));
    // Files are where they would be on this host.
    let output = format!("output-{}", std::process::id());
    let mut job = on("h1,h2", &["--output", &output, "sh", "-c", "echo $BANYAN_RANK"]);
    job.command.current_dir(&folder);
    assert_eq!(fine(&job.run()), "");
    let text =
        |rank: u32| std::fs::read_to_string(folder.join(&output).join(format!("rank-{rank}.out"))).unwrap();
    assert_eq!(text(0) + &text(1), "0\n1\n");
    std::fs::remove_dir_all(folder.join(&output)).unwrap();
    let done = on("h1", &["--wdir", "/proc/self", "pwd"]).run();
    assert!(fine(&done).starts_with("/proc/"));
}

#[test]
fn input_goes_to_rank_0_on_another_host() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("input-{}", std::process::id()));
    let text = "0123456789abcdef\n".repeat(100_000);
    std::fs::write(&path, &text).unwrap();
    let done = on("h1,h2", &["cat"]).stdin(std::fs::File::open(&path).unwrap()).run();
    assert_eq!(fine(&done), text);
    // A rank that reads nothing holds nothing up.
    let done = on("h1", &["true"]).stdin(std::fs::File::open(&path).unwrap()).run();
    fine(&done);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn output_is_whole_and_waits_for_its_reader() {
    let lines = "i=0; while [ $i -lt 20000 ]; do echo $BANYAN_RANK $i; i=$((i+1)); done";
    let done = on("h1,h2,h3", &["--tree-radix", "1", "--tag-output", "sh", "-c", lines]).run();
    for rank in 0..3 {
        let tag = format!("[{rank}] ");
        let mine: Vec<&str> = done.out.lines().filter(|line| line.starts_with(&tag)).collect();
        assert!(mine.iter().enumerate().all(|(at, line)| *line == format!("{tag}{rank} {at}")));
        assert_eq!(mine.len(), 20_000);
    }
    fine(&done);
    // Nobody reads: the rank stops, and the agents keep little. A rank that could go on would write for ever.
    let mut running = on("h1", &["sh", "-c", "echo; exec yes x"]).start(1);
    let memory = |process: &str| {
        let pid = process.split(' ').next().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0)
    };
    let written = |processes: &[String]| {
        let rank = processes
            .iter()
            .find(|process| process.contains(" yes x"))
            .map(|process| process.split(' ').next().unwrap());
        let io = std::fs::read_to_string(format!("/proc/{}/io", rank?)).ok()?;
        io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok())
    };
    let mut before = None;
    within(LIMIT, || {
        std::thread::sleep(Duration::from_millis(200));
        let now = written(&survivors(&running.mark))?;
        (before.replace(now) == Some(now)).then_some(())
    });
    assert!(before.unwrap() < 8 << 20, "{before:?}");
    assert!(survivors(&running.mark).iter().all(|process| memory(process) < 64 << 10));
    running.line();
    kill("TERM", running.pid());
    let mark = running.mark.clone();
    assert_eq!(running.finish().0, Some(143));
    gone(&mark);
}

#[test]
fn the_first_failure_ends_the_job_on_all_hosts() {
    let done = on("h1,h2,h3", &["sh", "-c", "[ $BANYAN_RANK = 1 ] && exit 5; exec sleep 300"]).run();
    assert_eq!(done.status, 5);
    assert!(
        done.err.contains("rank 1 on h2, pid ") && done.err.contains("ended with status 5"),
        "{}",
        done.err
    );
    let done = on("h1,h2,h3", &["sh", "-c", "[ $BANYAN_RANK = 2 ] && kill -9 $$; exec sleep 300"]).run();
    assert_eq!(done.status, 137);
    assert!(done.err.contains("rank 2 on h3, pid ") && done.err.contains("SIGKILL"), "{}", done.err);
    let done = on("h1,h2,h3", &[&ring(), "abort"]).run();
    assert_eq!(done.status, 9);
    assert!(done.err.contains("rank 2 on h3"), "{}", done.err);
    // What ranks leave behind is named and killed.
    let done = on("h1", &["--grace", "0.2", "sh", "-c", "setsid sleep 300 &"]).run();
    assert!(
        done.status == 0 && done.err.contains("host h1: killed what ranks had left running: sleep"),
        "{}",
        done.err
    );
}

#[test]
fn hosts_that_cannot_be_used_are_named() {
    let refused = |hosts: &str, options: &[&str], why: &str| {
        let done = on(hosts, &[options, &["true"]].concat()).run();
        assert_eq!(done.status, 1, "{}", done.err);
        assert!(done.err.contains(why), "{why}: {}", done.err);
    };
    refused(
        "h1,nowhere",
        &[],
        "host nowhere: ssh: Could not resolve hostname nowhere: Name or service not known",
    );
    refused("no-key", &[], "ended with status 255); ssh to it has to work without a password");
    refused("nowhere,h1", &["--tree-radix", "1"], "(1 more cannot be reached without it)");
    refused("old", &[], "host old: its mpirun is of another version (0.0.1.9.9)");
    refused("h1,mute", &["--patience", "1"], "host mute: it did not answer within 1 s (--patience)");
    refused("h1", &["--prefix", "/no/such"], "/no/such/bin/mpirun");
    refused("h1", &["--prefix", "/no/such"], "--prefix says where it is");
    let done = on("localhost,h1,nowhere,old", &["--hosts-check"]).run();
    assert_eq!((done.status, done.err.as_str()), (1, ""));
    let lines: Vec<&str> = done.out.lines().collect();
    assert!(lines[0].contains(": fine: ") && lines[1].starts_with("h1: fine: called "), "{}", done.out);
    assert!(lines[2].contains("Could not resolve") && lines[3].contains("another version"), "{}", done.out);
    assert_eq!(on("localhost,h1,h2", &["--hosts-check"]).run().status, 0);
}

#[test]
fn hosts_that_are_not_there_yet_hold_nothing_up() {
    for (hosts, options) in [("mute,nowhere", &[][..]), ("nowhere,h1,mute", &["--tree-radix", "2"])] {
        let done = on(hosts, &[options, &["true"]].concat()).run();
        assert_eq!(done.status, 1);
        let lines: Vec<&str> = done.err.lines().collect();
        assert!(lines.len() == 1 && lines[0].contains("no job on host nowhere: "), "{}", done.err);
    }
    let done = on("h1,mute", &["--timeout", "1", "true"]).run();
    let line = done.err.lines().next().unwrap_or_default();
    assert!(
        done.status == 124 && line.contains(": no word yet from ") && line.ends_with("mute"),
        "{}",
        done.err
    );
    for (hosts, signal, status) in [("h1,mute", "INT", 130), ("mute", "TERM", 143)] {
        let running = on(hosts, &["true"]).start(0);
        let mark = running.mark.clone();
        let connects = || survivors(&mark).into_iter().find(|process| process.contains(" sleep 300"));
        let ssh = within(LIMIT, connects);
        let pid = ssh.split(' ').next().unwrap_or_default();
        let state = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(state.contains("SigBlk:\t0000000000000000\n"), "the signal that ends it is blocked: {state}");
        kill(signal, running.pid());
        let (code, _, err) = running.finish();
        assert_eq!((code, &*err), (Some(status), ""));
        gone(&mark);
    }
}

#[test]
fn nothing_is_left_whoever_is_killed() {
    let start = || {
        // The grandchild is in a session of its own, as a daemon is.
        let script = "setsid sleep 300 & echo; exec sleep 300";
        on("localhost,h1,h2,h3", &["--tree-radix", "1", "sh", "-c", script]).start(4)
    };
    for host in ["h1", "h2", "h3"] {
        let running = start();
        kill("KILL", agent_of(&running.mark, host));
        let mark = running.mark.clone();
        let (status, _, err) = running.finish();
        assert_eq!(status, Some(1), "{err}");
        assert!(
            err.contains(&format!("host {host} is lost: its agent")) && err.contains("signal 9"),
            "{err}"
        );
        gone(&mark);
    }
    let running = start();
    let (mark, front) = (running.mark.clone(), running.pid());
    kill("KILL", common::agent_of(front));
    assert_eq!(running.finish().0, Some(137));
    gone(&mark);
    let running = start();
    let mark = running.mark.clone();
    kill("KILL", running.pid());
    running.finish();
    gone(&mark);
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        let running = start();
        let mark = running.mark.clone();
        kill(signal, running.pid());
        assert_eq!(running.finish().0, Some(status));
        gone(&mark);
    }
}

#[test]
fn a_host_that_is_silent_is_given_up() {
    let running = on("h1,h2", &["--patience", "2", "sh", "-c", "echo; exec sleep 300"]).start(2);
    let agent = agent_of(&running.mark, "h2");
    kill("STOP", agent);
    let mark = running.mark.clone();
    let (status, _, err) = running.finish();
    assert_eq!(status, Some(1));
    assert!(err.contains("host h2 is lost: nothing was heard from it for 2 s"), "{err}");
    gone(&mark);
}

#[test]
fn where_ranks_of_all_hosts_are_is_told() {
    let program = ring();
    let running = on("h1,h2,localhost", &[&program, "hang"]).start(3);
    // The report tells of a wait once it has lasted for some time.
    std::thread::sleep(Duration::from_millis(600));
    kill("QUIT", running.pid());
    std::thread::sleep(Duration::from_millis(1500));
    kill("INT", running.pid());
    let (status, _, err) = running.finish();
    assert_eq!(status, Some(130));
    assert!(err.contains("rank 1: MPI_Recv: receive from rank 0, tag 99"), "{err}");
    assert!(err.contains("ranks 0, 2: not waiting in MPI"), "{err}");
    let done = on("h1,h2", &["--timeout", "2", &program, "hang"]).run();
    assert_eq!(done.status, 124);
    assert!(done.err.contains("rank 1: MPI_Recv") && done.err.contains("--timeout"), "{}", done.err);
}
