//! How ranks and launchers talk: ours, and others.

mod foreign;
mod protocol;
