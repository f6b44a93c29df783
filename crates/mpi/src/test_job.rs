//! Tests on ranks that are processes. The test starts its own program again with its own name. That process is mpirun, which is a library
//! here, and starts the program once more for each rank. So a test has all that a job has: when a rank fails, hangs, or the test is
//! killed, mpirun ends what is left and says why.

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio, Termination, exit};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::entry;
use crate::environment::{Threading, Universe};

/// Set for the processes of a test: what each of them is.
const ROLE: &str = "BANYAN_TEST_ROLE";

/// Says in a rank's environment how many ranks its job has, by us, MPICH and Slurm, Open MPI.
const SIZES: [&str; 3] = ["BANYAN_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"];

/// What mpirun's process writes last if the job ended well. It would not be there if that process had run no test.
const WELL: &str = "all ranks of the test have ended well";

/// What libtest writes in each process, before the test begins.
const BEGIN: &str = "running 1 test";

/// The arguments with which the program of a test runs it alone; its name comes first.
const ALONE: [&str; 5] = ["--exact", "--include-ignored", "--nocapture", "--test-threads=1", "--quiet"];

/// A test on several ranks.
#[derive(Clone, Copy, Debug)]
pub struct Test<'a> {
    /// The test's path, with that of its crate in front.
    pub name: &'a str,
    /// How many ranks it has: it runs once for each of these numbers.
    pub ranks: &'a [u32],
    /// How long each run may take.
    pub limit: Duration,
}

impl Test<'_> {
    /// Runs the test, or is an mpirun or a rank of it.
    ///
    /// # Panics
    /// If the test fails.
    #[track_caller]
    pub fn run<R: Termination>(self, threading: Threading, function: impl FnOnce(&mut Universe) -> R) {
        let role = env::var(ROLE).unwrap_or_default();
        if role == self.rank() {
            // The test's own end is for the first of its processes to judge, which may be expected to panic.
            exit(i32::from(entry::main(threading, function) != ExitCode::SUCCESS));
        }
        if role.starts_with("mpirun ") && role.ends_with(&self.name_at_end()) {
            self.be_mpirun(&role);
        }
        for &ranks in self.ranks {
            self.start(ranks);
        }
    }

    fn name_at_end(self) -> String {
        format!(" of {}", self.name)
    }

    fn rank(self) -> String {
        format!("rank{}", self.name_at_end())
    }

    fn mpirun(self, parent: Option<Pid>, ranks: u32) -> String {
        format!("mpirun below {} for {ranks} ranks{}", parent.map_or(0, Pid::as_raw_pid), self.name_at_end())
    }

    /// The name by which libtest knows the test.
    fn bare_name(&self) -> &str {
        self.name.split_once("::").map_or(self.name, |(_, name)| name)
    }

    /// Starts the process that is mpirun, and judges what it says.
    #[track_caller]
    fn start(self, ranks: u32) {
        let is_rank = |name: &&&str| env::var(name).is_ok_and(|size| size.parse().is_ok_and(|n: u32| n > 1));
        if let Some(variable) = SIZES.iter().find(is_rank) {
            panic!(
                "a launcher has started this test on several ranks ({variable} is set): the test starts its ranks itself. Run it \
                 by `cargo test`"
            );
        }
        let this = env::current_exe().expect("a process knows its program");
        let mut command = Command::new(&this);
        command.arg(self.bare_name()).args(ALONE).stdin(Stdio::null());
        let done = command.env(ROLE, self.mpirun(Some(getpid()), ranks)).output();
        let done = done.unwrap_or_else(|why| panic!("{}: {why}", this.display()));
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        for line in out.lines().filter(|line| !line.ends_with(BEGIN) && *line != WELL) {
            println!("{line}");
        }
        if !done.status.success() {
            panic!("the test failed on {ranks} ranks:\n{err}");
        }
        let has_run = out.lines().any(|line| line == WELL);
        assert!(has_run, "the program {} has no test {}:\n{out}{err}", this.display(), self.bare_name());
        eprint!("{err}");
    }

    /// Is mpirun, for a test that has started this process.
    fn be_mpirun(self, role: &str) -> ! {
        // The thread of the test waits for this process.
        let dies = set_parent_process_death_signal(Some(Signal::KILL));
        let asked = self.ranks.iter().find(|&&ranks| role == self.mpirun(getppid(), ranks));
        let Some(&ranks) = asked.filter(|_| dies.is_ok()) else {
            exit(1); // the test has ended before this process was to end with it
        };
        // SAFETY: libtest runs a single test here, in this thread, and its other thread does nothing but wait for the test's end.
        let status = unsafe { banyan_launcher::run_in_child(self.command_line(ranks)) };
        match &status {
            Ok(0) => println!("{WELL}"),
            Ok(_) => {}
            Err(why) => eprintln!("mpirun could not be started: {why}"),
        }
        exit(status.map_or(1, i32::from))
    }

    /// What mpirun is asked to do. Tests run side by side, so that their ranks are not bound.
    fn command_line(self, ranks: u32) -> Vec<OsString> {
        let this = env::current_exe().expect("a process knows its program").into_os_string();
        let (host, limit) = (format!("localhost:{ranks}"), self.limit.as_secs_f64().to_string());
        let (role, ranks) = (format!("{ROLE}={}", self.rank()), ranks.to_string());
        let quiet = "--tag-output --quiet --oversubscribe --bind-to none --stdin none --pty never";
        let job = ["--host", &host, "--timeout", &limit, "-x", &role, "-n", &ranks];
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let options = quiet.split(' ').map(OsString::from).chain(words(&job));
        options.chain([this, self.bare_name().into()]).chain(words(&ALONE)).collect()
    }
}
