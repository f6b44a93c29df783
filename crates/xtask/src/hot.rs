//! Which code of the library lies together. The kernel maps a library's code by 64 KiB around what runs, and what a rank runs is
//! scattered over all of it as the compiler leaves it. Here ranks run under callgrind; the functions that they call become
//! `abi/hot.ld`, by which the linker puts these before all others. `cargo xtask test` holds a bound on how far they lie apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::project::{self, Project};

/// The linker script, which `cargo xtask install` gives to the linker.
pub(crate) const SCRIPT: &str = "abi/hot.ld";

const HEAD: &str = "/* Written by `cargo xtask hot`: the functions of libmpi_abi that the linker puts together, before all others.
 * A pattern that fits nothing does no harm. */
SECTIONS
{
  .text :
  {
";
const TAIL: &str = "    *(.text .text.*)
  }
}
INSERT AFTER .init;
";

/// What the kernel maps at once around an address that is touched.
const WINDOW: u64 = 64 << 10;

/// What a rank has run of the library.
#[derive(Default)]
pub(crate) struct Trace {
    functions: BTreeSet<String>,
    windows: BTreeSet<u64>,
}

impl Trace {
    /// How many windows hold it.
    pub(crate) fn windows(&self) -> u64 {
        self.windows.len() as u64
    }

    /// Adds what callgrind wrote of one process: `ob=` and `fn=` say what the lines of costs after them are about, a name stands
    /// where its number comes first, and a line of costs begins with an address in the object.
    fn read(&mut self, text: &str) {
        let (mut objects, mut functions) = (BTreeMap::new(), BTreeMap::new());
        let mut here = false;
        for line in text.lines() {
            let of_callee =
                line.strip_prefix('c').filter(|rest| rest.starts_with("ob=") || rest.starts_with("fn="));
            if let Some(object) = of_callee.unwrap_or(line).strip_prefix("ob=") {
                let object = named(&mut objects, object);
                here = if of_callee.is_none() { object.contains("libmpi_abi") } else { here };
            } else if let Some(function) = of_callee.unwrap_or(line).strip_prefix("fn=") {
                let function = named(&mut functions, function);
                if here && of_callee.is_none() {
                    self.functions.extend(pattern(function));
                }
            } else if let Some(address) = line.strip_prefix("0x").filter(|_| here) {
                let digits = address.split(' ').next().unwrap_or_default();
                self.windows.extend(u64::from_str_radix(digits, 16).map(|address| address / WINDOW));
            }
        }
    }
}

/// The name in `(12) name` or, later, `(12)`.
fn named<'a>(names: &'a mut BTreeMap<String, String>, text: &str) -> &'a str {
    let (number, name) = text.split_once(' ').unwrap_or((text, ""));
    names.entry(number.to_owned()).or_insert_with(|| name.to_owned())
}

/// What names the sections of a function in any build: its symbol without the hashes in both manglings of Rust. `PMPI_X` and
/// `MPI_X` are one function. Nothing for code without a symbol.
fn pattern(symbol: &str) -> Option<String> {
    let symbol = symbol.split('\'').next().unwrap_or_default();
    let symbol = symbol.strip_prefix('P').filter(|rest| rest.starts_with("MPI_")).unwrap_or(symbol);
    if symbol.starts_with("0x") {
        return None;
    }
    if symbol.starts_with("_ZN") {
        return symbol.rfind("17h").map(|hash| format!("{}17h*", &symbol[..hash]));
    }
    if !symbol.starts_with("_R") {
        return Some(symbol.to_owned());
    }
    // `Cs`, the hash of a crate and `_`; `B`, a number and `_`, which points back to a place in the symbol.
    let (parts, last) = symbol.rsplit_once('_')?;
    let stable = |part: &str| match part.rfind("Cs").map(|at| at + 2).or(part.rfind('B').map(|at| at + 1)) {
        Some(end) => format!("{}*_", &part[..end]),
        None => format!("{part}_"),
    };
    Some(parts.split('_').map(stable).collect::<String>() + last)
}

/// Traces ranks and writes the linker script.
pub(crate) fn write(project: &Project) -> Result<()> {
    let library = Library::open(project, Kind::Banyan)?;
    let functions = |args: &[&str]| -> Result<BTreeSet<String>> {
        let [few, more] = [2, 4].map(|ranks| trace(project, &library, ranks, args));
        Ok(&few?.functions | &more?.functions)
    };
    let every = functions(&[])?;
    let usual = &functions(&["usual"])? - &every;
    let mut text = String::from(HEAD);
    for (what, functions) in [("every rank runs", every), ("most programs run besides", usual)] {
        let _ = writeln!(text, "    /* What {what}: {} functions. */", functions.len());
        for function in functions {
            let _ = writeln!(text, "    *(.text*.{function})");
        }
    }
    project::write(&project.file(SCRIPT), text + TAIL)
}

/// What a job of the program `tests/counts/hot.c` runs.
pub(crate) fn trace(project: &Project, library: &Library, ranks: usize, args: &[&str]) -> Result<Trace> {
    let folder = project.folder("counts")?;
    let program = folder.join("hot");
    let unit = Unit::program(program.clone(), project.file("tests/counts/hot.c"));
    cc::build(library, &unit.flags(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]))?;
    let out = |rank: &str| folder.join(format!("hot.{ranks}.{rank}"));
    for rank in 0..ranks {
        let _ = fs::remove_file(out(&rank.to_string()));
    }
    let job = library
        .mpirun(ranks, Path::new("valgrind"), Fabric::SHM)?
        .args(["--tool=callgrind", "--demangle=no"]);
    let job = job.args(["--dump-instr=yes", "--compress-pos=no"]);
    let job = job.arg(format!("--callgrind-out-file={}", out("%q{BANYAN_RANK}").display()));
    job.arg(&program).args(args).limit(120).run_ok()?;
    let mut trace = Trace::default();
    for rank in 0..ranks {
        trace.read(&project::read(&out(&rank.to_string()))?);
    }
    if trace.functions.len() < 100 {
        bail!("callgrind names {} functions of the library", trace.functions.len());
    }
    Ok(trace)
}
