//! Slurm on emulated hosts: a controller on h1, a daemon on each host, all state in the hosts' own /run, so that it goes with
//! them.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Lab, daemons_missing};
use crate::process::{End, Job, tail};
use crate::project::{self, Project};

/// Debian packages: Slurm's daemons and commands, who proves who asks, and what its plugin for PMIx loads (`libpmix.so`, without a
/// number).
const PACKAGES: &[&str] = &["slurmctld", "slurmd", "slurm-client", "munge", "libpmix-dev"];

/// Slurm on the hosts of a lab; it ends with them.
pub(crate) struct Slurm<'a> {
    lab: &'a Lab,
    conf: PathBuf,
}

/// Why there can be no Slurm here, if so; missing packages are installed.
pub(crate) fn why_not(project: &Project) -> Result<Option<String>> {
    daemons_missing(project, "/usr/sbin/slurmctld", PACKAGES)
}

impl<'a> Slurm<'a> {
    /// Starts it, with `slots` processors on each host, and waits until all hosts are idle.
    pub(crate) fn up(lab: &'a Lab, slots: usize) -> Result<Slurm<'a>> {
        let folder = lab.folder.join("slurm");
        std::fs::create_dir_all(&folder)?;
        let conf = lab.slurm_conf();
        project::write(&conf, settings(lab.hosts(), slots)?)?;
        // Nothing of cgroups is used, but which ones there are is looked for.
        project::write(&folder.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n")?;
        let key = folder.join("munge.key");
        Job::new("dd")
            .args(["if=/dev/urandom", "bs=1024", "count=1"])
            .arg(format!("of={}", key.display()))
            .run_ok()?;
        let slurm = Slurm { lab, conf };
        let install =
            "cd /run && mkdir -p munge slurm/state slurm/spool && exec install -m 400 \"$0\" munge/key";
        let munged = "cd /run/munge; exec munged --foreground --key-file=$PWD/key --log-file=$PWD/log --seed-file=$PWD/seed \
                      --pid-file=$PWD/pid";
        for host in 1..=lab.hosts() {
            slurm.on(host, &Job::new("sh").args(["-c", install]).arg(&key)).run_ok()?;
            slurm.daemon(host, munged)?;
            slurm.daemon(host, "exec slurmd -D")?;
        }
        slurm.daemon(1, "exec slurmctld -D -c")?;
        slurm.wait_for("all hosts are idle", || {
            let idle = slurm.says("sinfo -h -o %T", "idle");
            if !idle {
                // The controller may have asked a host before that could answer; it would ask again much later.
                slurm.says("scontrol reconfigure", "");
            }
            idle
        })?;
        Ok(slurm)
    }

    /// A job on a host, counted from 1, that may use Slurm's commands.
    pub(crate) fn on(&self, host: usize, job: &Job) -> Job {
        self.lab.on(host, job).env("SLURM_CONF", &self.conf)
    }

    /// Starts a daemon in a session of its own, as what is left of a job's session ends with it.
    fn daemon(&self, host: usize, command: &str) -> Result<()> {
        let job = Job::new("setsid").args(["sh", "-c"]).arg(format!("{{ {command}; }} &")).limit(60);
        self.on(host, &job).run_ok().map(|_| ())
    }

    /// Whether a command says just this, once or several times.
    fn says(&self, command: &str, what: &str) -> bool {
        let mut words = command.split(' ');
        let job = Job::new(words.next().unwrap_or_default()).args(words).limit(20);
        let done = self.on(1, &job).run();
        done.is_ok_and(|done| done.end == End::Exit(0) && done.output.lines().all(|line| line == what))
    }

    fn wait_for(&self, what: &str, there: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !there() {
            if Instant::now() > deadline {
                let logs = (1..=self.lab.hosts()).map(|host| self.log(host)).collect::<Vec<_>>().join("\n");
                bail!("Slurm: not so within a minute: {what}\n{logs}");
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    fn log(&self, host: usize) -> String {
        let job = Job::new("sh").args(["-c", "cat /run/slurm/*.log"]).limit(20);
        self.on(host, &job).run().map_or_else(|error| error.to_string(), |done| tail(&done.output, 10))
    }
}

fn settings(hosts: usize, slots: usize) -> Result<String> {
    let mut text = String::new();
    let fixed = "ClusterName=lab SlurmctldHost=h1 SlurmUser=root SlurmdUser=root AuthType=auth/munge CredType=cred/munge \
        StateSaveLocation=/run/slurm/state SlurmdSpoolDir=/run/slurm/spool SlurmctldPidFile=/run/slurm/slurmctld.pid \
        SlurmdPidFile=/run/slurm/slurmd.pid SlurmctldLogFile=/run/slurm/slurmctld.log SlurmdLogFile=/run/slurm/slurmd.log \
        ProctrackType=proctrack/linuxproc TaskPlugin=task/none JobAcctGatherType=jobacct_gather/none \
        SelectType=select/cons_tres SelectTypeParameters=CR_Core MpiDefault=none ReturnToService=2 SlurmdTimeout=30 \
        SlurmdParameters=config_overrides SchedulerParameters=sched_min_interval=0 KillWait=5";
    for setting in fixed.split_whitespace() {
        writeln!(text, "{setting}")?;
    }
    writeln!(text, "NodeName=h[1-{hosts}] CPUs={slots} RealMemory=1000 State=UNKNOWN")?;
    writeln!(text, "PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP")?;
    Ok(text)
}
