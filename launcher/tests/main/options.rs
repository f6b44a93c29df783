//! Options: the styles of other launchers, several programs, variables, folders, hosts, binding.

use crate::common::mpirun;

fn out(arguments: &[&str]) -> String {
    let done = mpirun(arguments).run();
    assert_eq!(done.status, 0, "{arguments:?}: {}", done.err);
    done.out
}

/// The lines, sorted: ranks write in any order.
fn sorted(arguments: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = out(arguments).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn ranks_are_counted_in_every_style() {
    let size = |options: &[&str]| {
        let mut arguments = options.to_vec();
        arguments.extend(["sh", "-c", "echo $BANYAN_SIZE"]);
        let lines = sorted(&arguments);
        assert!(lines.iter().all(|line| *line == lines.len().to_string()), "{options:?}: {lines:?}");
        lines.len()
    };
    for options in [
        &["-n", "3"][..],
        &["-np", "3"],
        &["--np", "3"],
        &["--np=3"],
        &["-n3"],
        &["--n", "3"],
        &["-c", "3"],
        &["-ppn", "3"],
        &["--ppn", "3"],
        &["-N", "3"],
        &["-np", "3", "-ppn", "1"],
        &["--allow-run-as-root", "--oversubscribe", "-np", "3"],
        &["-bootstrap", "ssh", "-launcher", "fork", "-np", "3", "-iface", "lo"],
        &["--mca", "btl", "self,tcp", "-np", "3", "-genvall"],
        &["-hosts", "localhost", "-n", "3"],
        &["--host", "127.0.0.1:4,localhost", "-n", "3"],
        &["-quiet", "-n", "3"],
        &["-n", "3", "--"],
    ] {
        assert_eq!(size(options), 3, "{options:?}");
    }
    assert_eq!(size(&[]), 1);
}

#[test]
fn the_programs_own_arguments_are_left_alone() {
    let arguments = ["-np", "1", "printf", "%s|", "-np", "-genv", "--mca", "--", "-x", "--help", "-hosts"];
    assert_eq!(out(&arguments), "-np|-genv|--mca|--|-x|--help|-hosts|");
    assert_eq!(out(&["--", "echo", "-n2"]), "-n2\n");
}

#[test]
fn each_program_asks_for_kinds_of_memory_of_its_own() {
    let show = ["sh", "-c", "echo $BANYAN_MEMORY_ALLOC_KINDS"];
    let first = [
        &["-memory-alloc-kinds", "mpi,none_such:x"][..],
        &show,
        &[":", "--memory-alloc-kinds=system"],
        &show,
    ];
    assert_eq!(sorted(&first.concat()), ["mpi,none_such:x", "system"]);
    assert_eq!(sorted(&[&first[..2].concat()[..], &[":"], &show].concat()), ["", "mpi,none_such:x"]);
    for wrong in ["mpi,,system", "cuda:", "a b"] {
        let done = mpirun(&["--memory-alloc-kinds", wrong, "true"]).run();
        assert!(
            done.err.contains("is no kind of memory") && done.err.contains("as in mpi,cuda:device"),
            "{}",
            done.err
        );
        assert_ne!(done.status, 0, "{wrong}");
    }
    let set = mpirun(&["true"]).env("BANYAN_MEMORY_ALLOC_KINDS", "cuda:").run();
    assert!(set.err.starts_with("mpirun: BANYAN_MEMORY_ALLOC_KINDS: ") && set.status != 0, "{}", set.err);
}

#[test]
fn variables_are_passed_in_every_style() {
    let show = ["sh", "-c", "echo $A/$B/$C/$D"];
    let with = |options: &[&str]| out(&[options, &show].concat());
    assert_eq!(
        with(&["-x", "A=1", "-genv", "B", "2 2", "-env", "C", "3", "--env", "D=4=4"]),
        "1/2 2/3/4=4\n"
    );
    assert_eq!(with(&["-genv", "A=x", "--genv", "B", "", "-env", "C=="]), "x//=/\n");
    let done = mpirun(&[&["-genvlist", "A,B", "-x", "C"][..], &show].concat());
    let done = done.env("A", "a").env("B", "b").env("C", "c").run();
    assert_eq!(done.out, "a/b/c/\n");
    // Some are for one program, others for all.
    let first = ["-x", "A=all", "-env", "B", "one", "sh", "-c", "echo $A$B", ":", "sh", "-c", "echo $A$B"];
    assert_eq!(sorted(&first), ["all", "allone"]);
}

#[test]
fn several_programs_are_one_job() {
    let show = "echo $BANYAN_RANK/$BANYAN_SIZE $0";
    let job = [
        "-n", "2", "sh", "-c", show, "a", ":", "sh", "-c", show, "b", ":", "-np", "2", "sh", "-c", show, "c",
    ];
    assert_eq!(sorted(&job), ["0/5 a", "1/5 a", "2/5 b", "3/5 c", "4/5 c"]);
}

#[test]
fn each_program_has_its_folder() {
    let folders = ["--wdir", "/usr", "pwd", ":", "-wdir", "/", "pwd", ":", "-wd", "/usr/bin", "./env", "pwd"];
    assert_eq!(sorted(&folders), ["/", "/usr", "/usr/bin"]);
}

#[test]
fn host_files_may_name_this_machine() {
    let file = std::env::temp_dir().join(format!("banyan-hosts-{}", std::process::id()));
    let path = file.to_str().unwrap();
    std::fs::write(&file, "# here\nlocalhost slots=4\n").unwrap();
    for option in ["-f", "-machinefile", "--hostfile", "-hostfile"] {
        assert_eq!(out(&[option, path, "-n", "2", "echo", "x"]), "x\nx\n");
    }
    std::fs::write(&file, "localhost\nnode17\n").unwrap();
    let done = mpirun(&["-f", path, "--ssh", "false", "true"]).run();
    assert!(done.status == 1 && done.err.contains("node17: false ended with status 1"), "{}", done.err);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn help_and_version() {
    assert!(out(&["--version"]).contains("Banyan MPI"));
    assert_eq!(out(&["-version"]), out(&["--version"]));
    assert!(out(&["--help"]).contains("--bind-to"));
    assert!(out(&["-help"]).contains("--tag-output"));
}

#[test]
fn binding_limits_ranks_to_cpus() {
    let cpus = |options: &[&str]| {
        let show = ["grep", "Cpus_allowed_list", "/proc/self/status"];
        sorted(&[options, &["-n", "2", "-q"], &show].concat())
    };
    let free = cpus(&["--bind-to", "none"]);
    assert_eq!(free[0], free[1]);
    let several = free[0].contains(['-', ',']);
    let bindings =
        [&[][..], &["--bind-to", "core"], &["-map-by", "core"], &["--map-by", "socket", "-bind-to", "core"]];
    for options in bindings {
        let bound = cpus(options);
        assert_eq!(several, bound[0] != bound[1], "{options:?}: {bound:?}");
    }
    let map = mpirun(&["-v", "--bind-to", "core", "-n", "2", "true"]).run().err;
    assert!(map.lines().count() == 1 && map.contains("on cpu "), "{map}");
}

#[test]
fn more_ranks_than_cores_is_one_line() {
    // The notice does not go to a file or pipe, as test suites take a line on stderr for a failure; at a terminal: terminal.rs.
    assert_eq!(mpirun(&["-n", "200", "true"]).run().err, "");
    let many = mpirun(&["-v", "-n", "200", "true"]).run();
    assert!(many.status == 0 && many.err.starts_with("mpirun: 200 ranks share "), "{}", many.err);
    assert_eq!(mpirun(&["-v", "--oversubscribe", "-n", "200", "true"]).run().err.lines().count(), 1);
}

#[test]
fn traces_of_other_jobs_are_taken_out() {
    let done = mpirun(&["sh", "-c", "echo $PMIX_NAMESPACE$SLURM_PROCID.$BANYAN_RANK.$PMI_RANK"]);
    let done = done.env("PMI_RANK", "3").env("PMIX_NAMESPACE", "x").env("SLURM_PROCID", "4");
    assert_eq!(done.env("BANYAN_RANK", "9").run().out, ".0.0\n");
}

#[test]
fn settings_are_the_same_for_all_programs() {
    let mixed = mpirun(&["-env", "BANYAN_COLL", "bcast=binomial", "true", ":", "true"]).run();
    assert_eq!(mixed.status, 2);
    assert!(mixed.err.contains("BANYAN_COLL") && mixed.err.lines().count() == 1, "{}", mixed.err);
    let alike = mpirun(&["-genv", "BANYAN_COLL", "bcast=binomial", "true", ":", "true"]).run();
    assert_eq!(alike.status, 0, "{}", alike.err);
}

#[test]
fn choices_are_explained() {
    let text = out(&["--explain", "allreduce:64K", "-n", "8"]);
    assert!(text.contains("allreduce of 65536 bytes on 8 ranks") && text.contains("chosen: "), "{text}");
    let done = mpirun(&["-explain", "allreduce:64K", "-n", "8"]).env("BANYAN_COLL", "allreduce=ring").run();
    assert!(done.out.contains("chosen: ring: the user asked for it"), "{}", done.out);
    assert!(
        out(&["--explain", "allgather:64K", "-n", "8"]).contains("a cell of a CICO buffer holds 4104 bytes")
    );
    let done = mpirun(&["--explain", "allreduce", "-n", "2"]).env("BANYAN_FABRICS", "tcp").run();
    assert!(
        done.out.starts_with("allreduce of 8 bytes on 2 ranks on one node, without shared memory"),
        "{}",
        done.out
    );
    // On hosts that are not there, as many as it takes; what takes a core for each rank is simulated.
    let text = out(&["--explain", "allgather:8", "-n", "4096", "--ppn", "1"]);
    assert!(text.starts_with("allgather of 8 bytes on 4096 ranks across nodes"), "{text}");
    assert_eq!(text.matches("(simulated ").count(), 3, "{text}");
    let text = out(&["--explain", "allreduce:1M", "-n", "64", "--ppn", "16"]);
    assert!(text.starts_with("allreduce of 1048576 bytes on 64 ranks on 4 nodes"), "{text}");
    // Without -n: as many ranks as cores, but several.
    assert_eq!(
        out(&["--explain", "bcast:1K"]),
        out(&["--explain", "bcast:1K", "-n", &cores().max(2).to_string()])
    );
    let done = mpirun(&["--explain", "p2p:256K", "-n", "2"]).env("BANYAN_P2P", "both").run();
    assert!(
        done.out.starts_with("a message of 262144 bytes") && done.out.contains("  write  "),
        "{}",
        done.out
    );
    assert!(
        done.out.contains("chosen: both: BANYAN_P2P says so") || done.out.contains("refuses"),
        "{}",
        done.out
    );
    assert!(out(&["--explain", "p2p:8", "-n", "2"]).contains("chosen: ring: messages of less than 16 KiB"));
    let done = mpirun(&["--explain", "p2p", "-n", "2"]).env("BANYAN_P2P", "rings").run();
    assert_eq!((done.status, done.err.lines().count()), (2, 1), "{}", done.err);
    let done = mpirun(&["--explain", "dance:1", "-n", "8"]).run();
    assert_eq!((done.status, done.err.lines().count()), (2, 1), "{}", done.err);
}

#[test]
fn wrong_settings_are_said_once() {
    for (name, value) in [
        ("BANYAN_FABRICS", "carrier-pigeon"),
        ("BANYAN_COLL", "x=y"),
        ("BANYAN_EAGER_BUDGET", "lots"),
        ("BANYAN_NIC", "10.0.0.0/33"),
        ("BANYAN_PORTS", "5063-5000"),
        ("BANYAN_PATIENCE", "long"),
        ("BANYAN_ENCRYPT", "yes"),
        ("BANYAN_SINGLETON", "yes"),
    ] {
        let done = mpirun(&["-n", "2", "true"]).env(name, value).run();
        assert_eq!((done.status, done.err.lines().count()), (2, 1), "{}", done.err);
        assert!(done.err.starts_with(&format!("mpirun: {name}: ")), "{}", done.err);
        let given = mpirun(&["-x", &format!("{name}={value}"), "-n", "2", "true"]).run();
        assert_eq!(given.err, done.err);
    }
}

#[test]
fn unknown_settings_are_named() {
    let plain = mpirun(&["-n", "2", "true"]).run();
    assert_eq!(plain.err, "");
    let done = mpirun(&["-x", "BANYAN_COL=bcast=ring", "-n", "2", "true"]).env("BANYAN_FABRIC", "tcp").run();
    assert_eq!(done.status, 0);
    let expect = "mpirun: no setting of Banyan is called BANYAN_COL (did you mean BANYAN_COLL?), \
                  BANYAN_FABRIC (did you mean BANYAN_FABRICS?)\n";
    assert_eq!(done.err, expect);
    let far = mpirun(&["-genv", "BANYAN_WINGS", "2", "true", ":", "-env", "BANYAN_WINGS", "3", "true"]).run();
    assert_eq!(far.err, "mpirun: no setting of Banyan is called BANYAN_WINGS\n");
    assert_eq!(mpirun(&["-q", "true"]).env("BANYAN_FABRIC", "tcp").run().err, "");
    // Variables that mpirun sets for its ranks are no mistakes, also to an mpirun inside a rank.
    let inner = mpirun(&[env!("CARGO_BIN_EXE_mpirun"), "true"]).run();
    assert_eq!((inner.status, inner.err.as_str()), (0, ""));
}

#[test]
fn ranks_need_a_fabric_between_them() {
    for value in ["self", "self,", ","] {
        let done = mpirun(&["-n", "2", "true"]).env("BANYAN_FABRICS", value).run();
        assert_eq!((done.status, done.err.lines().count()), (2, 1), "{}", done.err);
        assert!(done.err.contains("the 2 ranks: allow one of shm, rdma, tcp too"), "{}", done.err);
        let alone = mpirun(&["true"]).env("BANYAN_FABRICS", value).run();
        assert_eq!((alone.status, alone.err.as_str()), (0, ""), "{value}");
    }
}

#[test]
fn what_is_misspelt_is_guessed() {
    for (arguments, hint) in [
        (&["--tag-ouput", "true"][..], "did you mean --tag-output?"),
        (&["-tag-ouput", "true"], "did you mean --tag-output?"),
        (&["-hostfiel", "x", "true"], "did you mean --hostfile?"),
        (&["--bindto", "core", "true"], "did you mean --bind-to?"),
        (&["--timeot=3", "true"], "did you mean --timeout?"),
        (&["--stdin", "1", "true"], "there are 0, none, all-to-0"),
        (&["true", ":", "-tag-output", "true"], "--tag-output holds for all programs"),
        (&["true", ":", "-v", "true"], "holds for all programs"),
        (&["true", ":", "--wdri", "/", "true"], "did you mean --wdir?"),
    ] {
        let done = mpirun(arguments).run();
        assert_eq!((done.status, done.err.lines().count()), (2, 1), "{arguments:?}: {}", done.err);
        assert!(done.err.contains(hint), "{arguments:?}: {}", done.err);
    }
}

#[test]
fn wrong_command_lines_teach() {
    let file = std::env::temp_dir().join(format!("banyan-plain-{}", std::process::id()));
    std::fs::write(&file, "x").unwrap();
    let plain = file.to_str().unwrap();
    for (status, arguments, words) in [
        (2, &["-n", "0", "true"][..], "'0' for '--np <RANKS>': a number of ranks is 1 to 1048576"),
        (2, &["-n", "20001", "true"], "20001 ranks on host "),
        (2, &["-n", "-1", "true"], "'-1' for '--np <RANKS>': a number of ranks is 1 to"),
        (2, &["-np", "true"], "'true' for '--np <RANKS>': a number of ranks is 1 to"),
        (2, &["-n", "1000000000", "true"], "a number of ranks is 1 to"),
        (2, &["-N", "", "true"], "a number of ranks is 1 to"),
        (2, &["-x", "true"], "no program is named: 'true' was taken as the value of -x"),
        (2, &[":", "true"], "no program is named before the first ':'"),
        (2, &["true", ":", "-env", "true"], "after ':' number 1: 'true' was taken as the value of --env"),
        (2, &["true", ":"], "no program is named after ':' number 1 ("),
        (2, &[""], "the program's name is empty"),
        (1, &["--output", plain, "true"], "Not a directory"),
        (1, &["--outfile-pattern", "/no/such/x-%r", "true"], "/no/such/x-0: No such file or directory"),
        (2, &["-n", "2", "-np", "3", "true"], "cannot be used multiple times"),
        (2, &["--host", "localhost:0", "true"], "'0' is not a number of ranks"),
    ] {
        let done = mpirun(arguments).run();
        assert_eq!((done.status, done.err.lines().count()), (status, 1), "{arguments:?}: {}", done.err);
        assert!(done.err.contains(words), "{arguments:?}: {}", done.err);
    }
    let mut here = mpirun(&[file.file_name().unwrap().to_str().unwrap()]);
    here.command.current_dir(std::env::temp_dir());
    let done = here.run();
    assert!(
        done.status == 127 && done.err.contains("the one in this folder is not executable"),
        "{}",
        done.err
    );
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn hosts_say_how_many_ranks_they_take() {
    let lines = |arguments: &[&str]| out(arguments).lines().count();
    assert_eq!(lines(&["--host", "localhost:3", "echo", "x"]), 3);
    assert_eq!(lines(&["-H", "localhost:2,127.0.0.1:2", "echo", "x"]), 4);
    assert_eq!(lines(&["--host", "localhost:3", "-n", "2", "echo", "x"]), 2);
    assert_eq!(lines(&["--host", "localhost:1", "-n", "2", "echo", "x"]), 2);
    assert_eq!(lines(&["--host", "localhost", "echo", "x"]), 1);
}

#[test]
fn variables_that_are_not_set_are_noticed_where_asked() {
    let passed = |options: &[&str]| {
        mpirun(&[options, &["-x", "BAN_NONE", "-genvlist", "PATH,NONE2", "true"]].concat()).run()
    };
    assert_eq!(passed(&[]).err, "");
    let err = passed(&["-v"]).err;
    for name in ["BAN_NONE", "NONE2"] {
        assert!(err.contains(&format!("mpirun: {name} is to be passed on, but is not set here")), "{err}");
    }
    assert!(!err.contains("PATH"), "{err}");
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[test]
fn choices_follow_from_the_profile_of_the_machine() {
    let chosen = |machine: &str| {
        mpirun(&["--explain", "allreduce:8K", "-n", "4"]).env("BANYAN_MACHINE", machine).run()
    };
    for name in ["epyc", "zen", "zen3", "xeon"] {
        let done = chosen(name);
        assert!(done.out.contains(&format!("costs: built in for processors like {name}")), "{}", done.out);
    }
    let refused = chosen("abacus");
    assert!(
        refused.err.contains("BANYAN_MACHINE: abacus: ") && refused.err.contains("epyc, zen, zen3, xeon"),
        "{}",
        refused.err
    );
    // What is kept never ends a job; what the user names must be there.
    let refused = mpirun(&["-n", "1", "true"]).env("BANYAN_MACHINE", "/nowhere/at.all").run();
    assert!(refused.err.contains("BANYAN_MACHINE: /nowhere/at.all: No such file"), "{}", refused.err);
    assert_eq!(mpirun(&["-n", "2", "true"]).env("XDG_CACHE_HOME", "/dev/null").run().status, 0);
}

#[test]
fn hardware_is_shown_drawn_and_told() {
    let file = |ending: &str| {
        std::env::temp_dir().join(format!("banyan-map-{}.{ending}", std::process::id())).display().to_string()
    };
    let (told, drawn) = (file("toml"), file("svg"));
    let shown = mpirun(&["--topology"]).run();
    for file in [&told, &drawn] {
        let done = mpirun(&[&format!("--topology={file}")]).run();
        assert!(done.status == 0 && done.out.contains(&**file), "{}{}", done.out, done.err);
    }
    assert_eq!(mpirun(&["--topology"]).env("BANYAN_TOPOLOGY", &told).run().out, shown.out);
    assert_eq!(mpirun(&["-n", "2", "true"]).env("BANYAN_TOPOLOGY", &told).run().status, 0);
    let svg = std::fs::read_to_string(&drawn).expect("a drawing");
    drop((std::fs::remove_file(&told), std::fs::remove_file(&drawn)));
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
    for arguments in [&["--topology"][..], &["-n", "1", "true"], &["--explain", "rdma"]] {
        let refused = mpirun(arguments).env("BANYAN_TOPOLOGY", "/nowhere/at.all").run();
        let why = "BANYAN_TOPOLOGY: /nowhere/at.all: No such file";
        assert!(refused.status == 2 && refused.err.contains(why), "{arguments:?}: {}", refused.err);
    }
}

#[test]
fn messages_are_measured_and_drawn() {
    let file = std::env::temp_dir().join(format!("banyan-drawn-{}.svg", std::process::id()));
    let table = mpirun(&["--machine=curves"]).run();
    let drawn = mpirun(&[&format!("--machine={}", file.display())]).run();
    if table.err.contains("has only one core") {
        return;
    }
    assert_eq!((table.status, drawn.status), (0, 0), "{}{}", table.err, drawn.err);
    for bytes in ["8", "65536", "4194304"] {
        let row =
            |line: &str| line.split_whitespace().next() == Some(bytes) && line.matches(" / ").count() == 5;
        assert!(table.out.lines().any(row), "{}", table.out);
    }
    let svg = std::fs::read_to_string(&file).expect("a drawing");
    drop(std::fs::remove_file(&file));
    assert!(svg.starts_with("<svg") && svg.contains("both, by the profile"), "{svg}");
}

#[test]
fn the_machine_is_measured_and_kept() {
    let folder = std::env::temp_dir().join(format!("banyan-machine-{}", std::process::id()));
    let cache = folder.to_str().expect("text");
    let run = |how: &str, cache: &str| {
        let done = mpirun(&[how]).env("XDG_CACHE_HOME", cache).run();
        assert_eq!(done.status, 0, "{}", done.err);
        assert!(done.out.contains("\nnear.line ") && done.out.contains("\nnetwork.byte "), "{}", done.out);
        done.out
    };
    assert!(run("--machine", cache).contains("not measured yet"));
    let measured = run("--machine=measure", cache);
    let kept = format!("kept in  {}", folder.display());
    assert!(measured.contains(&kept), "{measured}");
    let files = std::fs::read_dir(folder.join("banyan/machines")).expect("a folder").count();
    drop(std::fs::remove_dir_all(&folder));
    assert_eq!(files, 1, "no draft is left");
    // A folder that nothing can be kept in.
    assert!(run("--machine=measure", "/dev/null").contains("not kept: "));
    let refused = mpirun(&["--machine=measured"]).run();
    assert!(
        refused.status != 0 && refused.err.contains("known are show, measure, curves"),
        "{}",
        refused.err
    );
}
