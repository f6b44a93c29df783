//! Reads MPICH's `testlist` files: one line a run, with its ranks and options.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::suite::{Case, Want};
use crate::project;

/// The runs of one folder, from all its lists. Folders without a list run each program of the makefile.
pub(crate) fn cases(tests: &Path, folder: &str) -> Result<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    for list in ["testlist.in", "testlist", "testlist.gpu", "testlist.dtp"] {
        let path = tests.join(folder).join(list);
        // What a configure run makes of `testlist.in` would only repeat it.
        if !path.exists() || (list == "testlist" && tests.join(folder).join("testlist.in").exists()) {
            continue;
        }
        cases.extend(project::read(&path)?.lines().filter_map(|line| parse(folder, line)));
    }
    let pools = project::read(&tests.join("maint/dtp-test-config.txt"))?;
    cases.extend(pools.lines().flat_map(|line| pool_cases(folder, line)));
    let mut seen = std::collections::BTreeSet::new();
    // Variables of MPICH's own (MPIR_CVAR_...) mean nothing to others and would repeat a run.
    cases.retain(|case| {
        !case.env.iter().any(|(name, _)| name.starts_with("MPIR_CVAR")) && seen.insert(case.title())
    });
    Ok(cases)
}

/// Type signatures that the tests on pools of datatypes are run with.
const SIGNATURES: &[&str] = &["MPI_INT", "MPI_INT:4+MPI_DOUBLE:8"];

/// One line of the table of tests on pools of datatypes: `folder/name:args:counts:options:ranks:least:most:...`,
/// from which configure would make one run for each signature and count.
fn pool_cases(folder: &str, line: &str) -> Vec<Case> {
    let fields: Vec<&str> = line.split(':').collect();
    let [path, _, counts, options, ranks, least, most, ..] = fields[..] else { return Vec::new() };
    let Some(name) = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) else {
        return Vec::new();
    };
    let (Ok(least), Ok(most)) = (least.parse::<u64>(), most.parse::<u64>()) else { return Vec::new() };
    let mut cases = Vec::new();
    for (at, signature) in SIGNATURES.iter().enumerate() {
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        for (place, &count) in counts.iter().enumerate() {
            let size = (most * counts[0] / count).clamp(least, most);
            let seed = at * 100 + place + 1;
            let number = if folder == "pt2pt" {
                format!("arg=-sendcnt={count} arg=-recvcnt={}", count * 2)
            } else {
                format!("arg=-count={count}")
            };
            let line = format!(
                "{name} {ranks} arg=-type={signature} {number} arg=-seed={seed} arg=-testsize={size} {options}"
            );
            // What moves hundreds of megabytes is for the long run.
            cases.extend(parse(folder, &line).map(|case| Case { large: count > 2000, ..case }));
        }
    }
    cases
}

/// One line of a list: `name ranks key=value ...`.
pub(crate) fn parse(folder: &str, line: &str) -> Option<Case> {
    let line = line.split('#').next()?.trim();
    let (line, large) = match line.strip_prefix("@largetest@") {
        Some(rest) => (rest, true),
        None => (line, false),
    };
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let ranks = words.next()?.parse().ok()?;
    let mut case = Case { large, ..Case::new(folder, name, ranks, Want::NoErrors) };
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        match key {
            // Without a GPU all memory is the host's: what is left of runs for GPUs is other datatypes.
            "arg" if value == "-memtype=all" => return None,
            "arg" if value.starts_with("-memtype=") => {}
            "arg" => case.args.push(value.to_owned()),
            "env" => case.env.extend(value.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()))),
            "timeLimit" => case.limit = value.parse().ok().map(Duration::from_secs),
            "mem" => case.memory = value.parse().unwrap_or(0.0),
            "resultTest" if value == "TestErrFatal" => case.want = Want::Fatal,
            "resultTest" if value == "Clean" => case.want = Want::Clean,
            "resultTest" => case.want = Want::BadStatus,
            // xfail= speaks of MPICH's own faults, strict= of its configuration.
            _ => {}
        }
    }
    Some(case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let case = parse("pt2pt", "sendself 2 arg=-type=MPI_INT arg=-n=1 timeLimit=30 mem=1.4").unwrap();
        assert_eq!(case.title(), "pt2pt/sendself -n 2 -type=MPI_INT -n=1");
        assert_eq!(case.limit, Some(Duration::from_secs(30)));
        assert!((case.memory - 1.4).abs() < 1e-9);
        assert!(parse("coll", "@largetest@gather_big 8 mem=20.1").unwrap().large);
        assert_eq!(parse("init", "exitst1 2 resultTest=TestStatus").unwrap().want, Want::BadStatus);
    }

    #[test]
    fn pools_make_a_run_for_each_signature_and_count() {
        let cases = pool_cases("coll", "coll/bcast::1 262144:mem=1.2:4:16:1024:0");
        assert_eq!(cases.len(), 4);
        assert_eq!(cases[0].title(), "coll/bcast -n 4 -type=MPI_INT -count=1 -seed=1 -testsize=1024");
        assert!(!cases[0].large && cases[1].large);
        assert!(pool_cases("coll", "pt2pt/x::1::2:8:32:0").is_empty());
        assert!(pool_cases("coll", "# a comment").is_empty());
    }

    #[test]
    fn comments_and_empty_lines_are_no_cases() {
        assert!(parse("a", "# a comment").is_none());
        assert!(parse("a", "").is_none());
    }
}
