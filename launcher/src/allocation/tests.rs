//! Tests of `allocation.rs`.

use super::*;
use proptest::prelude::*;

/// What is found with these variables and files.
fn found(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Result<Option<Allocation>, Trouble> {
    let of = |list: &[(&str, &str)], name: &str| {
        list.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    let missing = || std::io::Error::from_raw_os_error(2);
    find(&|name| of(variables, name), &|path| of(files, path.to_str().unwrap()).ok_or_else(missing))
}

fn hosts(variables: &[(&str, &str)], files: &[(&str, &str)]) -> (&'static str, String) {
    let allocation = found(variables, files).unwrap().expect("an allocation");
    let hosts: Vec<String> = allocation.hosts.iter().map(|(name, slots)| format!("{name}:{slots}")).collect();
    (allocation.manager, hosts.join(","))
}

#[test]
fn nodelists_are_expanded() {
    let names = |text: &str| nodelist(text).map(|names| names.join(" "));
    assert_eq!(names("n1").unwrap(), "n1");
    assert_eq!(names("n[1-4,7],m03").unwrap(), "n1 n2 n3 n4 n7 m03");
    assert_eq!(names("n[08-11]").unwrap(), "n08 n09 n10 n11");
    assert_eq!(names("n[8-11,001]-ib.x").unwrap(), "n8-ib.x n9-ib.x n10-ib.x n11-ib.x n001-ib.x");
    assert_eq!(names("r[1-2]c[0-1]").unwrap(), "r1c0 r1c1 r2c0 r2c1");
    for wrong in ["", "n[", "n]", "n[]", "n[1", "n[1-]", "n[2-1]", "n[1,[2]]", "n[000x333]", "a,,b", "n[1]]"]
    {
        assert!(names(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn nodelists_are_bounded() {
    for huge in
        ["n[0-999999999]", "a[0-999]b[0-999]c[0-999]", "n[0-18446744073709551615]", "n[1-99999,1-99999]"]
    {
        assert!(nodelist(huge).unwrap_err().contains("more than"), "{huge}");
    }
    assert_eq!(nodelist("n[1-100000]").unwrap().len(), MOST_HOSTS);
    assert!(counts("1(x4294967295)", 3).unwrap().len() <= 4);
}

#[test]
fn slurm_is_read() {
    let list = ("SLURM_JOB_NODELIST", "n[1-3],m");
    let tasks = ("SLURM_TASKS_PER_NODE", "2(x3),1");
    let cores = ("SLURM_JOB_CPUS_PER_NODE", "8(x4)");
    assert_eq!(hosts(&[list, tasks, cores], &[]), ("Slurm", "n1:2,n2:2,n3:2,m:1".into()));
    // In a step of one host the tasks are those of the step.
    let step = ("SLURM_TASKS_PER_NODE", "1");
    assert_eq!(hosts(&[list, step, cores], &[]), ("Slurm", "n1:8,n2:8,n3:8,m:8".into()));
    assert_eq!(hosts(&[list, step], &[]).1, "n1:1,n2:1,n3:1,m:1");
    let Reach::Command(srun) = found(&[list], &[]).unwrap().unwrap().reach else { panic!() };
    assert_eq!((&*srun[0], &**srun.last().unwrap()), ("srun", "--nodelist"));
    assert!(found(&[("SLURM_JOB_NODELIST", "n[1-")], &[]).unwrap_err().message.contains("Slurm: 'n[1-'"));
}

#[test]
fn files_of_pbs_lsf_and_grid_engine_are_read() {
    let pbs = [("PBS_NODEFILE", "/f")];
    assert_eq!(hosts(&pbs, &[("/f", "a\na\nb\n\na\n")]), ("PBS", "a:3,b:1".into()));
    assert_eq!(hosts(&[("LSB_MCPU_HOSTS", "a 2 b 4")], &[]), ("LSF", "a:2,b:4".into()));
    assert_eq!(hosts(&[("LSB_DJOB_HOSTFILE", "/f")], &[("/f", "a\nb\nb\n")]), ("LSF", "a:1,b:2".into()));
    let lines = "a.x 4 all.q@a UNDEFINED\nb.x 2 all.q@b <NULL>\n";
    assert_eq!(hosts(&[("PE_HOSTFILE", "/f")], &[("/f", lines)]), ("Grid Engine", "a.x:4,b.x:2".into()));
    for (variables, files) in [
        (&pbs, &[("/other", "a")]),
        (&pbs, &[("/f", "\n")]),
        (&pbs, &[("/f", "-oProxyCommand=reboot\n")]),
        (&[("LSB_MCPU_HOSTS", "a 2 b")], &[("", "")]),
        (&[("PE_HOSTFILE", "/f")], &[("/f", "a four\n")]),
    ] {
        assert!(found(variables, files).is_err(), "{variables:?} {files:?}");
    }
    assert_eq!(found(&[("HOSTNAME", "a"), ("PBS_NODEFILE", "")], &[]).unwrap(), None);
}

#[test]
fn agents_start_by_the_managers_own_command_where_it_is_there() {
    let lsf = [("LSB_MCPU_HOSTS", "a 2"), ("LSF_BINDIR", "/lsf/bin"), ("LSB_JOBID", "7")];
    let sge = [("PE_HOSTFILE", "/f"), ("SGE_ROOT", "/sge"), ("ARC", "lx"), ("JOB_ID", "7")];
    for (variables, command) in [(&lsf[..], "/lsf/bin/blaunch"), (&sge[..], "/sge/bin/lx/qrsh -inherit")] {
        let reach = |variables: &[_]| found(variables, &[("/f", "a 2\n")]).unwrap().unwrap().reach;
        let words = command.split(' ').map(str::to_owned).collect();
        assert_eq!(reach(variables), Reach::Command(words));
        // Without one of its variables the list of hosts may be there by another way.
        for less in 1..variables.len() {
            let some = [&variables[..less], &variables[less + 1..]].concat();
            assert_eq!(reach(&some), Reach::Ssh(Vec::new()), "{some:?}");
        }
    }
}

#[test]
fn the_mpi_operator_is_read() {
    let role = ("K_MPI_JOB_ROLE", "launcher");
    let at = "/etc/mpi/hostfile";
    let of = |mpi| match mpi {
        "OpenMPI" => [
            ("OMPI_MCA_orte_default_hostfile", at),
            ("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"),
            role,
        ],
        "Intel" => [
            ("I_MPI_HYDRA_HOST_FILE", at),
            ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "-o ConnectionAttempts=10"),
            role,
        ],
        _ => [("HYDRA_HOST_FILE", at), ("HYDRA_LAUNCH_EXTRA_ARGS", "-o ConnectionAttempts=10"), role],
    };
    let slots = "pi-worker-0.pi.default.svc slots=2\npi-worker-1.pi.default.svc slots=2\n";
    let colons = slots.replace(" slots=", ":");
    for (mpi, text) in [("OpenMPI", slots), ("Intel", &colons), ("MPICH", &colons)] {
        let wanted = "pi-worker-0.pi.default.svc:2,pi-worker-1.pi.default.svc:2";
        assert_eq!(hosts(&of(mpi), &[(at, text)]), ("the MPI Operator", wanted.into()), "{mpi}");
        let reach = found(&of(mpi), &[(at, text)]).unwrap().unwrap().reach;
        assert_eq!(reach, Reach::Ssh(vec!["-o".into(), "ConnectionAttempts=10".into()]), "{mpi}");
    }
    let first = [("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh"), ("OMPI_MCA_orte_default_hostfile", at)];
    let reach = found(&first, &[(at, slots)]).unwrap().unwrap().reach;
    assert!(matches!(reach, Reach::Command(words) if words[0] == "sh" && words[2].contains("exec -i")));
    // Outside the operator these variables are another MPI's.
    assert_eq!(found(&[("HYDRA_HOST_FILE", at)], &[(at, slots)]).unwrap(), None);
}

#[test]
fn hosts_outside_the_allocation_are_refused() {
    let allocation = found(&[("SLURM_JOB_NODELIST", "n[1-20].x")], &[]).unwrap().unwrap();
    let check = |list: &str| allocation.check(&parse_list(list).unwrap(), "login");
    assert!(["n1:2,n20.x", "localhost", "login", "10.0.0.1"].iter().all(|list| check(list).is_ok()));
    let why = check("n1,m3").unwrap_err();
    assert!(
        why.message.starts_with("host m3 is not in the allocation of Slurm: n1.x, n2.x"),
        "{}",
        why.message
    );
    assert!(why.message.ends_with("..."));
}

proptest! {
    #[test]
    fn any_text_is_handled(text in ".{0,60}", list in "[a-c\\[\\],0-9-]{0,40}", counted in "[0-9(x),]{0,30}") {
        for text in [&text, &list] {
            if let Ok(names) = nodelist(text) {
                prop_assert!(!names.is_empty() && names.len() <= MOST_HOSTS);
                prop_assert!(names.iter().all(|name| !name.contains(['[', ']', ','])));
            }
        }
        prop_assert!(counts(&counted, 5).is_none_or(|all| all.len() <= 6));
        for name in ["SLURM_JOB_NODELIST", "LSB_MCPU_HOSTS"] {
            let _ = found(&[(name, &text)], &[]);
        }
        let _ = found(&[("PE_HOSTFILE", "/f")], &[("/f", &text)]);
    }

    #[test]
    fn ranges_are_what_they_say(from in 0u32..2000, more in 0u32..200, width in 1usize..6) {
        let names = nodelist(&format!("n[{from:0width$}-{:0width$}]", from + more)).unwrap();
        let wanted: Vec<String> = (from..=from + more).map(|number| format!("n{number:0width$}")).collect();
        prop_assert_eq!(names, wanted);
    }
}
