//! The one place where algorithms are chosen: by a cost model, unless the user says otherwise.
//!
//! All ranks must choose alike, so a choice rests on nothing but what all of them know: the collective, its
//! bytes (unless a rank may lack them), whether the operation commutes, [`Facts`], and the [`Tuning`] that
//! the job's ranks got at start.

use std::fmt;

use crate::{Algorithm, Case, Cost, Facts, Kind, Needs, Overrides, Pocket, of_kind};

/// Costs of what a schedule does, seconds (and seconds a byte). Between nodes unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    /// Latency of a message.
    pub alpha: f64,
    /// A message's handling, where its latency is hidden behind others'.
    pub overhead: f64,
    /// A byte of a message.
    pub beta: f64,
    /// As alpha, within a node.
    pub near_alpha: f64,
    /// As overhead, within a node.
    pub near_overhead: f64,
    /// As beta, within a node.
    pub near_beta: f64,
    /// A byte reduced.
    pub gamma: f64,
    /// A byte copied.
    pub copy: f64,
    /// A cache line from another core.
    pub hop: f64,
    /// A single copy out of another process: the call.
    pub pull: f64,
    /// A single copy out of another process: a byte.
    pub pull_byte: f64,
    /// A turn of another rank on this core.
    pub turn: f64,
}

impl Default for Model {
    /// A recent server, and TCP between nodes.
    fn default() -> Model {
        Model {
            alpha: 8e-6,
            overhead: 2e-6,
            beta: 1.0 / 3e9,
            near_alpha: 0.35e-6,
            near_overhead: 0.15e-6,
            near_beta: 1.0 / 9e9,
            gamma: 1.0 / 20e9,
            copy: 1.0 / 40e9,
            hop: 0.1e-6,
            pull: 1.0e-6,
            pull_byte: 1.0 / 11e9,
            turn: 1.6e-6,
        }
    }
}

impl Model {
    /// Latency, handling and seconds a byte of a message between the ranks of a communicator.
    pub(crate) fn link(&self, facts: &Facts) -> (f64, f64, f64) {
        match facts.shared {
            true => (self.near_alpha, self.near_overhead, self.near_beta),
            false => (self.alpha, self.overhead, self.beta),
        }
    }

    /// Seconds that a cost takes on a communicator.
    pub fn time(&self, cost: &Cost, facts: &Facts) -> f64 {
        self.time_of(cost, facts, true)
    }

    /// The same, where `all` ranks work as much as the slowest, or else next to nothing beside it.
    fn time_of(&self, cost: &Cost, facts: &Facts, all: bool) -> f64 {
        let (alpha, overhead, beta) = self.link(facts);
        // Ranks beyond the cores take turns: at each wait, and with work that all have.
        let crowd = (f64::from(facts.per_node) / f64::from(facts.cores.max(1))).max(1.0);
        let turns = if crowd > 1.0 { cost.waits * crowd * self.turn } else { 0.0 };
        let latency = cost.steps * alpha + cost.extra * overhead + cost.hops * self.hop;
        let work = cost.bytes * beta
            + cost.reduced * self.gamma
            + cost.copied * self.copy
            + cost.pulls * self.pull
            + cost.pulled * self.pull_byte;
        latency + turns + if all { work * crowd } else { work }
    }
}

/// What choices rest on besides the call and the communicator; the same at all ranks of a job.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// The cost model.
    pub model: Model,
    /// The user's own choices.
    pub overrides: Overrides,
}

impl Tuning {
    /// The algorithm for a collective. `case`: its bytes, if all ranks know them.
    pub fn choose(
        &self,
        kind: Kind,
        case: Option<Case>,
        commutative: bool,
        facts: &Facts,
    ) -> &'static Algorithm {
        let fits = |row: &Algorithm| unfit(row, case, commutative, facts).is_none();
        if let Some(wanted) = self.overrides.of(kind).filter(|row| fits(row)) {
            return wanted;
        }
        let supposed = case.unwrap_or(unsized_case(facts));
        let first = of_kind(kind).find(|row| fits(row));
        if supposed.bytes == 0.0 && kind != Kind::Barrier {
            return first.expect("every collective has an algorithm that does for all cases");
        }
        let cheaper = |best: &'static Algorithm, row: &'static Algorithm| {
            let time = |row: &Algorithm| self.predict(row, &supposed, facts);
            if time(row) < time(best) { row } else { best }
        };
        let best = of_kind(kind).filter(|row| fits(row)).reduce(cheaper);
        best.expect("every collective has an algorithm that does for all cases")
    }

    /// Seconds that an algorithm is supposed to take. On the board, what tells that data are there is in another line
    /// than they are. What no cache holds comes from memory by whichever way: that makes no difference to a choice.
    fn predict(&self, row: &Algorithm, case: &Case, facts: &Facts) -> f64 {
        const APART: f64 = 0.05e-6;
        let apart = if row.needs == Needs::Board { APART } else { 0.0 };
        let rooted = matches!(row.kind, Kind::Gather | Kind::Gatherv | Kind::Scatter | Kind::Scatterv);
        let slot = facts.slots.map_or(0.0, |slots| slots.inline as f64);
        self.model.time_of(&(row.cost)(&Case { slot, ..*case }), facts, !rooted) + apart
    }

    /// All candidates for a collective of `bytes` bytes (of the vector, or of a block), and why which is chosen.
    pub fn explain(&self, kind: Kind, bytes: u64, facts: &Facts) -> Explanation {
        // A barrier has none, whatever was asked.
        let bytes = if kind == Kind::Barrier { 0 } else { bytes };
        let sized = Case::plain(bytes as f64, facts.ranks);
        let case = (!kind.size_unknown()).then_some(sized);
        let chosen = self.choose(kind, case, true, facts);
        let supposed = case.unwrap_or(unsized_case(facts));
        let candidates = of_kind(kind).map(|row| Candidate {
            algorithm: row,
            time: self.predict(row, &supposed, facts),
            unfit: unfit(row, case, true, facts),
        });
        let mut candidates: Vec<_> = candidates.collect();
        candidates
            .sort_by(|a, b| (a.unfit.is_some(), a.time).partial_cmp(&(b.unfit.is_some(), b.time)).unwrap());
        let wanted = self.overrides.of(kind);
        let reason = match wanted {
            Some(row) if row == chosen => "the user asked for it (BANYAN_COLL)".to_string(),
            Some(row) => {
                let why = unfit(row, case, true, facts).unwrap_or_default();
                format!("BANYAN_COLL asks for {}, but {why}; this is the quickest by the model", row.name)
            }
            None if candidates.iter().filter(|row| row.unfit.is_none()).count() == 1 => {
                "the only candidate that fits".to_string()
            }
            None if case.is_none() => "the quickest by the model; its bytes do not count, as not all ranks \
                                       know them"
                .to_string(),
            None if bytes == 0 && kind != Kind::Barrier => "there is nothing to move".to_string(),
            None => "the quickest by the model".to_string(),
        };
        Explanation { kind, bytes, facts: *facts, candidates, chosen, reason }
    }
}

/// What a size that not all ranks know is taken for: few bytes, as large blocks go by message in any case.
fn unsized_case(facts: &Facts) -> Case {
    Case::plain(POCKET as f64, facts.ranks)
}

/// With less room for each other rank, most blocks would go by message all the same.
const POCKET: u64 = 64;

/// No element is larger than this.
const BOARD_UNIT: u64 = 64;

/// Why an algorithm cannot be used.
fn unfit(row: &Algorithm, case: Option<Case>, commutative: bool, facts: &Facts) -> Option<String> {
    if row.reorders && !commutative {
        return Some("the operation does not commute".into());
    }
    let slots = match (row.needs, facts.slots) {
        (Needs::Messages, _) => return None,
        (_, None) => return Some("the ranks have no shared slots".into()),
        (_, Some(slots)) => slots,
    };
    match row.needs {
        Needs::Inline if case.is_none_or(|case| case.largest > slots.inline as f64) => {
            Some(format!("a slot holds {} bytes", slots.inline))
        }
        Needs::InlineBlocks if case.is_none_or(|case| case.bytes * case.p() > slots.inline as f64) => {
            Some(format!("a slot holds {} bytes", slots.inline))
        }
        Needs::Pockets if !Pocket::new(slots.inline, 0, facts.ranks - 1).holds(POCKET) => {
            Some("a slot has no room for so many ranks".into())
        }
        Needs::Board if case.is_none_or(|case| !case.plain) => {
            Some("elements have holes, or the operation is the user's".into())
        }
        Needs::Board if slots.board < 2 * BOARD_UNIT * u64::from(facts.ranks) => {
            Some("the ranks share no board".into())
        }
        Needs::Regions if !slots.regions => Some("single copy between the ranks is refused".into()),
        _ => None,
    }
}

/// One row of an [`Explanation`].
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Which.
    pub algorithm: &'static Algorithm,
    /// Predicted seconds.
    pub time: f64,
    /// Why it cannot be used, if so.
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
    pub facts: Facts,
    /// Those that fit first, the quickest first.
    pub candidates: Vec<Candidate>,
    /// The choice.
    pub chosen: &'static Algorithm,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { ranks, shared, cores, per_node, .. } = self.facts;
        let place = match () {
            () if shared => "on one node",
            () if per_node >= ranks => "on one node, without shared memory",
            () => "across nodes",
        };
        let crowd =
            if per_node > cores { format!(", {per_node} ranks on {cores} cores") } else { String::new() };
        let (name, bytes) = (self.kind.name(), self.bytes);
        writeln!(f, "{name} of {bytes} bytes on {ranks} ranks {place}{crowd}")?;
        for row in &self.candidates {
            let mark = if row.algorithm == self.chosen { '*' } else { ' ' };
            let (name, about) = (row.algorithm.name, row.algorithm.about);
            match &row.unfit {
                None => writeln!(f, "{mark} {name:14} {:>12}   {about}", shown(row.time))?,
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
    let kind = crate::kind_named(name.trim()).map_err(|bad| bad.to_string())?;
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
    fn every_collective_has_an_algorithm_for_all_cases() {
        for (kind, name) in Kind::ALL {
            let always = |row: &&Algorithm| row.needs == Needs::Messages && !row.reorders;
            let first = of_kind(kind).next().unwrap_or_else(|| panic!("{name} has none"));
            assert!(always(&first), "{name}");
            assert_eq!((kind.name(), Kind::named(name)), (name, Some(kind)));
        }
    }

    #[test]
    fn the_choice_fits_and_a_larger_message_is_never_predicted_quicker() {
        let tuning = Tuning::default();
        for (kind, name) in Kind::ALL {
            for ranks in [1, 2, 3, 5, 8, 16, 17, 64, 127, 128, 129, 100_000] {
                for (shared, cores) in [(true, 2), (true, 128), (false, 1)] {
                    let facts = Facts::supposed(ranks, shared, cores);
                    let mut before = 0.0;
                    for bytes in (0..30).map(|i| 1u64 << i) {
                        let case = Some(Case::plain(bytes as f64, ranks));
                        for commutative in [true, false] {
                            let row = tuning.choose(kind, case, commutative, &facts);
                            assert_eq!(unfit(row, case, commutative, &facts), None);
                        }
                        let time = tuning.explain(kind, bytes, &facts).candidates[0].time;
                        assert!(
                            time.is_finite() && time >= before,
                            "{name} {bytes} bytes on {ranks}: {time}"
                        );
                        before = time;
                    }
                }
            }
        }
    }

    /// What leaves the slots for something else takes at most three times as long, and a microsecond and three waits
    /// more.
    #[test]
    fn twice_the_size_is_no_cliff() {
        let tuning = Tuning::default();
        let mut wrong = vec![];
        for ((kind, name), ranks) in Kind::ALL.into_iter().flat_map(|row| (2..=64).map(move |n| (row, n))) {
            for (shared, cores) in [(true, 2), (true, 16), (true, 128), (false, 1)] {
                let facts = Facts::supposed(ranks, shared, cores);
                let time = |bytes| {
                    let Candidate { algorithm, time, .. } = tuning.explain(kind, bytes, &facts).candidates[0];
                    (algorithm.name, 1e6 * time)
                };
                let waits = Cost { waits: 3.0, ..Cost::default() };
                let more = 1.0 + 1e6 * tuning.model.time(&waits, &facts);
                for bytes in (0..30).map(|i| 1u64 << i) {
                    let (now, twice) = (time(bytes), time(2 * bytes));
                    if twice.1 < now.1 || twice.1 > 3.0 * now.1 + more {
                        wrong.push(format!("{name} of {bytes} bytes, {facts:?}: {now:?} and {twice:?} us"));
                    }
                }
            }
        }
        let shown: Vec<_> = wrong.iter().take(20).map(String::as_str).collect();
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), shown.join("\n"));
    }

    #[test]
    fn a_barrier_has_no_size() {
        let facts = Facts::supposed(8, true, 8);
        let explained = Tuning::default().explain(Kind::Barrier, 1 << 20, &facts);
        assert_eq!((explained.bytes, explained.chosen.name), (0, "shared"));
    }

    #[test]
    fn one_more_rank_is_no_cliff() {
        let tuning = Tuning::default();
        for (kind, name) in Kind::ALL {
            for bytes in [0, 8, 4096, 1 << 20] {
                let time =
                    |ranks| tuning.explain(kind, bytes, &Facts::supposed(ranks, false, 1)).candidates[0].time;
                for ranks in 2..300 {
                    let (now, next) = (time(ranks), time(ranks + 1));
                    assert!(next < 3.0 * now + 1e-6, "{name} {bytes}: {ranks} ranks {now}, one more {next}");
                }
            }
        }
    }

    #[test]
    fn small_and_large_get_what_suits_them() {
        let tuning = Tuning::default();
        let chosen = |kind, bytes, facts: &Facts| tuning.explain(kind, bytes, facts).chosen.name;
        let far = Facts::supposed(16, false, 1);
        assert_eq!(chosen(Kind::Allreduce, 8, &far), "doubling");
        assert_ne!(chosen(Kind::Allreduce, 1 << 24, &far), "doubling");
        assert_eq!(chosen(Kind::Bcast, 8, &far), "binomial");
        assert_ne!(chosen(Kind::Bcast, 1 << 24, &far), "binomial");
        let near = Facts::supposed(8, true, 8);
        assert_eq!(chosen(Kind::Allreduce, 8, &near), "shared");
        assert_eq!(chosen(Kind::Barrier, 0, &near), "shared");
        assert_ne!(chosen(Kind::Allreduce, 1 << 20, &near), "shared");
    }

    #[test]
    fn the_user_has_the_last_word_where_that_is_possible() {
        let overrides = Overrides::parse("allreduce=ring,bcast=shared").unwrap();
        let tuning = Tuning { overrides, ..Tuning::default() };
        let far = Facts::supposed(8, false, 1);
        let explained = tuning.explain(Kind::Allreduce, 8, &far);
        assert_eq!(
            (explained.chosen.name, explained.reason.as_str()),
            ("ring", "the user asked for it (BANYAN_COLL)")
        );
        let case = Some(Case::plain(8.0, 8));
        assert_ne!(tuning.choose(Kind::Allreduce, case, false, &far).name, "ring");
        let explained = tuning.explain(Kind::Bcast, 8, &far);
        assert_eq!(explained.chosen.name, "binomial");
        assert!(explained.reason.contains("asks for shared, but the ranks have no shared slots"));
    }

    #[test]
    fn explanations_read_well() {
        let text =
            Tuning::default().explain(Kind::Allreduce, 65536, &Facts::supposed(8, true, 2)).to_string();
        assert!(
            text.starts_with("allreduce of 65536 bytes on 8 ranks on one node, 8 ranks on 2 cores\n"),
            "{text}"
        );
        assert!(text.contains("not here: a slot holds 4096 bytes"), "{text}");
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
