//! What a fatal error says before the job ends.

use crate::boundary::{Target, sentence};
use crate::errhandler;
use crate::ffi::*;
use crate::kinds::Kind;
use banyan_runtime::{Class, error_codes};

/// One block for stderr: the call, the rank, host and object, the class, what was wrong, the way out if there is one to
/// tell, and why the job ends.
pub(crate) fn fatal(name: &str, target: Target, code: c_int, handler: &str) -> String {
    let class = error_codes().class(code).map_or(Class(code), Class);
    let what = sentence(code).unwrap_or_else(|| error_codes().string(code).unwrap_or_default());
    let location = crate::env::whereabouts();
    // Without a communicator there is nothing more to say than what failed.
    match crate::comm::world_rank_and_size() {
        None => format!("{name}: {what} ({location})\n"),
        Some(_) => {
            let on = errhandler::named(target).map(|comm| format!(", on {}", crate::comm::describe(comm)));
            let way_out = way_out(name, class).map(|way_out| format!("  way out: {way_out}\n"));
            format!(
                "\nMPI error in {name}\n  where  : {location}{}\n  class  : {} ({code}): {}\n  what   : {what}\n{}  ends   : {}\n",
                on.unwrap_or_default(),
                class.name(),
                class.text().unwrap_or("added by the program"),
                way_out.unwrap_or_default(),
                ends(target, handler),
            )
        }
    }
}

/// Why the job ends.
fn ends(target: Target, handler: &str) -> String {
    let whose = errhandler::describe(target);
    let why = match target {
        Target::Comm(_) if errhandler::named(target).is_some() => "",
        Target::File(_) => "",
        Target::SelfComm | Target::Comm(_) | Target::Code => {
            ", which is asked where a call names no valid communicator"
        }
    };
    format!(
        "{handler} is the error handler of {whose}{why}; with MPI_ERRORS_RETURN the call would return the error"
    )
}

/// What to do about errors of a class, where the sentence of the error does not say it.
fn way_out(name: &str, class: Class) -> Option<&'static str> {
    Some(match class {
        Class::ERR_RANK => {
            "compare the rank with MPI_Comm_size of this communicator; MPI_PROC_NULL stands for no process"
        }
        Class::ERR_ROOT => "all ranks name the same root, by its rank in this communicator",
        Class::ERR_COUNT => {
            "a product that overflows an int is negative: the forms with _c take counts of 64 bits"
        }
        Class::ERR_TYPE => "a datatype may be used from MPI_Type_commit until MPI_Type_free",
        Class::ERR_OP => "MPI 5.0, 6.9.2 says which operations datatypes have; MPI_Op_create makes others",
        handles if Kind::ALL.iter().any(|kind| kind.class() == handles) => {
            "look for where the handle was set last: it may be a copy of one that is gone, or never have been set"
        }
        Class::ERR_TRUNCATE if name.contains("ecv") || name.contains("Wait") || name.contains("Test") => {
            "MPI_Probe and MPI_Get_count tell the length of a message before it is received"
        }
        Class::ERR_TRUNCATE => "all ranks must pass counts and datatypes that fit together",
        Class::ERR_PROC_ABORTED => "the output of that rank may say why it ended",
        Class::ERR_UNSUPPORTED_OPERATION => {
            "the chapter \"Not built yet\" of the guide lists what is missing"
        }
        _ => return None,
    })
}
