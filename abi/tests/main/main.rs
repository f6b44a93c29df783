//! The library as C sees it: its names, its header, and programs.

mod common;
mod exports;
mod header;
mod programs;
