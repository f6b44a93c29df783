//! `--explain p2p:1K:gpu`: who copies a message from and to memory of GPUs at each end, and why. Nothing is loaded for that: what the machine shows tells.

use std::path::Path;

use banyan_pmi::settings::{GPU, GPU_GDRCOPY, GPU_IPC};

/// What settings and machine say of it.
pub(crate) struct Told {
    /// [`GPU`] lets programs pass memory of CUDA devices.
    pub(crate) cuda: bool,
    /// The longest copies of the processor's, out of such memory and into it, by [`GPU_GDRCOPY`].
    pub(crate) longest: (u64, u64),
    /// From which length on messages go by the driver's IPC, by [`GPU_IPC`].
    pub(crate) ipc_from: u64,
    /// What GDRCopy needs and the machine does not show.
    pub(crate) missing: Option<&'static str>,
}

/// Messages that are longer go in pieces, or by IPC.
const ONE_COPY: u64 = 64 << 10;

/// The library that maps memory of CUDA devices for the processor.
const LIBRARY: &str = "libgdrapi.so.2";

/// Folders that the linker looks through in any case.
const FOLDERS: [&str; 6] =
    ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];

/// What GDRCopy needs and this machine does not show; `path` is where libraries are looked for first.
pub(crate) fn missing(path: &str) -> Option<&'static str> {
    let has = |folder: &str| !folder.is_empty() && Path::new(folder).join(LIBRARY).exists();
    let named = || {
        let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
        cache.windows(LIBRARY.len()).any(|bytes| bytes == LIBRARY.as_bytes())
    };
    if !path.split(':').chain(FOLDERS).any(has) && !named() {
        return Some(
            "GDRCopy's library (libgdrapi.so.2) is not found: install it, or name its folder in LD_LIBRARY_PATH",
        );
    }
    let loaded = Path::new("/dev/gdrdrv").exists();
    (!loaded).then_some(
        "GDRCopy's kernel module (gdrdrv) is not loaded; only GDRCopy 2.6 with CUDA 13.3 does without",
    )
}

/// The answer for a message of so many bytes.
pub(crate) fn message(bytes: u64, told: &Told) -> String {
    let mut out = format!("a message of {bytes} bytes from and to memory of GPUs\n");
    let (read, write) = told.longest;
    for (what, longest) in [("out of", read), ("into", write)] {
        let by = match told.missing {
            _ if !told.cuda => format!("nobody: {GPU} lets programs pass no such memory"),
            _ if longest == 0 => format!("the driver: {GPU_GDRCOPY} says so"),
            _ if bytes > longest => {
                format!("the driver: {GPU_GDRCOPY} lets the processor copy up to {longest} bytes")
            }
            Some(why) => format!("the driver: {why}"),
            None => format!("the processor itself, through a mapping (GDRCopy), up to {longest} bytes"),
        };
        out += &format!("  {what} memory of a CUDA device: by {by}\n");
    }
    out += "  from and to memory of a HIP device: by the driver\n";
    if bytes >= told.ipc_from {
        out += &format!(
            "  between processes of a host: by IPC, where the driver shares the memory ({GPU_IPC})\n"
        );
    }
    if bytes > ONE_COPY {
        out += "  else in pieces, ahead of the frames and behind them\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_copies_follows_from_length_settings_and_machine() {
        let told = Told { cuda: true, longest: (2048, 32768), ipc_from: 65536, missing: None };
        let short = message(1000, &told);
        let processor = "by the processor itself, through a mapping (GDRCopy), up to ";
        assert!(short.contains(&format!("out of memory of a CUDA device: {processor}2048")), "{short}");
        assert!(short.contains(&format!("into memory of a CUDA device: {processor}32768")), "{short}");
        assert!(!short.contains("IPC") && !short.contains("in pieces"), "{short}");
        let longer = message(2049, &told);
        assert!(
            longer.contains("out of memory of a CUDA device: by the driver: BANYAN_GPU_GDRCOPY"),
            "{longer}"
        );
        assert!(longer.contains(&format!("into memory of a CUDA device: {processor}")), "{longer}");
        let long = message(1 << 20, &told);
        assert!(!long.contains(processor) && long.contains("by IPC") && long.contains("in pieces"), "{long}");
        let off = message(10, &Told { longest: (0, 0), ..told });
        assert_eq!(off.matches("by the driver: BANYAN_GPU_GDRCOPY says so").count(), 2, "{off}");
        let missing = message(10, &Told { missing: Some("it is not there"), ..told });
        assert_eq!(missing.matches("by the driver: it is not there").count(), 2, "{missing}");
        assert_eq!(message(10, &Told { cuda: false, ..told }).matches("BANYAN_GPU lets").count(), 2);
    }

    #[test]
    fn the_library_is_looked_for_where_the_linker_does() {
        let folder = std::env::temp_dir().join(format!("banyan-gdrcopy-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = format!("/nowhere::{}", folder.display());
        let before = missing(&path);
        std::fs::write(folder.join(LIBRARY), "").unwrap();
        let found = missing(&path);
        std::fs::remove_dir_all(&folder).unwrap();
        // It may be installed here.
        assert!(
            before.is_none_or(|why| why.contains("libgdrapi.so.2") || why.contains("gdrdrv")),
            "{before:?}"
        );
        assert!(found.is_none_or(|why| why.contains("gdrdrv")), "{found:?}");
    }
}
