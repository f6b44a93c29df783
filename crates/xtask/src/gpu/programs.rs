//! Programs of tests/gpu that are no matter of one driver: what is done at one rank, operations on streams, data-parallel training, and collectives
//! between devices.

use anyhow::Result;

use super::{Driver, TRAINING_KERNELS, built, passed, passed_mapping};
use crate::library::{Fabric, Library};
use crate::project::Project;
use crate::steps::Tally;

/// Runs them, those between devices where there are several.
pub(super) fn run(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    if let Driver::Real = driver {
        local(project, library, driver, "by the real driver", tally)?;
        streams(project, library, driver, tally)?;
        return training(project, library, driver, tally);
    }
    local(project, library, driver, "with kernels", tally)?;
    local(project, library, &driver.without_kernels(), "without kernels", tally)?;
    streams(project, library, driver, tally)?;
    training(project, library, driver, tally)?;
    peers(project, library, driver, tally)?;
    asserted(project, library, driver, tally)
}

/// The shortest of them, on a driver whose code is that of another one but for its functions.
pub(super) fn some(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    local(project, library, driver, "with kernels", tally)?;
    local(project, library, &driver.without_kernels(), "without kernels", tally)?;
    on_streams(project, library, driver, &[(2, Fabric::SHM, "2")], tally)?;
    between_peers(project, library, driver, &[(3, true), (3, false)], tally)?;
    hinted(project, library, driver, ["rocm:device", "dup"], true, tally)
}

/// A program of tests/gpu on what is done at one rank.
fn local(project: &Project, library: &Library, driver: &Driver, how: &str, tally: &mut Tally) -> Result<()> {
    let local = built(project, library, "local")?;
    let job = driver.job(library, 1, &local, Fabric::SHM)?;
    tally.check(&format!("packing and reducing at one rank, {how}"), passed(&job).map(drop));
    Ok(())
}

/// Operations on streams of the program's.
fn streams(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let all = [(1, Fabric::SHM, "1"), (2, Fabric::SHM, "2"), (3, Fabric::TCP, "3"), (4, Fabric::SHM, "4")];
    on_streams(project, library, driver, &all, tally)
}

/// The same on some numbers of ranks, and below the thread level that it needs.
fn on_streams(
    project: &Project,
    library: &Library,
    driver: &Driver,
    runs: &[(usize, Fabric, &str)],
    tally: &mut Tally,
) -> Result<()> {
    let streams = built(project, library, "streams")?;
    for &(ranks, fabric, seed) in runs {
        let job = driver.job(library, ranks, &streams, fabric)?.env("BANYAN_TEST_CUDA_SEED", seed);
        let title = format!("operations on streams -n {ranks} over {}", fabric.name());
        tally.check(&title, passed(&job).map(drop));
    }
    let refused = driver.job(library, 1, &streams, Fabric::SHM)?.arg("serialized");
    tally.check("streams below MPI_THREAD_MULTIPLE are refused", passed(&refused).map(drop));
    Ok(())
}

/// Data-parallel training, whose gradients are added up on devices.
fn training(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    if matches!(driver, Driver::Double { kernels: None, .. }) {
        tally.leave_out("data-parallel training", "devices run no kernels");
        return Ok(());
    }
    let training = built(project, library, "training")?;
    for (ranks, fabric) in [(1, Fabric::SHM), (2, Fabric::SHM), (3, Fabric::TCP), (4, Fabric::SHM)] {
        let job = driver.job(library, ranks, &training, fabric)?.arg(project.file(TRAINING_KERNELS));
        let title = format!("data-parallel training -n {ranks} over {}", fabric.name());
        tally.check(&title, passed(&job).map(drop));
    }
    Ok(())
}

/// Algorithms that send messages, whose long ones go from device to device.
const MESSAGES: [&str; 2] = [
    "allreduce=ring,bcast=binomial,alltoall=pairwise,allgather=ring,reduce_scatter_block=pairwise",
    "allreduce=rabenseifner,bcast=chain,alltoall=bruck,allgather=bruck,reduce_scatter_block=doubling",
];

/// Collectives between devices of several processes.
fn peers(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let all = [(2, true), (3, true), (4, true), (3, false)];
    between_peers(project, library, driver, &all, tally)
}

/// The same on some numbers of ranks, with and without IPC.
fn between_peers(
    project: &Project,
    library: &Library,
    driver: &Driver,
    runs: &[(usize, bool)],
    tally: &mut Tally,
) -> Result<()> {
    let peers = built(project, library, "peers")?;
    for &(ranks, ipc) in runs {
        for algorithms in MESSAGES {
            let job = driver.job(library, ranks, &peers, Fabric::SHM)?.env("BANYAN_COLL", algorithms);
            let job = job.env("BANYAN_TEST_CUDA_IPC", if ipc { "1" } else { "0" });
            let checked = passed_mapping(job, ipc).map(drop);
            let with = if ipc { "with" } else { "without" };
            tally.check(&format!("collectives by messages {with} IPC -n {ranks}: {algorithms}"), checked);
        }
    }
    Ok(())
}

/// The same where a hint says that all buffers are on devices, in whichever call: messages are chosen then, by what is between the GPUs of a host like
/// this. After the first collective it does not count.
fn asserted(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    for call in ["dup", "idup", "set", "split"] {
        hinted(project, library, driver, ["cuda:device", call], true, tally)?;
    }
    hinted(project, library, driver, ["cuda:device", "late"], false, tally)?;
    hinted(project, library, driver, ["cuda:device,system", "dup"], false, tally)?;
    around(project, library, driver, tally)
}

/// The program of [`peers`] by algorithms that go around a ring, over GPUs whose NVLinks make another order of it than that of ranks.
fn around(project: &Project, library: &Library, driver: &Driver, tally: &mut Tally) -> Result<()> {
    let links = |(one, other): (u32, u32)| format!("{{ gpus = [\"GPU{one}\", \"GPU{other}\"], links = 2 }}");
    let ring = [(0, 2), (2, 1), (1, 3), (3, 0)].map(links).join(", ");
    let host = project.read(HGX)?.replace("nvswitch_links = 18, ", "");
    let map = project.folder("gpu")?.join("ring.toml");
    std::fs::write(&map, format!("{host}nvlink = [{ring}]\n"))?;
    let program = project.folder("gpu/bin")?.join("peers");
    for algorithms in [MESSAGES[0], "allreduce=ring,bcast=chain,allgather=ring", "bcast=scatter_ring"] {
        let job = driver.job(library, 4, &program, Fabric::SHM)?.args(["cuda:device", "dup"]);
        let job = job.env("BANYAN_TOPOLOGY", &map).env("BANYAN_COLL", algorithms);
        let checked = passed_mapping(job, true).map(drop);
        tally.check(&format!("collectives in the order of a ring of NVLinks: {algorithms}"), checked);
    }
    Ok(())
}

/// A host with eight GPUs at the addresses of the stand-in's devices.
const HGX: &str = "crates/topo/tests/hosts/hgx.toml";

/// The program of [`peers`] with one hint, by which messages are chosen or not.
fn hinted(
    project: &Project,
    library: &Library,
    driver: &Driver,
    [kinds, call]: [&str; 2],
    chosen: bool,
    tally: &mut Tally,
) -> Result<()> {
    let program = project.folder("gpu/bin")?.join("peers");
    let map = project.file(HGX);
    let job = driver.job(library, 4, &program, Fabric::SHM)?.args([kinds, call]).env("BANYAN_TOPOLOGY", &map);
    let checked = passed_mapping(job.env("BANYAN_TEST_CUDA_DEVICES", "8"), chosen).map(drop);
    tally.check(
        &format!("collectives on a communicator whose buffers are said to be {kinds} ({call})"),
        checked,
    );
    Ok(())
}
