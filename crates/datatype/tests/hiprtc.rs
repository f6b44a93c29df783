//! The kernels, compiled by hipRTC for devices of AMD's, where there is no device: by the one that `LD_LIBRARY_PATH` leads to, if `BANYAN_TEST_HIPRTC` is set.

use std::time::Instant;

use banyan_datatype::device::TEXTS;
use banyan_memory::{Compiler, Target};

/// CDNA 1 and 2, RDNA 1 and 2.
const ARCHITECTURES: [&str; 4] = ["gfx908", "gfx90a", "gfx1010", "gfx1030"];

#[test]
fn kernels_compile_for_devices_of_amd() {
    if std::env::var_os("BANYAN_TEST_HIPRTC").is_none() {
        return eprintln!("skipped: BANYAN_TEST_HIPRTC does not say that there is hipRTC");
    }
    let compiler = Compiler { kept_in: None };
    for architecture in ARCHITECTURES {
        let began = Instant::now();
        let target = Target::Amd { architecture: architecture.to_owned(), runtime: 0 };
        let mut bytes = 0;
        for text in &TEXTS {
            let image = compiler.compile_to(text.name, text.source, &target).unwrap();
            assert_eq!(image[..4], *b"\x7fELF");
            bytes += image.len();
        }
        eprintln!("{architecture}: {bytes} bytes; {:.1} s", began.elapsed().as_secs_f64());
    }
}
