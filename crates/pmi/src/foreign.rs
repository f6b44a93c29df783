//! Other launchers: their variables in the environment, which tell how a program that one of them started joins its job. What
//! cannot be joined is refused by name, instead of running N times as rank 0 of 1.

use std::ffi::OsString;
use std::str::FromStr;

use crate::settings;

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
    MEMORY_ALLOC_KINDS,
];

/// The variable by which Open MPI's mpirun (prterun with its personality) tells ranks what `--memory-alloc-kinds` asks for.
pub(crate) const MEMORY_ALLOC_KINDS: &str = "OMPI_MCA_mpi_memory_alloc_kinds";

/// How a process joins the job of another launcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// PMI-1 over a socket that the launcher left open.
    Pmi1Socket {
        fd: i32,
        rank: u32,
        size: u32,
    },
    /// PMI-1 over a connection to this port, `HOST:PORT`, as process `id`.
    Pmi1Port {
        port: String,
        id: u32,
    },
    Pmix,
}

/// Why a process cannot join the job of the launcher that started it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Misfit {
    /// The launcher, with the evidence.
    pub(crate) launcher: String,
    /// The reason.
    pub(crate) why: &'static str,
    /// What the user can do.
    pub(crate) remedy: &'static str,
}

/// The environment of a process. `variable` looks one up, `is_socket` tells whether a descriptor is an open socket.
struct Environment<V, S> {
    variable: V,
    is_socket: S,
}

/// How this process joins the job of the foreign launcher that started it as one of several; `None` if none did.
///
/// # Errors
/// A launcher started it that gives ranks no way to each other, or [`settings::PMI`] asks for a way that is not there.
pub(crate) fn foreign_launcher(
    variable: impl Fn(&str) -> Option<OsString>,
    is_socket: impl Fn(i32) -> bool,
) -> Result<Option<Way>, Misfit> {
    let environment = Environment { variable, is_socket };
    match environment.text(settings::PMI).as_deref() {
        None | Some("") => {}
        Some("none") => return Ok(None),
        Some("pmi1") => {
            let why = "there is neither an open PMI_FD with PMI_RANK and PMI_SIZE nor a PMI_PORT with PMI_ID";
            return environment.pmi1().ok_or(asked(why)).map(Some);
        }
        Some("pmix") if environment.text("PMIX_NAMESPACE").is_some() => return Ok(Some(Way::Pmix)),
        Some("pmix") => return Err(asked("PMIX_NAMESPACE is not set")),
        Some(_) => return Err(asked("it is none of pmi1, pmix and none")),
    }
    if let Some(way) = environment.pmi1() {
        return Ok(Some(way).filter(|_| !environment.alone("PMI_SIZE")));
    }
    if environment.text("PMIX_NAMESPACE").is_some()
        && !environment.alone("OMPI_COMM_WORLD_SIZE")
        && !environment.alone("SLURM_STEP_NUM_TASKS")
    {
        return Ok(Some(Way::Pmix));
    }
    environment.misfit().map_or(Ok(None), Err)
}

/// The setting asks for something else than what is there.
fn asked(why: &'static str) -> Misfit {
    let launcher = format!("a launcher whose variables do not go with {}", settings::PMI);
    Misfit { launcher, why, remedy: "unset BANYAN_PMI" }
}

impl<V: Fn(&str) -> Option<OsString>, S: Fn(i32) -> bool> Environment<V, S> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name)?.into_string().ok()
    }

    fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.trim().parse().ok()
    }

    fn alone(&self, name: &str) -> bool {
        self.number(name) == Some(1)
    }

    /// A server of PMI-1, if there is one.
    fn pmi1(&self) -> Option<Way> {
        if let Some(fd) = self.number("PMI_FD") {
            // If the descriptor is not open any more, this process is a child of a rank of that launcher.
            let (rank, size) = (self.number("PMI_RANK")?, self.number("PMI_SIZE")?);
            return (self.is_socket)(fd).then_some(Way::Pmi1Socket { fd, rank, size });
        }
        let (port, id) = (self.text("PMI_PORT")?, self.number("PMI_ID")?);
        Some(Way::Pmi1Port { port, id })
    }

    /// A launcher that started this process as one of several, and left it no way to the others.
    fn misfit(&self) -> Option<Misfit> {
        let found = |launcher: &str, name: &str, rank: i64, why, remedy| {
            Some(Misfit { launcher: format!("{launcher} ({name}={rank})"), why, remedy })
        };
        let several = |name: &str| self.number(name).is_some_and(|size: i64| size > 1);
        let rank = |name: &str| self.number::<i64>(name);
        const WHY: &str = "it gives its ranks no way to find each other (PMI_FD, PMI_PORT or PMIX_NAMESPACE)";
        const MPIRUN: &str = "start it with Banyan's mpirun";
        let fd = self.text("PMI_FD").is_some();
        if let Some(rank) = rank("PMI_RANK").filter(|_| !fd && !self.alone("PMI_SIZE")) {
            return found("a PMI launcher", "PMI_RANK", rank, WHY, MPIRUN);
        }
        // Our own mpirun sets these, too, for programs that look for them, and MPI_LOCALRANKID, which Open MPI never sets.
        if several("OMPI_COMM_WORLD_SIZE") && self.text("MPI_LOCALRANKID").is_none() {
            let rank = rank("OMPI_COMM_WORLD_RANK").unwrap_or(0);
            return found("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", rank, WHY, MPIRUN);
        }
        // The script of sbatch is one process, however many tasks its job has: it has no step.
        let in_script = self.text("ENVIRONMENT").as_deref() == Some("BATCH");
        let step = self.text("SLURM_STEP_NUM_TASKS").is_some();
        if let Some(rank) = rank("SLURM_PROCID")
            && several(if step || in_script { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" })
        {
            let remedy = "start it with `srun --mpi=pmi2` (or `--mpi=pmix`), or with Banyan's mpirun";
            return found("Slurm's srun", "SLURM_PROCID", rank, WHY, remedy);
        }
        if let Some(rank) = rank("FLUX_TASK_RANK").filter(|_| several("FLUX_JOB_SIZE")) {
            return found("Flux", "FLUX_TASK_RANK", rank, WHY, "start it with `flux run -o pmi=simple`");
        }
        rank("PALS_RANKID").and_then(|rank| {
            found(
                "PALS",
                "PALS_RANKID",
                rank,
                WHY,
                "start it with `mpiexec --pmi=pmix`, or with Banyan's mpirun",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(variables: &[(&str, &str)]) -> Result<Option<Way>, Misfit> {
        let lookup = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        foreign_launcher(lookup, |fd| fd == 9)
    }

    #[test]
    fn ranks_of_others_join_where_there_is_a_way() {
        let socket = Way::Pmi1Socket { fd: 9, rank: 0, size: 4 };
        let port = Way::Pmi1Port { port: "host:77".to_owned(), id: 1 };
        for (variables, way) in [
            (&[("PMI_FD", "9"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")][..], &socket),
            // Slurm's pmi2.
            (
                &[
                    ("PMI_FD", "9"),
                    ("PMI_RANK", "0"),
                    ("PMI_SIZE", "4"),
                    ("SLURM_PROCID", "0"),
                    ("SLURM_NTASKS", "4"),
                ],
                &socket,
            ),
            (
                &[("PMI_FD", "9"), ("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("PMIX_NAMESPACE", "left.over")],
                &socket,
            ),
            (&[("PMI_PORT", "host:77"), ("PMI_ID", "1")], &port),
            (&[("PMIX_NAMESPACE", "prterun-1"), ("PMIX_RANK", "0")], &Way::Pmix),
            (&[("PMIX_NAMESPACE", "x"), ("OMPI_COMM_WORLD_SIZE", "2")], &Way::Pmix),
            (
                &[("PMIX_NAMESPACE", "slurm.9.0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")],
                &Way::Pmix,
            ),
            (
                &[
                    ("BANYAN_PMI", "pmix"),
                    ("PMI_FD", "9"),
                    ("PMI_RANK", "0"),
                    ("PMI_SIZE", "4"),
                    ("PMIX_NAMESPACE", "x"),
                ],
                &Way::Pmix,
            ),
            (&[("BANYAN_PMI", "pmi1"), ("PMI_FD", "9"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")], &socket),
        ] {
            assert_eq!(under(variables).as_ref(), Ok(&Some(way.clone())), "{variables:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (variables, word) in [
            (&[("PMI_RANK", "1"), ("PMI_SIZE", "2")][..], "PMI_RANK=1"),
            (&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1")], "Open MPI"),
            (&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")], "srun"),
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("ENVIRONMENT", "BATCH")], "srun"),
            (&[("FLUX_TASK_RANK", "1"), ("FLUX_JOB_SIZE", "2")], "Flux"),
            (&[("PALS_RANKID", "3")], "PALS"),
            (&[("BANYAN_PMI", "pmix")], "BANYAN_PMI"),
            (&[("BANYAN_PMI", "pmi1"), ("PMI_FD", "8"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")], "BANYAN_PMI"),
            (&[("BANYAN_PMI", "pmi3")], "BANYAN_PMI"),
        ] {
            let misfit = under(variables).unwrap_err();
            assert!(misfit.launcher.contains(word), "{variables:?}: {misfit:?}");
        }
        let srun = under(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]).unwrap_err();
        assert!(srun.remedy.contains("srun --mpi=pmi2"));
    }

    #[test]
    fn single_processes_and_leftovers_are_not() {
        for variables in [
            &[][..],
            &[("PMI_FD", "8"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")],
            &[("PMI_FD", "9"), ("PMI_RANK", "0"), ("PMI_SIZE", "1")],
            &[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "1"), ("MPI_LOCALRANKID", "1")],
            &[("PMI_RANK", "0"), ("PMI_SIZE", "1")],
            &[("PMIX_NAMESPACE", "x"), ("OMPI_COMM_WORLD_SIZE", "1")],
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")],
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("ENVIRONMENT", "BATCH")],
            &[("SLURM_NTASKS", "8")],
            &[("PMI_RANK", "not a number")],
            &[("BANYAN_PMI", "none"), ("PMI_FD", "9"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")],
        ] {
            assert_eq!(under(variables), Ok(None), "{variables:?}");
        }
    }
}
