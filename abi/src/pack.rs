//! Packing to contiguous bytes, in the machine's form or in external32 (MPI 5.0, 5.2 and 5.3).

use crate::boundary::{SelfComm, mpi};
use crate::buffers::{bytes, count, typed};
use crate::ffi::*;
use crate::pointer::Ptr;
use crate::types;
use banyan_datatype::{Data, external32};
use banyan_memory::{Buffer, HeapBuffer};
use banyan_runtime::{Result, bail};

/// The part of a packed buffer from `position` on.
fn rest(buf: Ptr<c_void>, size: i64, position: i64) -> Result<Buffer> {
    if size < 0 {
        bail!(ERR_COUNT, "the size of the packed buffer is {size}");
    }
    if !(0..=size).contains(&position) {
        bail!(ERR_ARG, "the position is {position}, but the packed buffer has {size} bytes");
    }
    bytes(buf, position as u64, (size - position) as u64)
}

fn moved<N: Number>(position: Ptr<N>, from: i64, by: u64) -> Result<()> {
    match N::fit(from + by as i64) {
        Some(at) => position.set(at),
        None => bail!(ERR_VALUE_TOO_LARGE, "the position does not fit an int: use the _c form"),
    }
}

fn pack<N: Number>(
    inbuf: Ptr<c_void>,
    incount: N,
    datatype: MPI_Datatype,
    out: (Ptr<c_void>, i64),
    position: Ptr<N>,
) -> Result<()> {
    let at = position.get()?.into();
    let (data, _) = typed(inbuf, count(incount)?, datatype)?;
    let out = rest(out.0, out.1, at)?;
    if (out.len() as u64) < data.len() {
        bail!(ERR_TRUNCATE, "{} bytes are to be packed, but there is room for {}", data.len(), out.len());
    }
    moved(position, at, Data::bytes(out).copy_from(&data))
}

fn unpack<N: Number>(
    from: (Ptr<c_void>, i64),
    position: Ptr<N>,
    outbuf: Ptr<c_void>,
    outcount: N,
    datatype: MPI_Datatype,
) -> Result<()> {
    let at = position.get()?.into();
    let (data, _) = typed(outbuf, count(outcount)?, datatype)?;
    let packed = rest(from.0, from.1, at)?;
    if (packed.len() as u64) < data.len() {
        bail!(ERR_TRUNCATE, "{} bytes are to be unpacked, but there are {}", data.len(), packed.len());
    }
    moved(position, at, data.copy_from(&Data::bytes(packed)))
}

fn external(datarep: Ptr<c_char>) -> Result<()> {
    match datarep.text()?.as_str() {
        "external32" => Ok(()),
        other => bail!(ERR_ARG, "the data representation is \"{other}\"; only \"external32\" is portable"),
    }
}

/// The first `len` bytes of a packed buffer, if it has so many, in memory of the host: these themselves, or others in their place.
fn on_host(buffer: &Buffer, len: u64) -> Buffer {
    let len = buffer.len().min(usize::try_from(len).unwrap_or(usize::MAX));
    if buffer.kind().is_host_accessible() { buffer.slice(0, len) } else { HeapBuffer::zeroed(len) }
}

/// The bytes of a packed buffer on the host that are read.
fn input(buffer: &Buffer) -> &[u8] {
    let len = buffer.len();
    if len == 0 {
        return &[];
    }
    // SAFETY: the packed buffer of one call, which by MPI's contract nobody writes meanwhile.
    unsafe { std::slice::from_raw_parts(buffer.ptr(0, len), len) }
}

/// The bytes of a packed buffer on the host that are written.
fn output(buffer: &mut Buffer) -> &mut [u8] {
    let len = buffer.len();
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the packed buffer of one call, which by MPI's contract nobody else uses meanwhile.
    unsafe { std::slice::from_raw_parts_mut(buffer.ptr(0, len), len) }
}

mpi! {
    fn MPI_Pack<N>(inbuf, incount, datatype, outbuf, outsize, position, comm) on comm {
        crate::comm::check_handle(comm)?;
        pack(inbuf, incount, datatype, (outbuf, outsize.into()), position)
    }

    fn MPI_Unpack<N>(inbuf, insize, position, outbuf, outcount, datatype, comm) on comm {
        crate::comm::check_handle(comm)?;
        unpack((inbuf, insize.into()), position, outbuf, outcount, datatype)
    }

    fn MPI_Pack_size<N>(incount, datatype, comm, size) on comm {
        crate::comm::check_handle(comm)?;
        let bytes = types::committed(datatype)?.span(count(incount)?)?.bytes;
        match N::fit(bytes as i64) {
            Some(bytes) => size.set(bytes),
            None => size.set(N::fit(MPI_UNDEFINED.into()).expect("every integer type holds MPI_UNDEFINED")),
        }
    }

    fn MPI_Pack_external<N>(datarep, inbuf, incount, datatype, outbuf, outsize, position) on SelfComm {
        external(datarep)?;
        let at = position.get()?;
        let (data, ty) = typed(inbuf, count(incount)?, datatype)?;
        let out = rest(outbuf, outsize, at)?;
        let mut here = on_host(&out, external32::packed_len(&data, &ty)?);
        let written = external32::pack(&data, &ty, output(&mut here))?;
        if !out.kind().is_host_accessible() {
            out.copy_from(0, &here, 0, written);
        }
        position.set(at + written as i64)
    }

    fn MPI_Unpack_external<N>(datarep, inbuf, insize, position, outbuf, outcount, datatype) on SelfComm {
        external(datarep)?;
        let at = position.get()?;
        let (data, ty) = typed(outbuf, count(outcount)?, datatype)?;
        let packed = rest(inbuf, insize, at)?;
        let here = on_host(&packed, external32::packed_len(&data, &ty)?);
        if !packed.kind().is_host_accessible() {
            here.copy_from(0, &packed, 0, here.len());
        }
        let read = external32::unpack(&data, &ty, input(&here))?;
        position.set(at + read as i64)
    }

    fn MPI_Pack_external_size<N>(datarep, incount, datatype, size) on SelfComm {
        external(datarep)?;
        let ty = types::committed(datatype)?;
        size.set(external32::size(count(incount)?, &ty)? as i64)
    }
}
