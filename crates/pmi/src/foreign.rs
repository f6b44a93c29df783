//! Other launchers: their variables in the environment, so that a program started by one of them fails with its name
//! instead of running N times as rank 0 of 1.

use std::ffi::OsString;

/// Variables that our launcher removes from its ranks' environment.
pub(crate) const VARIABLES: &[&str] = &[
    "PMI_FD",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_PORT",
    "PMI_ID",
    "PMI_SPAWNED",
    "PMI_JOBID",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "FLUX_TASK_RANK",
    "PALS_RANKID",
];

/// Names the foreign launcher that started this process as one of several, with the evidence; `None` if none
/// did. `env` looks a variable up, `is_socket` tells whether a descriptor is an open socket.
pub fn foreign_launcher(
    env: impl Fn(&str) -> Option<OsString>,
    is_socket: impl Fn(i32) -> bool,
) -> Option<String> {
    let text = |name: &str| env(name).and_then(|value| value.into_string().ok());
    let number = |name: &str| text(name).and_then(|value| value.trim().parse::<i64>().ok());
    let alone = |name: &str| number(name) == Some(1);

    if let Some(fd) = number("PMI_FD") {
        // If the descriptor is not open any more, this process is a child of a rank of that launcher.
        let live = i32::try_from(fd).is_ok_and(&is_socket);
        if live && !alone("PMI_SIZE") {
            return Some(found("a PMI launcher (Hydra, Intel MPI, Slurm's pmi2)", "PMI_FD", &fd));
        }
    } else if let Some(rank) = number("PMI_RANK") {
        if !alone("PMI_SIZE") {
            return Some(found("a PMI launcher", "PMI_RANK", &rank));
        }
    } else if let Some(port) = text("PMI_PORT") {
        return Some(found("a PMI launcher", "PMI_PORT", &port));
    }
    if let Some(namespace) = text("PMIX_NAMESPACE")
        && !alone("OMPI_COMM_WORLD_SIZE")
        && !alone("SLURM_STEP_NUM_TASKS")
    {
        return Some(found("a PMIx launcher (Open MPI, PRRTE, Slurm's pmix)", "PMIX_NAMESPACE", &namespace));
    }
    // Our own mpirun sets these, too, for programs that look for them, and MPI_LOCALRANKID, which Open MPI never sets.
    if number("OMPI_COMM_WORLD_SIZE").is_some_and(|size| size > 1) && text("MPI_LOCALRANKID").is_none() {
        let rank = number("OMPI_COMM_WORLD_RANK").unwrap_or(0);
        return Some(found("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", &rank));
    }
    if let Some(rank) = number("SLURM_PROCID") {
        // The script of sbatch is one process, however many tasks its job has: it has no step.
        let tasks = number("SLURM_STEP_NUM_TASKS").or_else(|| {
            let in_script = text("ENVIRONMENT").as_deref() == Some("BATCH");
            number("SLURM_NTASKS").filter(|_| !in_script)
        });
        if tasks.is_some_and(|tasks| tasks > 1) {
            return Some(found("Slurm's srun", "SLURM_PROCID", &rank));
        }
    }
    if let Some(rank) = number("FLUX_TASK_RANK")
        && number("FLUX_JOB_SIZE").is_some_and(|size| size > 1)
    {
        return Some(found("Flux", "FLUX_TASK_RANK", &rank));
    }
    number("PALS_RANKID").map(|rank| found("PALS", "PALS_RANKID", &rank))
}

fn found(launcher: &str, name: &str, value: &dyn std::fmt::Display) -> String {
    format!("{launcher} ({name}={value})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(variables: &[(&str, &str)]) -> Option<String> {
        let lookup = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        foreign_launcher(lookup, |fd| fd == 9)
    }

    #[test]
    fn several_ranks_of_others_are_noticed() {
        for variables in [
            &[("PMI_FD", "9"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")][..],
            &[("PMI_RANK", "1"), ("PMI_SIZE", "2")],
            &[("PMI_PORT", "host:77"), ("PMI_ID", "1")],
            &[("PMIX_NAMESPACE", "prterun-1"), ("PMIX_RANK", "0")],
            &[("PMIX_NAMESPACE", "x"), ("OMPI_COMM_WORLD_SIZE", "2")],
            &[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1")],
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")],
            &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("ENVIRONMENT", "BATCH")],
            &[("FLUX_TASK_RANK", "1"), ("FLUX_JOB_SIZE", "2")],
        ] {
            assert!(under(variables).is_some(), "{variables:?}");
        }
    }

    #[test]
    fn single_processes_and_leftovers_are_not() {
        for variables in [
            &[][..],
            &[("PMI_FD", "8"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")],
            &[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "1"), ("MPI_LOCALRANKID", "1")],
            &[("PMI_RANK", "0"), ("PMI_SIZE", "1")],
            &[("PMIX_NAMESPACE", "x"), ("OMPI_COMM_WORLD_SIZE", "1")],
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")],
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("ENVIRONMENT", "BATCH")],
            &[("SLURM_NTASKS", "8")],
            &[("PMI_RANK", "not a number")],
        ] {
            assert_eq!(under(variables), None, "{variables:?}");
        }
    }
}
