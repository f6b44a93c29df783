//! Emulated hosts: that they are apart, that ssh leads from each to each, that their network does what it is told, and that
//! nothing of them stays.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::applications::{Applications, EACH, HOSTS, built, says_ok};
use super::launchers;
use crate::hosts::faults;
use crate::hosts::{self, Lab, Link};
use crate::library::{Kind, Library};
use crate::process::{End, Job};
use crate::project::Project;
use crate::steps::Tally;

/// How often something is tried that the network lets through by chance, or soon.
const TRIES: usize = 100;

/// All checks.
pub(super) fn run(project: &Project) -> Result<Tally> {
    if let Some(reason) = hosts::why_not(project)? {
        return Ok(Tally::skip(reason));
    }
    let mut tally = Tally::default();
    let lab = Lab::up(project, "test", HOSTS, Link::Emulated)?;
    tally.check("hosts have their own names", names(&lab));
    tally.check("hosts have their own /dev/shm, /tmp and processes", apart(&lab));
    tally.check("ssh leads from each host to each", ssh(&lab));
    tally.check("links are cut and healed", cuts(&lab));
    tally.check("frames are delayed", delay(&lab));
    tally.check("frames are lost", loss(&lab));
    for kind in [Kind::Banyan, Kind::Mpich, Kind::Openmpi] {
        tally.check(&format!("collectives of {} by ssh", kind.name()), program(project, kind, &lab));
    }
    ours(project, &lab, &mut tally)?;
    tally.check("a host vanishes", vanishes(&lab));
    let ids = lab.ids();
    drop(lab);
    let left: Vec<_> = ids.iter().filter(|id| Path::new("/proc").join(id).exists()).cloned().collect();
    let gone = if left.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("processes {}", left.join(" "))) };
    tally.check("nothing is left", gone);
    let veth = Lab::up(project, "test", HOSTS, Link::Veth)?;
    tally.check("ssh over a bridge of the kernel", ssh(&veth));
    Ok(tally)
}

fn said(lab: &Lab, host: usize, words: &[&str]) -> Result<String> {
    let done = lab.on(host, &Job::new(words[0]).args(&words[1..]).limit(60)).run_ok()?;
    Ok(done.output.trim().to_owned())
}

/// The next host, round and round.
fn next(host: usize) -> usize {
    host % HOSTS + 1
}

fn names(lab: &Lab) -> Result<()> {
    for host in 1..=HOSTS {
        let name = said(lab, host, &["hostname"])?;
        if name != format!("h{host}") {
            bail!("h{host} is called {name}");
        }
    }
    Ok(())
}

fn apart(lab: &Lab) -> Result<()> {
    for folder in ["/dev/shm", "/tmp", "/run"] {
        let file = format!("{folder}/banyan-lab-{}", std::process::id());
        said(lab, 1, &["touch", &file])?;
        let elsewhere = said(lab, 2, &["sh", "-c", &format!("ls {folder}")])?;
        if elsewhere.contains("banyan-lab") || Path::new(&file).exists() {
            bail!("{file} of h1 is seen elsewhere");
        }
    }
    let first = said(lab, 1, &["cat", "/proc/1/cmdline"])?;
    if !first.contains("sshd") { bail!("process 1 of h1 is {first}") } else { Ok(()) }
}

fn ssh(lab: &Lab) -> Result<()> {
    for host in 1..=HOSTS {
        let (there, further) = (format!("h{}", next(host)), format!("h{}", next(next(host))));
        let names = said(lab, host, &["ssh", &there, "hostname; ssh", &further, "hostname"])?;
        if names != format!("{there}\n{further}") {
            bail!("from h{host} by {there} to {further}: {names}");
        }
    }
    Ok(())
}

/// Whether one ping is answered, within a second.
fn reaches(lab: &Lab, from: usize, to: usize) -> Result<bool> {
    let ping = Job::new("ping").args(["-q", "-c", "1", "-W", "1", &format!("h{to}")]).limit(20);
    Ok(lab.on(from, &ping).run()?.end == End::Exit(0))
}

/// Whether a ping is answered before long.
fn reaches_at_last(lab: &Lab, from: usize, to: usize) -> Result<()> {
    for _ in 0..TRIES {
        if reaches(lab, from, to)? {
            return Ok(());
        }
    }
    bail!("h{from} does not reach h{to}")
}

fn cuts(lab: &Lab) -> Result<()> {
    lab.net("cut h1 h2")?;
    if reaches(lab, 1, 2)? || reaches(lab, 2, 1)? {
        bail!("h1 and h2 reach each other over a link that was cut");
    }
    reaches_at_last(lab, 1, 3)?;
    lab.net("cut h3")?;
    if reaches(lab, 1, 3)? {
        bail!("h1 reaches h3, which was cut off");
    }
    lab.net("heal")?;
    reaches_at_last(lab, 1, 2)?;
    reaches_at_last(lab, 3, 1)
}

/// No answer comes sooner than the network lets it.
fn delay(lab: &Lab) -> Result<()> {
    lab.net("delay 50ms h2 h3")?;
    let output = said(lab, 2, &["ping", "-c", "3", "h3"])?;
    lab.net("clear")?;
    let times =
        output.lines().filter_map(|line| line.split("time=").nth(1)?.split(' ').next()?.parse::<f64>().ok());
    let least = times.reduce(f64::min).context("ping said no time")?;
    if least >= 99.0 { Ok(()) } else { bail!("there and back takes {least} ms instead of 100") }
}

/// Of many pings some are answered if a part of the frames is lost, and none if all are.
fn loss(lab: &Lab) -> Result<()> {
    let answered = |share: &str| -> Result<usize> {
        lab.net(&format!("loss {share} h1"))?;
        let ping = Job::new("ping").args(["-n", "-q", "-c", "200", "-i", "0.002", "-W", "1", "10.77.0.2"]);
        let output = lab.on(1, &ping.limit(30)).run()?.output;
        lab.net("clear")?;
        let word = output.split(" received").next().and_then(|text| text.rsplit(' ').next());
        word.and_then(|word| word.parse().ok()).context("ping said nothing")
    };
    match (answered("30%")?, answered("100%")?) {
        (1..200, 0) => Ok(()),
        (some, none) => bail!("of 200 pings {some} were answered with 30 % lost, {none} with 100 %"),
    }
}

/// A program of ours on all hosts, built with another library and started by that library's launcher: proves the hosts.
fn program(project: &Project, kind: Kind, lab: &Lab) -> Result<()> {
    let library = Library::open(project, kind)?;
    let program = built(project, &library, "collectives")?;
    says_ok(&library.mpirun_on(lab, EACH, &program, project.root())?)
}

/// Banyan on all hosts by several launchers, and that nothing of a job stays on any host, whoever of it is killed.
fn ours(project: &Project, lab: &Lab, tally: &mut Tally) -> Result<()> {
    let applications = Applications::built(project)?;
    let library = Library::open(project, Kind::Banyan)?;
    let mpirun = library.prefix().join("bin/mpirun");
    let by_ssh = |program: &Job| Ok(lab.on(1, &program.under(&mpirun, &["--host", launchers::HOSTS])));
    applications.check("mpirun", tally, by_ssh);
    tally.check("two names of a host are one node", aliases(lab, &library));
    // Intel's is Hydra once more.
    for launcher in launchers::all(project)?.iter().filter(|launcher| launcher.name != "intel") {
        applications.check(launcher.name, tally, |program| Ok(lab.on(1, &launcher.start_on_hosts(program))));
    }
    let ground = &faults::NETWORK;
    let mut quick = ground.faults.iter().filter(|fault| fault.quick);
    quick.try_for_each(|fault| faults::check(project, ground, fault, tally))
}

/// Hosts that share a kernel stay apart, and ranks of two names of one of them are on one node.
fn aliases(lab: &Lab, library: &Library) -> Result<()> {
    let mpirun = Job::new(library.prefix().join("bin/mpirun")).args(["--host", "h2,10.77.0.2,h3"]);
    let place = "echo $BANYAN_RANK: $BANYAN_LOCAL_RANK of $BANYAN_LOCAL_SIZE on $(hostname)";
    let said = lab.on(1, &mpirun.args(["sh", "-c", place]).limit(60)).run_ok()?.output;
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    match lines == ["0: 0 of 2 on h2", "1: 1 of 2 on h2", "2: 0 of 1 on h3"] {
        true => Ok(()),
        false => bail!("the ranks are elsewhere:\n{said}"),
    }
}

fn vanishes(lab: &Lab) -> Result<()> {
    lab.end(3)?;
    // Its network goes soon after its processes.
    for _ in 0..TRIES {
        if !reaches(lab, 1, 3)? {
            return reaches_at_last(lab, 1, 2);
        }
    }
    bail!("h3 is gone and answers")
}
