//! Compiling for devices, with the stand-in for NVRTC and hipRTC, which is found in processes of their own: what is kept, and what is said.

use std::path::{Path, PathBuf};

use banyan_memory::{Compiler, Target};
use cuda_double::process;

const TEXT: &str = "extern \"C\" __global__ void nothing() {}";

/// True in a process that finds the stand-in for both compilers; else the test is run in one.
fn finds_nvrtc(test: &str) -> bool {
    if !process::is_again() {
        let names = ["libnvrtc.so", "libhiprtc.so"];
        process::again(test, Path::new(env!("CARGO_TARGET_TMPDIR")), &names, &[]);
    }
    process::is_again()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_dir(folder.join("new")).expect("a folder");
    list.map(|file| file.expect("a file").path()).collect()
}

#[test]
fn what_was_compiled_is_kept_by_text_and_architecture_and_only_whole() {
    if !finds_nvrtc("what_was_compiled_is_kept_by_text_and_architecture_and_only_whole") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("banyan-nvrtc-{}", std::process::id()));
    // A folder that is not there yet.
    let compiler = Compiler { kept_in: Some(folder.join("new")) };
    let compile = |text: &str, architecture| compiler.compile("some", text, architecture).expect("code");
    let image = compile(TEXT, 80);
    assert!(image.starts_with(b"sm_80: "), "{}", String::from_utf8_lossy(&image));
    let first = files(&folder).pop().expect("it is kept");
    // A device that this NVRTC does not know gets PTX for the newest one that it does.
    assert!(compile(TEXT, 120).starts_with(b"compute_90: "));
    let longer = format!("{TEXT} ");
    let other = compile(&longer, 80);
    assert_ne!(image, other);
    let names = files(&folder);
    assert_eq!(names.len(), 3, "{names:?}");
    let second =
        names.iter().find(|name| name.to_string_lossy().contains("sm_80") && **name != first).expect("kept");
    // What is kept is taken: here another text's.
    std::fs::copy(&first, second).expect("a copy");
    assert_eq!(compile(&longer, 80), image);
    // But not if it is cut off, changed, or no such file; then it is kept anew.
    let whole = std::fs::read(&first).expect("a file");
    let changed =
        |at: usize| whole.iter().enumerate().map(|(i, byte)| byte ^ u8::from(i == at)).collect::<Vec<u8>>();
    for bytes in
        [whole[..whole.len() - 1].to_vec(), whole[..10].to_vec(), vec![], changed(0), changed(9), changed(20)]
    {
        std::fs::write(second, bytes).expect("a file");
        assert_eq!(compile(&longer, 80), other);
        assert_eq!(std::fs::read(second).expect("a file").len(), whole.len());
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
    // Where nothing can be kept.
    let nowhere = Compiler { kept_in: Some("/proc/none".into()) };
    assert_eq!(nowhere.compile("some", TEXT, 80), Ok(image));
}

#[test]
fn what_does_not_compile_says_why() {
    if !finds_nvrtc("what_does_not_compile_says_why") {
        return;
    }
    let compiler = Compiler { kept_in: None };
    let why = compiler.compile("some", "#error", 90).expect_err("no code");
    assert!(why.contains("\"some\"") && why.ends_with("#error directive"), "{why}");
    let why = compiler.compile_to("some", TEXT, &Target::Newer(13)).expect_err("no code");
    assert!(why.contains("compute_13") && why.ends_with("no such architecture"), "{why}");
}

#[test]
fn for_devices_of_amd_hiprtc_compiles_and_versions_are_kept_apart() {
    if !finds_nvrtc("for_devices_of_amd_hiprtc_compiles_and_versions_are_kept_apart") {
        return;
    }
    let folder = std::env::temp_dir().join(format!("banyan-hiprtc-{}", std::process::id()));
    let compiler = Compiler { kept_in: Some(folder.join("new")) };
    let target = |name: &str, runtime| Target::Amd { architecture: name.to_owned(), runtime };
    let image = compiler.compile_to("some", TEXT, &target("gfx90a:xnack-", 6)).expect("code");
    assert!(image.starts_with(b"gfx90a:xnack-: "), "{}", String::from_utf8_lossy(&image));
    compiler.compile_to("some", TEXT, &target("gfx90a:xnack-", 7)).expect("code");
    compiler.compile_to("some", TEXT, &target("gfx1100", 7)).expect("code");
    assert_eq!(files(&folder).len(), 3);
    std::fs::remove_dir_all(&folder).expect("the folder");
    let why = compiler.compile_to("some", "#error", &target("gfx1100", 7)).expect_err("no code");
    assert!(why.starts_with("hipRTC ") && why.ends_with("#error directive"), "{why}");
}

#[test]
fn without_the_compiler_it_is_said_what_to_do() {
    // Where the machine has one it compiles.
    if let Err(why) = (Compiler { kept_in: None }).compile("some", TEXT, 75) {
        assert!(why.contains("libnvrtc.so") && why.contains("LD_LIBRARY_PATH"), "{why}");
    }
}
