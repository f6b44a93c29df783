//! Empty: cargo asks for a library or a program, and what is built here are the tests and examples of a dependency.
