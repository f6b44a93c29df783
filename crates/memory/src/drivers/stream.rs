//! A stream of the program's, in whose order something is done by the processor: it begins when what the stream held before is over, and what
//! the stream gets later waits until it has ended. An event says the one; for the other the stream waits for a number in memory of the
//! host, which the processor writes. Neither keeps any thread of the driver's busy.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Platform;
use super::api::{self, Api, Handle};
use super::library::Failed;
use crate::device::DeviceFailure;

/// A stream of the program's, and how often it was told to wait.
#[derive(Debug)]
pub struct ProgramStream {
    platform: Platform,
    stream: Handle,
    context: Handle,
    /// A number that the stream can wait for: that of the last [`Turn`] which has ended.
    ended: *mut u64,
    told: AtomicU64,
}

// SAFETY: the memory behind `ended` is reached as an atomic number only.
unsafe impl Send for ProgramStream {}
// SAFETY: as above.
unsafe impl Sync for ProgramStream {}

/// A place in a stream.
#[derive(Debug)]
pub struct Place {
    platform: Platform,
    event: Handle,
    context: Handle,
}

/// For this the stream waits; turns end in the order in which they were taken.
#[must_use = "the stream waits until it has ended"]
#[derive(Debug)]
pub struct Turn(u64);

/// Streams that wait for a turn. Until there are none, nothing may be asked of a driver that waits for all of a device's work.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// True if a stream waits for the processor: the driver must not be asked to wait for the streams of a device.
pub(super) fn is_waiting() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

fn api(platform: Platform) -> Result<&'static Api, DeviceFailure> {
    super::api(platform).ok_or_else(|| DeviceFailure {
        what: format!("no {} driver is in use, so there are no streams of it", platform.name()),
    })
}

/// Calls the driver in a context; the program's own is current again afterwards.
fn within<T>(
    platform: Platform,
    context: Handle,
    what: &str,
    work: impl FnOnce(&Api) -> Result<T, Failed>,
) -> Result<T, DeviceFailure> {
    let api = api(platform)?;
    let failure = |Failed { error, .. }| DeviceFailure {
        what: format!(
            "{what} fails: {} says {}; a stream must be there until all that was enqueued on it is over",
            platform.name(),
            api.describe(error)
        ),
    };
    api.within(context, || work(api)).map_err(failure)
}

impl ProgramStream {
    /// The stream behind a `CUstream`, `cudaStream_t` or `hipStream_t`.
    ///
    /// # Errors
    /// Why that cannot be: no driver is in use, it knows no such stream, or the stream cannot wait.
    pub fn new(platform: Platform, stream: usize) -> Result<ProgramStream, DeviceFailure> {
        let (api, name) = (api(platform)?, platform.name());
        let context = api.of_stream(stream).map_err(|Failed { error, .. }| DeviceFailure {
            what: format!(
                "the stream {stream:#x} is none of this process: {name} says {}",
                api.describe(error)
            ),
        })?;
        if !api.waits_for_numbers(context) {
            let what = format!(
                "the device of the stream {stream:#x} does not wait for numbers in memory, says {name}"
            );
            return Err(DeviceFailure { what });
        }
        let ended = within(platform, context, "taking memory for a stream", Api::number_for_streams)?;
        Ok(ProgramStream { platform, stream, context, ended, told: AtomicU64::new(0) })
    }

    /// Where the stream is now: what it gets later comes behind.
    ///
    /// # Errors
    /// What the driver says.
    pub fn place(&self) -> Result<Place, DeviceFailure> {
        let mut place = Place { platform: self.platform, event: 0, context: self.context };
        within(self.platform, self.context, "marking a place in a stream", |api| {
            // SAFETY: room for an event.
            unsafe { api.event_create(&raw mut place.event, api::NO_TIMING | api::SLEEPS) }?;
            // SAFETY: an event of the stream's context; the driver checks the stream.
            unsafe { api.event_record(place.event, self.stream) }
        })?;
        Ok(place)
    }

    /// From here on the stream waits until the turn has ended. Turns are taken one after the other.
    ///
    /// # Errors
    /// What the driver says; the stream does not wait then.
    pub fn take_turn(&self) -> Result<Turn, DeviceFailure> {
        let number = self.told.load(Ordering::Relaxed).wrapping_add(1);
        within(self.platform, self.context, "making a stream wait", |api| {
            // SAFETY: memory of `new`, which stays as long as this.
            unsafe { api.wait_for(self.stream, self.ended, number) }
        })?;
        WAITING.fetch_add(1, Ordering::Relaxed);
        self.told.store(number, Ordering::Relaxed);
        Ok(Turn(number))
    }

    /// The stream goes on behind this turn, and behind all that were taken before.
    pub fn end_turn(&self, turn: Turn) {
        // SAFETY: memory of ours, aligned, and reached as an atomic number only.
        unsafe { AtomicU64::from_ptr(self.ended) }.store(turn.0, Ordering::Release);
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for ProgramStream {
    fn drop(&mut self) {
        if is_waiting() {
            // That would wait, too: the number is left to the driver.
            return;
        }
        let _ = within(self.platform, self.context, "freeing memory of a stream", |api| {
            // SAFETY: memory of `new`; the stream waits for no turn any more.
            unsafe { api.free_number(self.ended) }
        });
    }
}

impl Place {
    /// Waits until all that the stream held before is over.
    ///
    /// # Errors
    /// What became of it.
    pub fn wait(&self) -> Result<(), DeviceFailure> {
        within(self.platform, self.context, "waiting for a stream", |api| {
            // SAFETY: an event that was recorded.
            unsafe { api.event_synchronize(self.event) }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.event != 0 {
            let _ = within(self.platform, self.context, "ending an event", |api| {
                // SAFETY: nobody uses the event any more.
                unsafe { api.event_destroy(self.event) }
            });
        }
    }
}
