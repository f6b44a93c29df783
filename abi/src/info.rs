//! Info objects (MPI 5.0, 10): the C calls on `runtime::Info`. All of it works before MPI_Init too.

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::pointer::Ptr;
use banyan_runtime::{Info, Result, Start, bail};
use std::sync::{Arc, OnceLock};

/// How this process was started, once MPI has been initialized or MPI_INFO_ENV has been asked for.
pub(crate) static START: OnceLock<Start> = OnceLock::new();

/// MPI_INFO_ENV. It is put together when it is first asked for: few programs do.
fn environment() -> Arc<Info> {
    static ENV: OnceLock<Arc<Info>> = OnceLock::new();
    let start = || START.get_or_init(Start::here);
    ENV.get_or_init(|| Arc::new(Info::env(&[], start()))).clone()
}

/// The object of a handle; not of MPI_INFO_NULL.
pub(crate) fn lookup(info: MPI_Info) -> Result<Arc<Info>> {
    match info {
        MPI_INFO_ENV => Ok(environment()),
        MPI_INFO_NULL => bail!(ERR_INFO, "the info object is MPI_INFO_NULL"),
        MPI_Info(number) => INSTANCE.handles.infos.lookup(number),
    }
}

/// The object of a handle, none for MPI_INFO_NULL.
pub(crate) fn optional(info: MPI_Info) -> Result<Option<Arc<Info>>> {
    match info {
        MPI_INFO_NULL => Ok(None),
        info => lookup(info).map(Some),
    }
}

/// Makes a new info object for the user.
pub(crate) fn give(to: Ptr<MPI_Info>, info: Info) -> Result<()> {
    to.set(MPI_Info(INSTANCE.handles.infos.insert(Arc::new(info))?))
}

mpi! {
    fn MPI_Info_create(info) on SelfComm gives info {
        give(info, Info::new())
    }

    fn MPI_Info_create_env(argc, argv, info) on SelfComm gives info {
        let count = if argv.is_null() { 0 } else { argc.max(0) as usize };
        let args = argv.list(count)?.into_iter().map(Ptr::text).collect::<Result<Vec<_>>>()?;
        give(info, Info::env(&args, &Start::here()))
    }

    fn MPI_Info_dup(info, newinfo) on SelfComm gives newinfo {
        give(newinfo, lookup(info)?.dup())
    }

    fn MPI_Info_free(info) on SelfComm {
        match info.get()? {
            MPI_INFO_NULL => bail!(ERR_INFO, "the info object is MPI_INFO_NULL already"),
            MPI_INFO_ENV => bail!(ERR_INFO, "MPI_INFO_ENV cannot be freed"),
            MPI_Info(number) => INSTANCE.handles.infos.remove(number)?,
        };
        info.set(MPI_INFO_NULL)
    }

    fn MPI_Info_set(info, key, value) on SelfComm {
        if info == MPI_INFO_ENV {
            bail!(ERR_INFO, "MPI_INFO_ENV cannot be changed");
        }
        lookup(info)?.set(bytes_of_key(key)?, bytes_of_value(value)?)
    }

    fn MPI_Info_delete(info, key) on SelfComm {
        if info == MPI_INFO_ENV {
            bail!(ERR_INFO, "MPI_INFO_ENV cannot be changed");
        }
        lookup(info)?.delete(bytes_of_key(key)?)
    }

    fn MPI_Info_get_nkeys(info, nkeys) on SelfComm {
        nkeys.set(lookup(info)?.nkeys() as c_int)
    }

    fn MPI_Info_get_nthkey(info, n, key) on SelfComm {
        let info = lookup(info)?;
        let Ok(n) = usize::try_from(n) else { bail!(ERR_ARG, "the key number is {n}") };
        key.write(&info.nthkey(n)?, MPI_MAX_INFO_KEY as usize)?;
        Ok(())
    }

    fn MPI_Info_get(info, key, valuelen, value, flag) on SelfComm {
        let info = lookup(info)?;
        let Ok(room) = usize::try_from(valuelen) else { bail!(ERR_ARG, "the value length is {valuelen}") };
        let found = info.value(bytes_of_key(key)?)?;
        flag.set(found.is_some().into())?;
        if let Some(text) = found {
            value.write(&text, room + 1)?;
        }
        Ok(())
    }

    fn MPI_Info_get_valuelen(info, key, valuelen, flag) on SelfComm {
        let found = lookup(info)?.value(bytes_of_key(key)?)?;
        flag.set(found.is_some().into())?;
        match found {
            Some(text) => valuelen.set(text.len() as c_int),
            None => Ok(()),
        }
    }

    fn MPI_Info_get_string(info, key, buflen, value, flag) on SelfComm {
        let info = lookup(info)?;
        let Ok(room) = usize::try_from(buflen.get()?) else { bail!(ERR_ARG, "the buffer length is negative") };
        let found = info.value(bytes_of_key(key)?)?;
        flag.set(found.is_some().into())?;
        let Some(text) = found else { return Ok(()) };
        value.write(&text, room)?;
        buflen.set(text.len() as c_int + 1)
    }
}

fn bytes_of_key(key: Ptr<c_char>) -> Result<Vec<u8>> {
    match key.is_null() {
        true => bail!(ERR_INFO_KEY, "the info key is NULL"),
        false => key.bytes(),
    }
}

fn bytes_of_value(value: Ptr<c_char>) -> Result<Vec<u8>> {
    match value.is_null() {
        true => bail!(ERR_INFO_VALUE, "the info value is NULL"),
        false => value.bytes(),
    }
}
