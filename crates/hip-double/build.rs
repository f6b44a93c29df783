//! Names the library as HIP's runtime is named, so that who looks for that finds this one where it is loaded.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libamdhip64.so.6");
}
