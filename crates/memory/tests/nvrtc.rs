//! Compiling for devices, with the stand-in for NVRTC: what is kept, and what is said. (Beside the code these tests would share the stand-in's
//! process with those of the driver.)

use std::path::{Path, PathBuf};

use banyan_memory::{Compiler, Target};

const TEXT: &str = "extern \"C\" __global__ void nothing() {}";

/// NVRTC's stand-in, with a folder that is not there yet.
fn compiler(folder: &Path) -> Compiler {
    let program = std::env::current_exe().expect("a path");
    let library = Some(program.with_file_name("libcuda_double.so"));
    Compiler { library, kept_in: Some(folder.join("new")) }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_dir(folder.join("new")).expect("a folder");
    list.map(|file| file.expect("a file").path()).collect()
}

#[test]
fn what_was_compiled_is_kept_by_text_and_architecture_and_only_whole() {
    let folder = std::env::temp_dir().join(format!("banyan-nvrtc-{}", std::process::id()));
    let compiler = compiler(&folder);
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
    let nowhere = Compiler { kept_in: Some("/proc/none".into()), ..compiler.clone() };
    assert_eq!(nowhere.compile("some", TEXT, 80), Ok(image));
}

#[test]
fn what_does_not_compile_says_why() {
    let compiler = Compiler { kept_in: None, ..compiler(Path::new("/")) };
    let why = compiler.compile("some", "#error", 90).expect_err("no code");
    assert!(why.contains("\"some\"") && why.ends_with("#error directive"), "{why}");
    let why = compiler.compile_to("some", TEXT, Target::Newer(13)).expect_err("no code");
    assert!(why.contains("compute_13") && why.ends_with("no such architecture"), "{why}");
    let missing = Compiler { library: Some("/none/libnvrtc.so".into()), kept_in: None };
    assert_eq!(missing.compile("some", TEXT, 90), Err("/none/libnvrtc.so cannot be loaded".to_owned()));
}
