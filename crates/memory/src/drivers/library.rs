//! Tables of the functions of a library that is found at run time. They return plain numbers and not an enum, as a newer library may return
//! some that no list has, and a function that an older library lacks is an error.

use std::ffi::{c_int, c_void};

/// The address of a function in a library, NULL if it has none of that name, which ends with a NUL.
pub(super) type Symbol<'a> = &'a dyn Fn(&'static str) -> *mut c_void;

/// What all functions return that have done what they were told.
pub(super) const SUCCESS: c_int = 0;
/// What stands for the result of a function that the library lacks; no library has a negative one.
pub(super) const MISSING: c_int = -1;

/// A function that has failed, by its name, and its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed {
    pub(super) call: &'static str,
    pub(super) error: c_int,
}

/// Declares a table of functions of a library: their names here, their symbols there, and their parameters.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident; $($name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)+) => {
        $(#[$about])*
        pub(super) struct $table {
            $($name: Option<unsafe extern "C" fn($($type),*) -> std::ffi::c_int>,)+
        }

        #[allow(clippy::too_many_arguments, reason = "the parameters of the library's functions")]
        impl $table {
            /// The functions of the library whose symbols these are.
            fn of(symbol: $crate::drivers::library::Symbol<'_>) -> $table {
                $(
                    // SAFETY: a function of this name has this type in every such library, and NULL is `None`.
                    let $name = unsafe {
                        std::mem::transmute::<
                            *mut std::ffi::c_void,
                            Option<unsafe extern "C" fn($($type),*) -> std::ffi::c_int>,
                        >(symbol(concat!($symbol, "\0")))
                    };
                )+
                $table { $($name),+ }
            }

            $(
                #[doc = concat!("`", $symbol, "`.")]
                ///
                /// # Errors
                /// What the function says, or that the library has none of that name.
                ///
                /// # Safety
                /// As the library's documentation of that function says.
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), $crate::drivers::library::Failed> {
                    use $crate::drivers::library::{Failed, MISSING, SUCCESS};
                    // SAFETY: as the caller promises.
                    match self.$name.map_or(MISSING, |function| unsafe { function($($arg),*) }) {
                        SUCCESS => Ok(()),
                        error => Err(Failed { call: $symbol.trim_end_matches("_v2"), error }),
                    }
                }
            )+
        }
    };
}

pub(super) use functions;
