//! What devices do with datatypes, in CUDA C: reductions of all predefined operations on all types they are defined for, and moves
//! between packed bytes and where a datatype says that they lie. The text is here, the names of its kernels, and the values that
//! they take. A result has the same bits as one of the processor's, but for which NaN an invalid operation yields.
//!
//! The text includes nothing, so NVRTC compiles it on a machine that has no headers. A C++ compiler takes it, too
//! ([`FOR_THE_PROCESSOR`]): so the tests run the kernels where there is no device.

mod copies;
mod local;
mod moves;
mod reductions;
mod table;

use std::ffi::CString;
use std::sync::LazyLock;

use banyan_memory::{Arg, Copying, DeviceFailure, Launch, Module};

pub use copies::Copies;
pub use local::reduce;
pub use moves::Moves;
pub use reductions::Reduction;
pub(crate) use table::Table;

/// Kernels that are compiled together.
#[derive(Debug)]
pub struct Text {
    /// What they are about, in a word.
    pub name: &'static str,
    /// The CUDA C.
    pub source: &'static str,
}

/// A text whose kernels reduce.
macro_rules! reducing {
    ($name:literal) => {
        Text {
            name: $name,
            source: concat!(
                include_str!("base.cuh"),
                include_str!("soft.cuh"),
                include_str!("ops.cuh"),
                include_str!("reduce.cuh"),
                include_str!(concat!($name, ".cuh")),
            ),
        }
    };
}

/// All texts. A device compiles each when it is first used, so what programs use seldom is apart.
pub static TEXTS: [Text; 4] = [
    reducing!("numbers"),
    reducing!("truth"),
    reducing!("rare"),
    Text { name: "pack", source: concat!(include_str!("base.cuh"), include_str!("pack.cuh")) },
];
const NUMBERS: usize = 0;
const TRUTH: usize = 1;
const RARE: usize = 2;
const PACK: usize = 3;

/// All texts as one that a C++ compiler takes. What it gives exports `banyan_double_kernel`, by which the stand-in for CUDA's driver
/// finds a kernel of some name.
pub const FOR_THE_PROCESSOR: &str = concat!(
    include_str!("shim.h"),
    include_str!("base.cuh"),
    include_str!("soft.cuh"),
    include_str!("ops.cuh"),
    include_str!("reduce.cuh"),
    include_str!("numbers.cuh"),
    include_str!("truth.cuh"),
    include_str!("rare.cuh"),
    include_str!("pack.cuh"),
);

/// Threads of a block of each of these kernels.
pub const THREADS: u32 = 256;
/// The most blocks: more than devices run at a time, and each thread takes as much as is left.
const MOST_BLOCKS: u64 = 1 << 11;

static MODULES: LazyLock<[Module; 4]> =
    LazyLock::new(|| TEXTS.each_ref().map(|text| Module::of_source(text.name, text.source)));

/// A run of a kernel, but for the three addresses of memory that come before its values.
#[derive(Debug)]
pub struct Run {
    /// Which of [`TEXTS`] has the kernel.
    pub text: usize,
    /// The kernel.
    pub kernel: CString,
    /// Blocks of [`THREADS`] threads.
    pub blocks: u32,
    /// The last parameter.
    pub values: Vec<u8>,
}

impl Run {
    /// A run on numbers, with a thread for each of so many pieces of work if there can be so many threads.
    fn new(text: usize, kernel: &str, work: u64, values: impl IntoIterator<Item = u64>) -> Run {
        let kernel = CString::new(kernel).expect("names of kernels have no NUL");
        let blocks = work.div_ceil(THREADS.into()).clamp(1, MOST_BLOCKS) as u32;
        Run { text, kernel, blocks, values: values.into_iter().flat_map(u64::to_ne_bytes).collect() }
    }

    /// Starts it on memory of a device.
    ///
    /// # Errors
    /// Why the device does not run it.
    ///
    /// # Safety
    /// The kernel touches no memory but this, within the lengths.
    unsafe fn start(&self, memory: [Arg<'_>; 3]) -> Result<Copying, DeviceFailure> {
        let [a, b, c] = memory;
        let launch = Launch {
            module: &MODULES[self.text],
            name: &self.kernel,
            grid: [self.blocks, 1, 1],
            block: [THREADS, 1, 1],
            shared: 0,
            args: &[a, b, c, Arg::Value(&self.values)],
        };
        // SAFETY: all kernels have these parameters; the rest the caller promises.
        unsafe { launch.start() }
    }
}
