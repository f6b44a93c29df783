//! [`Explanation`]: why the tuner chooses what it chooses, for `mpirun --explain`.

use std::fmt;

use crate::overrides::kind_named;
use crate::tuner::{assumed_case, unfit};
use crate::{Algorithm, Case, Groups, Kind, Topology, Tuning, of_kind};

impl Tuning {
    /// All candidates for a collective of `bytes` bytes (of the vector, or of a block), which of them is chosen, and
    /// why.
    pub fn explain(&self, kind: Kind, bytes: u64, topology: &Topology) -> Explanation {
        // A barrier moves no bytes, whatever the question says.
        let bytes = if kind == Kind::Barrier { 0 } else { bytes };
        let sized = Case::plain(bytes as f64, topology.ranks);
        let case = (!kind.size_unknown(topology.ranks)).then_some(sized);
        let chosen = self.choose(kind, case, true, topology);
        let assumed = case.unwrap_or(assumed_case(topology));
        let candidates = of_kind(kind).map(|row| Candidate {
            algorithm: row,
            time: self.predict(row, &assumed, topology),
            simulated: None,
            unfit: unfit(row, case, true, topology),
        });
        let mut candidates: Vec<_> = candidates.collect();
        candidates
            .sort_by(|a, b| (a.unfit.is_some(), a.time).partial_cmp(&(b.unfit.is_some(), b.time)).unwrap());
        let forced = self.overrides.of(kind);
        let reason = match forced {
            Some(row) if row == chosen => "the user asked for it (BANYAN_COLL)".to_string(),
            Some(row) => {
                let why = unfit(row, case, true, topology).unwrap_or_default();
                format!("BANYAN_COLL asks for {}, but {why}; this is the quickest by the model", row.name)
            }
            None if candidates.iter().filter(|row| row.unfit.is_none()).count() == 1 => {
                "the only candidate that fits".to_string()
            }
            None if case.is_none() => {
                "the quickest by the model, whatever the size, as not all ranks know it".to_string()
            }
            None if bytes == 0 && kind != Kind::Barrier => "there is nothing to move".to_string(),
            None => "the quickest by the model".to_string(),
        };
        Explanation { kind, bytes, topology: *topology, candidates, chosen, reason }
    }
}

/// One row of an [`Explanation`].
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// Seconds that it takes by the model.
    pub time: f64,
    /// Seconds that it takes by the simulator, if it was asked.
    pub simulated: Option<f64>,
    /// Why it cannot be used; `None` if it can.
    pub unfit: Option<String>,
}

/// What would be chosen, and why. Displayed as a small table.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The collective.
    pub kind: Kind,
    /// Bytes of the vector, or of a block.
    pub bytes: u64,
    /// The communicator.
    pub topology: Topology,
    /// All algorithms of the collective: those that can be used first, the quickest of them first.
    pub candidates: Vec<Candidate>,
    /// The algorithm that is chosen.
    pub chosen: &'static Algorithm,
    /// Why it is chosen.
    pub reason: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Topology { ranks, cores, levels: [Groups { number: nodes, largest: per_node }, ..], .. } =
            self.topology;
        let location = match () {
            () if nodes == 1 => "on one node",
            () if per_node >= ranks => "on one node, without shared memory",
            () if nodes < ranks => &format!("on {nodes} nodes"),
            () => "across nodes",
        };
        let crowd =
            if per_node > cores { format!(", {per_node} ranks on {cores} cores") } else { String::new() };
        let (name, bytes) = (self.kind.name(), self.bytes);
        writeln!(f, "{name} of {bytes} bytes on {ranks} ranks {location}{crowd}")?;
        for row in &self.candidates {
            let mark = if row.algorithm == self.chosen { '*' } else { ' ' };
            let (name, about) = (row.algorithm.name, row.algorithm.about);
            match &row.unfit {
                None => {
                    let simulated = row
                        .simulated
                        .map_or_else(String::new, |time| format!(" (simulated {})", shown(time)));
                    writeln!(f, "{mark} {name:14} {:>12}{simulated}   {about}", shown(row.time))?;
                }
                Some(why) => writeln!(f, "{mark} {name:14} {:>12}   not here: {why}", "-")?,
            }
        }
        writeln!(f, "chosen: {}: {}", self.chosen.name, self.reason)
    }
}

fn shown(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.2} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

/// Reads a question such as `allreduce:64K` (K, M and G are powers of 1024; without a size: 8 bytes).
///
/// # Errors
/// What is wrong, and what is valid.
pub fn parse_question(text: &str) -> Result<(Kind, u64), String> {
    let (name, size) = text.split_once(':').unwrap_or((text, "8"));
    let kind = kind_named(name.trim())?;
    let size = size.trim();
    let upper = size.to_ascii_uppercase();
    let digits = upper.trim_end_matches('B').trim_end_matches('I');
    let (digits, shift) = match digits.chars().last() {
        Some('K') => (&digits[..digits.len() - 1], 10),
        Some('M') => (&digits[..digits.len() - 1], 20),
        Some('G') => (&digits[..digits.len() - 1], 30),
        _ => (digits, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    let bad = || {
        format!("\"{}\" is no size; write for example 8, 64K, 1M", size.chars().take(40).collect::<String>())
    };
    number.map(|bytes| (kind, bytes)).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_read_well() {
        let text =
            Tuning::default().explain(Kind::Allreduce, 65536, &Topology::assumed(8, true, 2)).to_string();
        assert!(
            text.starts_with("allreduce of 65536 bytes on 8 ranks on one node, 8 ranks on 2 cores\n"),
            "{text}"
        );
        assert!(text.contains("not here: a cell of a CICO buffer holds 4096 bytes"), "{text}");
        assert!(text.contains("chosen: "), "{text}");
    }

    #[test]
    fn questions_are_read() {
        assert_eq!(parse_question("allreduce:64K"), Ok((Kind::Allreduce, 65536)));
        assert_eq!(parse_question("bcast:1MiB"), Ok((Kind::Bcast, 1 << 20)));
        assert_eq!(parse_question("barrier"), Ok((Kind::Barrier, 8)));
        assert!(parse_question("bcast:x").unwrap_err().contains("64K"));
        assert!(parse_question("bcast:99999999999G").is_err());
        assert!(parse_question("cast:8").unwrap_err().contains("bcast"));
    }
}
