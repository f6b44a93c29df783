//! The kernels, compiled by NVRTC and assembled for devices of several compute capabilities, where there is no device: `cargo xtask test
//! --only kernels` fetches both tools, puts the folder of one into `LD_LIBRARY_PATH`, and names the other one in `BANYAN_TEST_PTXAS`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use banyan_datatype::device::TEXTS;
use banyan_memory::{Compiler, Target};

/// Turing, Ampere, Hopper, and Blackwell, which newer wheels know.
const ARCHITECTURES: [u32; 4] = [75, 80, 90, 120];
/// So many registers leave room for three blocks of a multiprocessor, and more.
const MOST_REGISTERS: u32 = 80;
/// Kernels of all texts.
const KERNELS: usize = 125;

#[test]
fn kernels_compile_for_devices_and_nothing_is_fused_or_spilled() {
    let Some(ptxas) = std::env::var_os("BANYAN_TEST_PTXAS") else {
        return eprintln!("skipped: BANYAN_TEST_PTXAS does not say where ptxas is");
    };
    let compiler = Compiler { kept_in: None };
    let kernels = std::thread::scope(|scope| {
        let each = |architecture| {
            let (compiler, ptxas) = (&compiler, Path::new(&ptxas));
            scope.spawn(move || compile(compiler, ptxas, architecture))
        };
        ARCHITECTURES.map(each).map(|thread| thread.join().unwrap())
    });
    assert!(kernels.iter().flatten().count() >= 3, "NVRTC knows the older ones");
    assert!(kernels.iter().flatten().all(|&kernels| kernels == KERNELS), "{kernels:?}");
    // What a device loads.
    let cubin = compiler.compile(TEXTS[3].name, TEXTS[3].source, 90).unwrap();
    assert_eq!(cubin[..4], *b"\x7fELF");
}

/// Compiles all texts; the number of kernels. `None`, and a line that says why: the compiler is older than the architecture.
fn compile(compiler: &Compiler, ptxas: &Path, architecture: u32) -> Option<usize> {
    let (mut kernels, mut most, began) = (0, 0, Instant::now());
    for text in &TEXTS {
        let ptx = match compiler.compile_to(text.name, text.source, &Target::Newer(architecture)) {
            Err(why) if why.contains("invalid value for --gpu-architecture") => {
                eprintln!("compute capability {architecture} is left out: {why}");
                return None;
            }
            made => String::from_utf8(made.unwrap()).unwrap(),
        };
        for word in ["fma.", ".ftz", ".approx"] {
            assert!(!ptx.contains(word), "{word} in {} for {architecture}", text.name);
        }
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{architecture}.ptx", text.name));
        std::fs::write(&file, ptx.trim_end_matches('\0')).unwrap();
        let mut assemble = Command::new(ptxas);
        assemble.arg(format!("-arch=sm_{architecture}")).args(["-v", "-o", "/dev/null"]).arg(&file);
        let done = assemble.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr) + String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{} for {architecture}: {said}", text.name);
        let number = |line: &str, before: &str| -> Option<u32> {
            line.split(before).next()?.split_whitespace().next_back()?.parse().ok()
        };
        for line in said.lines() {
            if line.contains("registers") {
                kernels += 1;
                most = most.max(number(line, " registers").unwrap());
            }
            if let Some(spilled) = line.contains("spill stores").then(|| number(line, " bytes spill stores"))
            {
                assert_eq!(spilled, Some(0), "{} for {architecture}: {line}", text.name);
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    eprintln!("sm_{architecture}: {kernels} kernels, at most {most} registers, nothing spilled; {took:.1} s");
    assert!(most <= MOST_REGISTERS, "{most} registers for {architecture}");
    Some(kernels)
}
