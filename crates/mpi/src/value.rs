//! Values that `serde` knows, sent whole: strings, maps, enums, whatever has no datatype. They travel in the format `postcard`.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use mpi::traits::*;
//!
//! let universe = mpi::initialize().unwrap();
//! let world = universe.world();
//! let ages = BTreeMap::from([("Ada".to_owned(), 36), ("Kurt".to_owned(), 71)]);
//! let told = world.process_at_rank(0).broadcast_value((world.rank() == 0).then_some(&ages));
//! assert_eq!(told, ages);
//! let all = world.all_gather_values(&format!("rank {}", world.rank()));
//! assert_eq!(all[0], "rank 0");
//! ```

use banyan_runtime::bail;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collective::{CommunicatorCollectives, Root};
use crate::datatype::PartitionMut;
use crate::error::{Error, ErrorClass, Result, expect};
use crate::point_to_point::{Destination, Source, Status};
use crate::topology::Communicator;
use crate::{Count, Tag};

/// The traits of values.
pub mod traits {
    pub use super::{CommunicatorValues, DestinationValues, RootValues, SourceValues};
}

fn written<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(value)
        .map_err(|error| Error::new(ErrorClass::ERR_CONVERSION, format!("the value cannot be sent: {error}")))
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => bail!(
            ERR_CONVERSION,
            "what was received is no {}: {} of {} bytes are left over",
            std::any::type_name::<T>(),
            rest.len(),
            bytes.len()
        ),
        Err(error) => {
            bail!(ERR_CONVERSION, "what was received is no {}: {error}", std::any::type_name::<T>())
        }
    }
}

/// Sends of values.
///
/// ```
/// # use mpi::traits::*;
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     if world.rank() == 0 {
///         world.process_at_rank(1).send_value("text");
///         world.process_at_rank(1).try_send_value_with_tag(&Some(1.5), 4).unwrap();
///     } else {
///         assert_eq!(world.process_at_rank(0).receive_value::<String>().0, "text");
///         assert_eq!(world.process_at_rank(0).receive_value::<Option<f64>>().0, Some(1.5));
///     }
/// });
/// ```
pub trait DestinationValues: Destination {
    /// Sends a value with a tag.
    ///
    /// # Errors
    /// The value cannot be written, there is no such tag, or the receiver is gone.
    fn try_send_value_with_tag<T: Serialize + ?Sized>(&self, value: &T, tag: Tag) -> Result<()> {
        self.try_send_with_tag(&written(value)?, tag)
    }

    /// Sends a value.
    #[track_caller]
    fn send_value<T: Serialize + ?Sized>(&self, value: &T) {
        expect(self.try_send_value_with_tag(value, Tag::default()));
    }
}

impl<D: Destination + ?Sized> DestinationValues for D {}

/// Receives of values. A value of another type is an error.
///
/// ```
/// # use mpi::traits::*;
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     if world.rank() == 0 {
///         world.process_at_rank(1).send_value(&["some", "words"]);
///         world.process_at_rank(1).send_value(&300u16);
///     } else {
///         let (words, _) = world.any_process().receive_value::<[String; 2]>();
///         assert_eq!(words, ["some", "words"]);
///         let no_text = world.any_process().try_receive_value_with_tag::<String>(0);
///         assert!(no_text.is_err());
///     }
/// });
/// ```
pub trait SourceValues: Source {
    /// Receives a value with this tag.
    ///
    /// # Errors
    /// What comes is no such value, there is no such tag, or the sender is gone.
    fn try_receive_value_with_tag<T: DeserializeOwned>(&self, tag: Tag) -> Result<(T, Status)> {
        let (bytes, status) = self.try_receive_vec_with_tag::<u8>(tag)?;
        Ok((read(&bytes)?, status))
    }

    /// Receives a value with any tag.
    #[track_caller]
    fn receive_value<T: DeserializeOwned>(&self) -> (T, Status) {
        expect(self.try_receive_value_with_tag(crate::point_to_point::ANY_TAG))
    }
}

impl<S: Source + ?Sized> SourceValues for S {}

/// Blocks of so many bytes, one behind the other: their counts, displacements and memory.
fn room(lengths: &[u64]) -> Result<(Vec<Count>, Vec<Count>, Vec<u8>)> {
    let mut displs = Vec::with_capacity(lengths.len());
    let mut end: Count = 0;
    for &length in lengths {
        displs.push(end);
        match Count::try_from(length).ok().and_then(|length| end.checked_add(length)) {
            Some(sum) => end = sum,
            None => bail!(ERR_COUNT, "the values of all ranks have more than {} bytes together", Count::MAX),
        }
    }
    let counts = lengths.iter().map(|&length| length as Count).collect();
    Ok((counts, displs, vec![0; end as usize]))
}

/// The values in such blocks.
fn values<T: DeserializeOwned>(counts: &[Count], displs: &[Count], bytes: &[u8]) -> Result<Vec<T>> {
    let blocks = counts.iter().zip(displs);
    blocks.map(|(&count, &displ)| read(&bytes[displ as usize..][..count as usize])).collect()
}

/// Collectives of values without a root.
///
/// ```
/// # use mpi::traits::*;
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     let words = world.all_gather_values(&format!("rank {}", world.rank()));
///     assert_eq!(words, ["rank 0", "rank 1"]);
///     let flags = world.try_all_gather_values(&(world.rank() == 0)).unwrap();
///     assert_eq!(flags, [true, false]);
/// });
/// ```
pub trait CommunicatorValues: Communicator {
    /// Gathers a value of each process at all of them, in the order of their ranks.
    ///
    /// # Errors
    /// A value cannot be written or read, or a process is gone.
    fn try_all_gather_values<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let (mine, mut lengths) = (written(value)?, vec![0u64; self.size() as usize]);
        self.try_all_gather_into(&(mine.len() as u64), &mut lengths[..])?;
        let (counts, displs, mut bytes) = room(&lengths)?;
        self.try_all_gather_varcount_into(
            &mine,
            &mut PartitionMut::new(&mut bytes, &counts[..], &displs[..]),
        )?;
        values(&counts, &displs, &bytes)
    }

    /// Gathers a value of each process at all of them, in the order of their ranks.
    #[track_caller]
    fn all_gather_values<T: Serialize + DeserializeOwned>(&self, value: &T) -> Vec<T> {
        expect(self.try_all_gather_values(value))
    }
}

impl<C: Communicator + ?Sized> CommunicatorValues for C {}

/// Collectives of values with a root.
///
/// ```
/// # use mpi::traits::*;
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     let root = world.process_at_rank(0);
///     let settings = root.is_self().then(|| vec!["fast".to_owned()]);
///     assert_eq!(root.broadcast_value(settings.as_ref()), ["fast"]);
///     assert_eq!(root.try_broadcast_value(settings.as_ref()).unwrap().len(), 1);
///     let reports = root.gather_values(&format!("rank {} is done", world.rank()));
///     assert_eq!(reports.is_some(), root.is_self());
///     let results = root.try_gather_values(&Some(world.rank())).unwrap();
///     assert_eq!(results, root.is_self().then(|| vec![Some(0), Some(1)]));
/// });
/// ```
pub trait RootValues: Root {
    /// Gives all processes the root's value; the others give `None`.
    ///
    /// # Errors
    /// The root has given no value, it cannot be written or read, or a process is gone.
    fn try_broadcast_value<T: Serialize + DeserializeOwned>(&self, value: Option<&T>) -> Result<T> {
        let here = self.as_communicator().rank() == self.root_rank();
        let mut bytes = match value {
            Some(value) if here => written(value)?,
            None if here => bail!(ERR_ARG, "the root of a broadcast gives a value, and not None"),
            _ => vec![],
        };
        let mut length = bytes.len() as u64;
        self.try_broadcast_into(&mut length)?;
        bytes.resize(length as usize, 0);
        self.try_broadcast_into(&mut bytes)?;
        read(&bytes)
    }

    /// Gives all processes the root's value; the others give `None`.
    #[track_caller]
    fn broadcast_value<T: Serialize + DeserializeOwned>(&self, value: Option<&T>) -> T {
        expect(self.try_broadcast_value(value))
    }

    /// Gathers a value of each process at the root, in the order of their ranks; `None` elsewhere.
    ///
    /// # Errors
    /// A value cannot be written or read, or a process is gone.
    fn try_gather_values<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Option<Vec<T>>> {
        let (mine, comm) = (written(value)?, self.as_communicator());
        let length = mine.len() as u64;
        if comm.rank() != self.root_rank() {
            self.try_gather_into(&length)?;
            return self.try_gather_varcount_into(&mine).map(|()| None);
        }
        let mut lengths = vec![0u64; comm.size() as usize];
        self.try_gather_into_root(&length, &mut lengths[..])?;
        let (counts, displs, mut bytes) = room(&lengths)?;
        self.try_gather_varcount_into_root(
            &mine,
            &mut PartitionMut::new(&mut bytes, &counts[..], &displs[..]),
        )?;
        values(&counts, &displs, &bytes).map(Some)
    }

    /// Gathers a value of each process at the root, in the order of their ranks; `None` elsewhere.
    #[track_caller]
    fn gather_values<T: Serialize + DeserializeOwned>(&self, value: &T) -> Option<Vec<T>> {
        expect(self.try_gather_values(value))
    }
}

impl<R: Root + ?Sized> RootValues for R {}
