//! Copies of few bytes by the processor, through mappings of a device's memory, on the stand-in for CUDA's driver and for GDRCopy. Each test is a process of its own,
//! as what a process knows of both it knows for good.

use std::ffi::{CString, c_int, c_void};
use std::path::Path;

use banyan_memory::{
    Buffer, DeviceFailure, Gpus, HeapBuffer, MappedCopies, Platform, device_stats, look_for, why_not_mapped,
};
use cuda_double::process;

/// The driver and GDRCopy.
const BOTH: &[&str] = &["libcuda.so.1", "libgdrapi.so.2"];
const READ: usize = 2 << 10;
const WRITE: usize = 32 << 10;

/// The driver, as a program that uses it has it, in a process that copies so.
struct Program(*mut c_void);

impl Program {
    /// `None` in the process that has just run this test in one of its own.
    fn here(test: &str, names: &[&str], variables: &[(&str, &str)]) -> Option<Program> {
        if !process::is_again() {
            process::again(test, Path::new(env!("CARGO_TARGET_TMPDIR")), names, variables);
            return None;
        }
        look_for(Gpus::Only(Platform::Cuda), "cuda").expect("the stand-in");
        MappedCopies { longest_read: READ, longest_write: WRITE }.use_from_now_on();
        // SAFETY: the project's own library.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        let program = Program(library);
        let context = program.get("cuDevicePrimaryCtxRetain", 1);
        assert_eq!(program.call("cuCtxSetCurrent", [context, 0]), 0);
        Some(program)
    }

    /// Calls a function of up to two numbers or addresses.
    fn call(&self, name: &str, [one, other]: [usize; 2]) -> c_int {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: the library is loaded.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        // SAFETY: those that are called here take no more, in registers.
        unsafe {
            let function: unsafe extern "C" fn(usize, usize, usize) -> c_int = std::mem::transmute(function);
            function(one, other, 1)
        }
    }

    /// A value that a function writes to its first argument.
    fn get(&self, name: &str, argument: usize) -> usize {
        let mut value = 0usize;
        assert_eq!(self.call(name, [(&raw mut value) as usize, argument]), 0, "{name}");
        value
    }

    fn alloc(&self, len: usize) -> Buffer {
        at(self.get("cuMemAlloc_v2", len), len).expect("memory of a device")
    }

    fn free(&self, memory: &Buffer) {
        assert_eq!(self.call("cuMemFree_v2", [memory.address(0), 0]), 0);
    }

    /// How often a function was called.
    fn calls(&self, name: &str) -> c_int {
        let name = CString::new(name).expect("no NUL");
        self.call("banyan_double_calls", [name.as_ptr() as usize, 0])
    }

    fn fail(&self, name: &str, error: c_int) {
        let name = CString::new(name).expect("no NUL");
        self.call("banyan_double_fail", [name.as_ptr() as usize, error as usize]);
    }

    /// Copies of the driver's.
    fn copies(&self) -> c_int {
        self.calls("cuMemcpyAsync") + self.calls("cuMemcpy")
    }
}

fn at(address: usize, len: usize) -> Result<Buffer, DeviceFailure> {
    // SAFETY: memory that the tests allocate and give back.
    unsafe { Buffer::classified(address as *mut u8, 0, len as isize) }
}

fn text(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// Writes and reads bytes, and says how many of both copies the processor made.
fn there_and_back(memory: &Buffer, from: usize, len: usize, seed: usize) -> u64 {
    let before = device_stats().mapped_copies;
    let (sent, mut came) = (text(len, seed), vec![0; len]);
    memory.write(from as isize, &sent);
    memory.read(from as isize, &mut came);
    assert_eq!(sent, came, "{len} bytes at {from}");
    device_stats().mapped_copies - before
}

#[test]
fn short_copies_on_the_stand_in() {
    let Some(program) = Program::here("short_copies_on_the_stand_in", BOTH, &[]) else { return };
    let memory = program.alloc(3 << 20);
    // Also across the bounds of windows, of which there are several.
    for from in [0, 1, 4095, (512 << 10) - memory.address(0) % (512 << 10) - 500, (3 << 20) - READ] {
        for len in [1, 15, 16, 1000, READ] {
            assert_eq!(there_and_back(&memory, from, len, from + len), 2, "{len} bytes at {from}");
        }
    }
    assert_eq!((program.copies(), program.calls("cuStreamSynchronize")), (0, 0));
    assert_eq!(
        (there_and_back(&memory, 5, READ + 1, 1), program.copies()),
        (1, 1),
        "a longer read is the driver's"
    );
    assert_eq!((there_and_back(&memory, 5, WRITE, 1), program.copies()), (1, 2));
    assert_eq!((there_and_back(&memory, 5, WRITE + 1, 1), program.copies()), (0, 4));
    // Those that are begun are over.
    let host = HeapBuffer::zeroed(100);
    memory.write(0, b"hello");
    assert!(
        host.start_copy_from(1, &memory, 0, 5).is_none()
            && memory.start_copy_from(50, &host, 0, 10).is_none()
    );
    let mut came = [0; 5];
    memory.read(51, &mut came);
    assert_eq!(&came, b"hello");
    // The driver alone moves what is between devices, and managed memory.
    let managed = at(program.get("cuMemAllocManaged", 100), 100).expect("managed");
    assert_eq!((there_and_back(&managed, 0, 100, 3), device_stats().mapped_refused), (0, 0));
    let before = device_stats().mapped_copies;
    memory.copy_from(0, &memory, 1000, 100);
    assert_eq!(device_stats().mapped_copies, before);
    // Memory that is too short is the driver's to refuse.
    let short = program.alloc(1000);
    let longer = at(short.address(0), 2000).expect("memory of a device");
    assert_eq!(there_and_back(&longer, 0, 1000, 4), 2);
    let refused = DeviceFailure::caught(|| longer.read(500, &mut [0; 1000])).expect_err("it is too short");
    assert!(refused.what.contains("large enough"), "{refused:?}");
    assert_eq!(device_stats().mapped_refused, 0);
}

#[test]
fn freed_memory_on_the_stand_in() {
    let Some(program) = Program::here("freed_memory_on_the_stand_in", BOTH, &[]) else {
        return;
    };
    let (mut again, mut old) = (0, vec![]);
    for round in 0..20 {
        let memory = program.alloc(8 << 10);
        // As the stand-in leaves new memory.
        let mut first = [0; 100];
        memory.read(0, &mut first);
        assert_eq!(first, [0xd5; 100], "round {round}");
        again += u32::from(old.contains(&memory.address(0)));
        assert_eq!(there_and_back(&memory, 0, 1000, round), 2);
        old.push(memory.address(0));
        program.free(&memory);
        let gone = DeviceFailure::caught(|| memory.read(0, &mut first)).expect_err("it is gone");
        assert!(gone.what.contains("allocated until"), "{gone:?}");
    }
    assert!(again > 0, "no address came again: no test without it");
    assert_eq!(device_stats().mapped_copies, 60, "all but those of memory that was gone");
    // What is mapped no longer is pinned no longer: the last one is, until a new one is mapped.
    assert_eq!((program.calls("gdr_pin_buffer"), program.calls("gdr_unpin_buffer")), (20, 19));
}

#[test]
fn refusals_on_the_stand_in() {
    let Some(program) = Program::here("refusals_on_the_stand_in", BOTH, &[]) else { return };
    let [one, two, three, four, five] = [(); 5].map(|()| program.alloc(100 << 10));
    assert_eq!(there_and_back(&one, 0, 1000, 1), 2);
    program.fail("gdr_pin_buffer", libc::ENOMEM);
    assert_eq!((there_and_back(&two, 0, 1000, 2), program.copies()), (0, 2));
    program.fail("gdr_pin_buffer", 0);
    assert_eq!((there_and_back(&two, 0, 1000, 3), program.copies()), (0, 4), "it is not tried again");
    program.fail("gdr_map", libc::EINVAL);
    assert_eq!((there_and_back(&three, 0, 1000, 4), program.copies()), (0, 6));
    let balance = |program: &Program| {
        // Two pins were refused: with another mapping gone it was tried once more.
        program.calls("gdr_pin_buffer") - 2 - program.calls("gdr_unpin_buffer")
    };
    assert_eq!(balance(&program), 0, "nothing stays pinned that is not mapped");
    program.fail("gdr_map", 0);
    program.fail("gdr_get_info", libc::EIO);
    assert_eq!((there_and_back(&four, 0, 1000, 5), balance(&program)), (0, 0));
    assert_eq!((device_stats().mapped_refused, program.copies()), (3, 8));
    let why = why_not_mapped().expect("the first reason");
    assert!(why.contains("gdr_pin_buffer") && why.contains("memory"), "{why}");
    // After three in a row nothing is asked for any more.
    program.fail("gdr_get_info", 0);
    let asked = program.calls("gdr_pin_buffer");
    assert_eq!((there_and_back(&five, 0, 1000, 6), program.calls("gdr_pin_buffer")), (0, asked));
}

#[test]
fn scarce_room_on_the_stand_in() {
    let room = [("BANYAN_TEST_CUDA_BAR", "131072")];
    let Some(program) = Program::here("scarce_room_on_the_stand_in", BOTH, &room) else { return };
    // Each of them lies in one page of a GPU's, of which there are two.
    let all: Vec<Buffer> = (0..8).map(|_| program.alloc(4096)).collect();
    for (i, memory) in all.iter().enumerate() {
        assert_eq!(there_and_back(memory, 0, 1000, i), 2, "allocation {i}");
    }
    assert_eq!((program.copies(), device_stats().mapped_refused), (0, 0));
    assert_eq!(
        program.calls("gdr_pin_buffer") - program.calls("gdr_unpin_buffer"),
        8,
        "two that stay, and six refusals"
    );
}

#[test]
fn no_library_on_the_stand_in() {
    let Some(program) = Program::here("no_library_on_the_stand_in", &["libcuda.so.1"], &[]) else {
        return;
    };
    let memory = program.alloc(10_000);
    for round in 0..10 {
        assert_eq!(there_and_back(&memory, 0, 1000, round), 0);
    }
    assert_eq!((program.copies(), device_stats().mapped_refused), (20, 1), "it is looked for once");
    assert!(why_not_mapped().is_some_and(|why| why.contains("libgdrapi.so.2")));
}

#[test]
fn a_library_that_does_not_open_on_the_stand_in() {
    let error = [("BANYAN_TEST_CUDA_ERRORS", "gdr_open=1@1-")];
    let Some(program) = Program::here("a_library_that_does_not_open_on_the_stand_in", BOTH, &error) else {
        return;
    };
    let memory = program.alloc(10_000);
    assert_eq!((there_and_back(&memory, 0, 1000, 1), there_and_back(&memory, 0, 10, 2)), (0, 0));
    assert_eq!((program.copies(), program.calls("gdr_open")), (4, 1));
    assert!(why_not_mapped().is_some_and(|why| why.contains("gdrdrv")));
}
