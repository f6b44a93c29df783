//! User memory as the runtime takes it, after the checks that MPI asks for.

use crate::ffi::*;
use crate::pointer::Ptr;
use crate::types;
use banyan_datatype::{Data, Datatype, Span, TypeArc};
use banyan_memory::{Buffer, MOST_CONSTANT, MemoryKind, class_at, kind_at, surely_host};
use banyan_runtime::{ArgKind, Class, Error, Result, UserMemory, bail};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A count as the runtime takes it.
///
/// # Errors
/// MPI_ERR_COUNT if it is negative.
#[inline(always)]
pub(crate) fn count<N: Number>(count: N) -> Result<u64> {
    let count: i64 = count.into();
    match u64::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) => bail!(ERR_COUNT, "the count is {count}, but must not be negative"),
    }
}

/// A list of counts, one per rank.
pub(crate) fn counts<N: Number>(list: Ptr<N>, ranks: usize) -> Result<Vec<u64>> {
    if list.is_null() && ranks > 0 {
        bail!(ERR_COUNT, "the list of counts is NULL");
    }
    each(list, ranks, count)
}

/// A list of displacements, one per rank.
pub(crate) fn displacements<N: Number>(list: Ptr<N>, ranks: usize) -> Result<Vec<i64>> {
    if list.is_null() && ranks > 0 {
        bail!(ERR_ARG, "the list of displacements is NULL");
    }
    each(list, ranks, |displ| Ok(displ.into()))
}

/// The values of a list, converted. (`collect` would grow the list as it goes.)
#[inline]
fn each<N: Number, T>(list: Ptr<N>, ranks: usize, convert: impl Fn(N) -> Result<T>) -> Result<Vec<T>> {
    let mut all = room(ranks)?;
    for at in 0..ranks {
        all.push(convert(list.at(at)?)?);
    }
    Ok(all)
}

/// An empty list with room for `len` entries, a number that the user gave.
///
/// # Errors
/// MPI_ERR_NO_MEM if there is no memory for them.
#[inline]
pub(crate) fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut all = Vec::new();
    reserve(&mut all, len)?;
    Ok(all)
}

/// Makes room for `len` more entries in a list, with the errors of [`room`].
#[inline]
pub(crate) fn reserve<T>(list: &mut Vec<T>, len: usize) -> Result<()> {
    list.try_reserve_exact(len).map_err(|_| no_room(len))
}

#[cold]
fn no_room(len: usize) -> Error {
    Error::new(Class::ERR_NO_MEM, format!("there is no memory for a list of {len} entries"))
}

/// `count` elements of a committed datatype at `buf`.
///
/// # Errors
/// MPI_ERR_COUNT, MPI_ERR_TYPE, MPI_ERR_BUFFER.
#[inline(always)]
pub(crate) fn data<N: Number>(buf: Ptr<c_void>, count: N, datatype: MPI_Datatype) -> Result<Data> {
    let count = self::count(count)?;
    let ty = types::committed(datatype)?;
    match dense(buf, count, &ty) {
        Some(data) => Ok(data),
        None => scattered(buf, count, &ty),
    }
}

/// Elements that lie in one piece from `buf` on; `None` if they do not, or `buf` cannot be an address.
#[inline(always)]
fn dense(buf: Ptr<c_void>, count: u64, ty: &Datatype) -> Option<Data> {
    let bytes = ty.dense_bytes(count)?;
    let good = surely_host(buf.address()) || bytes == 0;
    // SAFETY: as in `scattered`.
    good.then(|| Data::bytes(unsafe { Buffer::new(buf.raw().cast(), bytes as usize) }))
}

/// [`data`] of a predefined type, if its arguments are good. The code for an error, and for a type whose references are
/// counted, would cost more than the rest. It owns nothing, so there is nothing to drop.
#[inline(always)]
pub(crate) fn plain<N: Number>(
    buf: Ptr<c_void>,
    count: N,
    datatype: MPI_Datatype,
) -> Option<ManuallyDrop<Data>> {
    let count: i64 = count.into();
    let ty = types::predefined(datatype).filter(|ty| ty.is_committed())?;
    dense(buf, u64::try_from(count).ok()?, ty).map(ManuallyDrop::new)
}

/// [`data`] of any type, with all its errors.
fn scattered(buf: Ptr<c_void>, count: u64, ty: &Arc<Datatype>) -> Result<Data> {
    let span = ty.span(count)?;
    if !surely_host(buf.address()) {
        return Ok(Data::typed(unusual(buf, span)?, count, ty));
    }
    // SAFETY: by MPI's contract the user gives memory that holds these elements, and leaves it alone until
    // the operation is over.
    Ok(unsafe { Data::new(buf.raw().cast(), count, ty) })
}

/// [`data`] together with its datatype, without the special case of data in one piece.
pub(crate) fn typed(buf: Ptr<c_void>, count: u64, datatype: MPI_Datatype) -> Result<(Data, TypeArc)> {
    let ty = types::committed(datatype)?;
    Ok((scattered(buf, count, &ty)?, ty))
}

/// Plain bytes at `buf + at`.
pub(crate) fn bytes(buf: Ptr<c_void>, at: u64, len: u64) -> Result<Buffer> {
    if buf.is_null() && len > 0 {
        bail!(ERR_BUFFER, "the buffer is NULL");
    }
    if !surely_host(buf.address()) {
        let (lo, hi) = (at as i64, at.saturating_add(len) as i64);
        return Ok(unusual(buf, Span { lo, hi, bytes: len })?.rebased(at as isize));
    }
    let origin = buf.raw().cast::<u8>().wrapping_add(at as usize);
    // SAFETY: by MPI's contract the user's buffer has the size that the user says, of which this is a part.
    Ok(unsafe { Buffer::new(origin, len as usize) })
}

/// Refuses memory that the processor may not touch.
pub(crate) fn on_host(buf: Ptr<c_void>) -> Result<()> {
    if !surely_host(buf.address()) && !class_at(buf.address()).is_host_accessible() {
        bail!(
            ERR_BUFFER,
            "the buffer is memory of a device, which this call does not take: give memory of the host"
        );
    }
    Ok(())
}

/// The memory that a collective reads or writes: offset 0 is `buf`, the bounds are those of `span`.
impl UserMemory for Ptr<c_void> {
    #[inline(always)]
    fn is_in_place(&self) -> bool {
        self.address() == MPI_IN_PLACE
    }

    #[inline(always)]
    fn region(&self, span: Span) -> Result<Buffer> {
        if !surely_host(self.address()) {
            return unusual(*self, span);
        }
        // SAFETY: as in `data`; the span is that of the elements that the user's arguments describe.
        Ok(unsafe { Buffer::with_bounds(self.raw().cast(), span.lo as isize, span.hi as isize) })
    }
}

/// The buffer argument of a signature: its address and kind, by the rules of [`unusual`].
#[inline(always)]
pub(crate) fn buffer_arg(buf: Ptr<c_void>) -> (usize, ArgKind) {
    let kind = match buf.address() {
        address if surely_host(address) => ArgKind::Data(MemoryKind::Host),
        MPI_IN_PLACE => ArgKind::InPlace,
        address if address > MOST_CONSTANT => ArgKind::Data(kind_at(address)),
        _ => ArgKind::Other,
    };
    (buf.address(), kind)
}

const _: () = assert!(MPI_IN_PLACE <= MOST_CONSTANT && MPI_BUFFER_AUTOMATIC == MOST_CONSTANT);

/// Memory at an address that may be a device's, or no address: the one place where users' memory is classified.
#[cold]
fn unusual(buf: Ptr<c_void>, span: Span) -> Result<Buffer> {
    check(buf, span)?;
    let (origin, lo, hi) = (buf.raw().cast(), span.lo as isize, span.hi as isize);
    if span.bytes == 0 {
        // SAFETY: nobody goes to it.
        return Ok(unsafe { Buffer::with_bounds(origin, lo, hi) });
    }
    // SAFETY: by MPI's contract the user gives memory that holds these elements, and leaves it alone until the operation is over.
    unsafe { Buffer::classified(origin, lo, hi) }.map_err(Into::into)
}

/// Refuses addresses that cannot be meant: NULL where data would start at it, and the constants of the header.
fn check(buf: Ptr<c_void>, span: Span) -> Result<()> {
    let name = match buf.address() {
        address if address > MOST_CONSTANT => return Ok(()),
        _ if span.bytes == 0 => return Ok(()),
        MPI_IN_PLACE => "MPI_IN_PLACE",
        MPI_BUFFER_AUTOMATIC => "MPI_BUFFER_AUTOMATIC",
        _ if span.lo == 0 => {
            bail!(ERR_BUFFER, "the buffer is NULL, but {} bytes are to be moved", span.bytes)
        }
        _ => return Ok(()),
    };
    bail!(ERR_BUFFER, "the buffer is {name}, which is not allowed here")
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_memory::SimulatedDevice;

    fn pointer(address: usize) -> Ptr<c_void> {
        // SAFETY: a `Ptr` is a pointer; nobody goes to the memory behind this one but by a `Buffer`.
        unsafe { std::mem::transmute(address as *mut c_void) }
    }

    #[test]
    fn users_pointers_to_memory_of_a_device_are_known_as_such() {
        let (device, host) = (SimulatedDevice::new(4096, 1), [0u8; 64]);
        let there = device.alloc(64);
        let (there_at, host_at) = (pointer(there.address(0)), pointer(host.as_ptr() as usize));
        device.announce();
        for (buf, kind) in [(there_at, MemoryKind::Device), (host_at, MemoryKind::Host)] {
            assert_eq!(buffer_arg(buf), (buf.address(), ArgKind::Data(kind)));
            assert_eq!(data(buf, 4, MPI_INT).unwrap().buffer().kind(), kind);
            assert!(plain(buf, 4, MPI_INT).is_none(), "the short way leaves what may be a device's alone");
            let span = Span { lo: 8, hi: 16, bytes: 8 };
            let region = buf.region(span).unwrap();
            assert_eq!((region.kind(), region.lo(), region.hi()), (kind, 8, 16));
            let part = bytes(buf, 16, 8).unwrap();
            assert_eq!(
                (part.kind(), part.address(0), part.lo(), part.hi()),
                (kind, buf.address() + 16, 0, 8)
            );
            assert_eq!(on_host(buf).is_err(), kind == MemoryKind::Device);
        }
        assert_eq!(buffer_arg(pointer(MPI_IN_PLACE)).1, ArgKind::InPlace);
        assert_eq!(buffer_arg(pointer(0)).1, ArgKind::Other);
        assert_eq!(data(pointer(0), 4, MPI_INT).unwrap_err().class, Class::ERR_BUFFER);
        assert_eq!(data(pointer(MPI_IN_PLACE), 4, MPI_INT).unwrap_err().class, Class::ERR_BUFFER);
    }
}
