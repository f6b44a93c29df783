//! Programs of tests/gpu: what becomes of errors, what the driver is called for, and what programs are told. Most of that only the stand-in can show,
//! in the place of either driver.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::suite::{self, BOTH, passed_buffers};
use super::{Driver, built, passed, passed_mapping};
use crate::library::{Fabric, Library};
use crate::process::{End, tail};
use crate::project::Project;
use crate::steps::Tally;

/// Runs them, most of them on devices that run no kernels.
pub(super) fn run(project: &Project, library: &Library, kernels: &Driver, tally: &mut Tally) -> Result<()> {
    let driver = &kernels.without_kernels();
    let build = |name: &str| built(project, library, name);
    let (touch, failing) = (build("touch")?, build("failing")?);
    let job = |program: &Path| driver.job(library, 1, program, Fabric::SHM);
    let caught = job(&touch)?.run().and_then(|done| match done.end {
        End::Exit(42) if done.output.contains("the touch was caught") => Ok(()),
        end => bail!("{end}\n{}", tail(&done.output, 25)),
    });
    tally.check("a touch of memory of a device is caught", caught);
    for errors in
        ["", "cuStreamCreate=2@1-", "cuStreamCreate=2@2-", "cuEventCreate=2@1-", "cuEventRecord=2@1-"]
    {
        let job = job(&failing)?.env("BANYAN_TEST_CUDA_ERRORS", driver.errors(errors));
        tally.check(&format!("memory that is gone, where {errors:?} fails"), passed(&job).map(drop));
    }
    let calls = build("calls")?;
    for fabric in BOTH {
        let job = driver.job(library, 2, &calls, *fabric)?;
        tally.check(
            &format!("calls of the driver for a short message over {}", fabric.name()),
            passed(&job).map(drop),
        );
    }
    between_processes(project, library, driver, tally)?;
    collectives_that_fail(project, library, (driver, kernels), tally)?;
    never_a_crash(library, (driver, kernels), [build("freed")?, build("full")?], tally)?;
    variables(project, library, driver, tally)?;
    killed(project, library, driver, tally)?;
    let queries = build("queries")?;
    let setting = driver.platform().setting();
    for (gpu, expected) in
        [("off", "no"), ("off", "refused"), (setting, "first"), ("auto", "first"), ("auto", "late")]
    {
        let job = job(&queries)?.arg(expected).env("BANYAN_GPU", gpu);
        tally.check(&format!("queries with BANYAN_GPU={gpu}, expecting {expected}"), passed(&job).map(drop));
    }
    let without = driver.job(library, 1, &failing, Fabric::SHM)?.env("LD_LIBRARY_PATH", "").run()?;
    let told = match without.end {
        End::Exit(0) => bail!("a job without a driver has passed"),
        _ if without.output.contains("BANYAN_GPU")
            && without.output.contains(driver.platform().library()) =>
        {
            Ok(())
        }
        end => Err(anyhow::anyhow!("{end}\n{}", tail(&without.output, 25))),
    };
    tally.check(&format!("BANYAN_GPU={setting} without a driver says so"), told);
    Ok(())
}

/// Long messages between processes of a host: by memory that the driver shares, and by the host where it does not, from the first or from
/// a later time on.
fn between_processes(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    suite::build(project, library, &["ways"])?;
    let ways = project.folder("gpu/bin")?.join("ways");
    // The last one: bounce buffers are not pinned.
    let settings = [
        ("IPC", "1", true),
        ("IPC", "0", false),
        ("PEERS", "0", true),
        ("ERRORS", "cuIpcOpenMemHandle=801@2-", true),
        ("ERRORS", "cuIpcGetMemHandle=801@1-,cuMemHostRegister=2@1-", false),
    ];
    for (name, value, maps) in settings {
        let job = driver.job(library, 2, &ways, Fabric::SHM)?.env("BANYAN_TEST_SEED", "4");
        let job = job.env(format!("BANYAN_TEST_CUDA_{name}"), driver.errors(value));
        let checked = passed_mapping(job, maps).and_then(|output| passed_buffers(&output));
        tally.check(&format!("long messages on devices, {name} is {value}"), checked);
    }
    Ok(())
}

/// What tools are told of settings, and of a message that goes by memory that the driver shares, or by the host's that both processes pin, or that they do not.
fn variables(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let program = built(project, library, "variables")?;
    for (ipc, way, errors) in
        [("64K", "ipc", ""), ("off", "handover", ""), ("off", "bounce", "cuMemHostRegister=2@1-")]
    {
        let job = driver.job(library, 2, &program, Fabric::SHM)?;
        let job = job.arg(driver.platform().setting()).arg(ipc).arg(way).env("BANYAN_GPU_IPC", ipc);
        let job = job.env("BANYAN_TEST_CUDA_ERRORS", driver.errors(errors));
        let checked = passed_mapping(job, way == "ipc").map(drop);
        tally.check(&format!("MPI_T variables of devices where messages go by {way}"), checked);
    }
    Ok(())
}

/// What a rank that is killed had of another one's memory is used again.
fn killed(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let program = built(project, library, "killed")?;
    let job = driver.job(library, 3, &program, Fabric::SHM)?.first_arg("--keep-going");
    let done = job.env("BANYAN_GPU_IPC", "off").run()?;
    let ended = match done.end {
        End::Exit(137) if done.output.lines().any(|line| line == "ok") => Ok(()),
        end => Err(anyhow::anyhow!("{end}\n{}", tail(&done.output, 25))),
    };
    tally.check("a rank is killed that has another one's handover buffers", ended);
    Ok(())
}

/// Collectives in which a device begins to refuse copies at one rank.
fn collectives_that_fail(
    project: &Project,
    library: &Library,
    (driver, kernels): (&Driver, &Driver),
    tally: &mut Tally,
) -> Result<()> {
    let program = built(project, library, "failing_colls")?;
    let by_messages = "allreduce=ring,bcast=binomial,allgather=ring,alltoall=pairwise";
    for &fabric in BOTH {
        for (driver, algorithms) in [(driver, ""), (kernels, by_messages)] {
            let job = driver.job(library, 3, &program, fabric)?.env("BANYAN_COLL", algorithms);
            let title =
                format!("collectives by {algorithms:?} in which a device fails, over {}", fabric.name());
            tally.check(&title, passed(&job).map(drop));
        }
    }
    Ok(())
}

/// Memory that is freed while a message goes to or from it, or is too short, and devices that are full.
fn never_a_crash(
    library: &Library,
    (driver, kernels): (&Driver, &Driver),
    [freed, full]: [PathBuf; 2],
    tally: &mut Tally,
) -> Result<()> {
    for &fabric in BOTH {
        for ipc in ["1", "0"] {
            let job = driver.job(library, 2, &freed, fabric)?.env("BANYAN_TEST_CUDA_IPC", ipc);
            let title = format!("memory that is freed under way, over {}, IPC is {ipc}", fabric.name());
            tally.check(&title, passed(&job).map(drop));
        }
        let job = kernels.job(library, 2, &full, fabric)?.env("BANYAN_TEST_CUDA_MEMORY", "4000000");
        tally.check(&format!("devices that are full, over {}", fabric.name()), passed(&job).map(drop));
    }
    Ok(())
}
