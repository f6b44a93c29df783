//! The pages of the guide with what was measured: for each processor what is kept of its last bench (`docs/src/bench/NAME.json`), its
//! page and its plots, which follow from that; and the tables that name all processors. A bench writes what is of its own processor.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::record::Record;
use super::results::{Machine, OURS};
use super::table::{self, Style};
use super::{page, targets};
use crate::generated::{DOCS, with_middle};
use crate::project;

/// Where pages and kept records are, and the page that lists them.
const FOLDER: &str = "docs/src/bench";
const INDEX: &str = "docs/src/bench/README.md";
const README: &str = "README.md";
const SUMMARY: &str = "docs/src/SUMMARY.md";

/// The name of a processor's files: what it calls itself, its family and model, and how many cores there are.
fn name(machine: &Machine) -> String {
    let (called, _) = machine.processor.split_once('@').unwrap_or((&machine.processor, ""));
    let mut text = called.replace("(R)", "").replace("(TM)", "").replace("Processor", "").replace("CPU", "");
    if let Some((family, model)) = &machine.family {
        let _ = write!(text, " family {family} model {model}");
    }
    let _ = write!(text, " {} cores", machine.cores);
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// Keeps what a bench has found, in the place of what was kept of its processor, and writes its page anew; gives the page.
pub(super) fn keep(root: &Path, record: &Record) -> Result<PathBuf> {
    let (name, folder) = (name(&record.machine), root.join(FOLDER));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    project::write(&folder.join(format!("{name}.json")), record.text()?)?;
    for (path, text) in written(root)? {
        let in_folder = path.starts_with(FOLDER) && path != Path::new(INDEX);
        if !in_folder || path.file_stem().is_some_and(|stem| stem == name.as_str()) {
            project::write(&root.join(path), text)?;
        }
    }
    Ok(folder.join(format!("{name}.md")))
}

/// All that follows from the records that are kept: files below the root of the repository, and their texts.
pub(crate) fn written(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut kept = Vec::new();
    for file in project::files_with(&root.join(FOLDER), "json")? {
        let record: Record = serde_json::from_str(&project::read(&file)?)
            .with_context(|| format!("{} is no record of a bench", file.display()))?;
        kept.push((project::stem(&file), record));
    }
    let mut files = Vec::new();
    for (name, record) in &kept {
        let file = |ext: &str| Path::new(FOLDER).join(format!("{name}.{ext}"));
        files.push((file("md"), markdown(name, record)));
        files.push((file("html"), page::html(record)?));
    }
    for (file, links) in [(INDEX, ""), (README, "docs/src/bench/")] {
        let text = project::read(&root.join(file))?;
        files.push((file.into(), with_middle(&text, DOCS, &overview(&kept, links)).context(file)?));
    }
    files.push((SUMMARY.into(), summary(&project::read(&root.join(SUMMARY))?, &kept)));
    Ok(files)
}

/// A processor as people read it: two of one name differ in their family.
fn title(record: &Record) -> String {
    let Machine { processor, family, cores, .. } = &record.machine;
    let family = family.as_ref().map(|(family, model)| format!(" (family {family}, model {model})"));
    format!("{processor}{}, {cores} cores", family.unwrap_or_default())
}

/// A row for each processor: how its groups of cells are beside the best rival.
fn overview(kept: &[(String, Record)], links: &str) -> String {
    let mut header = vec!["processor", "measured"];
    let mut rows = Vec::new();
    for (name, record) in kept {
        let date = record.machine.date.split(' ').next().unwrap_or_default();
        let mut row = vec![
            format!("[{}]({links}{name}.md)", title(record)),
            format!("{date}, {}", record.machine.commit),
        ];
        for (group, verdict) in targets::groups(record) {
            if !header.contains(&group) {
                header.push(group);
            }
            row.push(verdict.map_or("-".to_owned(), |verdict| {
                let (mean, bound) = (table::ratio(verdict.mean), verdict.each);
                let certain = match record.has_ranges() {
                    true => format!(", {} for certain", verdict.certain),
                    false => String::new(),
                };
                format!("{mean}; {} of {} above {bound}{certain}", verdict.above, verdict.cells)
            }));
        }
        rows.push(row);
    }
    table::table(&header, &rows, Style::Markdown)
}

/// The page of a processor.
fn markdown(name: &str, record: &Record) -> String {
    let lines: String = table::machine(record).iter().map(|line| format!("- {line}\n")).collect();
    format!(
        "# {}\n\n<!-- made of {name}.json by `cargo xtask docs` -->\n\n\
         [What is measured, and how](README.md). [The same as plots]({name}.html). [What is kept]({name}.json).\n\n\
         {lines}\n{}\n\n## Targets\n\n{}\n## Above the bound\n\n{}\n## Limits of the machine\n\n\
         By programs without MPI, in the same run.\n\n{}\n## All medians\n\n{}",
        title(record),
        table::LEGEND,
        table::targets(record, Style::Markdown),
        above(record),
        table::limits(record),
        table::medians(record, Style::Markdown)
    )
}

/// The cells whose ratio to the best rival is above the bound, and by what, and how far they are from a limit that was measured beside them; worst first.
fn above(record: &Record) -> String {
    let mut above: Vec<_> = targets::bounded(record).filter(|(_, ratio, bound)| ratio > bound).collect();
    if above.is_empty() {
        return "None.\n".to_owned();
    }
    above.sort_by(|a, b| (b.1 / b.2).total_cmp(&(a.1 / a.2)));
    let ranged = record.has_ranges();
    let limited = above.iter().any(|(row, ..)| record.limit_of(row).is_some());
    let rows = above.into_iter().map(|(row, ratio, bound)| {
        let best = row.best.as_ref().map_or("", |best| &best.name);
        let figure = |library: &str| row.figure(library).map_or("-".into(), table::figure);
        let figures = [row.unit.clone(), figure(OURS), figure(best), best.to_owned()];
        let limit = record.limit_of(row).map_or("-".into(), |limit| table::ratio(row.ratio_to_figure(limit)));
        let range = row.range().map_or("-".into(), table::range);
        let ratios = [table::ratio(ratio), table::ratio(bound)];
        let ratios = ratios.into_iter().chain(ranged.then_some(range)).chain(limited.then_some(limit));
        [vec![row.cell.clone()], figures.to_vec(), ratios.collect()].concat()
    });
    let mut header = vec!["cell", "unit", OURS, "best rival", "which", "ours/best", "bound"];
    header.extend(ranged.then_some("in 95 of 100 cases"));
    header.extend(limited.then_some("ours/limit"));
    table::table(&header, &rows.collect::<Vec<_>>(), Style::Markdown)
}

/// The summary of the guide with a line for the page of each processor, behind that of the index.
fn summary(text: &str, kept: &[(String, Record)]) -> String {
    let index = INDEX.trim_start_matches("docs/src/");
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.contains("](bench/") || line.contains(index)) {
        let _ = writeln!(out, "{line}");
        if line.contains(index) {
            for (name, record) in kept {
                let _ = writeln!(out, "  - [{}](bench/{name}.md)", title(record));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::record::tests::record;
    use super::*;

    /// A repository with nothing but the pages that name all processors, which goes with the value.
    struct Root(PathBuf);

    impl Root {
        fn new(test: &str) -> Root {
            let [begin, end] = DOCS;
            let root = Root(std::env::temp_dir().join(format!("banyan-pages-{test}-{}", std::process::id())));
            std::fs::create_dir_all(root.0.join(FOLDER)).unwrap();
            for (file, text) in [
                (README, format!("a\n{begin}\n{end}\nb\n")),
                (INDEX, format!("# Measured\n{begin}\n{end}\n")),
                (
                    SUMMARY,
                    "# Summary\n\n- [A](a.md)\n- [Benchmarks](bench/README.md)\n- [B](b.md)\n".to_owned(),
                ),
            ] {
                std::fs::write(root.0.join(file), text).unwrap();
            }
            root
        }

        /// All files in the folder of the pages but the index, by name.
        fn files(&self) -> BTreeMap<String, String> {
            let files = std::fs::read_dir(self.0.join(FOLDER)).unwrap().map(|entry| entry.unwrap().path());
            let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            let texts = files.map(|path| (name(&path), project::read(&path).unwrap()));
            texts.filter(|(name, _)| name != "README.md").collect()
        }

        fn read(&self, file: &str) -> String {
            project::read(&self.0.join(file)).unwrap()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            drop(std::fs::remove_dir_all(&self.0));
        }
    }

    fn on(processor: &str, family: Option<(&str, &str)>, ours: f64) -> Record {
        let mut record = record(&[("banyan", 0, Ok(ours)), ("mpich", 0, Ok(1.0))]);
        record.machine = Machine {
            processor: processor.into(),
            family: family.map(|(family, model)| (family.into(), model.into())),
            cores: 2,
            date: "2026-11-23 10:00 UTC".into(),
            commit: "abc".into(),
            ..Machine::default()
        };
        record
    }

    #[test]
    fn a_bench_writes_the_page_of_its_processor_and_never_anothers() {
        let root = Root::new("own");
        let xeon = on("Intel(R) Xeon(R) Processor", Some(("6", "207")), 0.5);
        keep(&root.0, &xeon).unwrap();
        // What was written of one processor stays as it is, even what nobody would write so today.
        let file = root.0.join(FOLDER).join("intel-xeon-family-6-model-207-2-cores.md");
        std::fs::write(&file, "by hand\n").unwrap();
        let before = root.files();
        assert_eq!(before.len(), 3, "record, page and plots: {:?}", before.keys());
        let epyc = on("AMD EPYC", Some(("25", "17")), 1.2);
        let page = keep(&root.0, &epyc).unwrap();
        assert!(page.ends_with("amd-epyc-family-25-model-17-2-cores.md"), "{page:?}");
        let after = root.files();
        assert_eq!(after.len(), 6);
        assert!(before.iter().all(|(name, text)| after[name] == *text));
        // Both are named by all tables, with their own figures, in links that hold where the table is.
        for (table, folder) in [(INDEX, ""), (README, "docs/src/bench/")] {
            let text = root.read(table);
            for (processor, group) in [
                ("intel-xeon-family-6-model-207", "0.50; 0 of 1"),
                ("amd-epyc-family-25-model-17", "1.20; 1 of 1"),
            ] {
                let row =
                    text.lines().find(|line| line.contains(&format!("]({folder}{processor}-2-cores.md)")));
                assert!(row.unwrap().contains(group), "{text}");
            }
        }
        let summary = root.read(SUMMARY);
        assert!(
            summary.contains("(bench/README.md)\n  - [AMD EPYC (family 25, model 17), 2 cores](bench/amd-"),
            "{summary}"
        );
        // The same processor once more: its page is replaced, and named once.
        keep(&root.0, &on("Intel(R) Xeon(R) Processor", Some(("6", "207")), 0.7)).unwrap();
        assert!(root.read(INDEX).contains("0.70; 0 of 1") && !root.read(INDEX).contains("0.50; 0 of 1"));
        assert_eq!(root.read(SUMMARY), summary);
        assert_ne!(project::read(&file).unwrap(), "by hand\n");
        assert_eq!(root.files().len(), 6);
    }

    #[test]
    fn pages_follow_from_what_is_kept() {
        let root = Root::new("follow");
        keep(&root.0, &on("AMD EPYC", None, 1.2)).unwrap();
        for (path, text) in written(&root.0).unwrap() {
            assert_eq!(project::read(&root.0.join(&path)).unwrap(), text, "{}", path.display());
        }
        let page = root.read("docs/src/bench/amd-epyc-2-cores.md");
        let row = "| latency/8 | us | 1.20 | 1.00 | mpich | 1.20 | 1.05 |";
        for part in ["# AMD EPYC, 2 cores\n", "commit abc", "1 to 1 rounds", "mpich: 1", row] {
            assert!(page.contains(part), "{part}: {page}");
        }
        std::fs::write(root.0.join(FOLDER).join("other.json"), "{}").unwrap();
        assert!(written(&root.0).is_err());
    }

    #[test]
    fn a_processor_is_named_without_its_host() {
        let of = |processor: &str, family| name(&on(processor, family, 1.0).machine);
        assert_eq!(
            of("Intel(R) Core(TM) i7-1260P CPU @ 2.10GHz", Some(("6", "154"))),
            "intel-core-i7-1260p-family-6-model-154-2-cores"
        );
        assert_eq!(of("", Some(("0x41", "0xd40"))), "family-0x41-model-0xd40-2-cores");
        assert_eq!(of("../x", None), "x-2-cores");
    }
}
