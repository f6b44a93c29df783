//! Groups of processes (MPI 5.0, 7.3): the C calls on `runtime::Group`.

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::pointer::Ptr;
use banyan_runtime::{Group, Result, bail};

/// The group of a handle; not of MPI_GROUP_NULL.
pub(crate) fn lookup(group: MPI_Group) -> Result<Group> {
    match group {
        MPI_GROUP_EMPTY => Ok(Group::empty()),
        MPI_GROUP_NULL => bail!(ERR_GROUP, "the group is MPI_GROUP_NULL"),
        MPI_Group(number) => INSTANCE.handles.groups.lookup(number),
    }
}

/// Gives the user a new group; one without members is MPI_GROUP_EMPTY.
pub(crate) fn give(to: Ptr<MPI_Group>, group: Group) -> Result<()> {
    match group.size() {
        0 => to.set(MPI_GROUP_EMPTY),
        _ => to.set(MPI_Group(INSTANCE.handles.groups.insert(group)?)),
    }
}

fn length(n: c_int) -> Result<usize> {
    match usize::try_from(n) {
        Ok(n) => Ok(n),
        Err(_) => bail!(ERR_ARG, "the number of ranks is {n}"),
    }
}

/// Declares what makes a group of two groups, or of a group and a list of ranks or of ranges of ranks.
macro_rules! made {
    ($(fn $name:ident as $make:ident of $of:ident;)*) => {$( made! { @$of $name $make } )*};
    (@groups $name:ident $make:ident) => { mpi! {
        fn $name(group1, group2, newgroup) on SelfComm gives newgroup {
            give(newgroup, lookup(group1)?.$make(&lookup(group2)?))
        }
    }};
    (@list $name:ident $make:ident) => { mpi! {
        fn $name(group, n, list, newgroup) on SelfComm gives newgroup {
            give(newgroup, lookup(group)?.$make(&list.list(length(n)?)?)?)
        }
    }};
}

made! {
    fn MPI_Group_union as union of groups;
    fn MPI_Group_intersection as intersection of groups;
    fn MPI_Group_difference as difference of groups;
    fn MPI_Group_incl as incl of list;
    fn MPI_Group_excl as excl of list;
    fn MPI_Group_range_incl as range_incl of list;
    fn MPI_Group_range_excl as range_excl of list;
}

mpi! {
    fn MPI_Group_size(group, size) on SelfComm {
        size.set(lookup(group)?.size() as c_int)
    }

    fn MPI_Group_rank(group, rank) on SelfComm {
        rank.set(lookup(group)?.rank().map_or(MPI_UNDEFINED, |rank| rank as c_int))
    }

    fn MPI_Group_translate_ranks(group1, n, ranks1, group2, ranks2) on SelfComm {
        let (from, to) = (lookup(group1)?, lookup(group2)?);
        let translated = |rank| match rank {
            MPI_PROC_NULL => Ok(MPI_PROC_NULL),
            rank => Ok(from.translate_rank(rank, &to)?.map_or(MPI_UNDEFINED, |rank| rank as c_int)),
        };
        ranks2.store(&ranks1.list(length(n)?)?.into_iter().map(translated).collect::<Result<Vec<_>>>()?)
    }

    fn MPI_Group_compare(group1, group2, result) on SelfComm {
        result.set(lookup(group1)?.compare(&lookup(group2)?) as c_int)
    }

    fn MPI_Group_free(group) on SelfComm {
        match group.get()? {
            MPI_GROUP_NULL => bail!(ERR_GROUP, "the group is MPI_GROUP_NULL already"),
            // Operations whose result has no members give it, so it is freed like any other.
            MPI_GROUP_EMPTY => {}
            MPI_Group(number) => drop(INSTANCE.handles.groups.remove(number)?),
        }
        group.set(MPI_GROUP_NULL)
    }
}
