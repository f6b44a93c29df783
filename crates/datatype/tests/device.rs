//! Copies and reductions in memory of a device, on the stand-in for CUDA, with the kernels compiled for the processor; and the same where a
//! device runs no kernels.

#[path = "kernels/compiled.rs"]
#[expect(dead_code, reason = "kernels are run by the device")]
mod compiled;
#[path = "kernels/random.rs"]
mod random;
#[path = "kernels/types.rs"]
mod types;

use std::ffi::{CString, c_int, c_void};
use std::path::Path;

use banyan_datatype::basic;
use banyan_datatype::device::Reduction;
use banyan_datatype::op;
use banyan_datatype::{Data, Datatype};
use banyan_memory::{Buffer, Compiler, Gpus, HeapBuffer, MemoryKind, device_stats, look_for};
use cuda_double::process;

use random::Random;

/// In the second process: devices run no kernels.
const WITHOUT: &str = "BANYAN_TEST_WITHOUT_KERNELS";

/// The program's side of the stand-in.
struct Program(*mut c_void);

impl Program {
    fn load() -> Program {
        let path = std::env::current_exe().unwrap().with_file_name("libcuda_double.so");
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the project's own library.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?}");
        Program(library)
    }

    fn call(&self, name: &str, args: [usize; 3]) {
        let symbol = CString::new(name).unwrap();
        // SAFETY: the library is loaded.
        let function = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        assert!(!function.is_null(), "{name}");
        // SAFETY: those that are called here take up to three numbers or addresses, in registers.
        let done = unsafe {
            let function: unsafe extern "C" fn(usize, usize, usize) -> c_int = std::mem::transmute(function);
            function(args[0], args[1], args[2])
        };
        assert_eq!(done, 0, "{name}");
    }

    fn get(&self, name: &str, args: [usize; 2]) -> usize {
        let mut value = 0usize;
        self.call(name, [(&raw mut value) as usize, args[0], args[1]]);
        value
    }

    /// Memory of the device with these bytes; it is never freed.
    fn memory(&self, bytes: &[u8]) -> Buffer {
        let address = self.get("cuMemAlloc_v2", [bytes.len().max(1), 0]);
        // SAFETY: memory of the device, which only its driver goes to.
        let buffer = unsafe { Buffer::classified(address as *mut u8, 0, bytes.len() as isize) }.unwrap();
        assert_eq!(buffer.kind(), MemoryKind::Device);
        buffer.write(0, bytes);
        buffer
    }
}

/// The name of the test below.
const TEST: &str = "a_device_gathers_scatters_and_reduces";

/// One test in processes of its own, as what a process knows of its driver and of NVRTC it knows for good.
#[test]
fn a_device_gathers_scatters_and_reduces() {
    let Some(library) = compiled::library() else { return };
    if !process::is_again() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let run = |variables: &[_]| process::again(TEST, folder, &["libnvrtc.so"], variables);
        run(&[]);
        // CUDA says that there is no code for this device.
        return run(&[(WITHOUT, "1"), ("BANYAN_TEST_CUDA_ERRORS", "cuModuleLoadData=209@1-")]);
    }
    let without = std::env::var_os(WITHOUT).is_some();
    // SAFETY: this test alone runs, and the stand-in has not read its settings yet.
    unsafe { std::env::set_var("BANYAN_TEST_CUDA_KERNELS", library) };
    let program = Program::load();
    Compiler { kept_in: None }.use_from_now_on();
    look_for(Gpus::Auto, "auto").unwrap();
    program.call("cuInit", [0; 3]);
    let context = program.get("cuDevicePrimaryCtxRetain", [0, 0]);
    program.call("cuCtxSetCurrent", [context, 0, 0]);
    let random = Random::new("devices");
    for round in 0..300 {
        copies(&program, &random, round);
    }
    let before = device_stats();
    assert!(
        if without { before.kernels == 0 && before.kernels_refused > 100 } else { before.kernels > 300 },
        "{before:?}"
    );
    large(&program, without);
    for basic in basic::ALL {
        for &(op, _) in op::ALL {
            reduction(&program, &random, op, Datatype::builtin(basic.code).unwrap(), without);
        }
    }
}

fn contents(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(buffer.lo(), &mut out);
    out
}

/// Copies between two datatypes, each on the device or the host.
fn copies(program: &Program, random: &Random, round: u32) {
    let end = || loop {
        let (ty, count) = (types::datatype(random, 3, random.below(4) == 0), 1 + random.below(20));
        let Ok(span) = ty.span(count) else { continue };
        if span.bytes > 0 && span.bytes < 1 << 15 && span.hi - span.lo < 1 << 18 {
            return (ty, count, span);
        }
    };
    let (from, mut to) = (end(), end());
    while types::overlaps(&Data::typed(
        HeapBuffer::zeroed((to.2.hi - to.2.lo) as usize).rebased(-to.2.lo as isize),
        to.1,
        &to.0,
    )) {
        to = end();
    }
    let kinds = random.below(3);
    let place = |on_device: bool, bytes: &[u8], lo: i64| {
        let memory = if on_device { program.memory(bytes) } else { HeapBuffer::copy_of(bytes) };
        memory.rebased(-lo as isize)
    };
    let bytes = [&from, &to].map(|end| random.bytes((end.2.hi - end.2.lo) as usize));
    let [oracle_from, oracle_to] = [(&from, &bytes[0]), (&to, &bytes[1])]
        .map(|(end, bytes)| Data::typed(place(false, bytes, end.2.lo), end.1, &end.0));
    let [there_from, there_to] = [(&from, &bytes[0], kinds != 1), (&to, &bytes[1], kinds != 0)]
        .map(|(end, bytes, on_device)| Data::typed(place(on_device, bytes, end.2.lo), end.1, &end.0));
    let most = from.2.bytes.min(to.2.bytes);
    let (from_at, at) = (
        random.pick(&[0, from.2.bytes - most, random.below(from.2.bytes - most + 1)]),
        random.pick(&[0, to.2.bytes - most]),
    );
    let len = random.pick(&[most, random.below(most + 1)]);
    oracle_to.copy_part(at, &oracle_from, from_at, len);
    there_to.start_copy(at, &there_from, from_at, len).wait();
    let what =
        || format!("round {round}, kinds {kinds}: {len} bytes from {from_at} of {from:?} to {at} of {to:?}");
    assert!(contents(there_to.buffer()) == contents(oracle_to.buffer()), "{}", what());
    // The same by cursors.
    let (mut packed, mut expected) = (vec![0; len as usize], vec![0; len as usize]);
    let mut cursor = there_from.cursor();
    cursor.seek(from_at);
    cursor.pack(&there_from, &mut packed);
    let mut cursor = oracle_from.cursor();
    cursor.seek(from_at);
    cursor.pack(&oracle_from, &mut expected);
    assert!(packed == expected, "{}", what());
}

/// A column of a matrix, of more bytes than a stage has, to the host and back, in few operations.
fn large(program: &Program, without: bool) {
    let double = Datatype::builtin(0x214).unwrap();
    let rows = if without { 1000 } else { (34 << 20) / 16 };
    let columns = Datatype::vector(rows, 2, 3, double).unwrap();
    let bytes: Vec<u8> = (0..rows * 24).map(|i| (i * 7 % 251) as u8).collect();
    let there = Data::typed(program.memory(&bytes), 1, &columns);
    let here = Data::typed(HeapBuffer::copy_of(&bytes), 1, &columns);
    let mut expected = vec![0; here.len() as usize];
    here.cursor().pack(&here, &mut expected);
    let before = device_stats();
    let packed = HeapBuffer::zeroed(expected.len());
    Data::bytes(packed.clone()).start_copy(0, &there, 0, there.len()).wait();
    assert!(contents(&packed) == expected);
    let back = Data::typed(program.memory(&bytes), 1, &columns);
    expected.iter_mut().for_each(|byte| *byte = !*byte);
    back.start_copy(0, &Data::bytes(HeapBuffer::copy_of(&expected)), 0, back.len()).wait();
    here.cursor().unpack(&here, &expected);
    assert!(contents(back.buffer()) == contents(here.buffer()));
    let now = device_stats();
    let (kernels, copies) = (now.kernels - before.kernels, now.copies - before.copies);
    assert!(without || (kernels == 4 && copies < 12), "{kernels} kernels, {copies} copies");
}

/// All operations on all types that a device reduces, with the result apart from the operands.
fn reduction(
    program: &Program,
    random: &Random,
    op: op::Builtin,
    ty: &std::sync::Arc<Datatype>,
    without: bool,
) {
    let Some(reduction) =
        Reduction::find(op, ty).filter(|_| !matches!(ty.code(), Some(0x220 | 0x224 | 0x225)))
    else {
        return;
    };
    let count = 1 + random.below(100);
    let reach = reduction.reach(count);
    assert_eq!(reach as i64, ty.span(count).unwrap().hi);
    // Few bits, so that no real is NaN; but of C's long double there are others that are no numbers.
    let bytes = || random.bytes(reach).iter().map(|byte| byte & 0x13).collect::<Vec<u8>>();
    let (a, b, out) = (bytes(), bytes(), bytes());
    let [there_a, there_b, there_out] = [&a, &b, &out].map(|bytes| program.memory(bytes));
    let started = reduction.start([&there_a, &there_b, &there_out], count);
    assert_eq!(started.is_err(), without, "{started:?}");
    if without {
        let why = started.unwrap_err().what;
        assert!(why.contains("CUDA device 0") && why.contains("cuModuleLoadData"), "{why}");
        return;
    }
    drop(started);
    let expected = HeapBuffer::copy_of(&out);
    op::reduce(op::Builtin::Replace, ty, &HeapBuffer::copy_of(&b), &expected, count).unwrap();
    op::reduce(op, ty, &HeapBuffer::copy_of(&a), &expected, count).unwrap();
    assert!(contents(&there_out) == contents(&expected), "{op:?} on {}", ty.name());
    assert!(contents(&there_a) == a && contents(&there_b) == b);
}
