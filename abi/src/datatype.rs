//! The C calls on datatypes: constructors, and what can be asked about them (MPI 5.0, 5.1), over `banyan-datatype`.

use crate::boundary::{SelfComm, mpi};
use crate::buffers::{count, displacements};
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::pointer::Ptr;
use crate::types::{Type, handle, lookup, object};
use banyan_datatype::{Datatype, Distribution, Order};
use banyan_runtime::{Result, bail};
use std::sync::Arc;

/// Gives the user a type that was just constructed by the form of a constructor with counts `N`.
fn made<N: Number>(
    newtype: Ptr<MPI_Datatype>,
    ty: Result<Arc<Datatype>, banyan_datatype::Error>,
) -> Result<()> {
    let ty = ty?;
    let ty = if N::LARGE { ty.into_large() } else { ty };
    newtype.set(MPI_Datatype(INSTANCE.handles.datatypes.insert(Arc::new(Type::new(ty)))?))
}

fn dimensions(ndims: c_int) -> Result<usize> {
    match usize::try_from(ndims) {
        Ok(ndims) if ndims > 0 => Ok(ndims),
        _ => bail!(ERR_ARG, "the number of dimensions is {ndims}"),
    }
}

fn order(order: c_int) -> Result<Order> {
    match Order::from_code(order) {
        Some(order) => Ok(order),
        None => bail!(ERR_ARG, "order is {order}, neither MPI_ORDER_C nor MPI_ORDER_FORTRAN"),
    }
}

/// A size or extent for the caller; MPI_UNDEFINED if it does not fit.
fn fitted<N: Number>(value: i64) -> N {
    N::fit(value).or_else(|| N::fit(MPI_UNDEFINED.into())).expect("every integer type holds MPI_UNDEFINED")
}

fn size_of(datatype: MPI_Datatype) -> Result<i64> {
    Ok(lookup(datatype)?.size() as i64)
}

fn extent(datatype: MPI_Datatype, lb: Ptr<i64>, extent: Ptr<i64>) -> Result<()> {
    let ty = lookup(datatype)?;
    lb.set(ty.lb())?;
    extent.set(ty.extent())
}

fn true_extent(datatype: MPI_Datatype, lb: Ptr<i64>, extent: Ptr<i64>) -> Result<()> {
    let ty = lookup(datatype)?;
    lb.set(ty.true_lb())?;
    extent.set(ty.true_extent())
}

/// Stores the arguments of a constructor, if there is room for them.
fn contents<T: Copy>(what: &str, max: i64, to: Ptr<T>, values: &[T]) -> Result<()> {
    if (values.len() as i64) > max {
        bail!(ERR_ARG, "there is room for {max} {what}, but there are {}", values.len());
    }
    to.store(values)
}

fn get_contents(
    datatype: MPI_Datatype,
    max: [i64; 4],
    (integers, addresses, datatypes): (Ptr<c_int>, Ptr<MPI_Aint>, Ptr<MPI_Datatype>),
    large_counts: Option<Ptr<MPI_Count>>,
) -> Result<()> {
    let ty = lookup(datatype)?;
    if ty.code().is_some() {
        bail!(ERR_TYPE, "a predefined datatype has no contents (its combiner is MPI_COMBINER_NAMED)");
    }
    let envelope = ty.envelope();
    let values: Vec<c_int> = envelope.integers.iter().map(|value| *value as c_int).collect();
    contents("integers", max[0], integers, &values)?;
    contents("addresses", max[1], addresses, &envelope.addresses)?;
    match large_counts {
        Some(to) => contents("large counts", max[2], to, &envelope.counts)?,
        None if envelope.counts.is_empty() => {}
        None => bail!(ERR_TYPE, "the datatype was made with large counts: use MPI_Type_get_contents_c"),
    }
    if (envelope.datatypes.len() as i64) > max[3] {
        bail!(ERR_ARG, "there is room for {} datatypes, but there are {}", max[3], envelope.datatypes.len());
    }
    for (at, inner) in envelope.datatypes.iter().enumerate() {
        datatypes.put(at, handle(inner)?)?;
    }
    Ok(())
}

mpi! {
    fn MPI_Type_contiguous<N>(count, oldtype, newtype) on SelfComm gives newtype {
        made::<N>(newtype, Datatype::contiguous(count.into(), &*lookup(oldtype)?))
    }

    fn MPI_Type_vector<N>(count, blocklength, stride, oldtype, newtype) on SelfComm gives newtype {
        let old = lookup(oldtype)?;
        made::<N>(newtype, Datatype::vector(count.into(), blocklength.into(), stride.into(), &old))
    }

    fn MPI_Type_create_hvector<N>(count, blocklength, stride, oldtype, newtype) on SelfComm gives newtype {
        let old = lookup(oldtype)?;
        made::<N>(newtype, Datatype::hvector(count.into(), blocklength.into(), stride, &old))
    }

    fn MPI_Type_indexed<N>(
        count, array_of_blocklengths, array_of_displacements, oldtype, newtype,
    ) on SelfComm gives newtype {
        let (old, blocks) = (lookup(oldtype)?, self::count(count)? as usize);
        let (lens, displs) = lists(blocks, array_of_blocklengths, array_of_displacements)?;
        made::<N>(newtype, Datatype::indexed(&lens, &displs, &old))
    }

    fn MPI_Type_create_hindexed<N>(
        count, array_of_blocklengths, array_of_displacements, oldtype, newtype,
    ) on SelfComm gives newtype {
        let (old, blocks) = (lookup(oldtype)?, self::count(count)? as usize);
        let (lens, displs) = lists(blocks, array_of_blocklengths, array_of_displacements)?;
        made::<N>(newtype, Datatype::hindexed(&lens, &displs, &old))
    }

    fn MPI_Type_create_indexed_block<N>(
        count, blocklength, array_of_displacements, oldtype, newtype,
    ) on SelfComm gives newtype {
        let (old, blocks) = (lookup(oldtype)?, self::count(count)? as usize);
        let displs = displacements(array_of_displacements, blocks)?;
        made::<N>(newtype, Datatype::indexed_block(blocklength.into(), &displs, &old))
    }

    fn MPI_Type_create_hindexed_block<N>(
        count, blocklength, array_of_displacements, oldtype, newtype,
    ) on SelfComm gives newtype {
        let (old, blocks) = (lookup(oldtype)?, self::count(count)? as usize);
        let displs = displacements(array_of_displacements, blocks)?;
        made::<N>(newtype, Datatype::hindexed_block(blocklength.into(), &displs, &old))
    }

    fn MPI_Type_create_struct<N>(
        count, array_of_blocklengths, array_of_displacements, array_of_types, newtype,
    ) on SelfComm gives newtype {
        let blocks = self::count(count)? as usize;
        let (lens, displs) = lists(blocks, array_of_blocklengths, array_of_displacements)?;
        made::<N>(newtype, Datatype::create_struct(&lens, &displs, &types(array_of_types, blocks)?))
    }

    fn MPI_Type_create_subarray<N>(
        ndims, array_of_sizes, array_of_subsizes, array_of_starts, order, oldtype, newtype,
    ) on SelfComm gives newtype {
        let (old, dims) = (lookup(oldtype)?, dimensions(ndims)?);
        let sizes = displacements(array_of_sizes, dims)?;
        let subsizes = displacements(array_of_subsizes, dims)?;
        let starts = displacements(array_of_starts, dims)?;
        made::<N>(newtype, Datatype::subarray(&sizes, &subsizes, &starts, self::order(order)?, &old))
    }

    fn MPI_Type_create_darray<N>(
        size, rank, ndims, array_of_gsizes, array_of_distribs, array_of_dargs, array_of_psizes, order,
        oldtype, newtype,
    ) on SelfComm gives newtype {
        let (old, dims) = (lookup(oldtype)?, dimensions(ndims)?);
        let gsizes = displacements(array_of_gsizes, dims)?;
        let kinds = array_of_distribs.list(dims)?.into_iter().map(Distribution::from_code).collect::<Option<Vec<_>>>();
        let Some(kinds) = kinds else { bail!(ERR_ARG, "a distribution is not one of MPI_DISTRIBUTE_X") };
        let dargs = displacements(array_of_dargs, dims)?;
        let psizes = displacements(array_of_psizes, dims)?;
        let order = self::order(order)?;
        let ty = Datatype::darray(size.into(), rank.into(), &gsizes, &kinds, &dargs, &psizes, order, &old);
        made::<N>(newtype, ty)
    }

    fn MPI_Type_create_resized<N>(oldtype, lb, extent, newtype) on SelfComm gives newtype {
        made::<N>(newtype, Datatype::resized(&*lookup(oldtype)?, lb, extent))
    }

    fn MPI_Type_create_f90_real(p, r, newtype) on SelfComm gives newtype {
        newtype.set(handle(&Datatype::f90_real(p, r)?)?)
    }

    fn MPI_Type_create_f90_complex(p, r, newtype) on SelfComm gives newtype {
        newtype.set(handle(&Datatype::f90_complex(p, r)?)?)
    }

    fn MPI_Type_create_f90_integer(r, newtype) on SelfComm gives newtype {
        newtype.set(handle(&Datatype::f90_integer(r)?)?)
    }

    fn MPI_Type_match_size(typeclass, size, datatype) on SelfComm gives datatype {
        datatype.set(handle(&Datatype::match_size(typeclass, size)?)?)
    }

    fn MPI_Type_get_value_index(value_type, index_type, pair_type) on SelfComm gives pair_type {
        match Datatype::value_index(&*lookup(value_type)?, &*lookup(index_type)?) {
            Some(pair) => pair_type.set(handle(&pair)?),
            None => pair_type.set(MPI_DATATYPE_NULL),
        }
    }

    fn MPI_Type_dup(oldtype, newtype) on SelfComm gives newtype {
        let old = object(oldtype)?;
        let attributes = old.attributes.copies(oldtype.0)?;
        let new = Type { attributes, ..Type::new(old.ty.dup()) };
        newtype.set(MPI_Datatype(INSTANCE.handles.datatypes.insert(Arc::new(new))?))
    }

    fn MPI_Type_commit(datatype) on SelfComm {
        lookup(datatype.get()?)?.commit();
        Ok(())
    }

    fn MPI_Type_free(datatype) on SelfComm {
        let old = datatype.get()?;
        if lookup(old)?.is_predefined() {
            bail!(ERR_TYPE, "a predefined datatype cannot be freed");
        }
        object(old)?.attributes.delete_all(old.0)?;
        INSTANCE.handles.datatypes.remove(old.0)?;
        datatype.set(MPI_DATATYPE_NULL)
    }

    fn MPI_Type_size<N>(datatype, size) on SelfComm {
        size.set(fitted(size_of(datatype)?))
    }

    fn MPI_Type_size_x(datatype, size) on SelfComm {
        size.set(size_of(datatype)?)
    }

    fn MPI_Type_get_extent<N>(datatype, lb, extent) on SelfComm {
        self::extent(datatype, lb, extent)
    }

    fn MPI_Type_get_extent_x(datatype, lb, extent) on SelfComm {
        self::extent(datatype, lb, extent)
    }

    fn MPI_Type_get_true_extent<N>(datatype, true_lb, true_extent) on SelfComm {
        self::true_extent(datatype, true_lb, true_extent)
    }

    fn MPI_Type_get_true_extent_x(datatype, true_lb, true_extent) on SelfComm {
        self::true_extent(datatype, true_lb, true_extent)
    }

    fn MPI_Type_get_envelope(datatype, num_integers, num_addresses, num_datatypes, combiner) on SelfComm {
        let envelope = lookup(datatype)?.envelope();
        num_integers.set(envelope.integers.len() as c_int)?;
        num_addresses.set(envelope.addresses.len() as c_int)?;
        num_datatypes.set(envelope.datatypes.len() as c_int)?;
        combiner.set(envelope.combiner as c_int)
    }

    fn MPI_Type_get_envelope_c(
        datatype, num_integers, num_addresses, num_large_counts, num_datatypes, combiner,
    ) on SelfComm {
        let envelope = lookup(datatype)?.envelope();
        num_integers.set(envelope.integers.len() as MPI_Count)?;
        num_addresses.set(envelope.addresses.len() as MPI_Count)?;
        num_large_counts.set(envelope.counts.len() as MPI_Count)?;
        num_datatypes.set(envelope.datatypes.len() as MPI_Count)?;
        combiner.set(envelope.combiner as c_int)
    }

    fn MPI_Type_get_contents(
        datatype, max_integers, max_addresses, max_datatypes, array_of_integers, array_of_addresses,
        array_of_datatypes,
    ) on SelfComm {
        let max = [max_integers.into(), max_addresses.into(), 0, max_datatypes.into()];
        get_contents(datatype, max, (array_of_integers, array_of_addresses, array_of_datatypes), None)
    }

    fn MPI_Type_get_contents_c(
        datatype, max_integers, max_addresses, max_large_counts, max_datatypes, array_of_integers,
        array_of_addresses, array_of_large_counts, array_of_datatypes,
    ) on SelfComm {
        let max = [max_integers, max_addresses, max_large_counts, max_datatypes];
        let to = (array_of_integers, array_of_addresses, array_of_datatypes);
        get_contents(datatype, max, to, Some(array_of_large_counts))
    }

    fn MPI_Type_set_name(datatype, type_name) on SelfComm {
        let object = object(datatype)?;
        let name = type_name.text()?;
        *object.name.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(name);
        Ok(())
    }

    fn MPI_Type_get_name(datatype, type_name, resultlen) on SelfComm {
        if datatype == MPI_DATATYPE_NULL {
            let len = type_name.write(b"MPI_DATATYPE_NULL", MPI_MAX_OBJECT_NAME as usize)?;
            return resultlen.set(len as c_int);
        }
        let object = object(datatype)?;
        let given = object.name.lock().unwrap_or_else(|poison| poison.into_inner()).clone();
        let name = given.unwrap_or_else(|| object.ty.name().to_string());
        let len = type_name.write(name.as_bytes(), MPI_MAX_OBJECT_NAME as usize)?;
        resultlen.set(len as c_int)
    }
}

fn lists<L: Number, D: Number>(blocks: usize, lens: Ptr<L>, displs: Ptr<D>) -> Result<(Vec<i64>, Vec<i64>)> {
    if lens.is_null() && blocks > 0 {
        bail!(ERR_ARG, "the list of block lengths is NULL");
    }
    // Block lengths are counts, so a negative one is noticed by the constructor.
    Ok((lens.list(blocks)?.into_iter().map(Into::into).collect(), displacements(displs, blocks)?))
}

/// A list of datatypes, one per block or rank.
pub(crate) fn types(list: Ptr<MPI_Datatype>, len: usize) -> Result<Vec<Arc<Datatype>>> {
    if list.is_null() && len > 0 {
        bail!(ERR_TYPE, "the list of datatypes is NULL");
    }
    list.list(len)?.into_iter().map(|datatype| Ok(Arc::clone(&*lookup(datatype)?))).collect()
}
