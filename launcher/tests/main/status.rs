//! What mpirun ends with, and how it names the rank that failed.

use std::os::unix::fs::PermissionsExt;

use crate::common::{self, OVER, mpirun};

/// `mpirun -n 2 sh -c SCRIPT`.
fn shell(script: &str) -> common::Outcome {
    mpirun(&["-n", "2", "sh", "-c", script]).run()
}

#[test]
fn success_is_silent() {
    let done = mpirun(&["-n", "2", "true"]).run();
    assert_eq!((done.status, done.out.as_str(), done.err.as_str()), (0, "", ""));
}

#[test]
fn the_first_failing_rank_gives_the_status_and_is_named() {
    let done = shell("[ $BANYAN_RANK = 1 ] && exit 7; sleep 100");
    assert_eq!(done.status, 7);
    assert!(done.err.contains("rank 1 on ") && done.err.contains(", pid ") && done.err.contains("status 7"));
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    assert!(done.took < OVER);
}

#[test]
fn signals_are_128_and_more() {
    for (signal, status) in [("SEGV", 139), ("KILL", 137), ("ABRT", 134), ("TERM", 143)] {
        let done = shell(&format!("[ $BANYAN_RANK = 0 ] && kill -{signal} $$; sleep 100"));
        assert_eq!(done.status, status);
        assert!(
            done.err.contains("rank 0 on ") && done.err.contains(&format!("(SIG{signal}")),
            "{}",
            done.err
        );
        assert!(done.took < OVER);
    }
}

#[test]
fn programs_that_cannot_run() {
    let folder = std::env::temp_dir().join(format!("banyan-status-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let plain = folder.join("plain");
    std::fs::write(&plain, "echo from a script without a first line\n").unwrap();
    let path = plain.to_str().unwrap();

    let missing = mpirun(&["-n", "2", "no-such-program"]).run();
    assert_eq!((missing.status, missing.err.lines().count()), (127, 1));
    assert!(missing.err.contains("no-such-program was not found"));
    // A folder of PATH that cannot be looked into is passed over.
    let around = folder.join("around");
    std::os::unix::fs::symlink(&around, &around).unwrap();
    let search = format!("{}:{}", around.display(), std::env::var("PATH").unwrap());
    let passed = mpirun(&["no-such-program"]).env("PATH", &search).run();
    assert_eq!((passed.status, &passed.err), (127, &missing.err));
    assert_eq!(mpirun(&["./no/such/file"]).run().status, 127);
    assert_eq!(mpirun(&[path]).run().status, 126);
    assert_eq!(mpirun(&[folder.to_str().unwrap()]).run().status, 126);

    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o755)).unwrap();
    let script = mpirun(&[path]).run();
    assert_eq!((script.status, script.out.as_str()), (0, "from a script without a first line\n"));

    std::fs::write(&plain, "#!/no/such/interpreter\n").unwrap();
    let broken = mpirun(&["-n", "2", path]).run();
    assert_eq!(broken.status, 127);
    assert!(broken.err.contains("could not be started"), "{}", broken.err);
    assert!(broken.err.contains("first line names, /no/such/interpreter, is not there"), "{}", broken.err);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_timeout_is_124() {
    let done = mpirun(&["-n", "2", "--timeout", "0.2", "sleep", "100"]).run();
    assert_eq!(done.status, 124);
    assert!(done.err.contains("0.2 s (--timeout)"));
    let stubborn =
        mpirun(&["--timeout=0.2s", "--grace", "0.2", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"]);
    assert_eq!(stubborn.run().status, 124);
}

#[test]
fn wrong_options_are_one_line() {
    for arguments in [
        &["--no-such-option", "true"][..],
        &["-foo", "true"],
        &["-n"],
        &["-n", "0", "true"],
        &["-n", "-1", "true"],
        &["-n", "x", "true"],
        &["-n", "99999999999", "true"],
        &[],
        &["-n", "2"],
        &["true", ":"],
        &["true", ":", "-n", "2", ":", "true"],
        &["true", ":", "--timeout", "3", "true"],
        &["--bind-to", "moon", "true"],
        &["--timeout", "never", "true"],
        &["-x", "=1", "true"],
        &["--host", "elsewhere", "--ssh", "false", "true"],
        &["-hosts", "localhost,elsewhere", "--ssh", "/no/such/ssh", "true"],
        &["--host", "elsewhere", "--ssh", "'", "true"],
        &["-f", "/no/such/hostfile", "true"],
        &["--wdir", "/no/such/folder", "true"],
        &["--output", "/proc/no/such", "true"],
        &["--stdin", "7", "true"],
        &["-n", "100000", "true"],
    ] {
        let done = mpirun(arguments).run();
        assert!(done.status == 1 || done.status == 2, "{arguments:?}: {}", done.status);
        assert_eq!(done.err.lines().count(), 1, "{arguments:?}: {}", done.err);
        assert!(done.err.starts_with("mpirun: "), "{}", done.err);
        assert_eq!(done.out, "");
    }
}

#[test]
fn more_ranks_than_can_share_memory_are_refused() {
    let done = mpirun(&["-n", "20000", "true", ":", "true"]).run();
    assert_eq!(done.status, 2);
    assert!(done.err.contains("at most 20000 can be on one host"), "{}", done.err);
    assert_eq!(done.err.lines().count(), 1);
}

#[test]
fn too_few_descriptors_are_named() {
    let script = format!("ulimit -n 60; exec {} -n 40 true", env!("CARGO_BIN_EXE_mpirun"));
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]);
    let done = common::marked(shell).run();
    assert_eq!(done.status, 1);
    assert!(
        done.err.contains("40 ranks need 248 file descriptors") && done.err.contains("is 60"),
        "{}",
        done.err
    );
    assert_eq!(done.err.lines().count(), 1);
}

#[test]
fn ranks_get_the_users_own_limit() {
    let script = format!("ulimit -Sn 60; exec {} -q -n 40 sh -c 'ulimit -n'", env!("CARGO_BIN_EXE_mpirun"));
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]);
    let done = common::marked(shell).run();
    assert_eq!((done.status, done.out), (0, "60\n".repeat(40)));
}
