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

/// Declares a table of functions of a library, which has nearly the same on each platform: their names here, CUDA's symbol and HIP's ("" if
/// that has none that takes the same parameters), and the parameters. What fails is shown to the table's method `failed`.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident; $($(#[$row:meta])* $name:ident = $cuda:literal | $hip:literal ($($arg:ident: $type:ty),*);)+) => {
        $(#[$about])*
        pub(super) struct $table {
            platform: $crate::drivers::Platform,
            $($name: Option<unsafe extern "C" fn($($type),*) -> std::ffi::c_int>,)+
        }

        #[allow(clippy::too_many_arguments, reason = "the parameters of the library's functions")]
        impl $table {
            /// The functions of the library whose symbols these are.
            fn of(platform: $crate::drivers::Platform, symbol: $crate::drivers::library::Symbol<'_>) -> $table {
                use $crate::drivers::Platform;
                $(
                    let name = match platform {
                        Platform::Cuda => concat!($cuda, "\0"),
                        Platform::Hip => concat!($hip, "\0"),
                    };
                    // SAFETY: a function of this name has this type in every such library, and NULL is `None`.
                    let $name = unsafe {
                        std::mem::transmute::<
                            *mut std::ffi::c_void,
                            Option<unsafe extern "C" fn($($type),*) -> std::ffi::c_int>,
                        >(symbol(name))
                    };
                )+
                $table { platform, $($name),+ }
            }

            $(
                #[doc = concat!("`", $cuda, "`, `", $hip, "`.")]
                $(#[$row])*
                ///
                /// # Errors
                /// What the function says, or that the library has none of that name.
                ///
                /// # Safety
                /// As the library's documentation of that function says.
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), $crate::drivers::library::Failed> {
                    use $crate::drivers::{Platform, library::{Failed, MISSING, SUCCESS}};
                    // SAFETY: as the caller promises.
                    match self.$name.map_or(MISSING, |function| unsafe { function($($arg),*) }) {
                        SUCCESS => Ok(()),
                        error => {
                            self.failed();
                            let call = match self.platform {
                                Platform::Cuda => $cuda.trim_end_matches("_v2"),
                                Platform::Hip => $hip,
                            };
                            Err(Failed { call, error })
                        }
                    }
                }
            )+
        }
    };
}

pub(super) use functions;
