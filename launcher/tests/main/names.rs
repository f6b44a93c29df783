//! Names: hosts that are one machine under several of them, and rankfiles, which name the host of each rank. A script takes the
//! place of ssh, and all hosts are this machine.

use std::path::PathBuf;

use crate::common::hosts::{agent_of, fine, has_one_cpu, on, on_names, ring, sorted, ssh};
use crate::common::{gone, kill, mpirun};

#[test]
fn names_of_one_machine_are_one_host() {
    let program = ring();
    for (hosts, options, first) in [
        ("h1:2,h2:2", &[][..], "here"),
        ("h1:1,localhost:1,h2:2", &[], "here"),
        ("narrow1:2,narrow2:2", &[], "narrow1"),
        ("narrow1:1,narrow2:2,narrow3:1", &["--tree-radix", "1", "--map-by", "node"], "narrow1"),
        ("narrow1:2,narrow2:1,narrow3:1", &["--map-by", "ppr:1:node", "-n", "4"], "narrow1"),
    ] {
        if has_one_cpu() && first != "here" {
            continue;
        }
        // Ranks that share no memory cannot reach each other.
        let done = on_names(hosts, &[options, &[&program]].concat()).env("BANYAN_FABRICS", "self,shm").run();
        let wanted = (0..4).map(|rank| format!("rank {rank} of 4: local {rank} of 4 on {first}"));
        assert_eq!(sorted(fine(&done)), wanted.collect::<Vec<_>>());
    }
    let done = on_names("localhost,h2:2", &["-v", "true"]).run();
    assert!(done.err.contains("mpirun: host h2 is the same machine as "), "{}", done.err);
    let lines: Vec<&str> = done.err.lines().filter(|line| line.contains("mpirun: job ")).collect();
    let [line] = lines.as_slice() else { panic!("{}", done.err) };
    assert!(line.contains(": ranks 0 (pid ") && line.contains(", 2 (pid "), "{line}");
    // Input goes where rank 0 has gone.
    for hosts in
        ["h1,localhost", "localhost,h1", "narrow1,narrow2"].into_iter().take(2 + usize::from(!has_one_cpu()))
    {
        let job = on_names(hosts, &["sh", "-c", "cat; echo $BANYAN_LOCAL_RANK"]);
        let (read, write) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut &write, b"input\n").unwrap();
        drop(write);
        let done = job.stdin(read).run();
        assert_eq!(sorted(fine(&done)), ["0", "1", "input"], "{hosts}");
    }
}

#[test]
fn ranks_on_other_cpus_are_on_a_host_of_their_own() {
    if has_one_cpu() {
        return;
    }
    let done =
        on_names("h1,narrow,h2", &["sh", "-c", "echo $BANYAN_RANK $BANYAN_LOCAL_RANK $HOSTNAME"]).run();
    assert_eq!(sorted(fine(&done)), ["0 0 here", "1 0 narrow", "2 1 here"]);
}

#[test]
fn nothing_is_left_whichever_name_of_a_machine_is_killed() {
    if has_one_cpu() {
        return;
    }
    let start = |wait: &str| {
        let script = format!("sleep 300 & echo; {wait}");
        on_names("narrow1,narrow2", &["sh", "-c", &script]).start(2)
    };
    let running = start("exec sleep 300");
    kill("KILL", agent_of(&running.mark, "narrow1"));
    let mark = running.mark.clone();
    let (status, _, err) = running.finish();
    assert!(status == Some(1) && err.contains("host narrow1 is lost: its agent"), "{err}");
    gone(&mark);
    // The other one has no ranks any more: the job does without it.
    let running = start("sleep 2; kill $!");
    kill("KILL", agent_of(&running.mark, "narrow2"));
    let mark = running.mark.clone();
    let (status, _, err) = running.finish();
    assert_eq!((status, &*err), (Some(0), ""));
    gone(&mark);
}

#[test]
fn a_rankfile_places_ranks_on_hosts() {
    let show = "echo $BANYAN_RANK $BANYAN_LOCAL_RANK $HOSTNAME $(grep Cpus_allowed_list /proc/self/status)";
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("rankfile-{}", std::process::id()));
    let run = |text: &str, options: &[&str]| {
        std::fs::write(&path, text).unwrap();
        let options = [&["--separate-hosts", "--ssh", &ssh(), "--rankfile", path.to_str().unwrap()], options];
        mpirun(&[&options.concat()[..], &["sh", "-c", show]].concat()).env("HOSTNAME", "here").run()
    };
    let core = mpirun(&["--bind-to", "core", "sh", "-c", show]).env("HOSTNAME", "here").run().out;
    let core = core.trim().strip_prefix("0 0 here ").unwrap();
    let wanted = ["0 0 h2", "1 0 h1", "2 0 here", "3 1 h2"].map(|place| format!("{place} {core}"));
    let text = "rank 0=h2 slot=0\nrank 2=localhost slot=0\nrank 1=h1 slot=0:0\nrank 3=h2 slot=0\n";
    assert_eq!(sorted(fine(&run(text, &[]))), wanted);
    let numbers = text.replace("h2", "+n1").replace("h1", "+n0").replace("localhost", "+n2");
    assert_eq!(sorted(fine(&run(&numbers, &["--host", "h1,h2,localhost"]))), wanted);
    let wrong = |text: &str, why: &str| {
        let done = run(text, &["--host", "h1,h2"]);
        assert!(done.status != 0 && done.err.contains(why), "{}", done.err);
    };
    wrong("rank 0=h1\nrank 1=h3\n", "line 2: host h3 is not one of the job's: h1, h2");
    wrong("rank 0=h1\nrank 1=h2 slot=1000\n", "no job on host h2: rankfile ");
    wrong("rank 0=h1\nrank 1=h2 slot=1000\n", "line 2: there is no core 1000: this machine has ");
    std::fs::remove_file(&path).unwrap();
    let done = on("h1,h2", &["-v", "--bind-to", "core", "true"]).run();
    let cpu = format!(" on cpu {})", core.rsplit(' ').next().unwrap());
    let lines = done.err.lines().filter(|line| line.contains("mpirun: job ") && line.contains(&cpu));
    assert_eq!(lines.count(), 2, "{}", done.err);
}
