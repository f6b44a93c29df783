//! Devices of CUDA and of HIP on the stand-in for both drivers, libraries beside the test's program.

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;

use super::*;
use crate::device::{class_at, kind_at, suite, users_pointers_are_classified};
use crate::dma_buf::{Drivers, Exporter as _, settle};
use crate::{Buffer, DeviceFailure, HeapBuffer, MemoryKind, stats};

#[test]
fn what_the_processor_cannot_read_is_told_from_what_it_can() {
    let word = [1u8; 16];
    assert!(is_readable(word.as_ptr() as usize + 3));
    assert!(!is_readable(0) && !is_readable(4096));
    // SAFETY: new pages anywhere.
    let pages = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert!(pages != libc::MAP_FAILED && !is_readable(pages as usize + 100));
    // SAFETY: the pages from above.
    unsafe { libc::munmap(pages, 4096) };
}

/// The stand-in as a program that uses it sees it.
struct Program(*mut c_void);

impl Program {
    /// Loads it, as a program does that comes to use devices.
    fn load(platform: Platform) -> Program {
        let program = std::env::current_exe().expect("a path");
        let path = program.with_file_name(match platform {
            Platform::Cuda => "libcuda_double.so",
            Platform::Hip => "libhip_double.so",
        });
        let path = CString::new(path.into_os_string().into_encoded_bytes()).expect("no NUL");
        // SAFETY: the project's own library.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} is beside this program");
        Program(library)
    }

    /// Calls a function of numbers and addresses.
    fn call(&self, name: &str, args: [usize; 3]) -> c_int {
        let name = CString::new(name).expect("no NUL");
        // SAFETY: the library is loaded.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        // SAFETY: those that are called here take up to three numbers or addresses, in registers.
        unsafe {
            let function: unsafe extern "C" fn(usize, usize, usize) -> c_int = std::mem::transmute(function);
            function(args[0], args[1], args[2])
        }
    }

    fn ok(&self, name: &str, args: [usize; 3]) {
        assert_eq!(self.call(name, args), 0, "{name}");
    }

    /// A value that a function writes to its first argument.
    fn get(&self, name: &str, args: [usize; 2]) -> usize {
        let mut value = 0usize;
        self.ok(name, [(&raw mut value) as usize, args[0], args[1]]);
        value
    }

    fn use_device(&self, ordinal: usize) {
        let context = self.get("cuDevicePrimaryCtxRetain", [ordinal, 0]);
        self.ok("cuCtxSetCurrent", [context, 0, 0]);
    }
}

fn at(address: usize, len: usize) -> Result<Buffer, DeviceFailure> {
    // SAFETY: memory that the tests allocate and give back.
    unsafe { Buffer::classified(address as *mut u8, 0, len as isize) }
}

fn said(of: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(of)).expect_err("a failure");
    panic.downcast_ref::<DeviceFailure>().expect("a device's failure").what.clone()
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(0, &mut out);
    out
}

/// A driver that was not found yet.
fn finder(platform: Platform) -> Arc<ProgramDriver> {
    Arc::new(ProgramDriver { platform, driver: OnceLock::new(), looked: AtomicU64::new(0) })
}

/// One test, as what a process knows of its drivers it knows for good.
#[test]
fn drivers_on_the_stand_in() {
    let cuda = finder(Platform::Cuda);
    let word = 7u64;
    let word_at = (&raw const word) as usize;
    assert!(matches!(cuda.find(word_at), Ok(None)), "no driver is there");
    // The program loads its driver long after the process began: from then on it is seen.
    let program = Program::load(Platform::Cuda);
    assert!(matches!(cuda.find(word_at), Ok(None)) && cuda.driver.get().is_some(), "it was not started yet");
    program.ok("cuInit", [0; 3]);
    program.use_device(1);
    let mine = program.get("cuCtxGetCurrent", [0; 2]);
    let alloc = |len: usize| program.get("cuMemAlloc_v2", [len, 0]);
    let first = alloc(64);
    let owner = cuda.find(first).expect("it is known").expect("memory of a device").1;
    let there = Buffer::of_device(first as *mut u8, 0, 64, owner.expect("a device's"));
    users_pointers_are_classified(&there, cuda);
    suite(&|len| at(alloc(len), len).expect("a device's"));
    assert_eq!(program.get("cuCtxGetCurrent", [0; 2]), mine, "the program's context is current as before");
    kinds_of_memory(&program);
    devices_and_contexts(&program);
    what_other_devices_get_at(&program);
    what_is_freed(&program);
    failures(&program);
    hip_beside_cuda(&program);
}

/// HIP's runtime, where CUDA's driver is in use already.
fn hip_beside_cuda(cuda: &Program) {
    let (hip, word) = (finder(Platform::Hip), 7u64);
    let word_at = (&raw const word) as usize;
    assert!(matches!(hip.find(word_at), Ok(None)) && hip.driver.get().is_none(), "no runtime is there");
    let program = Program::load(Platform::Hip);
    assert!(matches!(hip.find(word_at), Ok(None)) && hip.driver.get().is_some());
    assert_eq!(program.call("hipGetLastError", [0; 3]), 0, "what is asked of others' memory is no error");
    program.ok("hipSetDevice", [2, 0, 0]);
    let alloc = |len: usize| program.get("hipMalloc", [len, 0]);
    let first = alloc(64);
    let owner = hip.find(first).expect("it is known").expect("memory of a device").1;
    let there = Buffer::of_device(first as *mut u8, 0, 64, owner.expect("a device's"));
    assert!(at(first, 64).is_err(), "no driver that is in use knows it");
    devices::add(hip);
    suite(&|len| at(alloc(len), len).expect("a device's"));
    there.write(0, b"there");
    let [pinned, managed] = ["hipHostMalloc", "hipMallocManaged"].map(|name| program.get(name, [100, 1]));
    assert_eq!(
        [pinned, managed, first].map(class_at),
        [MemoryClass::Pinned, MemoryClass::Managed { shared: true }, MemoryClass::Device(2)]
    );
    // On another device than the current one, which stays so.
    program.ok("hipSetDevice", [1, 0, 0]);
    let other = at(alloc(5000), 5000).expect("a device's");
    other.copy_from(7, &there, 0, 5);
    assert_eq!(&bytes(&other)[7..12], b"there");
    assert_eq!(program.get("hipGetDevice", [0; 2]) as u32, 1);
    // Copies and what is polled leave no error for the program.
    assert_eq!(program.call("hipGetLastError", [0; 3]), 0);
    let told = other.allocation().expect("it is numbered");
    assert_eq!((told.id >> 63, told.device.to_string()), (1, "0000:23:00.0".to_owned()));
    let first_page = other.address(0)..other.address(4096);
    assert!(other.dma_buf(&first_page).is_ok() && settle(&[other.slice(0, 1)]).is_ok());
    between_platforms(cuda, &other);
    program.ok("hipFree", [first, 0, 0]);
    let text = said(|| there.write(0, b"x"));
    assert!(text.contains("HIP device 2") && text.contains("hipErrorInvalidValue"), "{text}");
    assert!(at(first, 64).is_err_and(|failure| failure.what.contains("the HIP driver")));
}

/// Copies between devices of both, and what other processes are told of their memory.
fn between_platforms(program: &Program, hip: &Buffer) {
    let cuda = at(program.get("cuMemAlloc_v2", [5000, 0]), 5000).expect("a device's");
    let text: Vec<u8> = (0..5000).map(|i| (i * 11) as u8).collect();
    cuda.write(0, &text);
    hip.copy_from(0, &cuda, 0, 5000);
    cuda.write(0, &[0; 5000]);
    cuda.copy_from(0, hip, 0, 5000);
    assert_eq!(bytes(&cuda), text);
    let exported = [&cuda, hip].map(|memory| memory.export().expect("it is shared"));
    assert_eq!(exported.map(|told| told.id >> 63), [0, 1], "numbers of both are never alike");
    for (told, near) in exported.iter().zip([hip, &cuda]) {
        let failure = crate::Imported::open(told, near).expect_err("the other driver's");
        assert!(failure.what.contains("has no part"), "{failure:?}");
    }
}

fn kinds_of_memory(program: &Program) {
    let pinned = program.get("cuMemHostAlloc", [100, 0]);
    let managed = program.get("cuMemAllocManaged", [100, 1]);
    let device = program.get("cuMemAlloc_v2", [100, 0]);
    assert_eq!(
        [pinned, pinned + 99, managed, device + 50].map(class_at),
        [
            MemoryClass::Pinned,
            MemoryClass::Pinned,
            MemoryClass::Managed { shared: true },
            MemoryClass::Device(1),
        ]
    );
    // Managed memory is the driver's to copy, though the processor may touch it.
    assert_eq!(
        [pinned, managed, device].map(kind_at),
        [MemoryKind::Host, MemoryKind::Device, MemoryKind::Device]
    );
    at(managed, 4).expect("managed").write(0, b"wxyz");
    at(device, 100).expect("a device's").copy_from(10, &at(managed, 4).expect("managed"), 0, 4);
    at(pinned, 4).expect("pinned").copy_from(0, &at(device, 100).expect("a device's"), 10, 4);
    assert_eq!(bytes(&at(pinned, 4).expect("pinned")), b"wxyz");
    program.ok("cuMemFreeHost", [pinned, 0, 0]);
    program.ok("cuMemFree_v2", [managed, 0, 0]);
}

/// Memory of other devices, and of contexts that the program has made itself.
fn devices_and_contexts(program: &Program) {
    let one = at(program.get("cuMemAlloc_v2", [5000, 0]), 5000).expect("a device's");
    program.use_device(3);
    let other = at(program.get("cuMemAlloc_v2", [5000, 0]), 5000).expect("a device's");
    let context = program.get("cuCtxCreate_v2", [0, 2]);
    let third = at(program.get("cuMemAlloc_v2", [5000, 0]), 5000).expect("a device's");
    assert_eq!([&one, &other, &third].map(|b| class_at(b.address(0))), [1, 3, 2].map(MemoryClass::Device));
    let text: Vec<u8> = (0..5000).map(|i| (i * 7) as u8).collect();
    one.write(0, &text);
    other.copy_from(0, &one, 0, 5000);
    third.copy_from(0, &other, 0, 5000);
    assert_eq!(bytes(&third), text);
    assert_eq!(program.get("cuCtxGetCurrent", [0; 2]), context);
    // It goes, and its memory with it.
    program.ok("cuCtxDestroy_v2", [context, 0, 0]);
    let text = said(|| third.write(0, b"x"));
    assert!(text.contains("context") && text.contains("CUDA device 2"), "{text}");
    program.use_device(1);
}

/// What is told of memory to those whose devices get at it by themselves.
fn what_other_devices_get_at(program: &Program) {
    let start = program.get("cuMemAlloc_v2", [10_000, 0]);
    let there = at(start + 100, 9000).expect("a device's");
    let told = there.allocation().expect("it is numbered");
    assert_eq!((told.start, told.len), (start as u64, 10_000));
    assert_eq!(told.device.to_string(), "0000:23:00.0");
    assert_eq!(Drivers.allocation(start + 9999), Some(told));
    assert_eq!(
        (Drivers.allocation((&raw const told) as usize), HeapBuffer::zeroed(8).allocation()),
        (None, None)
    );
    let second = start + 4096..start + 8192;
    let mut file = File::from(Drivers.dma_buf(&second).expect("it is exported"));
    there.write(4096 - 100, b"here");
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes).expect("a file that stands at the second page");
    assert_eq!(&bytes, b"here");
    let failure = there.dma_buf(&(start..start + 4 * 4096)).expect_err("it is shorter");
    assert!(failure.what.contains("CUDA device 1") && failure.what.contains("cuMemGetHandleForAddressRange"));
    // Others may ask in the place of the driver.
    let elsewhere = Buffer::elsewhere(there.first(), 9000, Arc::new(Drivers));
    assert_eq!((elsewhere.kind(), elsewhere.allocation()), (MemoryKind::Device, Some(told)));
    assert!(said(|| elsewhere.write(0, b"x")).contains("copies nothing"));
    // What a network's device has brought is seen from then on.
    let flushes =
        || program.call("banyan_double_calls", [c"cuFlushGPUDirectRDMAWrites".as_ptr() as usize, 0, 0]);
    let before = (flushes(), stats::device_stats());
    settle(&[there.slice(0, 1000), there.slice(2000, 500), HeapBuffer::zeroed(7)]).expect("it is seen");
    settle(&[HeapBuffer::zeroed(7)]).expect("there is nothing to see");
    let now = stats::device_stats();
    assert_eq!(flushes() - before.0, 1);
    assert_eq!(
        (now.rdma_transfers - before.1.rdma_transfers, now.rdma_bytes - before.1.rdma_bytes),
        (1, 1500)
    );
    program.ok("cuMemFree_v2", [start, 0, 0]);
    let again = program.get("cuMemAlloc_v2", [10_000, 0]);
    assert!(Drivers.allocation(again).is_some_and(|other| other.id != told.id), "never the same number");
    program.ok("cuMemFree_v2", [again, 0, 0]);
}

fn what_is_freed(program: &Program) {
    // Another test may take the room that is free.
    let seen = (0..100).any(|_| {
        let gone = program.get("cuMemAlloc_v2", [64, 0]);
        let there = at(gone, 64).expect("a device's");
        program.ok("cuMemFree_v2", [gone, 0, 0]);
        let Err(failure) = at(gone, 64) else { return false };
        assert!(failure.what.contains("freed"), "{failure:?}");
        assert_eq!(class_at(gone), MemoryClass::Host);
        said(|| there.write(0, b"x")).contains("CUDA_ERROR_INVALID_VALUE")
    });
    assert!(seen, "no test without it");
    // The same address again, on another device: as a rule the kernel gives the room that is free.
    let came_again = (0..100).any(|_| {
        program.use_device(1);
        let gone = program.get("cuMemAlloc_v2", [64, 0]);
        assert_eq!(class_at(gone), MemoryClass::Device(1));
        program.ok("cuMemFree_v2", [gone, 0, 0]);
        program.use_device(2);
        let again = program.get("cuMemAlloc_v2", [64, 0]);
        assert_eq!(class_at(again), MemoryClass::Device(2));
        again == gone
    });
    assert!(came_again, "no test without it");
    program.use_device(1);
}

fn failures(program: &Program) {
    let there = at(program.get("cuMemAlloc_v2", [100, 0]), 200).expect("a device's");
    let text = said(|| there.write(50, &[1; 100]));
    assert!(text.contains("100 bytes") && text.contains("large enough"), "{text}");
    there.write(0, &[1; 100]);
    // From the device to where the processor cannot write.
    // SAFETY: nothing is there, and the driver says so.
    let nowhere = unsafe { Buffer::new(4096 as *mut u8, 4) };
    said(|| nowhere.copy_from(0, &there, 0, 4));
    assert!(HeapBuffer::zeroed(1).start_copy_from(0, &there, 0, 1).is_some());
}
