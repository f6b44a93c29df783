//! Tests of `nvml.rs`, with the stand-in for the library.

use std::os::unix::ffi::OsStrExt as _;

use super::*;

/// The stand-in, a library beside the test's program.
struct Double(CString);

impl Double {
    fn new() -> Double {
        let program = std::env::current_exe().expect("a path");
        let path = program.with_file_name("libcuda_double.so");
        Double(CString::new(path.as_os_str().as_bytes()).expect("no NUL"))
    }

    /// Calls one of the functions by which tests tell it what to do.
    fn tell(&self, function: &'static str, text: &str, number: c_int) {
        let library = opened(&[&self.0], libc::RTLD_LOCAL).expect("it is beside this program");
        let text = CString::new(text).expect("no NUL");
        // SAFETY: both such functions take a C string, and one of them a number behind it.
        unsafe {
            let function = symbol_in(library, function);
            let function: unsafe extern "C" fn(*const c_char, c_int) -> u64 = std::mem::transmute(function);
            function(text.as_ptr(), number);
        }
    }

    /// What it says of the GPUs that a text describes.
    fn links(&self, text: &str) -> Vec<NvLinks> {
        self.tell("banyan_double_nvlinks\0", text, 0);
        let addresses: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        of_all(Nvml::open(&self.0), &addresses)
    }
}

const PAIR: &str =
    "0000:06:00.0 2 0000:07:00.0*2 down barred processor 0000:44:00.0\n0000:07:00.0 2 0000:06:00.0*2";

#[test]
fn links_on_the_stand_in_lead_to_gpus_and_switches_and_what_fails_is_none() {
    let double = Double::new();
    let to = |address: &str| Some(address.to_owned());
    let pair = [
        (2, vec![to("0000:07:00.0"), to("0000:07:00.0"), to("0000:44:00.0")]),
        (2, vec![to("0000:06:00.0"); 2]),
    ];
    assert_eq!(double.links(PAIR), pair);
    let switched = double.links("0000:1b:00.0 4 switch*18\n0000:43:00.0 4 switch*17 down\n0000:52:00.0 0");
    assert_eq!(switched, [(4, vec![None; 18]), (4, vec![None; 17]), NvLinks::default()]);
    // Without the kinds of ends, which old drivers do not tell, what is no GPU is a switch.
    double.tell("banyan_double_fail\0", "nvmlDeviceGetNvLinkRemoteDeviceType", 3);
    let old = double.links(PAIR);
    assert_eq!(old[0].1, [to("0000:07:00.0"), to("0000:07:00.0"), None, None]);
    double.tell("banyan_double_fail\0", "nvmlDeviceGetNvLinkRemoteDeviceType", 0);
    // Any function may fail, and nothing is there then.
    for (function, links) in [
        ("nvmlInit", false),
        ("nvmlDeviceGetHandleByPciBusId", false),
        ("nvmlDeviceGetNvLinkState", false),
        ("nvmlDeviceGetNvLinkCapability", false),
        ("nvmlDeviceGetNvLinkRemotePciInfo", false),
        ("nvmlDeviceGetNvLinkVersion", true),
        ("nvmlShutdown", true),
    ] {
        double.tell("banyan_double_fail\0", function, 999);
        let told = double.links(PAIR);
        assert_eq!(told.iter().any(|of| !of.1.is_empty()), links, "{function}: {told:?}");
        double.tell("banyan_double_fail\0", function, 0);
    }
    assert_eq!(double.links(PAIR), pair);
    // A library that is not there, and one that lacks every function.
    for name in [c"libno-such-library.so.1", c"libm.so.6"] {
        assert_eq!(of_all(Nvml::open(name), &["0000:06:00.0"]), [NvLinks::default()]);
    }
}
