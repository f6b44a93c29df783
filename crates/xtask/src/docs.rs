//! The parts of the user guide that are made from the code, and the commands in it, which are run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use banyan_plot::{Joined, Line, RGBColor, plot};

use crate::bench;
use crate::generated::{DOCS, with_middle};
use crate::process::{End, Job, tail};
use crate::project::{self, Project};

/// A page with a part that a program prints, or all of it.
struct Generated {
    page: &'static str,
    example: &'static str,
    /// From the example's lines, columns parted by tabs, to what the page shows between two marks; `None`: the page is as printed.
    shown: Option<fn(&str) -> String>,
}

/// The generated parts: an example of a crate prints each as a table.
const GENERATED: &[Generated] = &[
    Generated { page: "docs/src/settings.md", example: "settings", shown: Some(settings) },
    Generated { page: "docs/src/gpu.md", example: "device_counters", shown: Some(counters) },
    Generated { page: "docs/src/not-built.md", example: "missing", shown: Some(by_reason) },
    Generated { page: "docs/src/scale.md", example: "scale", shown: Some(scale) },
    Generated { page: "docs/mpirun.1", example: "man", shown: None },
];

/// Writes the generated parts anew.
pub(crate) fn write(project: &Project) -> Result<()> {
    for part in GENERATED {
        let page = project.file(part.page);
        project::write(&page, renewed(project, part)?)?;
        println!("{}", part.page);
    }
    for (path, text) in bench::written(project.root())? {
        project::write(&project.file(&path.to_string_lossy()), text)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Whether the generated part of each page is what the code says now.
pub(crate) fn up_to_date(project: &Project) -> Vec<(String, Result<()>)> {
    let check = |part: &Generated| -> Result<()> {
        if project.read(part.page)? == renewed(project, part)? {
            return Ok(());
        }
        bail!("{} is out of date: run `cargo xtask docs`", part.page)
    };
    let parts = GENERATED.iter().map(|part| (format!("generated part of {}", part.page), check(part)));
    parts.chain([("pages of what was measured".to_owned(), measured(project))]).collect()
}

/// Whether the pages of all processors, and the tables that name them, follow from what benches have kept.
fn measured(project: &Project) -> Result<()> {
    for (path, text) in bench::written(project.root())? {
        if project::read(&project.root().join(&path)).ok().is_none_or(|now| now != text) {
            bail!("{} is out of date: run `cargo xtask docs`", path.display());
        }
    }
    Ok(())
}

/// The functions that are not built yet.
pub(crate) fn not_built(project: &Project) -> Result<Vec<String>> {
    let rows = printed(project, "missing")?;
    Ok(rows.lines().filter_map(|row| row.split('\t').next()).map(str::to_owned).collect())
}

/// What an example of a crate prints. All examples are built at once, as `cargo test` has already done.
fn printed(project: &Project, example: &str) -> Result<String> {
    let build = Job::new(env!("CARGO")).args(["build", "--quiet", "--workspace", "--examples"]);
    build.folder(project.root()).limit(1200).run_ok()?;
    Ok(Job::new(project.target().join("debug/examples").join(example)).run_ok()?.output)
}

fn renewed(project: &Project, part: &Generated) -> Result<String> {
    let rows = printed(project, part.example)?;
    let Some(shown) = part.shown else { return Ok(rows) };
    with_middle(&project.read(part.page)?, DOCS, &shown(&rows)).context(part.page)
}

/// The table of settings.
fn settings(rows: &str) -> String {
    let mut out = String::from("| variable | default | meaning |\n|---|---|---|\n");
    for row in rows.lines() {
        let columns: Vec<&str> = row.splitn(3, '\t').collect();
        if let [name, default, about] = columns[..] {
            let _ = writeln!(out, "| `{name}` | {default} | {about} |");
        }
    }
    out
}

/// The table of what MPI_T counts of devices.
fn counters(rows: &str) -> String {
    let mut out = String::from("| variable | unit | what it counts |\n|---|---|---|\n");
    for row in rows.lines() {
        let columns: Vec<&str> = row.split('\t').collect();
        if let [name, unit, about] = columns[..] {
            let _ = writeln!(out, "| `gpu_{name}` | {unit} | {about} |");
        }
    }
    out
}

/// What jobs take, as a table and two charts over the number of ranks.
fn scale(rows: &str) -> String {
    let rows: Vec<Vec<f64>> =
        rows.lines().map(|row| row.split('\t').filter_map(|cell| cell.parse().ok()).collect()).collect();
    let mut out = String::from(
        "| ranks | hosts | radix | agents there | MPI_Init | first allreduce | end | mpirun's agent: frames, MB | \
         busiest other: frames, MB | bytes of a rank | connections of a rank | memory of mpirun's agent, of another: KB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in &rows {
        let &[ranks, _, hosts, radix, a, ad, i, id, r, rd, e, ed, ff, fb, bf, bb, rank, most, t, other] =
            &row[..]
        else {
            continue;
        };
        let reached =
            [(a, ad), (i, id), (r, rd), (e, ed)].map(|(time, depth)| format!("{time:.3} s, {depth}"));
        let _ = writeln!(
            out,
            "| {ranks} | {hosts} | {radix} | {} | {ff}, {:.2} | {bf}, {:.2} | {rank} | {most} | {:.0}, {:.0} |",
            reached.join(" | "),
            fb / 1e6,
            bb / 1e6,
            t / 1e3,
            other / 1e3,
        );
    }
    for (unit, column) in
        [("seconds to the end of the first allreduce", 8), ("bytes of a rank and its agent", 16)]
    {
        let line = |per_host: f64, colour| {
            let of = rows.iter().filter(|row| row.len() > column && row[1] == per_host && row[3] == 32.0);
            let points = of.map(|row| (row[0], row[column])).collect();
            Line { name: format!("{per_host} ranks a host"), colour, points, joined: Joined::Line }
        };
        let lines = [line(1.0, RGBColor(200, 60, 40)), line(64.0, RGBColor(30, 110, 200))];
        if let Ok(Some(svg)) = plot("number of ranks", unit, &lines) {
            let svg: Vec<&str> = svg.lines().filter(|line| !line.trim().is_empty()).collect();
            let _ = writeln!(out, "\n<div>\n{}\n</div>", svg.join("\n"));
        }
    }
    out
}

/// Functions gathered under what they wait for.
fn by_reason(rows: &str) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in rows.lines().filter_map(|row| row.split_once('\t')) {
        reasons.entry(reason).or_default().push(name);
    }
    let mut out = String::new();
    for (reason, names) in reasons {
        let _ = writeln!(out, "**Waits for {reason}** ({}): `{}`\n", names.len(), names.join("`, `"));
    }
    out
}

/// A page whose commands are run.
pub(crate) struct Page {
    pub(crate) name: String,
    blocks: Vec<Block>,
    /// Relative links, without their `#...`.
    links: Vec<String>,
    folder: PathBuf,
}

/// A block of code between fences.
#[derive(Debug, PartialEq)]
enum Block {
    /// Commands for a shell.
    Commands(String),
    /// A file that later commands use.
    File { name: String, text: String },
}

/// README and all pages of the guide, as they lie below `root`: the repository, or where they are installed.
pub(crate) fn pages(root: &Path) -> Result<Vec<Page>> {
    let mut files = vec![root.join("README.md")];
    for folder in ["docs/src", "docs/src/bench"] {
        files.extend(project::files_with(&root.join(folder), "md")?);
    }
    files.iter().map(|file| page(root, file)).collect()
}

fn page(root: &Path, file: &Path) -> Result<Page> {
    let text = project::read(file)?;
    Ok(Page {
        name: file.strip_prefix(root).unwrap_or(file).display().to_string(),
        blocks: blocks(&text),
        links: links(&text),
        folder: file.parent().context("a page in a folder")?.to_owned(),
    })
}

impl Page {
    /// How many blocks of commands it has.
    pub(crate) fn commands(&self) -> usize {
        self.blocks.iter().filter(|block| matches!(block, Block::Commands(_))).count()
    }

    /// Runs the blocks in order in a fresh folder, with the installed tools first in the path.
    pub(crate) fn run(&self, prefix: &Path, work: &Path) -> Result<()> {
        let _ = std::fs::remove_dir_all(work);
        std::fs::create_dir_all(work)?;
        let path = format!("{}:{}", prefix.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        for block in &self.blocks {
            match block {
                Block::File { name, text } => project::write(&work.join(name), text)?,
                Block::Commands(text) => {
                    let job =
                        Job::new("bash").args(["-e", "-o", "pipefail", "-c", text]).folder(work).limit(120);
                    let done = job.env("PATH", &path).env("PREFIX", prefix).run()?;
                    if done.end != End::Exit(0) {
                        bail!("{}\n{text}\n{}", done.end, tail(&done.output, 20));
                    }
                }
            }
        }
        Ok(())
    }

    /// Relative links whose file is not there.
    pub(crate) fn dead_links(&self) -> Vec<&str> {
        self.links.iter().map(String::as_str).filter(|link| !self.folder.join(link).exists()).collect()
    }
}

/// Blocks marked `sh`, which are run, and blocks after a line `<!-- file: NAME -->`, which are written.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut name = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.trim().strip_prefix("<!-- file: ") {
            name = rest.strip_suffix(" -->").map(str::to_owned);
            continue;
        }
        let Some(kind) = line.strip_prefix("```") else {
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
        let text = body.join("\n") + "\n";
        match name.take() {
            Some(name) => blocks.push(Block::File { name, text }),
            None if kind == "sh" => blocks.push(Block::Commands(text)),
            None => {}
        }
    }
    blocks
}

fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    files.filter_map(|target| target.split('#').next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_files_are_found() {
        let text = "x\n<!-- file: a.c -->\n```c\nint a;\n```\n\n```sh\nls\n```\n```text\nno\n```\n```sh,ignore\nno\n```\n";
        let file = Block::File { name: "a.c".into(), text: "int a;\n".into() };
        assert_eq!(blocks(text), [file, Block::Commands("ls\n".into())]);
    }

    #[test]
    fn links_lose_their_anchors() {
        assert_eq!(links("[a](b.md#c) [d](https://e) [f](#g) [h](../i.md)"), ["b.md", "../i.md"]);
    }

    #[test]
    fn functions_are_gathered_by_reason() {
        assert_eq!(
            by_reason("A\tx\nB\ty\nC\tx\n"),
            "**Waits for x** (2): `A`, `C`\n\n**Waits for y** (1): `B`\n\n"
        );
        assert!(settings("N\t0\tmeans\n").ends_with("| `N` | 0 | means |\n"));
    }
}
