//! The stand-in for drivers of devices ([`device_double`]) as a library that is named as CUDA's driver is: `libcuda.so.1`. It has the functions of HIP, too,
//! which nobody looks for under this name.

pub use device_double::{compile, kernels, nvrtc, process};
