//! Datatypes and reductions against the standard's definitions.

mod constructors;
mod large;
mod reductions;
mod typemaps;
