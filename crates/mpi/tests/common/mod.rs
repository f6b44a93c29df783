//! Runs the body of a test on several ranks: the test starts itself again under mpirun, or has simulated ranks.
#![allow(unreachable_pub, dead_code, reason = "each test program has this module to itself")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use mpi::environment::Universe;

/// Set for the ranks of a test; its value is the test's name.
const RANK_OF: &str = "BANYAN_TEST_RANK_OF";

/// Runs `body` on each of these numbers of ranks, or as one of them. `name` is the test's, as libtest knows it.
pub fn on_ranks(name: &str, ranks: &[u32], body: impl FnOnce()) {
    if std::env::var(RANK_OF).is_ok_and(|of| of == name) {
        return body();
    }
    for ranks in ranks {
        let done = Command::new(mpirun())
            .args(["--timeout", "60", "-n", &ranks.to_string()])
            .arg(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(RANK_OF, name)
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "on {ranks} ranks: {}\n{out}\n{err}", done.status);
        assert_eq!(out.matches("1 passed").count(), *ranks as usize, "on {ranks} ranks:\n{out}\n{err}");
    }
}

/// Runs `body` on each of these numbers of simulated ranks, and of ranks of mpirun.
pub fn everywhere(name: &str, ranks: &[u32], body: impl Fn(&mut Universe) + Sync) {
    if std::env::var_os(RANK_OF).is_none() {
        ranks.iter().for_each(|&ranks| drop(Universe::simulated(ranks, &body)));
    }
    on_ranks(name, ranks, || body(&mut mpi::initialize().unwrap()));
}

/// mpirun of the installation that is given, or the one that is there beside this test, or is built there.
pub fn mpirun() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(prefix) = std::env::var_os("BANYAN_TEST_PREFIX") {
        return PathBuf::from(prefix).join("bin/mpirun");
    }
    let built = || {
        // This test is target/PROFILE/deps/NAME. `cargo test --workspace` has built mpirun; a build by itself would build what it is made
        // of with other features anew.
        let test = std::env::current_exe().unwrap();
        let mpirun = test.ancestors().nth(3).unwrap().join("debug/mpirun");
        if !mpirun.exists() {
            let build =
                Command::new(env!("CARGO")).args(["build", "--quiet", "-p", "banyan-launcher"]).status();
            assert!(build.unwrap().success(), "mpirun cannot be built");
        }
        mpirun
    };
    BUILT.get_or_init(built).clone()
}
