//! Machines that are not here: what is found on them, and where ranks go.

mod hardware;
#[path = "../hosts/mod.rs"]
mod hosts;
#[path = "../machines/mod.rs"]
mod machines;
mod placement;
mod topologies;
