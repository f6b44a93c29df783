//! Cartesian topologies (MPI 5.0, 8.5): the C calls on `runtime::Cart`.

use crate::boundary::{SelfComm, mpi};
use crate::comm::{self, Object, lookup};
use crate::ffi::*;
use crate::pointer::Ptr;
use banyan_runtime::{Cart, Result, bail, dims_create};

fn length(ndims: c_int) -> Result<usize> {
    match usize::try_from(ndims) {
        Ok(ndims) => Ok(ndims),
        Err(_) => bail!(ERR_DIMS, "the number of dimensions is {ndims}"),
    }
}

fn flags(list: Ptr<c_int>, len: usize) -> Result<Vec<bool>> {
    Ok(list.list(len)?.into_iter().map(|flag| flag != 0).collect())
}

fn new_cart(object: &Object, ndims: c_int, dims: Ptr<c_int>, periods: Ptr<c_int>) -> Result<Cart> {
    let ndims = length(ndims)?;
    Cart::new(&dims.list(ndims)?, &flags(periods, ndims)?, object.size())
}

fn cart(object: &Object) -> Result<&Cart> {
    match object.cart() {
        Some(cart) => Ok(cart),
        None => bail!(ERR_TOPOLOGY, "the communicator has no Cartesian topology"),
    }
}

/// Refuses output arrays that are too short.
fn room(max: c_int, need: usize) -> Result<()> {
    match length(max)? < need {
        true => bail!(ERR_ARG, "there is room for {max} dimensions, the topology has {need}"),
        false => Ok(()),
    }
}

mpi! {
    fn MPI_Dims_create(nnodes, ndims, dims) on SelfComm {
        let mut sizes = dims.list(length(ndims)?)?;
        dims_create(nnodes, &mut sizes)?;
        dims.store(&sizes)
    }

    fn MPI_Cart_create(comm_old, ndims, dims, periods, _reorder, comm_cart) on comm_old gives comm_cart {
        comm_cart.set(MPI_COMM_NULL)?;
        let old = lookup(comm_old)?;
        let cart = new_cart(&old, ndims, dims, periods)?;
        comm::give_or_null(comm_cart, old.cart_create(cart)?)
    }

    fn MPI_Cart_sub(comm, remain_dims, newcomm) on comm gives newcomm {
        newcomm.set(MPI_COMM_NULL)?;
        let object = lookup(comm)?;
        let remain = flags(remain_dims, cart(&object)?.ndims())?;
        comm::give_or_null(newcomm, Some(object.cart_sub(&remain)?))
    }

    fn MPI_Cartdim_get(comm, ndims) on comm {
        ndims.set(cart(&*lookup(comm)?)?.ndims() as c_int)
    }

    fn MPI_Cart_get(comm, maxdims, dims, periods, coords) on comm {
        let object = lookup(comm)?;
        let cart = cart(&object)?;
        room(maxdims, cart.ndims())?;
        dims.store(cart.dims())?;
        periods.store(&cart.periods().iter().map(|period| (*period).into()).collect::<Vec<_>>())?;
        coords.store(&cart.coords(object.rank() as i32)?)
    }

    fn MPI_Cart_rank(comm, coords, rank) on comm {
        let object = lookup(comm)?;
        let cart = cart(&object)?;
        rank.set(cart.rank(&coords.list(cart.ndims())?)?)
    }

    fn MPI_Cart_coords(comm, rank, maxdims, coords) on comm {
        let object = lookup(comm)?;
        let cart = cart(&object)?;
        room(maxdims, cart.ndims())?;
        coords.store(&cart.coords(rank)?)
    }

    fn MPI_Cart_shift(comm, direction, disp, rank_source, rank_dest) on comm {
        let object = lookup(comm)?;
        let (source, dest) = cart(&object)?.shift(object.rank() as i32, direction, disp)?;
        rank_source.set(source.unwrap_or(MPI_PROC_NULL))?;
        rank_dest.set(dest.unwrap_or(MPI_PROC_NULL))
    }

    fn MPI_Cart_map(comm, ndims, dims, periods, newrank) on comm {
        let object = lookup(comm)?;
        // A grid without processes leaves every process out, as in MPICH.
        if dims.list(length(ndims)?)?.contains(&0) {
            return newrank.set(MPI_UNDEFINED);
        }
        let rank = new_cart(&object, ndims, dims, periods)?.map(object.rank());
        newrank.set(rank.map_or(MPI_UNDEFINED, |rank| rank as c_int))
    }

    fn MPI_Topo_test(comm, status) on comm {
        let has = lookup(comm)?.cart().is_some();
        status.set(if has { MPI_CART } else { MPI_UNDEFINED })
    }
}
