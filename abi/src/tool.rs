//! The tool information interface MPI_T with no variables, categories, events or sources yet (MPI 5.0, 15.3).
//!
//! Errors of this interface are only returned: they call no error handler.

use crate::boundary::{Code, mpi};
use crate::ffi::*;
use crate::pointer::Ptr;
use banyan_runtime::{Result, bail};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

/// How often the interface was initialized, and its performance sessions.
struct Tool {
    users: usize,
    sessions: BTreeSet<usize>,
    last_session: usize,
}

static TOOL: Mutex<Tool> = Mutex::new(Tool { users: 0, sessions: BTreeSet::new(), last_session: 0x1000 });

/// True between MPI_T_init_thread and the MPI_T_finalize that matches it.
pub(crate) fn running() -> bool {
    tool().users > 0
}

fn tool() -> MutexGuard<'static, Tool> {
    TOOL.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn no_index(kind: &str, index: c_int) -> Result<()> {
    bail!(T_ERR_INVALID_INDEX, "there is no {kind} {index}: the library has none")
}

fn no_name(kind: &str, name: Ptr<c_char>) -> Result<()> {
    bail!(T_ERR_INVALID_NAME, "there is no {kind} \"{}\": the library has none", name.text()?)
}

fn no_handle(kind: &str) -> Result<()> {
    bail!(T_ERR_INVALID_HANDLE, "not a handle of a {kind}: the library has none")
}

/// Checks the session of a call on a performance variable handle.
fn session_known(session: usize) -> Result<()> {
    match tool().sessions.contains(&session) {
        true => Ok(()),
        false => bail!(T_ERR_INVALID_SESSION, "{session:#x} is not a performance session"),
    }
}

/// The error of a call on a performance variable handle, of which there are none.
fn no_variable(session: usize) -> Result<()> {
    session_known(session)?;
    no_handle("performance variable")
}

/// Checks the arguments of a call that allows MPI_T_PVAR_ALL_HANDLES, of which there are none here.
fn all_or_none(session: usize, handle: usize) -> Result<()> {
    if handle == MPI_T_PVAR_ALL_HANDLES { session_known(session) } else { no_variable(session) }
}

mpi! {
    fn MPI_T_init_thread(required, provided) on Code {
        provided.set(crate::env::thread_level(required))?;
        tool().users += 1;
        Ok(())
    }

    fn MPI_T_finalize() on Code {
        let mut tool = tool();
        tool.users -= 1;
        if tool.users == 0 {
            tool.sessions.clear();
        }
        Ok(())
    }

    fn MPI_T_cvar_get_num(num_cvar) on Code { num_cvar.set(0) }
    fn MPI_T_cvar_get_info(cvar_index, ..) on Code { no_index("control variable", cvar_index) }
    fn MPI_T_cvar_get_index(name, ..) on Code { no_name("control variable", name) }
    fn MPI_T_cvar_handle_alloc(cvar_index, ..) on Code { no_index("control variable", cvar_index) }
    fn MPI_T_cvar_handle_free(..) on Code { no_handle("control variable") }
    fn MPI_T_cvar_read(..) on Code { no_handle("control variable") }
    fn MPI_T_cvar_write(..) on Code { no_handle("control variable") }

    fn MPI_T_enum_get_info(..) on Code { no_handle("enumeration") }
    fn MPI_T_enum_get_item(..) on Code { no_handle("enumeration") }

    fn MPI_T_pvar_get_num(num_pvar) on Code { num_pvar.set(0) }
    fn MPI_T_pvar_get_info(pvar_index, ..) on Code { no_index("performance variable", pvar_index) }
    fn MPI_T_pvar_get_index(name, ..) on Code { no_name("performance variable", name) }
    fn MPI_T_pvar_session_create(session) on Code {
        let mut tool = tool();
        tool.last_session += 1;
        let new = tool.last_session;
        session.set(new)?;
        tool.sessions.insert(new);
        Ok(())
    }
    fn MPI_T_pvar_session_free(session) on Code {
        let old = session.get()?;
        if !tool().sessions.remove(&old) {
            bail!(T_ERR_INVALID_SESSION, "{old:#x} is not a performance session");
        }
        session.set(MPI_T_PVAR_SESSION_NULL)
    }
    fn MPI_T_pvar_handle_alloc(session, pvar_index, ..) on Code {
        session_known(session)?;
        no_index("performance variable", pvar_index)
    }
    fn MPI_T_pvar_handle_free(session, ..) on Code { no_variable(session) }
    fn MPI_T_pvar_start(session, handle) on Code { all_or_none(session, handle) }
    fn MPI_T_pvar_stop(session, handle) on Code { all_or_none(session, handle) }
    fn MPI_T_pvar_reset(session, handle) on Code { all_or_none(session, handle) }
    fn MPI_T_pvar_read(session, ..) on Code { no_variable(session) }
    fn MPI_T_pvar_readreset(session, ..) on Code { no_variable(session) }
    fn MPI_T_pvar_write(session, ..) on Code { no_variable(session) }

    fn MPI_T_category_get_num(num_cat) on Code { num_cat.set(0) }
    fn MPI_T_category_changed(update_number) on Code { update_number.set(0) }
    fn MPI_T_category_get_index(name, ..) on Code { no_name("category", name) }
    fn MPI_T_category_get_info(cat_index, ..) on Code { no_index("category", cat_index) }
    fn MPI_T_category_get_num_events(cat_index, ..) on Code { no_index("category", cat_index) }
    fn MPI_T_category_get_categories(cat_index, ..) on Code { no_index("category", cat_index) }
    fn MPI_T_category_get_cvars(cat_index, ..) on Code { no_index("category", cat_index) }
    fn MPI_T_category_get_pvars(cat_index, ..) on Code { no_index("category", cat_index) }
    fn MPI_T_category_get_events(cat_index, ..) on Code { no_index("category", cat_index) }

    fn MPI_T_event_get_num(num_events) on Code { num_events.set(0) }
    fn MPI_T_event_get_index(name, ..) on Code { no_name("event type", name) }
    fn MPI_T_event_get_info(event_index, ..) on Code { no_index("event type", event_index) }
    fn MPI_T_event_handle_alloc(event_index, ..) on Code { no_index("event type", event_index) }
    fn MPI_T_event_handle_free(..) on Code { no_handle("event registration") }
    fn MPI_T_event_handle_get_info(..) on Code { no_handle("event registration") }
    fn MPI_T_event_handle_set_info(..) on Code { no_handle("event registration") }
    fn MPI_T_event_register_callback(..) on Code { no_handle("event registration") }
    fn MPI_T_event_callback_get_info(..) on Code { no_handle("event registration") }
    fn MPI_T_event_callback_set_info(..) on Code { no_handle("event registration") }
    fn MPI_T_event_set_dropped_handler(..) on Code { no_handle("event registration") }
    fn MPI_T_event_read(..) on Code { no_handle("event instance") }
    fn MPI_T_event_copy(..) on Code { no_handle("event instance") }
    fn MPI_T_event_get_timestamp(..) on Code { no_handle("event instance") }
    fn MPI_T_event_get_source(..) on Code { no_handle("event instance") }

    fn MPI_T_source_get_num(num_sources) on Code { num_sources.set(0) }
    fn MPI_T_source_get_info(source_index, ..) on Code { no_index("event source", source_index) }
    fn MPI_T_source_get_timestamp(source_index, ..) on Code { no_index("event source", source_index) }
}
