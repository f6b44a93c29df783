//! The kinds of handles, in one list: the tables of their objects, the numbers in handles, and what errors say of them follow
//! from it.

use crate::ffi::MPI_Comm;
use crate::handles::Table;
use crate::serial::Promise;
use crate::{comm, errhandler, op, request, stream, types};
use banyan_runtime::{Class, Group, Info, Message};
use std::sync::Arc;

/// Each line: the table; the kind, and its number in handles, from 1, so that every handle is above the predefined range; the
/// object behind a handle; the class of errors about one, its name, and what has become of a stale one; whether the threads
/// that come to the table do so one after the other if the program has promised that for calls to a runtime (`serial`) or
/// not (`locked`); and when the objects go that the user has not freed: at the `end` of MPI, or `never`, where the functions
/// on them work before and after it.
macro_rules! kinds {
    ($($table:ident: $kind:ident = $number:literal, $object:ty, $class:ident, $name:literal $gone:literal, $threads:ident, $until:ident;)+) => {
        /// What a handle stands for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the kinds of MPI objects")]
        pub enum Kind {
            $($kind = $number),+
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Kind] = &[$(Kind::$kind),+];

            /// The class of an error about a handle of this kind.
            pub fn class(self) -> Class {
                match self {
                    $(Kind::$kind => Class::$class),+
                }
            }

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name),+
                }
            }

            /// What has become of an object whose handle is stale.
            pub(crate) fn gone(self) -> &'static str {
                match self {
                    $(Kind::$kind => $gone),+
                }
            }
        }

        /// The tables of all handles.
        pub(crate) struct Handles {
            $(pub(crate) $table: Table<$object>),+
        }

        impl Handles {
            pub(crate) const fn new(promise: &'static Promise) -> Handles {
                Handles { $($table: kinds!(@$threads Kind::$kind, promise)),+ }
            }

            /// Takes out all objects that end with MPI, in the order of the list.
            pub(crate) fn close(&self) {
                $(kinds!(@$until self.$table);)+
            }
        }
    };
    (@serial $kind:expr, $promise:ident) => { Table::serial($kind, $promise) };
    (@locked $kind:expr, $promise:ident) => { Table::new($kind) };
    (@end $table:expr) => { drop($table.drain()) };
    (@never $table:expr) => {};
}

kinds! {
    requests: Request = 8, request::Entry, ERR_REQUEST, "request" "is over (completed or freed)", serial, end;
    messages: Message = 6, (Message, MPI_Comm), ERR_REQUEST, "message" "has been received", locked, end;
    comms: Comm = 1, Arc<comm::Object>, ERR_COMM, "communicator" "has been freed", locked, end;
    datatypes: Datatype = 2, Arc<types::Type>, ERR_TYPE, "datatype" "has been freed", locked, end;
    groups: Group = 4, Group, ERR_GROUP, "group" "has been freed", locked, end;
    ops: Op = 7, op::Entry, ERR_OP, "reduction operation" "has been freed", locked, end;
    errhandlers: Errhandler = 3, Arc<errhandler::User>, ERR_ERRHANDLER, "error handler" "has been freed", locked, never;
    streams: Stream = 9, Arc<stream::Stream>, ERR_ARG, "stream" "has been freed", locked, end;
    infos: Info = 5, Arc<Info>, ERR_INFO, "info object" "has been freed", locked, never;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handles are positive ints: 4 bits are left for the kind, and 0 would be in the predefined range.
    #[test]
    fn the_numbers_of_kinds_fit_into_handles() {
        assert!(Kind::ALL.iter().all(|kind| (1..16).contains(&(*kind as u32))));
    }
}
