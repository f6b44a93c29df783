//! Versions, names, time, and what the ABI says about itself and Fortran (MPI 5.0, 9.1, 9.6 and 20).

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::info;
use crate::pointer::Ptr;
use banyan_runtime::{Info, Result, bail};
use std::sync::Mutex;

const LIBRARY_VERSION: &str =
    concat!("Banyan MPI ", env!("CARGO_PKG_VERSION"), ", MPI 5.0, standard ABI 1.0 (libmpi_abi.so.1)");

/// The thread level that a program gets if it asks for `required`.
pub(crate) fn thread_level(required: c_int) -> c_int {
    let levels = [MPI_THREAD_MULTIPLE, MPI_THREAD_SERIALIZED, MPI_THREAD_FUNNELED];
    levels.into_iter().find(|level| required >= *level).unwrap_or(MPI_THREAD_SINGLE)
}

fn host_name() -> String {
    let mut name = [0 as c_char; 256];
    // SAFETY: a buffer of ours with its length less one, so that a NUL is left at the end.
    unsafe { libc::gethostname(name.as_mut_ptr(), name.len() - 1) };
    let bytes: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// This process in words: rank, host and process id.
pub(crate) fn whereabouts() -> String {
    let (host, pid) = (host_name(), std::process::id());
    match crate::comm::world_rank_and_size() {
        Some((rank, size)) => format!("rank {rank} of {size}, host {host}, process {pid}"),
        None => format!("host {host}, process {pid}"),
    }
}

fn clock() -> (i64, i64) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec, now.tv_nsec)
}

/// What the program has set by MPI_Abi_set_fortran_*; each can be set once.
struct Fortran {
    info: Option<Info>,
    booleans: Option<(usize, [u8; 16], [u8; 16])>,
}

static FORTRAN: Mutex<Fortran> = Mutex::new(Fortran { info: None, booleans: None });

fn fortran() -> std::sync::MutexGuard<'static, Fortran> {
    FORTRAN.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Sizes of gfortran, flang and ifx with their default options; the library knows every optional type.
fn usual_fortran() -> Result<Info> {
    let info = Info::new();
    for (key, size) in [("logical", "4"), ("integer", "4"), ("real", "4"), ("double_precision", "8")] {
        info.set(format!("mpi_{key}_size"), size)?;
    }
    let types = [
        ("logical", &[1, 2, 4, 8, 16][..]),
        ("integer", &[1, 2, 4, 8, 16]),
        ("real", &[2, 4, 8, 16]),
        ("complex", &[4, 8, 16, 32]),
    ];
    for (name, sizes) in types {
        for size in sizes {
            info.set(format!("mpi_{name}{size}_supported"), "true")?;
        }
    }
    info.set("mpi_double_complex_supported", "true")?;
    Ok(info)
}

fn boolean_size(logical_size: c_int) -> Result<usize> {
    match logical_size {
        1 | 2 | 4 | 8 | 16 => Ok(logical_size as usize),
        _ => bail!(ERR_ARG, "the size of a Fortran LOGICAL is 1, 2, 4, 8 or 16 bytes, not {logical_size}"),
    }
}

mpi! {
    fn MPI_Get_version(version, subversion) on SelfComm {
        version.set(MPI_VERSION)?;
        subversion.set(MPI_SUBVERSION)
    }

    fn MPI_Get_library_version(version, resultlen) on SelfComm {
        let len = version.write(LIBRARY_VERSION.as_bytes(), MPI_MAX_LIBRARY_VERSION_STRING as usize)?;
        resultlen.set(len as c_int)
    }

    fn MPI_Get_processor_name(name, resultlen) on SelfComm {
        let len = name.write(host_name().as_bytes(), MPI_MAX_PROCESSOR_NAME as usize)?;
        resultlen.set(len as c_int)
    }

    fn MPI_Wtime() or 0.0; {
        let (seconds, nanoseconds) = clock();
        Ok(seconds as f64 + nanoseconds as f64 * 1e-9)
    }

    fn MPI_Wtick() or 1e-9; {
        Ok(1e-9)
    }

    fn MPI_Pcontrol(_level) on SelfComm {
        Ok(())
    }

    fn MPI_Get_hw_resource_info(hw_info) on SelfComm gives hw_info {
        let hw = Info::new();
        hw.set("mpi_shared_memory", "true")?;
        info::give(hw_info, hw)
    }

    fn MPI_Aint_add(base, disp) or 0; {
        Ok(base.wrapping_add(disp))
    }

    fn MPI_Aint_diff(addr1, addr2) or 0; {
        Ok(addr1.wrapping_sub(addr2))
    }

    fn MPI_Get_address(location, address) on SelfComm {
        address.set(location.address() as MPI_Aint)
    }

    fn MPI_Abi_get_version(abi_major, abi_minor) on SelfComm {
        abi_major.set(MPI_ABI_VERSION)?;
        abi_minor.set(MPI_ABI_SUBVERSION)
    }

    fn MPI_Abi_get_info(info) on SelfComm gives info {
        let sizes = Info::new();
        for key in ["mpi_aint_size", "mpi_count_size", "mpi_offset_size"] {
            sizes.set(key, "8")?;
        }
        info::give(info, sizes)
    }

    fn MPI_Abi_get_fortran_info(info) on SelfComm gives info {
        let known = fortran().info.as_ref().map(Info::dup);
        info::give(info, match known {
            Some(known) => known,
            None => usual_fortran()?,
        })
    }

    fn MPI_Abi_set_fortran_info(info) on SelfComm {
        let new = info::lookup(info)?.dup();
        let mut fortran = fortran();
        if fortran.info.is_some() {
            bail!(ERR_ABI, "MPI_Abi_set_fortran_info was called before; it can be called once");
        }
        fortran.info = Some(new);
        Ok(())
    }

    fn MPI_Abi_get_fortran_booleans(logical_size, logical_true, logical_false, is_set) on SelfComm {
        let size = boolean_size(logical_size)?;
        let mut usual = [0; 16];
        usual[0] = 1;
        let known = fortran().booleans;
        let (yes, no) = match known {
            Some((set, ..)) if set != size => {
                bail!(ERR_ABI, "the Fortran LOGICAL that was set has {set} bytes, not {size}")
            }
            Some((_, yes, no)) => (yes, no),
            None => (usual, [0; 16]),
        };
        logical_true.cast::<u8>().store(&yes[..size])?;
        logical_false.cast::<u8>().store(&no[..size])?;
        is_set.set(known.is_some().into())
    }

    fn MPI_Abi_set_fortran_booleans(logical_size, logical_true, logical_false) on SelfComm {
        let size = boolean_size(logical_size)?;
        let (mut yes, mut no) = ([0; 16], [0; 16]);
        yes[..size].copy_from_slice(&logical_true.cast::<u8>().list(size)?);
        no[..size].copy_from_slice(&logical_false.cast::<u8>().list(size)?);
        let mut fortran = fortran();
        if fortran.booleans.is_some() {
            bail!(ERR_ABI, "the values of Fortran's LOGICAL were set already");
        }
        fortran.booleans = Some((size, yes, no));
        Ok(())
    }
}
