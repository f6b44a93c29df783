//! Which GPUs users' buffers may be on: what the setting says, and what programs are told.

use banyan_memory::{Compiler, Gpus, look_for, sees_cuda};
use banyan_pmi::{Job, settings};

use crate::bail;
use crate::error::{Error, Result};
use crate::info::Info;
use crate::runtime::Runtime;

/// The values of the setting.
const VALUES: [(&str, Gpus); 3] = [("auto", Gpus::Auto), ("cuda", Gpus::Cuda), ("off", Gpus::Off)];

/// Users' buffers may be on the devices that the job's setting names from now on.
///
/// # Errors
/// ERR_OTHER if the setting is not known, or what it asks for is not there.
pub(crate) fn look(job: &Job) -> Result<()> {
    let value = job.setting_or_default(settings::GPU);
    let Some(&(_, gpus)) = VALUES.iter().find(|known| known.0 == value) else {
        let why = if value == "hip" { "devices of HIP are not built yet" } else { "that is no kind of GPU" };
        let known = VALUES.map(|known| known.0).join(", ");
        bail!(ERR_OTHER, "{} is \"{value}\": {why}; known are {known}", settings::GPU)
    };
    Compiler::when_needed(|| {
        let kept_in = banyan_topo::user_folder().map(|folder| folder.join("kernels"));
        Compiler { kept_in }
    });
    look_for(gpus)
        .map_err(|why| Error::other(format!("{} is \"{value}\": {why}, or set it to off", settings::GPU)))
}

/// The info key of the kinds of memory that calls take (MPI 5.0, 11.4.3).
const KINDS: &str = "mpi_memory_alloc_kinds";

impl Runtime {
    /// True if buffers may be memory of CUDA devices now. A driver that the program has loaded since MPI was initialized is seen.
    ///
    /// # Errors
    /// None after MPI was initialized with the same setting.
    pub fn takes_cuda(&self) -> Result<bool> {
        look(self.job())?;
        Ok(sees_cuda())
    }

    /// Adds to the hints of an object of this runtime which kinds of memory calls take.
    ///
    /// # Errors
    /// As [`Runtime::takes_cuda`].
    pub fn add_memory_kinds(&self, info: &Info) -> Result<()> {
        let cuda = if self.takes_cuda()? { ",cuda:host,cuda:device,cuda:managed" } else { "" };
        info.set(KINDS, format!("mpi,system{cuda}"))
    }
}
