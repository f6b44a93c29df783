//! C programs that use MPI wrongly, or another MPI, and what mpirun says about them.

use std::path::Path;
use std::process::Command;

use crate::common::{build, mpirun};

#[test]
fn a_mistake_of_all_ranks_is_shown_once() {
    let source = "#include <mpi.h>\nint main(void) { int x = 0; MPI_Init(0, 0);\n\
        MPI_Send(&x, 1, MPI_INT, 99, 0, MPI_COMM_WORLD); MPI_Finalize(); return 0; }\n";
    let program = build("all_wrong", source);
    let done = mpirun(&["-n", "8", program.to_str().unwrap()]).run();
    assert_eq!(done.status, 6, "{}", done.err);
    assert_eq!(done.err.matches("MPI error in MPI_Send").count(), 1, "{}", done.err);
    assert!(done.err.contains("dest is 99"), "{}", done.err);
    assert_eq!(done.err.matches("ended the job with code 6").count(), 1, "{}", done.err);
    assert!(done.err.contains(" failed with the same error"), "{}", done.err);
}

#[test]
fn a_function_that_is_not_built_is_named_once_for_the_job() {
    let source = "#include <mpi.h>\nint main(void) { MPI_File f; MPI_Init(0, 0);\n\
        for (int i = 0; i < 3; i++) MPI_File_open(MPI_COMM_SELF, \"x\", MPI_MODE_RDONLY, MPI_INFO_NULL, &f);\n\
        return MPI_Finalize(); }\n";
    let program = build("not_built", source);
    let done = mpirun(&["-n", "8", program.to_str().unwrap()]).run();
    assert_eq!(done.status, 0, "{}", done.err);
    let lines: Vec<&str> = done.err.lines().collect();
    assert_eq!(lines.len(), 2, "{}", done.err);
    assert!(
        lines[0].starts_with("mpirun: rank ") && lines[0].contains(": MPI_File_open is not built yet ("),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].starts_with("mpirun: 7 other ranks said the same: MPI_File_open is not built yet"),
        "{}",
        lines[1]
    );
}

#[test]
fn only_the_first_rank_that_failed_is_named() {
    let source = "#include <mpi.h>\n#include <unistd.h>\nint main(void) { int x = 0, r; MPI_Init(0, 0);\n\
        MPI_Comm_rank(MPI_COMM_WORLD, &r); MPI_Barrier(MPI_COMM_WORLD);\n\
        if (r == 0) MPI_Send(&x, 1, MPI_INT, 99, 0, MPI_COMM_WORLD);\n\
        MPI_Recv(&x, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);\n\
        MPI_Finalize(); return 0; }\n";
    let program = build("first_wrong", source);
    let done = mpirun(&["-n", "4", program.to_str().unwrap()]).env("BANYAN_FABRICS", "tcp").run();
    assert_eq!(done.status, 6, "{}", done.err);
    assert_eq!(done.err.matches("MPI error in").count(), 1, "{}", done.err);
    assert!(done.err.contains("rank 0 of 4"), "{}", done.err);
}

#[test]
fn a_missing_finalize_may_be_allowed() {
    let source =
        "#include <mpi.h>\nint main(void) { MPI_Init(0, 0); MPI_Barrier(MPI_COMM_WORLD); return 0; }\n";
    let program = build("no_finalize", source);
    let program = program.to_str().unwrap();
    let done = mpirun(&["-n", "2", program]).run();
    assert_eq!(done.status, 1);
    assert!(done.err.contains("without MPI_Finalize (--allow-missing-finalize"), "{}", done.err);
    let done = mpirun(&["-n", "2", "--allow-missing-finalize", program]).run();
    assert_eq!(done.status, 0, "{}", done.err);
    assert!(done.err.contains("2 of 2 ranks ended without MPI_Finalize: "), "{}", done.err);
}

/// A program linked with a library that has another MPI's name; with that library in place or not.
fn other_mpi(name: &str, library: &str, through: bool) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let gcc = |arguments: &[&str]| {
        assert!(Command::new("gcc").current_dir(&folder).args(arguments).status().unwrap().success());
    };
    std::fs::write(folder.join("mpi.c"), "int MPI_Init(int *c, char ***v) { (void)c; (void)v; return 0; }\n")
        .unwrap();
    gcc(&["-shared", "-fPIC", &format!("-Wl,-soname,{library}"), "-o", library, "mpi.c"]);
    let mut needs = library;
    if through {
        std::fs::write(
            folder.join("step.c"),
            "int MPI_Init(int *, char ***); int step(void) { return MPI_Init(0, 0); }\n",
        )
        .unwrap();
        gcc(&[
            "-shared",
            "-fPIC",
            "-Wl,-soname,libstep.so",
            "-o",
            "libstep.so",
            "step.c",
            library,
            "-Wl,-rpath,$ORIGIN",
        ]);
        needs = "libstep.so";
    }
    let call = if through {
        "int step(void); int main(void) { return step(); }\n"
    } else {
        "int MPI_Init(int *, char ***); int main(void) { return MPI_Init(0, 0); }\n"
    };
    std::fs::write(folder.join("main.c"), call).unwrap();
    gcc(&[
        "-o",
        "main",
        "main.c",
        &format!("./{needs}"),
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--allow-shlib-undefined",
    ]);
    folder.join("main").to_str().unwrap().to_owned()
}

#[test]
fn programs_of_another_mpi_are_named() {
    for (name, library, owner, through) in [
        ("openmpi", "libmpi.so.40", "Open MPI", false),
        ("mpich", "libmpi.so.12", "MPICH", false),
        ("abi", "libmpi_abi.so.0", "the standard ABI", false),
        ("through", "libmpich.so.12", "MPICH", true),
    ] {
        let program = other_mpi(name, library, through);
        let done = mpirun(&["-q", "-n", "2", &program]).run();
        assert_eq!(done.status, 0, "{}", done.err);
        assert!(done.err.contains(&format!("is linked with {library} ({owner}")), "{}", done.err);
        assert!(done.err.contains("each rank was rank 0 of 1"), "{}", done.err);
        assert_eq!(mpirun(&[&program]).run().err, "", "one rank is as it should be");
    }
}

#[test]
fn a_library_of_another_mpi_that_is_missing_is_named() {
    let program = other_mpi("missing", "libmpi.so.40", false);
    std::fs::remove_file(Path::new(&program).with_file_name("libmpi.so.40")).unwrap();
    let done = mpirun(&["-q", "-n", "2", &program]).run();
    assert_eq!(done.status, 127);
    assert!(
        done.err.contains("is linked with libmpi.so.40 (Open MPI), which the loader does not find"),
        "{}",
        done.err
    );
}

#[test]
fn jobs_of_plain_programs_are_silent() {
    assert_eq!(mpirun(&["-q", "-n", "2", "hostname"]).run().err, "");
    // A program that is linked with our library, and does not call it.
    let program = build("plain", "#include <mpi.h>\nint main(void) { int f; return MPI_Initialized(&f); }\n");
    let done = mpirun(&["-q", "-n", "2", program.to_str().unwrap()]).run();
    assert_eq!((done.status, done.err.as_str()), (0, ""));
}

#[test]
fn other_names_of_the_local_rank() {
    let script = "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $OMPI_COMM_WORLD_LOCAL_RANK \
                  $OMPI_COMM_WORLD_LOCAL_SIZE $MPI_LOCALRANKID $MPI_LOCALNRANKS ${PMI_RANK-none}";
    let done = mpirun(&["-q", "-n", "2", "sh", "-c", script]).run();
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 2 0 2 0 2 0", "1 2 1 2 1 2 1"]);
    // A program that a rank starts without the job's variables is a job of its own, not a rank of Open MPI.
    let source = "#include <mpi.h>\n#include <stdio.h>\nint main(void) { int s; MPI_Init(0, 0);\n\
        MPI_Comm_size(MPI_COMM_WORLD, &s); printf(\"of %d\\n\", s); MPI_Finalize(); return 0; }\n";
    let program = build("apart", source);
    let script = format!(
        "unset BANYAN_PMI_FD BANYAN_RANK BANYAN_SIZE PMI_FD PMI_RANK PMI_SIZE; exec {}",
        program.display()
    );
    let done = mpirun(&["-q", "-n", "2", "sh", "-c", &script]).run();
    assert_eq!((done.status, done.out.as_str()), (0, "of 1\nof 1\n"), "{}", done.err);
}
