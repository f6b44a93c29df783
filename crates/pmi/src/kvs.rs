//! [`Kvs`]: what every foreign launcher gives its ranks, a place in the job and a key-value store; and records in such a store.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use crate::chunks;
use crate::client::Error;
use crate::last_word::LastWord;

/// A process's place in a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Which program of the job this rank runs.
    pub(crate) appnum: u32,
    /// How many ranks the launcher has room for.
    pub(crate) universe_size: u32,
}

/// A connection to a foreign launcher.
pub(crate) trait Kvs: Debug + Send {
    /// This process's place.
    fn place(&self) -> Place;

    /// The node of each rank as the launcher says it, in any numbers; `None` if it does not say.
    ///
    /// # Errors
    /// If the launcher is gone.
    fn nodes(&mut self) -> Result<Option<Vec<u32>>, Error>;

    /// The kinds of memory that the user has asked the launcher for, if it tells them here.
    ///
    /// # Errors
    /// If the launcher is gone.
    fn memory_alloc_kinds(&mut self) -> Result<Option<String>, Error>;

    /// The most bytes of a value.
    fn longest_value(&self) -> usize;

    /// Stores a value, which all ranks can get after the next fence. Each key is put once, by one rank.
    ///
    /// # Errors
    /// If the launcher refuses it, or is gone.
    fn put(&mut self, key: &str, value: &str) -> Result<(), Error>;

    /// Waits until all ranks of the job are here.
    ///
    /// # Errors
    /// If the launcher is gone.
    fn fence(&mut self) -> Result<(), Error>;

    /// The value that `rank` put under `key` before a fence that is over; `None`: there is none.
    ///
    /// # Errors
    /// If the launcher is gone.
    fn get(&mut self, rank: u32, key: &str) -> Result<Option<String>, Error>;

    /// Leaves the job in order. All ranks do so.
    ///
    /// # Errors
    /// If the launcher is gone.
    fn leave(&mut self) -> Result<(), Error>;

    /// What ends the job in any state of this connection.
    fn last_word(&self) -> LastWord;
}

fn key(rank: u32, what: &str, chunk: usize) -> String {
    format!("banyan-{rank}-{what}-{chunk}")
}

/// Puts bytes, under this rank's name and `what`.
///
/// # Errors
/// If they are too many, the launcher refuses them, or is gone.
pub(crate) fn put_bytes(kvs: &mut dyn Kvs, what: &str, bytes: &[u8]) -> Result<(), Error> {
    let rank = kvs.place().rank;
    let too_long = Error::RecordTooLong(bytes.len());
    for (number, chunk) in chunks::split(bytes, kvs.longest_value()).ok_or(too_long)?.iter().enumerate() {
        kvs.put(&key(rank, what, number), chunk)?;
    }
    Ok(())
}

/// The bytes that `rank` has put as `what` before a fence that is over.
///
/// # Errors
/// If they are not what a rank puts, or the launcher is gone.
pub(crate) fn get_bytes(kvs: &mut dyn Kvs, rank: u32, what: &'static str) -> Result<Option<Vec<u8>>, Error> {
    let Some(first) = kvs.get(rank, &key(rank, what, 0))? else { return Ok(None) };
    let bytes = chunks::join(&first, |number| kvs.get(rank, &key(rank, what, number)))?;
    bytes.map(Some).ok_or(Error::Record { rank, what })
}

/// [`put_bytes`] of a record.
pub(crate) fn put_record(kvs: &mut dyn Kvs, what: &str, record: &impl Serialize) -> Result<(), Error> {
    let bytes = postcard::to_allocvec(record).map_err(|_| Error::RecordTooLong(0))?;
    put_bytes(kvs, what, &bytes)
}

/// [`get_bytes`] of a record, which must be there.
pub(crate) fn get_record<T: DeserializeOwned>(
    kvs: &mut dyn Kvs,
    rank: u32,
    what: &'static str,
) -> Result<T, Error> {
    let bytes = get_bytes(kvs, rank, what)?;
    bytes.and_then(|bytes| postcard::from_bytes(&bytes).ok()).ok_or(Error::Record { rank, what })
}
