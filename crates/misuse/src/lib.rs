//! Programs in Rust that misuse MPI, and must not compile: each file of the folder `programs` is one, beside what the compiler says of it.
