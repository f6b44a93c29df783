//! MPI programs under mpirun, as far as the launcher sees them: this test program is its own rank program, and speaks
//! the bootstrap protocol without MPI.

use std::io::Read;
use std::process::Command;
use std::time::Duration;

use crate::common::{self, OVER, Outcome, mpirun, within};
use banyan_pmi::{Client, Event};

/// The variable that says what ranks do: steps separated by `,`; `|` separates the ranks, the last part is for all others.
const ROLE: &str = "BANYAN_TEST_ROLE";

/// Runs mpirun with `options` and this program as the ranks, which do the steps of `role`.
fn play(options: &[&str], role: &str) -> Outcome {
    play_wrapped(options, &[], role)
}

/// Runs mpirun with `options` and this program below `wrapper` as the ranks, which do the steps of `role`.
fn play_wrapped(options: &[&str], wrapper: &[&str], role: &str) -> Outcome {
    let program = std::env::current_exe().unwrap();
    let rank = [program.to_str().unwrap(), "--exact", "bootstrap::a_rank", "--nocapture", "--test-threads=1"];
    mpirun(&[options, wrapper, &rank].concat()).env(ROLE, role).run()
}

/// Not a test of its own: the program of the ranks.
#[test]
fn a_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let rank: usize = std::env::var("BANYAN_RANK").map_or(0, |rank| rank.parse().unwrap());
    let parts: Vec<&str> = role.split('|').collect();
    let mut client = None;
    for step in parts[rank.min(parts.len() - 1)].split(',') {
        act(step, &mut client);
    }
    std::process::exit(0);
}

fn act(step: &str, client: &mut Option<Client>) {
    let (verb, value) = step.split_once('=').unwrap_or((step, ""));
    let number = || value.parse::<i32>().unwrap();
    match verb {
        "join" => match banyan_pmi::attach(|| panic!("no other launcher's job is joined here")) {
            Ok(joined) => {
                let (rank, size) =
                    joined.as_ref().map_or((0, 1), |client| (client.job().rank, client.job().size));
                say(&format!("rank {rank} of {size}"));
                *client = joined;
            }
            Err(why) => say(&format!("refused: {why}")),
        },
        "ready" => client.as_mut().unwrap().ready().unwrap(),
        "measured" => client.as_mut().unwrap().measured(format!("way {value}\n")).unwrap(),
        "finalize" => client.as_mut().unwrap().finalized().unwrap(),
        "abort" => client.as_mut().unwrap().abort(number(), "as told").unwrap(),
        "publish" => client.as_mut().unwrap().publish(value.as_bytes()).unwrap(),
        "lookup" => {
            let client = client.as_mut().unwrap();
            client.lookup(value.parse().unwrap()).unwrap();
            match within(Duration::from_secs(10), || client.try_event().unwrap()) {
                Event::BusinessCard { rank, business_card } => {
                    say(&format!("card of {rank}: {}", String::from_utf8_lossy(&business_card)));
                }
                Event::Gone { rank, cause, failed } => say(&format!("gone: {rank}, {cause}, {failed}")),
            }
        }
        "drop" => *client = None,
        "memory" => {
            let memory = match client.as_mut().unwrap().take_node_memory() {
                Ok(memory) => memory.expect("mpirun gives memory"),
                Err(why) => return say(&format!("refused: {why}")),
            };
            let mut file = std::fs::File::from(memory);
            let bytes = file.metadata().unwrap().len();
            let mut first = [1; 64];
            file.read_exact(&mut first).unwrap();
            assert_eq!(first, [0; 64]);
            say(&format!("memory {}", bytes >= 64 << 20));
        }
        "leaks" => {
            // A child must inherit no descriptor of the bootstrap.
            let list = Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
            let list = String::from_utf8(list.stdout).unwrap();
            let leaks = list.lines().filter(|line| line.contains("socket:") || line.contains("memfd:"));
            say(&format!("inherited {}", leaks.count()));
        }
        "child" => {
            // A child program, with the variables of the job or (stripped) without.
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "bootstrap::a_rank", "--nocapture"]).env(ROLE, "join");
            if value == "stripped" {
                for name in banyan_pmi::JOB_VARIABLES {
                    child.env_remove(name);
                }
            }
            assert!(child.status().unwrap().success());
        }
        "mpirun" => {
            let program = std::env::current_exe().unwrap();
            let mut inner = Command::new(env!("CARGO_BIN_EXE_mpirun"));
            inner.args(["-q", "-n", "2"]).arg(program).args(["--exact", "bootstrap::a_rank", "--nocapture"]);
            assert!(inner.env(ROLE, "join,ready,finalize").status().unwrap().success());
        }
        "junk" => {
            let text = std::env::var("BANYAN_PMI_FD").unwrap();
            let fd = text.split(':').next().unwrap();
            let script = format!("printf '\\377\\377\\377\\377junk' >&{fd}");
            assert!(Command::new("bash").args(["-c", &script]).status().unwrap().success());
        }
        "lastwords" => say("last words"),
        "kill" => common::kill(value, std::process::id()),
        "exit" => std::process::exit(number()),
        "sleep" => std::thread::sleep(Duration::from_millis(value.parse().unwrap())),
        other => panic!("no step '{other}'"),
    }
}

/// One write per line: the test harness's own output must not mix in.
fn say(text: &str) {
    use std::io::Write;
    std::io::stdout().write_all(format!("\n{text}\n").as_bytes()).unwrap();
}

/// The lines that the ranks wrote, sorted, without the test harness's own.
fn said(done: &Outcome) -> Vec<&str> {
    let starts = ["rank ", "card ", "memory ", "refused: ", "inherited "];
    let of_rank = |line: &&str| starts.iter().any(|start| line.starts_with(start));
    let mut lines: Vec<&str> = done.out.lines().filter(of_rank).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn ranks_join_exchange_business_cards_and_share_memory() {
    let role = "join,lookup=2,publish=zero,ready,finalize|join,publish=one,lookup=0,memory,ready,finalize|\
                join,sleep=100,publish=two,lookup=1,leaks,ready,finalize";
    let done = play(&["-q", "-n", "3"], role);
    assert_eq!(done.status, 0, "{}", done.err);
    assert_eq!(
        said(&done),
        [
            "card of 0: zero",
            "card of 1: one",
            "card of 2: two",
            "inherited 0",
            "memory true",
            "rank 0 of 3",
            "rank 1 of 3",
            "rank 2 of 3"
        ]
    );
}

/// What ranks have measured is kept where there is a folder, and the next job gets it.
#[test]
fn what_a_job_has_measured_the_next_one_knows() {
    let folder = std::env::temp_dir().join(format!("banyan-measured-{}", std::process::id()));
    let (cache, machines) = (folder.to_str().expect("text"), folder.join("banyan/machines"));
    let job = |role: &str| {
        let program = std::env::current_exe().unwrap();
        let rank =
            [program.to_str().unwrap(), "--exact", "bootstrap::a_rank", "--nocapture", "--test-threads=1"];
        let arguments = [&["-q", "-n", "2"], &rank[..]].concat();
        let done = mpirun(&arguments).env("XDG_CACHE_HOME", cache).env(ROLE, role).run();
        assert_eq!(done.status, 0, "{}", done.err);
    };
    let explained = || {
        let done = mpirun(&["--explain", "p2p:256K", "-n", "2"]).env("XDG_CACHE_HOME", cache).run();
        let found = |line: &&str| line.starts_with("measured by an earlier job");
        done.out.lines().find(found).map(str::to_owned)
    };
    let measured = |role: &str| format!("join,ready,measured={role},finalize|join,ready,finalize");
    // Nobody has a folder yet, and a job makes none.
    job(&measured("near 262144 both-ways read 1e-10 5e-11 - 2e-10 -"));
    assert!(explained().is_none() && !folder.exists());
    // Nor is one for other things meant: compiled kernels lie there.
    std::fs::create_dir_all(folder.join("banyan/kernels")).unwrap();
    job(&measured("near 262144 both-ways read 1e-10 5e-11 - 2e-10 -"));
    assert!(explained().is_none() && !machines.exists());
    std::fs::create_dir(&machines).unwrap();
    job(&measured("far away"));
    assert_eq!(std::fs::read_dir(&machines).unwrap().count(), 0);
    job(&measured("near 262144 both-ways read 1e-10 5e-11 - 2e-10 -"));
    let first = explained().expect("it is kept");
    assert!(first.contains("(near, both ways): ring 26.214 us, read 13.107 us, both"), "{first}");
    assert!(first.ends_with("begins with read"), "{first}");
    // A later job found something else; a broken file is replaced.
    job(&measured("near 262144 both-ways both 1e-10 5e-11 - 2e-11 -"));
    assert!(explained().is_some_and(|line| line.ends_with("begins with both")));
    let file = std::fs::read_dir(&machines).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, "broken").unwrap();
    assert!(explained().is_none());
    job(&measured("near 262144 both-ways both 1e-10 5e-11 - 2e-11 -"));
    assert!(explained().is_some());
    drop(std::fs::remove_dir_all(&folder));
}

#[test]
fn many_ranks_join() {
    let done = play(&["-q", "-n", "40"], "join,publish=x,lookup=39,ready,finalize");
    assert_eq!((done.status, said(&done).len()), (0, 80), "{}", done.err);
}

#[test]
fn init_without_finalize_is_a_failure() {
    for role in ["join|join,ready,sleep=20000", "join,ready|join,ready,sleep=20000"] {
        let done = play(&["-n", "2"], role);
        assert_eq!(done.status, 1);
        assert!(done.err.contains("rank 0 on ") && done.err.contains("without MPI_Finalize"), "{}", done.err);
        assert!(done.took < OVER);
    }
}

#[test]
fn leaving_while_others_are_in_mpi_is_a_failure() {
    for role in ["sleep=200|join,sleep=20000", "exit=0|sleep=200,join,ready,sleep=20000"] {
        let done = play(&["-n", "2"], role);
        assert_eq!(done.status, 1);
        assert!(done.err.contains("rank 0 on ") && done.err.contains("without MPI_Init"), "{}", done.err);
    }
}

#[test]
fn aborts_end_the_job_with_their_code() {
    for (code, status) in [("7", 7), ("0", 1), ("256", 1), ("259", 3), ("-1", 255)] {
        let done = play(&["-n", "2"], &format!("join,ready,abort={code},exit=99|join,ready,sleep=20000"));
        assert_eq!(done.status, status);
        assert!(done.err.contains("rank 0 on ") && done.err.contains("as told"), "{}", done.err);
        assert!(done.took < OVER);
    }
}

#[test]
fn a_rank_killed_in_mpi() {
    let done = play(&["-n", "2"], "join,ready,sleep=20000|join,ready,kill=ABRT,sleep=20000");
    assert_eq!(done.status, 134);
    assert!(done.err.contains("rank 1 on ") && done.err.contains("SIGABRT"), "{}", done.err);
}

#[test]
fn a_status_after_finalize_counts_and_stops_nobody() {
    let done = play(&["-n", "2"], "join,ready,finalize,exit=3|join,ready,finalize,sleep=500,memory");
    assert_eq!((done.status, said(&done).contains(&"memory true")), (3, true), "{}", done.err);
}

#[test]
fn what_a_rank_starts_is_a_job_of_its_own() {
    // With and without the variables: a child recognises a variable that was left over.
    for steps in ["child=stripped,finalize", "child,finalize", "finalize,drop,child"] {
        let done = play(&["-n", "2"], &format!("join,ready,{steps}"));
        assert_eq!(done.status, 0, "{}", done.err);
        assert_eq!(said(&done), ["rank 0 of 1", "rank 0 of 1", "rank 0 of 2", "rank 1 of 2"]);
    }
    let done = play(&["-n", "1"], "join,ready,mpirun,finalize");
    assert_eq!(said(&done), ["rank 0 of 1", "rank 0 of 2", "rank 1 of 2"], "{}", done.err);
}

#[test]
fn wrappers_may_stand_between() {
    let shell = ["sh", "-c", "\"$@\"; exit $?", "wrapper"];
    let done = play_wrapped(&["-n", "2"], &shell, "join,ready,finalize");
    assert_eq!((done.status, said(&done)), (0, vec!["rank 0 of 2", "rank 1 of 2"]), "{}", done.err);
    // A wrapper that does not tell how its program ended, and goes on.
    let lingering = ["sh", "-c", "\"$@\"; sleep 1000", "wrapper"];
    let done =
        play_wrapped(&["-n", "2"], &lingering, "join,ready,kill=KILL,sleep=20000|join,ready,sleep=20000");
    assert_eq!(done.status, 1);
    assert!(
        done.err.contains("rank 0 on ") && done.err.contains("gone without MPI_Finalize"),
        "{}",
        done.err
    );
    assert!(done.took < OVER);
    let done = play_wrapped(&["-n", "2"], &shell, "join,ready,kill=ABRT,sleep=20000|join,ready,sleep=20000");
    assert_eq!(done.status, 134, "{}", done.err);
}

/// A wrapper: that of rank 0 stops the agent until its program is gone; all of them go on after that.
const LATE: &str = "if [ $BANYAN_RANK = 0 ]; then kill -STOP $PPID; \"$@\"; kill -CONT $PPID; else \"$@\"; fi; \
                    sleep 1000";

#[test]
fn a_program_that_is_gone_before_its_hello_is_read_is_missed() {
    let wrapper = ["sh", "-c", LATE, "wrapper"];
    for fate in ["kill=KILL", "exit=0"] {
        let done = play_wrapped(&["-n", "2"], &wrapper, &format!("join,{fate}|join,ready,sleep=20000"));
        assert_eq!(done.status, 1, "{}", done.err);
        assert!(
            done.err.contains("rank 0 on ") && done.err.contains("gone without MPI_Finalize"),
            "{}",
            done.err
        );
    }
    // A rank that has finished is not missed, nor one that lives on below a process that is gone.
    let script = LATE.replace("sleep 1000", "exit 0");
    let done = play_wrapped(&["-n", "2"], &["sh", "-c", &script, "wrapper"], "join,ready,finalize");
    assert_eq!(done.status, 0, "{}", done.err);
    let script = "trap 'exit 0' USR1; ( (\"$@\"; kill -USR1 $$) & ); while :; do sleep 0.05; done";
    let orphan = ["sh", "-c", script, "wrapper"];
    let done = play_wrapped(&["-n", "2"], &orphan, "join,ready,sleep=500,finalize");
    assert_eq!((done.status, said(&done)), (0, vec!["rank 0 of 2", "rank 1 of 2"]), "{}", done.err);
}

#[test]
fn a_program_in_a_process_namespace_of_its_own_is_missed() {
    // The program's own pid is 1 or so in its namespace, which is another process in mpirun's.
    let apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork"];
    if !Command::new(apart[0]).args(&apart[1..]).arg("true").status().is_ok_and(|status| status.success()) {
        return; // the system allows none
    }
    let lingering = ["sh", "-c", "\"$@\"; sleep 1000", "wrapper"];
    let wrapper = [&lingering[..], &apart[..]].concat();
    let done = play_wrapped(&["-n", "2"], &wrapper, "join,ready,exit=0|join,ready,sleep=20000");
    assert_eq!(done.status, 1, "{}", done.err);
    assert!(
        done.err.contains("rank 0 on ") && done.err.contains("gone without MPI_Finalize"),
        "{}",
        done.err
    );
}

#[test]
fn a_wrapper_that_closes_the_socket_is_named() {
    let script = "fd=${BANYAN_PMI_FD%%:*}; bash -c \"exec $fd>&-; \\\"\\$@\\\"\" wrapper \"$@\"";
    let done = play_wrapped(&["-n", "1"], &["bash", "-c", &format!("{script}; true"), "wrapper"], "join");
    assert!(said(&done)[0].contains("refused: a wrapper between mpirun and this program"), "{}", done.out);
}

#[test]
fn ranks_that_lost_their_socket_are_not_alone() {
    // The program itself, or a wrapper that becomes it by exec, closed the socket: no process above has it.
    let script = "eval \"exec ${BANYAN_PMI_FD%%:*}>&-\"; exec \"$@\"";
    let closing = ["bash", "-c", script, "wrapper"];
    let done = play_wrapped(&["-n", "2"], &closing, "join");
    let lines = said(&done);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        assert!(
            line.starts_with("refused: mpirun started this program as a rank, but descriptor "),
            "{line}"
        );
        assert!(line.contains("was closed before MPI_Init") && line.contains("BANYAN_SINGLETON=1"), "{line}");
    }
    // A wrapper closed its socket, and stays above the program.
    let staying = ["bash", "-c", "eval \"exec ${BANYAN_PMI_FD%%:*}>&-\"; \"$@\"; exit $?", "wrapper"];
    let done = play_wrapped(&["-n", "1"], &staying, "join");
    assert!(said(&done)[0].contains("was closed before MPI_Init"), "{}", done.out);
    let done = play_wrapped(&["-n", "1", "-x", "BANYAN_SINGLETON=1"], &closing, "join");
    assert_eq!(said(&done), ["rank 0 of 1"]);
}

#[test]
fn a_rank_that_lost_the_memory_says_so() {
    // The other ranks have the memory: a rank without it would wait for them elsewhere than they for it.
    let script = "if [ $BANYAN_RANK = 1 ]; then for fd in /proc/$$/fd/*; do case $(readlink $fd) in \
                  /memfd:banyan*) eval \"exec ${fd##*/}>&-\";; esac; done; fi; exec \"$@\"";
    let done = play_wrapped(&["-n", "2"], &["bash", "-c", script, "wrapper"], "join,memory,ready,finalize");
    let lines = said(&done);
    assert!(
        lines.contains(&"memory true") && lines.iter().any(|line| line.starts_with("refused: descriptor ")),
        "{lines:?}"
    );
    let told = lines.iter().find(|line| line.starts_with("refused: ")).unwrap();
    assert!(
        told.contains("the memory that the ranks of this host share") && told.contains("BANYAN_FABRICS=tcp")
    );
}

#[test]
fn a_program_with_rights_of_its_own_trusts_no_environment() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let program = std::env::temp_dir().join(format!("banyan-setuid-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // Only the superuser can make a program setuid for another user.
    let made = chown(&program, Some(65534), None)
        .and_then(|()| std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)));
    let rank = [program.to_str().unwrap(), "--exact", "bootstrap::a_rank", "--nocapture", "--test-threads=1"];
    let done = mpirun(&rank).env(ROLE, "join").run();
    std::fs::remove_file(&program).unwrap();
    if made.is_ok() {
        assert!(said(&done)[0].starts_with("refused: this program has rights of its own"), "{}", done.out);
    }
}

#[test]
fn a_rank_can_be_taken_once() {
    let twice = ["sh", "-c", "\"$@\" && \"$@\"", "wrapper"];
    let done = play_wrapped(&["-n", "1"], &twice, "join,ready,finalize");
    let lines = said(&done);
    assert!(
        lines[0] == "rank 0 of 1" && lines[1].contains("refused: rank 0 of the job has been taken"),
        "{lines:?}"
    );
}

#[test]
fn bytes_that_are_no_frame_end_the_job_and_name_the_rank() {
    let done = play(&["-n", "2"], "junk,sleep=20000|join,ready,sleep=20000");
    assert_eq!(done.status, 1);
    assert!(done.err.contains("rank 0 on ") && done.err.contains("bootstrap frame of"), "{}", done.err);
}

#[test]
fn without_a_launcher_or_with_another() {
    let alone = |variables: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "bootstrap::a_rank", "--nocapture"])
            .env(ROLE, "join")
            .envs(variables.iter().copied());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(alone(&[]).contains("rank 0 of 1"));
    let slurm = [("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")];
    assert!(alone(&slurm).contains("refused: this program was started by Slurm's srun"));
    assert!(alone(&[slurm[0], slurm[1], ("BANYAN_SINGLETON", "1")]).contains("rank 0 of 1"));
    assert!(alone(&[("BANYAN_PMI_FD", "9:1:1234567")]).contains("rank 0 of 1"));
    assert!(alone(&[("BANYAN_PMI_FD", "junk")]).contains("rank 0 of 1"));
}

#[test]
fn the_rank_that_failed_is_named_and_not_one_that_noticed_it() {
    // Rank 0 aborts because its peer dies, a moment before mpirun sees the peer's death.
    let role =
        "join,ready,publish=x,lookup=1,abort=9,exit=9|join,ready,lookup=0,publish=y,kill=KILL,sleep=20000";
    let done = play(&["-n", "2"], role);
    assert!(done.status == 137 && done.err.contains("rank 1 on "), "{}", done.err);
}

#[test]
fn a_rank_that_aborts_may_write_its_last_words() {
    for _ in 0..5 {
        let done = play(&["-n", "2"], "join,ready,abort=3,sleep=100,lastwords,exit=3|join,ready,sleep=20000");
        assert_eq!(done.status, 3);
        assert!(done.out.contains("last words"), "{}", done.out);
    }
}
