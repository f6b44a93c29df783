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

mpi! {
    fn MPI_Group_size(group: MPI_Group, size: Ptr<c_int>) on SelfComm {
        size.set(lookup(group)?.size() as c_int)
    }

    fn MPI_Group_rank(group: MPI_Group, rank: Ptr<c_int>) on SelfComm {
        rank.set(lookup(group)?.rank().map_or(MPI_UNDEFINED, |rank| rank as c_int))
    }

    fn MPI_Group_translate_ranks(
        group1: MPI_Group,
        n: c_int,
        ranks1: Ptr<c_int>,
        group2: MPI_Group,
        ranks2: Ptr<c_int>,
    ) on SelfComm {
        let (from, to) = (lookup(group1)?, lookup(group2)?);
        let ranks = ranks1.list(length(n)?)?;
        let mut out = vec![0; ranks.len()];
        from.translate_ranks(&ranks, &to, &mut out)?;
        ranks2.store(&out)
    }

    fn MPI_Group_compare(group1: MPI_Group, group2: MPI_Group, result: Ptr<c_int>) on SelfComm {
        result.set(lookup(group1)?.compare(&lookup(group2)?) as c_int)
    }

    fn MPI_Group_union(
        group1: MPI_Group,
        group2: MPI_Group,
        newgroup: Ptr<MPI_Group>,
    ) on SelfComm gives newgroup {
        give(newgroup, lookup(group1)?.union(&lookup(group2)?))
    }

    fn MPI_Group_intersection(
        group1: MPI_Group,
        group2: MPI_Group,
        newgroup: Ptr<MPI_Group>,
    ) on SelfComm gives newgroup {
        give(newgroup, lookup(group1)?.intersection(&lookup(group2)?))
    }

    fn MPI_Group_difference(
        group1: MPI_Group,
        group2: MPI_Group,
        newgroup: Ptr<MPI_Group>,
    ) on SelfComm gives newgroup {
        give(newgroup, lookup(group1)?.difference(&lookup(group2)?))
    }

    fn MPI_Group_incl(
        group: MPI_Group,
        n: c_int,
        ranks: Ptr<c_int>,
        newgroup: Ptr<MPI_Group>,
    ) on SelfComm gives newgroup {
        give(newgroup, lookup(group)?.incl(&ranks.list(length(n)?)?)?)
    }

    fn MPI_Group_excl(
        group: MPI_Group,
        n: c_int,
        ranks: Ptr<c_int>,
        newgroup: Ptr<MPI_Group>,
    ) on SelfComm gives newgroup {
        give(newgroup, lookup(group)?.excl(&ranks.list(length(n)?)?)?)
    }

    fn MPI_Group_range_incl(
        group: MPI_Group,
        n: c_int,
        ranges: Ptr<[c_int; 3]>,
        newgroup: Ptr<MPI_Group>,
    ) on SelfComm gives newgroup {
        give(newgroup, lookup(group)?.range_incl(&ranges.list(length(n)?)?)?)
    }

    fn MPI_Group_range_excl(
        group: MPI_Group,
        n: c_int,
        ranges: Ptr<[c_int; 3]>,
        newgroup: Ptr<MPI_Group>,
    ) on SelfComm gives newgroup {
        give(newgroup, lookup(group)?.range_excl(&ranges.list(length(n)?)?)?)
    }

    fn MPI_Group_free(group: Ptr<MPI_Group>) on SelfComm {
        match group.get()? {
            MPI_GROUP_NULL => bail!(ERR_GROUP, "the group is MPI_GROUP_NULL already"),
            // Operations whose result has no members give it, so it is freed like any other.
            MPI_GROUP_EMPTY => {}
            MPI_Group(number) => drop(INSTANCE.handles.groups.remove(number)?),
        }
        group.set(MPI_GROUP_NULL)
    }
}
