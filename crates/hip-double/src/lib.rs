//! The stand-in for drivers of devices ([`device_double`]) as a library that is named as HIP's runtime is: `libamdhip64.so.6`. It has the functions of CUDA,
//! too, which nobody looks for under this name. In a process that has loaded both libraries each has devices of its own.

pub use device_double as engine;
