//! The platforms whose devices are known: whose driver is looked for where, and what it is called.

use std::ffi::CStr;

/// Whose devices, and whose interface their driver has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Platform {
    /// NVIDIA's.
    Cuda,
    /// AMD's.
    Hip,
}

impl Platform {
    /// All of them. Users' pointers are looked for in this order.
    pub const ALL: [Platform; 2] = [Platform::Cuda, Platform::Hip];

    /// What messages call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Platform::Cuda => "CUDA",
            Platform::Hip => "HIP",
        }
    }

    /// Under which names programs load the driver.
    pub(super) const fn libraries(self) -> &'static [&'static CStr] {
        match self {
            Platform::Cuda => &[c"libcuda.so.1", c"libcuda.so"],
            Platform::Hip => {
                &[c"libamdhip64.so.7", c"libamdhip64.so.6", c"libamdhip64.so.5", c"libamdhip64.so"]
            }
        }
    }

    /// True if a library of this path may be the driver, by the name of its file. The linker knows libraries by the name in them as well, which
    /// need not be that of the file.
    pub(super) fn may_be(self, path: &CStr) -> bool {
        let file = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let begins: &[u8] = match self {
            Platform::Cuda => b"libcuda",
            Platform::Hip => b"libamdhip64",
        };
        file.starts_with(begins)
    }

    /// True if the machine lets programs use such a device.
    pub(super) fn has_nodes(self) -> bool {
        self.nodes().iter().any(|node| std::fs::exists(node).unwrap_or(false))
    }

    /// Files that are there if the machine lets programs use such a device, also in containers.
    const fn nodes(self) -> &'static [&'static str] {
        match self {
            Platform::Cuda => &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvmap", "/dev/dxg"],
            Platform::Hip => &["/dev/kfd"],
        }
    }

    /// What is said where the machine has no driver.
    pub(super) const fn missing(self) -> &'static str {
        match self {
            Platform::Cuda => {
                "the machine has no CUDA driver (libcuda.so.1): install NVIDIA's driver, or name its folder in LD_LIBRARY_PATH"
            }
            Platform::Hip => {
                "the machine has no HIP runtime (libamdhip64.so): install ROCm, or name its folder lib in LD_LIBRARY_PATH"
            }
        }
    }
}
