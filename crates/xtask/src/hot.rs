//! Which code lies together, in the library and in mpirun. The kernel maps code by 64 KiB around what runs, and what a rank or mpirun
//! runs is scattered over all of it as the compiler leaves it. Here they run under callgrind; the functions that they call become
//! linker scripts ([`LIBRARY`], [`MPIRUN`]), by which the linker puts these before all others. `cargo xtask test` holds bounds on how
//! far they lie apart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::Job;
use crate::project::{self, Project};

/// The linker script of the library, which `cargo xtask install` gives to the linker.
pub(crate) const LIBRARY: &str = "abi/hot.ld";

/// That of mpirun.
pub(crate) const MPIRUN: &str = "launcher/hot.ld";

const HEAD: &str = "the linker puts together, before all others.
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

/// What callgrind is told in any case.
const CALLGRIND: [&str; 4] = ["--tool=callgrind", "--demangle=no", "--dump-instr=yes", "--compress-pos=no"];

/// What has run of an object.
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

    /// This, if there is so much in it as any job runs.
    fn checked(self) -> Result<Trace> {
        match self.functions.len() {
            few @ 0..100 => bail!("callgrind names {few} functions"),
            _ => Ok(self),
        }
    }

    /// Adds what callgrind wrote of one process, as far as it is about `wanted`: `ob=` and `fn=` say what the lines of costs after them
    /// are about, a name stands where its number comes first, and a line of costs begins with an address in the object.
    fn read(&mut self, text: &str, wanted: &str) {
        let (mut objects, mut functions) = (BTreeMap::new(), BTreeMap::new());
        let mut here = false;
        for line in text.lines() {
            let of_callee =
                line.strip_prefix('c').filter(|rest| rest.starts_with("ob=") || rest.starts_with("fn="));
            if let Some(object) = of_callee.unwrap_or(line).strip_prefix("ob=") {
                let object = named(&mut objects, object);
                here = if of_callee.is_none() { object.contains(wanted) } else { here };
            } else if let Some(function) = of_callee.unwrap_or(line).strip_prefix("fn=") {
                let function = named(&mut functions, function);
                if here && of_callee.is_none() {
                    self.functions.extend(stable(function));
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

/// What names a function in any build: its symbol without the hashes in both manglings of Rust, and without the number by which the
/// linker tells functions of one name apart (`.1099`). `PMPI_X` and `MPI_X` are one function. Nothing for code without a symbol.
fn stable(symbol: &str) -> Option<String> {
    let symbol = symbol.split('\'').next().unwrap_or_default();
    let symbol = symbol.strip_prefix('P').filter(|rest| rest.starts_with("MPI_")).unwrap_or(symbol);
    if symbol.starts_with("0x") || symbol.starts_with('(') {
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
    let last = match last.rsplit_once('.') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => format!("{name}.*"),
        _ => last.to_owned(),
    };
    let without_hash =
        |part: &str| match part.rfind("Cs").map(|at| at + 2).or(part.rfind('B').map(|at| at + 1)) {
            Some(end) => format!("{}*_", &part[..end]),
            None => format!("{part}_"),
        };
    Some(parts.split('_').map(without_hash).collect::<String>() + &last)
}

/// Traces ranks and mpirun, and writes both linker scripts.
pub(crate) fn write(project: &Project) -> Result<()> {
    let library = Library::open(project, Kind::Banyan)?;
    let functions = |args: &[&str]| -> Result<BTreeSet<String>> {
        let [few, more] = [2, 4].map(|ranks| trace(project, &library, ranks, args));
        Ok(&few?.functions | &more?.functions)
    };
    let every = functions(&[])?;
    let usual = &functions(&["usual"])? - &every;
    let sections = |function: &String| vec![format!("*(.text*.{function})")];
    let parts = [("every rank runs", every), ("most programs run besides", usual)];
    project::write(&project.file(LIBRARY), script("libmpi_abi", &parts, sections))?;
    let members = members_of_libc(project)?;
    let sections = |function: &String| members.get(function).cloned().unwrap_or_else(|| sections(function));
    let parts = [("every job runs", trace_mpirun(project, &library)?.functions)];
    project::write(&project.file(MPIRUN), script("mpirun", &parts, sections))
}

/// A linker script for an object, from functions and what they are for.
fn script(
    object: &str,
    parts: &[(&str, BTreeSet<String>)],
    sections: impl Fn(&String) -> Vec<String>,
) -> String {
    let mut text = format!("/* Written by `cargo xtask hot`: the functions of {object} that {HEAD}");
    for (what, functions) in parts {
        let _ = writeln!(text, "    /* What {what}: {} functions. */", functions.len());
        let patterns: BTreeSet<String> = functions.iter().flat_map(&sections).collect();
        for pattern in patterns {
            let _ = writeln!(text, "    {pattern}");
        }
    }
    text + TAIL
}

/// By the name of a function of glibc the patterns of the members of its archives that have one so called: these are put in order
/// whole, as their functions have no sections of their own.
fn members_of_libc(project: &Project) -> Result<BTreeMap<String, Vec<String>>> {
    let path = Job::new("cc").arg("-print-file-name=libc.a").folder(project.root()).run_ok()?.output;
    let path = Path::new(path.trim());
    let folder = path.parent().context("cc knows no libc.a")?;
    let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // libm.a is a text that names libm-2.36.a.
        if name != "libc.a" && !(name.starts_with("libm-") && name.ends_with(".a")) {
            continue;
        }
        let listed = Job::new("nm").args(["-A", "--defined-only"]).arg(folder.join(&name)).run_ok()?;
        for line in listed.output.lines() {
            // PATH:MEMBER:ADDRESS KIND NAME
            let words: Vec<&str> = line.split(' ').collect();
            let &[place, "T" | "t" | "W" | "w" | "i", function] = words.as_slice() else { continue };
            let Some(member) = place.rsplit(':').nth(1) else { continue };
            let patterns = members.entry(function.to_owned()).or_default();
            let archive = if name == "libc.a" { "libc.a" } else { "libm-*.a" };
            let pattern = |member: &str| format!("*{archive}:{member}(.text .text.*)");
            patterns.push(pattern(member));
            // Processors have code of their own for some functions, and Valgrind knows no AVX-512.
            if let Some((stem, _)) = member.split_once("-avx") {
                patterns.extend(["evex", "avx512"].map(|kind| pattern(&format!("{stem}-{kind}*.o"))));
            }
        }
    }
    Ok(members)
}

/// What a job of the program `tests/counts/hot.c` runs of the library.
pub(crate) fn trace(project: &Project, library: &Library, ranks: usize, args: &[&str]) -> Result<Trace> {
    let program = program(project, library, "hot")?;
    let out = |rank: &str| program.with_file_name(format!("hot.{ranks}.{rank}"));
    for rank in 0..ranks {
        let _ = fs::remove_file(out(&rank.to_string()));
    }
    let job = library.mpirun(ranks, Path::new("valgrind"), Fabric::SHM)?.args(CALLGRIND);
    let job = job.arg(format!("--callgrind-out-file={}", out("%q{BANYAN_RANK}").display()));
    job.arg(&program).args(args).limit(120).run_ok()?;
    let mut trace = Trace::default();
    for rank in 0..ranks {
        trace.read(&project::read(&out(&rank.to_string()))?, "libmpi_abi");
    }
    trace.checked()
}

/// What mpirun, both its front and its agent, runs of itself for jobs of that program, and for one without MPI.
pub(crate) fn trace_mpirun(project: &Project, library: &Library) -> Result<Trace> {
    let program = program(project, library, "hot")?;
    let folder = project.folder("counts/mpirun")?;
    for file in fs::read_dir(&folder)? {
        fs::remove_file(file?.path())?;
    }
    for (ranks, program) in [("2", program.as_path()), ("4", &program), ("2", Path::new("true"))] {
        let job = Job::new("valgrind").args(CALLGRIND);
        let job = job.arg(format!("--callgrind-out-file={}", folder.join("%p").display()));
        let job = job.arg(library.prefix().join("bin/mpirun")).args(["-n", ranks]);
        job.arg(program).limit(120).run_ok()?;
    }
    let mut trace = Trace::default();
    for file in fs::read_dir(&folder)? {
        trace.read(&project::read(&file?.path())?, "mpirun");
    }
    trace.checked()
}

/// Builds a program of `tests/counts`.
pub(crate) fn program(project: &Project, library: &Library, name: &str) -> Result<PathBuf> {
    let program = project.folder("counts")?.join(name);
    let unit = Unit::program(program.clone(), project.file(&format!("tests/counts/{name}.c")));
    cc::build(library, &unit.flags(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]))?;
    Ok(program)
}
