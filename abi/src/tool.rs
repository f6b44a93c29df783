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

/// Checks the arguments of a call that allows MPI_T_PVAR_ALL_HANDLES, of which there are none here.
fn all_or_none(session: usize, handle: usize) -> Result<()> {
    session_known(session)?;
    if handle == MPI_T_PVAR_ALL_HANDLES { Ok(()) } else { no_handle("performance variable") }
}

mpi! {
    fn MPI_T_init_thread(required: c_int, provided: Ptr<c_int>) on Code {
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

    fn MPI_T_cvar_get_num(num_cvar: Ptr<c_int>) on Code { num_cvar.set(0) }
    fn MPI_T_cvar_get_info(
        cvar_index: c_int,
        _name: Ptr<c_char>,
        _name_len: Ptr<c_int>,
        _verbosity: Ptr<c_int>,
        _datatype: Ptr<MPI_Datatype>,
        _enumtype: Ptr<usize>,
        _desc: Ptr<c_char>,
        _desc_len: Ptr<c_int>,
        _bind: Ptr<c_int>,
        _scope: Ptr<c_int>,
    ) on Code {
        no_index("control variable", cvar_index)
    }
    fn MPI_T_cvar_get_index(name: Ptr<c_char>, _cvar_index: Ptr<c_int>) on Code { no_name("control variable", name) }
    fn MPI_T_cvar_handle_alloc(
        cvar_index: c_int,
        _obj_handle: Ptr<c_void>,
        _handle: Ptr<usize>,
        _count: Ptr<c_int>,
    ) on Code {
        no_index("control variable", cvar_index)
    }
    fn MPI_T_cvar_handle_free(_handle: Ptr<usize>) on Code { no_handle("control variable") }
    fn MPI_T_cvar_read(_handle: usize, _buf: Ptr<c_void>) on Code { no_handle("control variable") }
    fn MPI_T_cvar_write(_handle: usize, _buf: Ptr<c_void>) on Code { no_handle("control variable") }

    fn MPI_T_enum_get_info(_enumtype: usize, _num: Ptr<c_int>, _name: Ptr<c_char>, _name_len: Ptr<c_int>) on Code {
        no_handle("enumeration")
    }
    fn MPI_T_enum_get_item(
        _enumtype: usize,
        _indx: c_int,
        _value: Ptr<c_int>,
        _name: Ptr<c_char>,
        _name_len: Ptr<c_int>,
    ) on Code {
        no_handle("enumeration")
    }

    fn MPI_T_pvar_get_num(num_pvar: Ptr<c_int>) on Code { num_pvar.set(0) }
    fn MPI_T_pvar_get_info(
        pvar_index: c_int,
        _name: Ptr<c_char>,
        _name_len: Ptr<c_int>,
        _verbosity: Ptr<c_int>,
        _var_class: Ptr<c_int>,
        _datatype: Ptr<MPI_Datatype>,
        _enumtype: Ptr<usize>,
        _desc: Ptr<c_char>,
        _desc_len: Ptr<c_int>,
        _bind: Ptr<c_int>,
        _readonly: Ptr<c_int>,
        _continuous: Ptr<c_int>,
        _atomic: Ptr<c_int>,
    ) on Code {
        no_index("performance variable", pvar_index)
    }
    fn MPI_T_pvar_get_index(name: Ptr<c_char>, _var_class: c_int, _pvar_index: Ptr<c_int>) on Code {
        no_name("performance variable", name)
    }
    fn MPI_T_pvar_session_create(session: Ptr<usize>) on Code {
        let mut tool = tool();
        tool.last_session += 1;
        let new = tool.last_session;
        session.set(new)?;
        tool.sessions.insert(new);
        Ok(())
    }
    fn MPI_T_pvar_session_free(session: Ptr<usize>) on Code {
        let old = session.get()?;
        if !tool().sessions.remove(&old) {
            bail!(T_ERR_INVALID_SESSION, "{old:#x} is not a performance session");
        }
        session.set(MPI_T_PVAR_SESSION_NULL)
    }
    fn MPI_T_pvar_handle_alloc(
        session: usize,
        pvar_index: c_int,
        _obj_handle: Ptr<c_void>,
        _handle: Ptr<usize>,
        _count: Ptr<c_int>,
    ) on Code {
        session_known(session)?;
        no_index("performance variable", pvar_index)
    }
    fn MPI_T_pvar_handle_free(session: usize, _handle: Ptr<usize>) on Code {
        session_known(session)?;
        no_handle("performance variable")
    }
    fn MPI_T_pvar_start(session: usize, handle: usize) on Code { all_or_none(session, handle) }
    fn MPI_T_pvar_stop(session: usize, handle: usize) on Code { all_or_none(session, handle) }
    fn MPI_T_pvar_reset(session: usize, handle: usize) on Code { all_or_none(session, handle) }
    fn MPI_T_pvar_read(session: usize, _handle: usize, _buf: Ptr<c_void>) on Code {
        session_known(session)?;
        no_handle("performance variable")
    }
    fn MPI_T_pvar_readreset(session: usize, _handle: usize, _buf: Ptr<c_void>) on Code {
        session_known(session)?;
        no_handle("performance variable")
    }
    fn MPI_T_pvar_write(session: usize, _handle: usize, _buf: Ptr<c_void>) on Code {
        session_known(session)?;
        no_handle("performance variable")
    }

    fn MPI_T_category_get_num(num_cat: Ptr<c_int>) on Code { num_cat.set(0) }
    fn MPI_T_category_changed(update_number: Ptr<c_int>) on Code { update_number.set(0) }
    fn MPI_T_category_get_index(name: Ptr<c_char>, _cat_index: Ptr<c_int>) on Code { no_name("category", name) }
    fn MPI_T_category_get_info(
        cat_index: c_int,
        _name: Ptr<c_char>,
        _name_len: Ptr<c_int>,
        _desc: Ptr<c_char>,
        _desc_len: Ptr<c_int>,
        _num_cvars: Ptr<c_int>,
        _num_pvars: Ptr<c_int>,
        _num_categories: Ptr<c_int>,
    ) on Code {
        no_index("category", cat_index)
    }
    fn MPI_T_category_get_num_events(cat_index: c_int, _num_events: Ptr<c_int>) on Code {
        no_index("category", cat_index)
    }
    fn MPI_T_category_get_categories(cat_index: c_int, _len: c_int, _indices: Ptr<c_int>) on Code {
        no_index("category", cat_index)
    }
    fn MPI_T_category_get_cvars(cat_index: c_int, _len: c_int, _indices: Ptr<c_int>) on Code {
        no_index("category", cat_index)
    }
    fn MPI_T_category_get_pvars(cat_index: c_int, _len: c_int, _indices: Ptr<c_int>) on Code {
        no_index("category", cat_index)
    }
    fn MPI_T_category_get_events(cat_index: c_int, _len: c_int, _indices: Ptr<c_int>) on Code {
        no_index("category", cat_index)
    }

    fn MPI_T_event_get_num(num_events: Ptr<c_int>) on Code { num_events.set(0) }
    fn MPI_T_event_get_index(name: Ptr<c_char>, _event_index: Ptr<c_int>) on Code { no_name("event type", name) }
    fn MPI_T_event_get_info(
        event_index: c_int,
        _name: Ptr<c_char>,
        _name_len: Ptr<c_int>,
        _verbosity: Ptr<c_int>,
        _array_of_datatypes: Ptr<MPI_Datatype>,
        _array_of_displacements: Ptr<MPI_Aint>,
        _num_elements: Ptr<c_int>,
        _enumtype: Ptr<usize>,
        _info: Ptr<MPI_Info>,
        _desc: Ptr<c_char>,
        _desc_len: Ptr<c_int>,
        _bind: Ptr<c_int>,
    ) on Code {
        no_index("event type", event_index)
    }
    fn MPI_T_event_handle_alloc(
        event_index: c_int,
        _obj_handle: Ptr<c_void>,
        _info: MPI_Info,
        _event_registration: Ptr<usize>,
    ) on Code {
        no_index("event type", event_index)
    }
    fn MPI_T_event_handle_free(_registration: usize, _user_data: Ptr<c_void>, _free_function: Callback) on Code {
        no_handle("event registration")
    }
    fn MPI_T_event_handle_get_info(_registration: usize, _info_used: Ptr<MPI_Info>) on Code {
        no_handle("event registration")
    }
    fn MPI_T_event_handle_set_info(_registration: usize, _info: MPI_Info) on Code {
        no_handle("event registration")
    }
    fn MPI_T_event_register_callback(
        _registration: usize,
        _cb_safety: c_int,
        _info: MPI_Info,
        _user_data: Ptr<c_void>,
        _function: Callback,
    ) on Code {
        no_handle("event registration")
    }
    fn MPI_T_event_callback_get_info(_registration: usize, _cb_safety: c_int, _info_used: Ptr<MPI_Info>) on Code {
        no_handle("event registration")
    }
    fn MPI_T_event_callback_set_info(_registration: usize, _cb_safety: c_int, _info: MPI_Info) on Code {
        no_handle("event registration")
    }
    fn MPI_T_event_set_dropped_handler(_registration: usize, _function: Callback) on Code {
        no_handle("event registration")
    }
    fn MPI_T_event_read(_instance: usize, _element_index: c_int, _buffer: Ptr<c_void>) on Code {
        no_handle("event instance")
    }
    fn MPI_T_event_copy(_instance: usize, _buffer: Ptr<c_void>) on Code { no_handle("event instance") }
    fn MPI_T_event_get_timestamp(_instance: usize, _timestamp: Ptr<MPI_Count>) on Code { no_handle("event instance") }
    fn MPI_T_event_get_source(_instance: usize, _source_index: Ptr<c_int>) on Code { no_handle("event instance") }

    fn MPI_T_source_get_num(num_sources: Ptr<c_int>) on Code { num_sources.set(0) }
    fn MPI_T_source_get_info(
        source_index: c_int,
        _name: Ptr<c_char>,
        _name_len: Ptr<c_int>,
        _desc: Ptr<c_char>,
        _desc_len: Ptr<c_int>,
        _ordering: Ptr<c_int>,
        _ticks_per_second: Ptr<MPI_Count>,
        _max_ticks: Ptr<MPI_Count>,
        _info: Ptr<MPI_Info>,
    ) on Code {
        no_index("event source", source_index)
    }
    fn MPI_T_source_get_timestamp(source_index: c_int, _timestamp: Ptr<MPI_Count>) on Code {
        no_index("event source", source_index)
    }
}
