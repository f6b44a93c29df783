//! Options of other launchers: Hydra's files and patterns, Open MPI's mapping, rankfiles and time stamps.

use std::path::PathBuf;

use crate::common::{Outcome, mpirun};

fn run(arguments: &[&str]) -> Outcome {
    let done = mpirun(arguments).run();
    assert_eq!(done.status, 0, "{arguments:?}: {}", done.err);
    done
}

/// mpirun refuses these arguments, with one line that has these words.
fn refused(arguments: &[&str], words: &[&str]) {
    let done = mpirun(arguments).run();
    assert_eq!((done.status, done.err.lines().count()), (2, 1), "{arguments:?}: {}", done.err);
    for word in words {
        assert!(done.err.contains(word), "{arguments:?}: no '{word}' in {}", done.err);
    }
}

/// Makes a new folder with these files in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Folder {
        let path = std::env::temp_dir().join(format!("banyan-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (name, text) in files {
            std::fs::write(path.join(name), text).unwrap();
        }
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.join(name)).unwrap();
        sorted(&text)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn files_are_named_by_patterns() {
    let folder = Folder::new("patterns", &[("all", "old\n"), ("e-0", "old\n")]);
    let script = ["-n", "2", "sh", "-c", "echo out $BANYAN_RANK; echo err >&2"];
    let (out, err) = (folder.path("o-%r-%g%p"), folder.path("e-%r"));
    let done = run(&[&["-outfile-pattern", &out, &format!("--errfile-pattern={err}")], &script[..]].concat());
    assert_eq!((done.out.as_str(), done.err.as_str()), ("", ""));
    for rank in 0..2 {
        assert_eq!(folder.lines(&format!("o-{rank}-00")), [format!("out {rank}")]);
        assert_eq!(folder.lines(&format!("e-{rank}")), ["err"]);
    }
    // A file for one of the two outputs; one file for all ranks, which is emptied first; one file for both outputs.
    let done = run(&[&["-outfile", &folder.path("all")], &script[..]].concat());
    assert_eq!(done.err, "err\nerr\n");
    assert_eq!(folder.lines("all"), ["out 0", "out 1"]);
    let both = folder.path("both-%r");
    run(&[&["-outfile-pattern", &both, "-errfile-pattern", &both], &script[..]].concat());
    assert_eq!(folder.lines("both-1"), ["err", "out 1"]);
    refused(&["-outfile-pattern", "a%x", "true"], &["%x is not one of %r"]);
    refused(&["-outfile-pattern", "a", "--output", "b", "true"], &["cannot be used with"]);
}

#[test]
fn a_configfile_names_the_programs() {
    let text = "# two programs\n-n 1 sh -c 'echo $A first $BANYAN_SIZE'\n\n  # and\n-n 2 -env B b \\\n sh -c \"echo second \\$B\"\n";
    let folder = Folder::new("configfile", &[("job", text), ("open", "-n 1 echo 'x\n"), ("empty", "\n")]);
    for option in ["-configfile", "--configfile"] {
        let done = run(&["-x", "A=a", option, &folder.path("job"), "-l"]);
        assert_eq!(sorted(&done.out), ["[0] a first 3", "[1] second b", "[2] second b"]);
    }
    run(&[&format!("--configfile={}", folder.path("job"))]);
    refused(&["-configfile", &folder.path("job"), "true"], &["true cannot follow it"]);
    refused(&["-configfile", &folder.path("open")], &["a quote is not closed in '-n 1 echo \\'x'"]);
    refused(&["-configfile", &folder.path("empty")], &["no program is named"]);
    let missing = mpirun(&["-configfile", &folder.path("none")]).run();
    assert!(missing.status == 1 && missing.err.contains("none: No such file"), "{}", missing.err);
}

#[test]
fn a_rankfile_binds() {
    let show = ["grep", "Cpus_allowed_list", "/proc/self/status"];
    let cpus = |options: &[&str]| sorted(&run(&[options, &show].concat()).out);
    let core = &cpus(&["-n", "1", "--bind-to", "core"])[0];
    let files = [
        ("ok", "rank 1=localhost slot=0 # here\nrank 0=+n0 slot=0\n"),
        ("socket", "rank 0=127.0.0.1 slot=0:0\n"),
        ("far", "rank 0=localhost slot=0\nrank 1=node17 slot=0\n"),
        ("third", "rank 0=+n2 slot=0\n"),
        ("bad", "rank 0=localhost slot=0\nrank one=localhost slot=0\n"),
        ("many", "rank 0=localhost slot=99999999\n"),
        ("much", "rank 0=localhost slot=1000\n"),
    ];
    let folder = Folder::new("rankfile", &files);
    let at = |name| folder.path(name);
    // Without -n: as many ranks as the file has lines.
    for option in ["-rf", "--rankfile", "-rankfile"] {
        assert_eq!(cpus(&[option, &at("ok"), "--oversubscribe"]), [core.as_str(), core.as_str()]);
    }
    assert_eq!(cpus(&["--map-by", &format!("rankfile:file={}", at("socket"))]), [core.as_str()]);
    refused(
        &["-rf", &at("far"), "--host", "localhost:2", "true"],
        &["far, line 2: host node17 is not one of the job's: "],
    );
    refused(&["-rf", &at("third"), "true"], &["third, line 1: host +n2 is not one of the job's: "]);
    refused(&["-rf", &at("bad"), "true"], &["bad, line 2: 'rank one=localhost slot=0'"]);
    refused(&["-rf", &at("many"), "true"], &["line 1: '99999999' is not a list of cores"]);
    refused(&["-rf", &at("much"), "true"], &["line 1: there is no core 1000: this machine has"]);
    refused(&["-rf", &at("ok"), "-n", "3", "true"], &["no line for rank 2 of 3"]);
    refused(&["-rf", &at("ok"), "--bind-to", "core", "true"], &["--rankfile", "--bind-to", "cannot be used"]);
    assert!(mpirun(&["-rf", &at("none"), "true"]).run().err.contains("none: No such file"));
}

#[test]
fn ranks_are_counted_by_parts() {
    let size = |options: &[&str]| {
        let lines = run(&[options, &["--oversubscribe", "echo", "x"]].concat()).out;
        lines.lines().count()
    };
    assert_eq!(size(&["--map-by", "ppr:2:node"]), 2);
    assert_eq!(size(&["-map-by", "ppr:3:NODE:oversubscribe", "-n", "2"]), 2);
    let cores = size(&["--map-by", "ppr:1:core"]);
    assert!(cores >= 1);
    assert_eq!(size(&["--map-by", "ppr:2:core", "--bind-to", "none"]), 2 * cores);
    assert!(size(&["--map-by", "ppr:1:numa"]) >= 1 && size(&["--map-by", "ppr:1:socket"]) >= 1);
    assert_eq!(size(&["--map-by", "socket:pe=1", "-n", "3"]), 3);
    assert_eq!(size(&["--map-by", "node", "--bind-to", "core", "-n", "3"]), 3);
    refused(
        &["--map-by", "ppr:2:node", "-n", "3", "true"],
        &["allows 2 ranks on each of 1, 2 together, and 3"],
    );
    refused(&["--map-by", "ppr:2", "true"], &["ppr has the form ppr:2:socket"]);
}

#[test]
fn wrong_parts_name_the_right_ones() {
    for option in ["--bind-to", "--map-by"] {
        refused(
            &[option, "moon", "true"],
            &["moon", option, "core, numa, socket, node (the machine) and none"],
        );
    }
    refused(&["--map-by", "core:fast", "true"], &["'fast' is not a modifier: pe=N"]);
}

#[test]
fn lines_carry_the_time() {
    let stamped = |line: &str| {
        let shape: String = line.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        shape.replace("-00:00 ", "+00:00 ")
    };
    let done = run(&["--timestamp-output", "echo", "x y"]);
    assert_eq!(stamped(&done.out), "0000-00-00T00:00:00.000+00:00 x y\n");
    let done = run(&["-timestamp-output", "--tag-output", "-n", "1", "sh", "-c", "echo x >&2"]);
    assert_eq!(stamped(&done.err), "0000-00-00T00:00:00.000+00:00 [0] x\n");
}

#[test]
fn the_time_limit_may_be_a_variable() {
    let sleep = ["sh", "-c", "exec sleep 30"];
    let done = mpirun(&sleep).env("MPIEXEC_TIMEOUT", "0.2").run();
    assert_eq!(done.status, 124, "{}", done.err);
    assert!(done.err.contains("0.2 s"), "{}", done.err);
    // The option overrides the variable, and an empty variable counts as not set.
    let done = mpirun(&["--timeout", "0.2", "--report-state-on-timeout", "sleep", "30"]);
    assert_eq!(done.env("MPIEXEC_TIMEOUT", "3600").run().status, 124);
    assert_eq!(mpirun(&["true"]).env("MPIEXEC_TIMEOUT", "").run().status, 0);
    let done = mpirun(&["true"]).env("MPIEXEC_TIMEOUT", "soon").run();
    assert_eq!(done.status, 2);
    assert!(done.err.starts_with("mpirun: MPIEXEC_TIMEOUT=soon: not a time such as 10"), "{}", done.err);
}
