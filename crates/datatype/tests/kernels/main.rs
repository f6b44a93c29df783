//! The kernels for devices, compiled for the processor, against the processor's own: reductions of every predefined operation on every
//! type, and moves of many datatypes, bit for bit.

mod compiled;
mod moves;
mod random;
mod reductions;
mod types;
