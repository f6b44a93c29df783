//! What tools can ask of by MPI_T: control variables, which are the settings of the job, and performance variables, which count what devices
//! do; and the handles and sessions of tools (MPI 5.0, 15.3.6 and 15.3.7).
//!
//! A performance variable is counted for each of its handles by itself, while the handle is started.

use crate::ffi::MPI_T_PVAR_ALL_HANDLES;
use crate::instance::INSTANCE;
use banyan_memory::{DeviceCounter, device_counters};
use banyan_runtime::settings::{self, Setting};
use banyan_runtime::{Result, bail};
use std::collections::BTreeMap;

/// The room that a control variable's text takes, with its NUL. Longer ones are cut.
pub(crate) const TEXT: usize = 4096;

/// The control variable of this index.
pub(crate) fn setting(index: i32) -> Result<&'static Setting> {
    match usize::try_from(index).ok().and_then(|index| settings::ALL.get(index)) {
        Some(setting) => Ok(setting),
        None => bail!(
            T_ERR_INVALID_INDEX,
            "there is no control variable {index}: there are {}",
            settings::ALL.len()
        ),
    }
}

/// The index of the control variable of this name.
pub(crate) fn setting_named(name: &str) -> Result<usize> {
    match settings::ALL.iter().position(|setting| setting.name == name) {
        Some(index) => Ok(index),
        None => bail!(T_ERR_INVALID_NAME, "there is no control variable \"{name}\""),
    }
}

/// What a setting is: the job's, while this process is part of one, and before that what its environment says.
fn value_of(setting: &Setting) -> String {
    let runtime = INSTANCE.runtime().ok();
    if let Some(value) = runtime.as_ref().and_then(|runtime| runtime.job().setting(setting.name)) {
        return value.to_owned();
    }
    if runtime.is_some() && settings::COMMON.contains(&setting.name) {
        return setting.default.to_owned();
    }
    let text = std::env::var_os(setting.name).filter(|text| !text.is_empty());
    text.map_or(setting.default.to_owned(), |text| text.to_string_lossy().into_owned())
}

/// The prefix of the names of counters.
const GPU: &str = "gpu_";

/// The performance variable of this index.
pub(crate) fn counter(index: i32) -> Result<DeviceCounter> {
    let counters = device_counters();
    match usize::try_from(index).ok().and_then(|index| counters.get(index)) {
        Some(counter) => Ok(*counter),
        None => bail!(
            T_ERR_INVALID_INDEX,
            "there is no performance variable {index}: there are {}",
            counters.len()
        ),
    }
}

/// The name of a performance variable.
pub(crate) fn name_of(counter: &DeviceCounter) -> String {
    format!("{GPU}{}", counter.name)
}

/// The index of the performance variable of this name.
pub(crate) fn counter_named(name: &str) -> Result<usize> {
    let known = |of: &str| device_counters().iter().position(|counter| counter.name == of);
    match name.strip_prefix(GPU).and_then(known) {
        Some(index) => Ok(index),
        None => bail!(T_ERR_INVALID_NAME, "there is no counter \"{name}\""),
    }
}

/// How often the interface was initialized, and what tools hold.
pub(crate) struct Tool {
    pub(crate) users: usize,
    last_handle: usize,
    /// Handles of control variables.
    settings: BTreeMap<usize, &'static Setting>,
    /// Sessions, each with its handles of performance variables.
    sessions: BTreeMap<usize, BTreeMap<usize, Counted>>,
}

impl Tool {
    pub(crate) const fn new() -> Tool {
        // No handle is one of MPI's constants.
        Tool { users: 0, last_handle: 0x1000, settings: BTreeMap::new(), sessions: BTreeMap::new() }
    }

    /// Nothing is held any more.
    pub(crate) fn clear(&mut self) {
        self.settings.clear();
        self.sessions.clear();
    }

    fn new_handle(&mut self) -> usize {
        self.last_handle += 1;
        self.last_handle
    }

    pub(crate) fn hold_setting(&mut self, index: i32) -> Result<usize> {
        let (setting, handle) = (setting(index)?, self.new_handle());
        self.settings.insert(handle, setting);
        Ok(handle)
    }

    /// The setting behind a handle.
    pub(crate) fn held_setting(&self, handle: usize) -> Result<&'static Setting> {
        match self.settings.get(&handle) {
            Some(setting) => Ok(setting),
            None => bail!(T_ERR_INVALID_HANDLE, "{handle:#x} is not a handle of a control variable"),
        }
    }

    pub(crate) fn read_setting(&self, handle: usize) -> Result<String> {
        self.held_setting(handle).map(value_of)
    }

    pub(crate) fn release_setting(&mut self, handle: usize) -> Result<()> {
        self.held_setting(handle)?;
        self.settings.remove(&handle);
        Ok(())
    }

    pub(crate) fn begin_session(&mut self) -> usize {
        let session = self.new_handle();
        self.sessions.insert(session, BTreeMap::new());
        session
    }

    /// Ends a session, with its handles.
    pub(crate) fn end_session(&mut self, session: usize) -> Result<()> {
        self.session(session)?;
        self.sessions.remove(&session);
        Ok(())
    }

    fn session(&mut self, session: usize) -> Result<&mut BTreeMap<usize, Counted>> {
        match self.sessions.get_mut(&session) {
            Some(handles) => Ok(handles),
            None => bail!(T_ERR_INVALID_SESSION, "{session:#x} is not a performance session"),
        }
    }

    /// A new handle in a session: stopped, at 0.
    pub(crate) fn hold_counter(&mut self, session: usize, index: i32) -> Result<usize> {
        let handle = self.new_handle();
        let handles = self.session(session)?;
        counter(index)?;
        handles.insert(handle, Counted { index: index as usize, before: 0, since: None });
        Ok(handle)
    }

    pub(crate) fn release_counter(&mut self, session: usize, handle: usize) -> Result<()> {
        self.counted(session, handle)?;
        self.session(session)?.remove(&handle);
        Ok(())
    }

    /// What a handle of this session has counted.
    pub(crate) fn counted(&mut self, session: usize, handle: usize) -> Result<&mut Counted> {
        match self.session(session)?.get_mut(&handle) {
            Some(counted) => Ok(counted),
            None => bail!(
                T_ERR_INVALID_HANDLE,
                "{handle:#x} is not a handle of a performance variable in session {session:#x}"
            ),
        }
    }

    /// Does something to one handle of a session, or to all.
    pub(crate) fn each(
        &mut self,
        session: usize,
        handle: usize,
        change: impl Fn(&mut Counted),
    ) -> Result<()> {
        match handle {
            MPI_T_PVAR_ALL_HANDLES => self.session(session)?.values_mut().for_each(change),
            _ => change(self.counted(session, handle)?),
        }
        Ok(())
    }
}

/// What a counter has counted while its handle was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// Of the counter.
    index: usize,
    before: u64,
    /// Where the counter was when the handle was started; `None`: it is stopped.
    since: Option<u64>,
}

impl Counted {
    pub(crate) fn start(&mut self) {
        self.since = self.since.or(Some(self.now()));
    }

    pub(crate) fn stop(&mut self) {
        self.before = self.value();
        self.since = None;
    }

    pub(crate) fn value(&self) -> u64 {
        self.at(self.now())
    }

    /// Goes on from another value, and gives the one that it had.
    pub(crate) fn replace(&mut self, value: u64) -> u64 {
        let now = self.now();
        let old = self.at(now);
        self.before = value;
        self.since = self.since.map(|_| now);
        old
    }

    /// The value when the counter is at `now`.
    fn at(&self, now: u64) -> u64 {
        self.before.wrapping_add(self.since.map_or(0, |since| now.wrapping_sub(since)))
    }

    fn now(&self) -> u64 {
        device_counters().get(self.index).map_or(0, |counter| counter.value)
    }
}
