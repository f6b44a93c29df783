//! Names the library as CUDA's driver is named, so that who looks for that finds this one where it is loaded.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
