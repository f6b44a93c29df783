//! Jobs inside the allocation of a resource manager, and ranks that speak PMI-1, as those of MPICH do. Neither a manager nor
//! another MPI is needed: a script takes the place of `srun`, and ranks are scripts of bash.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::common::{Job, Outcome, mpirun};

/// A folder with a command of a manager's that runs another one here, whatever the host, and says what it was called with.
struct Manager(PathBuf);

impl Manager {
    fn new(name: &str) -> Manager {
        Manager::with(name, "srun", "while [ $1 != --nodelist ]; do shift; done; shift")
    }

    /// `options` is what the script does with its arguments until the host is the first of them.
    fn with(name: &str, command: &str, options: &str) -> Manager {
        let path = std::env::temp_dir().join(format!("banyan-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let script = path.join(command);
        let text = format!("#!/bin/sh\n{options}\necho on $1 >>{}/log\nshift; exec \"$@\"\n", path.display());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        Manager(path)
    }

    /// mpirun in an allocation of two hosts, with room for two ranks and for one.
    fn mpirun(&self, arguments: &[&str]) -> Job {
        let path = format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap());
        // The hosts of the allocation are all this machine.
        let job = mpirun(&[&["--separate-hosts"], arguments].concat())
            .env("PATH", &path)
            .env("SLURM_JOB_NODELIST", "other[1-2]");
        job.env("SLURM_TASKS_PER_NODE", "2,1").env("SLURM_JOB_CPUS_PER_NODE", "4(x2)")
    }

    /// The hosts that the command was called for.
    fn hosts(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.0.join("log")).unwrap_or_default();
        let mut hosts: Vec<String> =
            log.lines().filter_map(|line| line.strip_prefix("on ")).map(str::to_owned).collect();
        hosts.sort();
        hosts
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sorted(done: &Outcome) -> Vec<&str> {
    assert_eq!((done.status, done.err.as_str()), (0, ""), "{}", done.out);
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    lines
}

/// A rank that speaks PMI-1, as a script: `ask REQUEST` gives the answer in `$answer`.
fn rank(script: &str) -> String {
    let ask = "ask() { printf '%s\\n' \"$1\" >&$PMI_FD; read -r answer <&$PMI_FD; }\n\
               ask 'cmd=init pmi_version=1 pmi_subversion=1'\n";
    format!("{ask}{script}")
}

/// Each rank reads what its neighbour has put.
const AROUND: &str = "ask \"cmd=put key=of-$PMI_RANK value=v$PMI_RANK\"\nask cmd=barrier_in\n\
                      ask \"cmd=get key=of-$(( (PMI_RANK + 1) % PMI_SIZE ))\"\necho \"$PMI_RANK ${answer##* }\"\n\
                      ask 'cmd=get key=PMI_process_mapping'; echo \"map ${answer##* }\"\nask cmd=finalize\n";

#[test]
fn ranks_of_other_mpis_join_the_job() {
    let done = mpirun(&["-n", "3", "bash", "-c", &rank(AROUND)]).run();
    let mapping = "map value=(vector,(0,1,3))";
    assert_eq!(sorted(&done), ["0 value=v1", "1 value=v2", "2 value=v0", mapping, mapping, mapping]);
}

#[test]
fn ranks_of_other_mpis_fail_as_ours_do() {
    let run = |script: &str| mpirun(&["-n", "2", "bash", "-c", &rank(script)]).run();
    let abort = run("[ $PMI_RANK = 1 ] && printf 'cmd=abort exitcode=7\\n' >&$PMI_FD; sleep 60");
    assert_eq!(abort.status, 7, "{}", abort.err);
    assert!(
        abort.err.contains("rank 1 on") && abort.err.contains("called MPI_Abort with code 7"),
        "{}",
        abort.err
    );
    let lost = run("[ $PMI_RANK = 0 ] && exit 0; ask cmd=barrier_in");
    assert_eq!(lost.status, 1);
    assert!(
        lost.err.contains("rank 0 on") && lost.err.contains("ended without MPI_Finalize"),
        "{}",
        lost.err
    );
    let wrong = run("printf 'hello\\n' >&$PMI_FD; sleep 60");
    assert!(wrong.status == 1 && wrong.err.contains("'hello' is no request of PMI-1"), "{}", wrong.err);
    let twice = run(
        "ask cmd=finalize; bash -c \"printf 'cmd=init pmi_version=1\\n' >&$PMI_FD\"; read -r answer <&$PMI_FD; echo $answer",
    );
    assert!(
        sorted(&twice).iter().all(|line| line.contains("rc=-1 msg=another_process_has_joined")),
        "{}",
        twice.out
    );
}

#[test]
fn slurm_says_where_ranks_run() {
    let manager = Manager::new("slurm");
    let script = "echo $BANYAN_RANK of $BANYAN_SIZE, $BANYAN_LOCAL_RANK of $BANYAN_LOCAL_SIZE";
    let done = manager.mpirun(&["sh", "-c", script]).run();
    assert_eq!(sorted(&done), ["0 of 3, 0 of 2", "1 of 3, 1 of 2", "2 of 3, 0 of 1"]);
    assert_eq!(manager.hosts(), ["other1", "other2"]);
    let done = manager.mpirun(&["--host", "other2", "-n", "1", "true"]).run();
    assert_eq!(done.status, 0, "{}", done.err);
    assert_eq!(manager.hosts(), ["other1", "other2", "other2"]);
    let done = manager.mpirun(&["--host", "other3", "true"]).run();
    assert_eq!(done.status, 2);
    assert!(
        done.err.contains("host other3 is not in the allocation of Slurm: other1, other2"),
        "{}",
        done.err
    );
    let done = manager.mpirun(&["true"]).env("SLURM_JOB_NODELIST", "other[1-").run();
    assert!(
        done.status != 0 && done.err.contains("the allocation of Slurm: 'other[1-' is not"),
        "{}",
        done.err
    );
}

#[test]
fn lsf_and_grid_engine_start_agents() {
    let place =
        ["--separate-hosts", "sh", "-c", "cat; echo $BANYAN_RANK, $BANYAN_LOCAL_RANK of $BANYAN_LOCAL_SIZE"];
    let run = |job: Job| {
        let (read, write) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut &write, b"input\n").unwrap();
        drop(write);
        assert_eq!(sorted(&job.stdin(read).run()), ["0, 0 of 2", "1, 1 of 2", "2, 0 of 1", "input"]);
    };
    let lsf = Manager::with("lsf", "blaunch", "");
    let job = mpirun(&place).env("LSB_MCPU_HOSTS", "other1 2 other2 1").env("LSB_JOBID", "7");
    run(job.env("LSF_BINDIR", lsf.0.to_str().unwrap()));
    assert_eq!(lsf.hosts(), ["other1", "other2"]);
    std::fs::create_dir_all(std::env::temp_dir().join(format!("banyan-sge-{}/bin/lx", std::process::id())))
        .unwrap();
    let sge = Manager::with("sge", "bin/lx/qrsh", "[ $1 = -inherit ] && shift || exit 1");
    let (root, file) = (sge.0.to_str().unwrap(), sge.0.join("hosts"));
    std::fs::write(&file, "other1 2 all.q@other1 UNDEFINED\nother2 1 all.q@other2 UNDEFINED\n").unwrap();
    let job = mpirun(&place).env("PE_HOSTFILE", file.to_str().unwrap()).env("JOB_ID", "7");
    run(job.env("SGE_ROOT", root).env("ARC", "lx"));
    assert_eq!(sge.hosts(), ["other1", "other2"]);
}

#[test]
fn values_go_from_host_to_host() {
    let manager = Manager::new("values");
    let done = manager.mpirun(&["bash", "-c", &rank(AROUND)]).run();
    let mapping = "map value=(vector,(0,1,2),(1,1,1))";
    assert_eq!(sorted(&done), ["0 value=v1", "1 value=v2", "2 value=v0", mapping, mapping, mapping]);
}
