//! Loads that take what several stores have just written, or a part of it and more, for the step `counts`. A core cannot give such a load
//! what it wants before all earlier stores have left it, so it waits until the message before has reached the other core. They come about
//! where a value is stored field by field, and copied or compared as a whole soon after. Found in a trace of all loads and stores by lackey.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::hot;
use crate::library::{Fabric, Library};
use crate::process::Job;
use crate::project::Project;

/// The parts of the paths, as `tests/counts/stalls.c` numbers them.
const PARTS: [&str; 13] = [
    "send and receive of 8 bytes",
    "send and receive of 1 KiB",
    "MPI_Isend or MPI_Irecv of 8 bytes, MPI_Wait",
    "MPI_Isend and MPI_Irecv of 8 bytes, MPI_Waitall",
    "barrier",
    "bcast",
    "reduce",
    "allreduce",
    "gather",
    "gatherv",
    "scatterv",
    "alltoall",
    "exscan",
];

/// The first part that is a collective.
pub(super) const COLLECTIVES: usize = 4;

/// How often each part is traced. A load counts that waits in more than half of that: what a rank does while it waits is left to chance.
const CALLS: u32 = 50;

/// A store is looked for among so many before a load: as many as a core holds back.
const HELD: usize = 100;

/// A load that waits, and one of the stores that it waits for, by their places in the library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Stall {
    part: usize,
    load: u64,
    store: u64,
}

/// What was found in the parts before the first collective and in those from there on: of the rank that has more, how many.
pub(super) struct Stalls {
    pub(super) messages: u64,
    pub(super) collectives: u64,
    /// Where.
    pub(super) places: String,
}

/// Runs the program with two ranks and looks at what they load.
pub(super) fn find(project: &Project, library: &Library) -> Result<Stalls> {
    let program = hot::program(project, library, "stalls")?;
    let trace = |rank: &str| program.with_file_name(format!("stalls.{rank}"));
    let job =
        library.mpirun(2, Path::new("valgrind"), Fabric::SHM)?.args(["--tool=lackey", "--trace-mem=yes"]);
    let job = job.arg(format!("--log-file={}", trace("%q{BANYAN_RANK}").display())).arg(&program);
    let said = job.limit(300).run_ok()?.output;
    let object = library.prefix().join("lib/libmpi_abi.so.1");
    let size = std::fs::metadata(&object)?.len();
    let mut stalls = Stalls { messages: 0, collectives: 0, places: String::new() };
    for rank in ["0", "1"] {
        let [part, base] = addresses(&said, rank).with_context(|| format!("rank {rank} said nothing"))?;
        let mut reader = Reader::new(part, base..base + size);
        for line in BufReader::new(File::open(trace(rank))?).split(b'\n') {
            reader.line(&line?);
        }
        std::fs::remove_file(trace(rank))?;
        if reader.marks != 2 * PARTS.len() {
            bail!("the trace of rank {rank} has {} marks", reader.marks);
        }
        let found: Vec<Stall> = reader.usual().collect();
        let collectives = found.iter().filter(|stall| stall.part >= COLLECTIVES).count() as u64;
        stalls.collectives = stalls.collectives.max(collectives);
        stalls.messages = stalls.messages.max(found.len() as u64 - collectives);
        for Stall { part, load, store } in found {
            let [load, store] = [load, store].map(|at| place(&object, at - base));
            let line = format!("\n  rank {rank}, {}: {load} loads what {store} stores", PARTS[part]);
            stalls.places.push_str(&line);
        }
    }
    Ok(stalls)
}

/// Where a rank has `part`, and where the library begins.
fn addresses(said: &str, rank: &str) -> Option<[u64; 2]> {
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("rank {rank} part 0x")))?;
    let (part, library) = line.split_once(" library 0x")?;
    let address = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
    Some([address(part)?, address(library)?])
}

/// Function and line of an instruction, as far as they are known.
fn place(object: &Path, at: u64) -> String {
    let job = Job::new("addr2line").args(["-C", "-f", "-p", "-e"]).arg(object).arg(format!("{at:#x}"));
    match job.limit(60).run_ok() {
        Ok(done) => done.output.trim().to_owned(),
        Err(_) => format!("{at:#x}"),
    }
}

/// Reads a trace.
struct Reader {
    part: u64,
    library: Range<u64>,
    /// Stores to `part` so far.
    marks: usize,
    /// The instruction that is carried out.
    at: u64,
    /// Address, length and instruction of the last stores.
    stores: VecDeque<(u64, u64, u64)>,
    found: BTreeMap<Stall, u32>,
}

impl Reader {
    fn new(part: u64, library: Range<u64>) -> Reader {
        Reader { part, library, marks: 0, at: 0, stores: VecDeque::new(), found: BTreeMap::new() }
    }

    /// A line of the trace: what it is (`I`, ` L`, ` S`, ` M`), address and length.
    fn line(&mut self, line: &[u8]) {
        let Some((kind, address, len)) = parse(line) else { return };
        if kind == b'I' {
            self.at = address;
            return;
        }
        if kind != b'S' && self.marks % 2 == 1 {
            self.load(address, len);
        }
        if kind != b'L' {
            self.marks += usize::from(address == self.part);
            if self.stores.len() == HELD {
                self.stores.pop_front();
            }
            self.stores.push_back((address, len, self.at));
        }
    }

    fn load(&mut self, address: u64, len: u64) {
        let meets = |&&(to, stored, _): &&(u64, u64, u64)| to < address + len && address < to + stored;
        let Some(&(to, stored, store)) = self.stores.iter().rev().find(meets) else { return };
        let is_whole = to <= address && address + len <= to + stored;
        if !is_whole && self.library.contains(&self.at) {
            let stall = Stall { part: self.marks / 2, load: self.at, store };
            *self.found.entry(stall).or_default() += 1;
        }
    }

    /// Those that are found in more than half of the calls.
    fn usual(&self) -> impl Iterator<Item = Stall> + '_ {
        self.found.iter().filter(|(_, times)| **times > CALLS / 2).map(|(stall, _)| *stall)
    }
}

fn parse(line: &[u8]) -> Option<(u8, u64, u64)> {
    let text = std::str::from_utf8(line).ok()?;
    let kind = *text.trim_start().as_bytes().first().filter(|kind| b"ILSM".contains(kind))?;
    let (address, len) = text.trim_start().get(1..)?.trim_start().split_once(',')?;
    Some((kind, u64::from_str_radix(address, 16).ok()?, len.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_that_no_single_store_serves_are_found() {
        let mut reader = Reader::new(0x10, 0x1000..0x2000);
        let call = "I  1000,4\n S 100,8\n S 108,8\nI  1004,4\n L 100,16\n L 108,4\nI  3000,4\n L 100,16\nI  1008,4\n L 104,8";
        let trace = |calls: usize| format!(" S 10,4\n{} S 10,4\n", format!("{call}\n").repeat(calls));
        for line in ["==1== lackey", "", "I  none", call, &trace(25), call, &trace(26)].join("\n").lines() {
            reader.line(line.as_bytes());
        }
        assert_eq!(reader.marks, 4);
        let stall = |part, load| Stall { part, load, store: 0x1000 };
        assert_eq!(reader.found.values().copied().collect::<Vec<_>>(), [25, 25, 26, 26]);
        assert_eq!(reader.usual().collect::<Vec<_>>(), [stall(1, 0x1004), stall(1, 0x1008)]);
        assert_eq!(addresses("x\nrank 1 part 0x1f library 0x400\n", "1"), Some([0x1f, 0x400]));
    }
}
