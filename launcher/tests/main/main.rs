//! mpirun from outside: what a user, a resource manager and a program see of it.

mod bootstrap;
mod common;
mod failing;
mod hangs;
mod hosts;
mod kubernetes;
mod managers;
mod mistakes;
mod names;
mod options;
mod others;
mod output;
mod printed;
mod sandboxes;
mod status;
mod survive;
mod terminal;
