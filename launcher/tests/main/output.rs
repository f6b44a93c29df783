//! Output and input: every byte, whole lines, bounded memory, and which rank reads mpirun's stdin.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, agent_of, gone, marked, mpirun, within};

#[test]
fn untagged_output_is_exact() {
    let script = r#"printf 'a\0b\377\n\n\tc\r\n'; printf 'no end' >&2; printf 'x'"#;
    let mut job = mpirun(&["sh", "-c", script]);
    let done = job.command.output().unwrap();
    assert_eq!(done.stdout, b"a\0b\xff\n\n\tc\r\nx");
    assert_eq!(done.stderr, b"no end");
}

#[test]
fn one_rank_writes_many_megabytes_unchanged() {
    // Random-looking bytes with few line ends, through both outputs.
    let file = std::env::temp_dir().join(format!("banyan-bytes-{}", std::process::id()));
    let mut word = 1u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.to_le_bytes()
    })
    .take(1 << 20)
    .flatten()
    .collect();
    std::fs::write(&file, &bytes).unwrap();
    let mut job = mpirun(&["sh", "-c", &format!("cat {0}; cat {0} >&2", file.display())]);
    let done = job.command.output().unwrap();
    assert!(done.stdout == bytes && done.stderr == bytes);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn lines_of_many_ranks_never_mix() {
    let script = "i=0; while [ $i -lt 500 ]; do echo \"rank $BANYAN_RANK line $i end\"; i=$((i+1)); done";
    let done = mpirun(&["-q", "-n", "8", "sh", "-c", script]).run();
    let mut next = [0; 8];
    for line in done.out.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let ["rank", rank, "line", number, "end"] = words[..] else { panic!("mixed: {line}") };
        let rank: usize = rank.parse().unwrap();
        assert_eq!(number.parse::<usize>().unwrap(), next[rank], "order of rank {rank}");
        next[rank] += 1;
    }
    assert_eq!(next, [500; 8]);
}

#[test]
fn tags_are_on_every_line() {
    for option in ["--tag-output", "-l", "-prepend-rank"] {
        let done = mpirun(&[option, "-n", "2", "sh", "-c", "echo a; echo; printf b; echo e >&2"]).run();
        let mut lines: Vec<&str> = done.out.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["[0] ", "[0] a", "[0] b", "[1] ", "[1] a", "[1] b"]);
        let mut errors: Vec<&str> = done.err.lines().collect();
        errors.sort_unstable();
        assert_eq!(errors, ["[0] e", "[1] e"]);
    }
}

#[test]
fn a_prompt_is_shown_while_the_rank_waits() {
    let mut job = mpirun(&["sh", "-c", "printf 'name? '; read name; echo hello $name"]).stdin(Stdio::piped());
    let mut child = job.command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut prompt = [0; 6];
    out.read_exact(&mut prompt).unwrap();
    assert_eq!(&prompt, b"name? ");
    child.stdin.take().unwrap().write_all(b"you\n").unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "hello you\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn files_take_each_ranks_output() {
    let folder = std::env::temp_dir().join(format!("banyan-output-{}", std::process::id()));
    let path = folder.join("deep").join("er");
    let script = "echo out $BANYAN_RANK; echo err >&2";
    let done = mpirun(&["--output", path.to_str().unwrap(), "-n", "2", "sh", "-c", script]).run();
    assert_eq!((done.status, done.out.as_str(), done.err.as_str()), (0, "", ""));
    for rank in 0..2 {
        let read = |kind| std::fs::read_to_string(path.join(format!("rank-{rank}.{kind}"))).unwrap();
        assert_eq!((read("out"), read("err")), (format!("out {rank}\n"), "err\n".to_owned()));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn output_files_are_never_what_a_link_points_to() {
    let folder = std::env::temp_dir().join(format!("banyan-planted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let precious = folder.join("precious");
    std::fs::write(&precious, "mine").unwrap();
    std::os::unix::fs::symlink(&precious, folder.join("rank-0.out")).unwrap();
    let done = mpirun(&["--output", folder.to_str().unwrap(), "echo", "theirs"]).run();
    assert_eq!((done.status, done.out.as_str()), (1, ""));
    assert!(done.err.contains("rank-0.out: is a symbolic link"), "{}", done.err);
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "mine");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_full_disk_is_said_and_is_a_failure() {
    let mut job = mpirun(&["-n", "2", "sh", "-c", "echo lost; sleep 100"]);
    job.command.stdout(File::options().write(true).open("/dev/full").unwrap()).stderr(Stdio::piped());
    let done = job.command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(text.contains("output cannot be written: No space left"), "{text}");
}

#[test]
fn a_reader_who_leaves_ends_the_writers() {
    let script = format!("{} -n 2 yes | head -n 3", env!("CARGO_BIN_EXE_mpirun"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let done = marked(shell).run();
    assert_eq!(done.out, "y\ny\ny\n");
    assert!(done.err.contains("SIGPIPE"), "{}", done.err);
}

#[test]
fn a_slow_reader_blocks_the_ranks_and_fills_no_memory() {
    const BYTES: usize = 100_000_000;
    let script = format!("yes 0123456789abcdef | head -c {BYTES}");
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut job = mpirun(&["-n", "2", "sh", "-c", &script]);
    let mut child = job.command.stdout(write).spawn().unwrap();
    drop(job.command); // holds the other end
    let front = child.id().cast_signed();
    // Let the output fill up: the agent stops reading from the ranks when its buffer is full.
    let agent = within(Duration::from_secs(5), || {
        let children = std::fs::read_to_string(format!("/proc/{front}/task/{front}/children")).ok()?;
        (!children.trim().is_empty()).then(|| agent_of(front))
    });
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    std::thread::sleep(Duration::from_millis(300)); // a slow reader
    assert!(memory() < 20_000, "{} kB", memory());
    let mut out = File::from(read);
    let mut buffer = vec![0; 1 << 20];
    let mut count = 0;
    while count < BYTES {
        count += out.read(&mut buffer).unwrap();
    }
    assert!(memory() < 20_000, "{} kB", memory());
    loop {
        match out.read(&mut buffer).unwrap() {
            0 => break,
            more => count += more,
        }
    }
    assert_eq!(count, 2 * BYTES);
    assert!(child.wait().unwrap().success());
    gone(&job.mark);
}

/// Runs mpirun with a stdout that nobody reads, calls `deed` when it is full, and gives the status and stderr.
fn unread(options: &[&str], script: &str, deed: impl FnOnce(i32)) -> (Option<i32>, String) {
    let (_read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut job = mpirun(&[&["-q", "--grace", "0.2"], options, &["sh", "-c", script]].concat());
    let child = job.command.stdout(write).stderr(Stdio::piped()).spawn().unwrap();
    let mark = job.mark.clone();
    drop(job.command);
    std::thread::sleep(Duration::from_millis(300));
    deed(child.id().cast_signed());
    gone(&mark);
    let done = child.wait_with_output().unwrap();
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn a_job_ends_though_nobody_reads_its_output() {
    let (status, err) = unread(&["-n", "2"], "yes", |front| common::kill("TERM", front));
    assert_eq!(status, Some(143), "{err}");
    assert!(err.contains("output is lost: nobody reads"), "{err}");
    assert_eq!(unread(&["-n", "2"], "yes", |front| common::kill("INT", front)).0, Some(130));
    assert_eq!(unread(&["--timeout", "0.4"], "yes", |_| ()).0, Some(124));
    let script = "[ $BANYAN_RANK = 1 ] && sleep 0.3 && exit 5; yes";
    assert_eq!(unread(&["-n", "2"], script, |_| ()).0, Some(5));
}

#[test]
fn mpirun_uses_no_time_while_it_waits_for_a_reader() {
    // The ranks are gone, their output is not: the agent sleeps until somebody reads.
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut job = mpirun(&["sh", "-c", "yes | head -c 400000"]);
    let mut child = job.command.stdout(write).spawn().unwrap();
    drop(job.command);
    let front = child.id().cast_signed();
    let agent = within(Duration::from_secs(5), || {
        let children = std::fs::read_to_string(format!("/proc/{front}/task/{front}/children")).ok()?;
        (!children.trim().is_empty()).then(|| agent_of(front))
    });
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{agent}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    std::thread::sleep(Duration::from_millis(300));
    let before = ticks();
    std::thread::sleep(Duration::from_millis(500));
    assert!(ticks() - before < 10, "{} of 50 ticks", ticks() - before);
    let mut text = Vec::new();
    File::from(read).read_to_end(&mut text).unwrap();
    assert_eq!(text.len(), 400_000);
    assert!(child.wait().unwrap().success());
}

#[test]
fn all_is_written_before_mpirun_ends() {
    for _ in 0..5 {
        let done = mpirun(&["-q", "-n", "4", "sh", "-c", "yes line | head -n 20000"]).run();
        assert_eq!(done.out.lines().count(), 80_000);
        assert!(done.out.lines().all(|line| line == "line"));
    }
}

#[test]
fn rank_0_reads_mpiruns_input_and_the_others_nothing() {
    let script = format!(
        "printf 'one\\ntwo\\n' | {} -n 2 sh -c 'echo $BANYAN_RANK $(cat)'",
        env!("CARGO_BIN_EXE_mpirun")
    );
    let read = |script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        let mut lines: Vec<String> = marked(shell).run().out.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(read(&script), ["0 one two", "1"]);
    assert_eq!(read(&script.replace(" -n", " --stdin none -n")), ["0", "1"]);
    // Input that rank 0 does not read stays for the next reader.
    let shared =
        format!("printf 'a\\nb\\n' | {{ {} sh -c 'read x; echo $x'; cat; }}", env!("CARGO_BIN_EXE_mpirun"));
    assert_eq!(read(&shared), ["a", "b"]);
}

#[test]
fn a_large_input_arrives_whole() {
    let script = format!(
        "yes 12345678 | head -c 20000000 | {} -n 2 sh -c 'cat | wc -c'",
        env!("CARGO_BIN_EXE_mpirun")
    );
    let start = Instant::now();
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let done = marked(shell).run();
    let mut counts: Vec<&str> = done.out.lines().map(str::trim).collect();
    counts.sort_unstable();
    assert_eq!(counts, ["0", "20000000"], "{:?}", start.elapsed());
}
