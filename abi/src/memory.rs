//! MPI_Alloc_mem and MPI_Free_mem (MPI 5.0, 9.2).

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::info;
use crate::pointer::Ptr;
use banyan_runtime::{Result, bail};

/// The alignment that the user asks for, at least that of every C type.
fn alignment(info: MPI_Info) -> Result<usize> {
    const USUAL: usize = 64;
    let Some(info) = info::optional(info)? else { return Ok(USUAL) };
    let Some(text) = info.text("mpi_minimum_memory_alignment") else { return Ok(USUAL) };
    match text.parse::<usize>() {
        Ok(wanted) if wanted.is_power_of_two() => Ok(wanted.max(USUAL)),
        _ => bail!(ERR_INFO_VALUE, "mpi_minimum_memory_alignment is \"{text}\", not a power of two"),
    }
}

mpi! {
    fn MPI_Alloc_mem(size, info, baseptr) on SelfComm {
        let Ok(size) = usize::try_from(size) else { bail!(ERR_ARG, "the size is {size}") };
        let mut memory = std::ptr::null_mut();
        // SAFETY: a variable of ours; the alignment is a power of two and a multiple of a pointer's size.
        let failed = unsafe { libc::posix_memalign(&raw mut memory, alignment(info)?, size.max(1)) };
        if failed != 0 {
            bail!(ERR_NO_MEM, "{size} bytes of memory cannot be had");
        }
        baseptr.cast::<usize>().set(memory as usize)
    }

    fn MPI_Free_mem(base) on SelfComm {
        // SAFETY: by MPI's contract memory from MPI_Alloc_mem, or NULL.
        unsafe { libc::free(base.raw()) };
        Ok(())
    }
}
