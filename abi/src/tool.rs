//! The tool information interface MPI_T: settings as control variables, what devices do as performance variables; no categories, events or sources
//! (MPI 5.0, 15.3).
//!
//! Errors of this interface are only returned: they call no error handler.

use crate::boundary::{Code, mpi};
use crate::ffi::*;
use crate::pointer::Ptr;
use crate::variables::{self, Counted, TEXT, Tool};
use banyan_memory::device_counters;
use banyan_runtime::{Result, bail, settings};
use std::sync::{Mutex, MutexGuard};

static TOOL: Mutex<Tool> = Mutex::new(Tool::new());

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

/// Gives a text and its length with the NUL, as calls of this interface do: what is not asked for stays as it is (MPI 5.0, 15.3.3).
fn give(text: &str, to: Ptr<c_char>, len: Ptr<c_int>) -> Result<()> {
    if len.is_null() {
        return Ok(());
    }
    if !to.is_null() {
        to.write(text.as_bytes(), usize::try_from(len.get()?).unwrap_or(0))?;
    }
    len.set(text.len() as c_int + 1)
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
            tool.clear();
        }
        Ok(())
    }

    fn MPI_T_cvar_get_num(num_cvar) on Code { num_cvar.set(settings::ALL.len() as c_int) }
    fn MPI_T_cvar_get_info(
        cvar_index, name, name_len, verbosity, datatype, enumtype, desc, desc_len, bind, scope
    ) on Code {
        let setting = variables::setting(cvar_index)?;
        give(setting.name, name, name_len)?;
        give(setting.about, desc, desc_len)?;
        verbosity.set_if(MPI_T_VERBOSITY_USER_BASIC);
        datatype.set_if(MPI_CHAR);
        enumtype.set_if(MPI_T_ENUM_NULL);
        bind.set_if(MPI_T_BIND_NO_OBJECT);
        scope.set_if(MPI_T_SCOPE_READONLY);
        Ok(())
    }
    fn MPI_T_cvar_get_index(name, cvar_index) on Code {
        cvar_index.set(variables::setting_named(&name.text()?)? as c_int)
    }
    fn MPI_T_cvar_handle_alloc(cvar_index, _obj_handle, handle, count) on Code {
        handle.set(tool().hold_setting(cvar_index)?)?;
        count.set(TEXT as c_int)
    }
    fn MPI_T_cvar_handle_free(handle) on Code {
        tool().release_setting(handle.get()?)?;
        handle.set(MPI_T_CVAR_HANDLE_NULL)
    }
    fn MPI_T_cvar_read(handle, buf) on Code {
        let text = tool().read_setting(handle)?;
        buf.cast::<c_char>().write(text.as_bytes(), TEXT).map(drop)
    }
    fn MPI_T_cvar_write(handle, ..) on Code {
        let setting = tool().held_setting(handle)?;
        bail!(
            T_ERR_CVAR_SET_NEVER,
            "{} is read in the environment when the job starts: set it there, or by mpirun -x",
            setting.name
        )
    }

    fn MPI_T_enum_get_info(..) on Code { no_handle("enumeration") }
    fn MPI_T_enum_get_item(..) on Code { no_handle("enumeration") }

    fn MPI_T_pvar_get_num(num_pvar) on Code { num_pvar.set(device_counters().len() as c_int) }
    fn MPI_T_pvar_get_info(
        pvar_index, name, name_len, verbosity, var_class, datatype, enumtype, desc, desc_len, bind, readonly,
        continuous, atomic
    ) on Code {
        let counter = variables::counter(pvar_index)?;
        give(&variables::name_of(&counter), name, name_len)?;
        give(&format!("{} [{}]", counter.about, counter.unit), desc, desc_len)?;
        verbosity.set_if(MPI_T_VERBOSITY_USER_BASIC);
        var_class.set_if(MPI_T_PVAR_CLASS_COUNTER);
        datatype.set_if(MPI_UNSIGNED_LONG_LONG);
        enumtype.set_if(MPI_T_ENUM_NULL);
        bind.set_if(MPI_T_BIND_NO_OBJECT);
        readonly.set_if(0);
        continuous.set_if(0);
        atomic.set_if(1);
        Ok(())
    }
    fn MPI_T_pvar_get_index(name, var_class, pvar_index) on Code {
        let name = name.text()?;
        if var_class != MPI_T_PVAR_CLASS_COUNTER {
            bail!(T_ERR_INVALID_NAME, "there is no variable \"{name}\" of class {var_class}: all are counters");
        }
        pvar_index.set(variables::counter_named(&name)? as c_int)
    }
    fn MPI_T_pvar_session_create(session) on Code { session.set(tool().begin_session()) }
    fn MPI_T_pvar_session_free(session) on Code {
        tool().end_session(session.get()?)?;
        session.set(MPI_T_PVAR_SESSION_NULL)
    }
    fn MPI_T_pvar_handle_alloc(session, pvar_index, _obj_handle, handle, count) on Code {
        handle.set(tool().hold_counter(session, pvar_index)?)?;
        count.set(1)
    }
    fn MPI_T_pvar_handle_free(session, handle) on Code {
        tool().release_counter(session, handle.get()?)?;
        handle.set(MPI_T_PVAR_HANDLE_NULL)
    }
    fn MPI_T_pvar_start(session, handle) on Code { tool().each(session, handle, Counted::start) }
    fn MPI_T_pvar_stop(session, handle) on Code { tool().each(session, handle, Counted::stop) }
    fn MPI_T_pvar_reset(session, handle) on Code {
        tool().each(session, handle, |counted| { counted.replace(0); })
    }
    fn MPI_T_pvar_read(session, handle, buf) on Code {
        let value = tool().counted(session, handle)?.value();
        buf.cast::<u64>().set(value)
    }
    fn MPI_T_pvar_readreset(session, handle, buf) on Code {
        let value = tool().counted(session, handle)?.replace(0);
        buf.cast::<u64>().set(value)
    }
    fn MPI_T_pvar_write(session, handle, buf) on Code {
        let value = buf.cast::<u64>().get()?;
        tool().counted(session, handle)?.replace(value);
        Ok(())
    }

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
