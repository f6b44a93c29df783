//! The functions of a library of CUDA's, which cudarc finds at run time. They return plain numbers and not cudarc's enums, as a newer
//! library may return some that no list has, and one that an older library lacks is an error where cudarc would panic.

use std::ffi::c_void;

/// The address of a function in a library, NULL if it has none of that name, which ends with a NUL.
pub(super) type Symbol<'a> = &'a dyn Fn(&'static str) -> *mut c_void;

/// Declares a table of functions of a library: its name, what messages call the library, the result where it lacks a function, and the functions.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident, $library:literal: $missing:expr; $($name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)+) => {
        $(#[$about])*
        #[allow(non_snake_case, reason = "the names of CUDA")]
        pub(super) struct $table {
            $($name: Option<unsafe extern "C" fn($($type),*) -> std::ffi::c_int>,)+
        }

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the names and parameters of CUDA")]
        impl $table {
            /// The functions of the library whose symbols these are.
            fn of(symbol: $crate::cuda::library::Symbol<'_>) -> $table {
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
                #[doc = concat!("The function of that name; an error if the ", $library, " on this machine has none.")]
                ///
                /// # Safety
                /// As CUDA's documentation of that function says.
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> std::ffi::c_int {
                    // SAFETY: as the caller promises.
                    self.$name.map_or($missing, |function| unsafe { function($($arg),*) })
                }
            )+
        }
    };
}

pub(super) use functions;
