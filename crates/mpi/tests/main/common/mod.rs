//! Runs the body of a test on ranks of two kinds: simulated ones, and processes.
#![allow(unreachable_pub, reason = "all of it is for tests")]

use std::time::Duration;

use mpi::Threading;
use mpi::entry::Test;
use mpi::environment::Universe;

/// Runs `body` on each of these numbers of simulated ranks, and of processes. `name` is the test's, with that of the program before it.
pub fn everywhere(name: &str, ranks: &[u32], body: impl Fn(&mut Universe) + Sync) {
    if std::env::var_os("BANYAN_TEST_ROLE").is_none() {
        ranks.iter().for_each(|&ranks| drop(Universe::simulated(ranks, &body)));
    }
    Test { name, ranks, limit: Duration::from_secs(60) }.run(Threading::Single, |universe| body(universe));
}
