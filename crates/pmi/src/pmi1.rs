//! The lines of PMI-1, the protocol by which Hydra, Intel MPI, Slurm's `pmi2`, Flux and others talk to their ranks: how a
//! request or an answer is written and read. Nothing here does input or output.
//!
//! A line is `cmd=NAME KEY=VALUE ... \n` in ASCII. Servers differ in the order of attributes, send some that are not asked
//! for, and leave out others.

use thiserror::Error;

/// Most bytes of a request, its end included: Slurm kills a job step whose rank writes more, and loses part of what comes near it.
pub const MAX_LINE: usize = 1023;

/// Most bytes of a value that every server keeps whole.
pub const MAX_VALUE: usize = 512;

/// Why there is no line.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LineError {
    /// A line names no command.
    #[error("a line without cmd=")]
    NoCommand,
    /// A key or value that a line cannot hold.
    #[error("\"{0}\" cannot stand in a line of PMI-1")]
    Unfit(String),
    /// The line would be longer than its receiver takes.
    #[error("a line of {0} bytes (at most {1} are allowed)")]
    TooLong(usize, usize),
}

/// A request or an answer: the command, and attributes by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// What stands behind `cmd=`.
    pub command: String,
    /// The attributes in their order.
    pub attributes: Vec<(String, String)>,
}

impl Line {
    /// A line without attributes.
    pub fn new(command: &str) -> Line {
        Line { command: command.to_owned(), attributes: Vec::new() }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Line {
        self.attributes.push((key.to_owned(), value.to_string()));
        self
    }

    /// The first attribute of this name.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// An attribute as a number.
    pub fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.get(key)?.parse().ok()
    }

    /// True if the answer says that the request was carried out; servers may leave out the code of success.
    pub fn succeeded(&self) -> bool {
        self.get("rc").is_none_or(|code| code == "0")
    }

    /// A request as a line with its end.
    ///
    /// # Errors
    /// If it is longer than [`MAX_LINE`], or a key or value holds what separates them.
    pub fn encode(&self) -> Result<String, LineError> {
        self.encode_within(MAX_LINE)
    }

    /// The line with its end, for a receiver that takes so many bytes.
    ///
    /// # Errors
    /// If it is longer, or a key or value holds what separates them.
    pub fn encode_within(&self, most: usize) -> Result<String, LineError> {
        let fits = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let mut out = String::new();
        for (key, value) in
            [("cmd", &self.command)].into_iter().chain(self.attributes.iter().map(|(k, v)| (&**k, v)))
        {
            if key.is_empty() || key.contains('=') || !fits(key) || !fits(value) {
                return Err(LineError::Unfit(format!("{key}={value}")));
            }
            out.extend([key, "=", value, " "]);
        }
        // What follows the last attribute is the end of the line.
        out.pop();
        out.push('\n');
        if out.len() > most { Err(LineError::TooLong(out.len(), most)) } else { Ok(out) }
    }

    /// Reads a line, with or without its end. Words without `=` are passed over.
    ///
    /// # Errors
    /// If it names no command.
    pub fn parse(text: &str) -> Result<Line, LineError> {
        let mut command = None;
        let mut attributes = Vec::new();
        for (key, value) in
            text.trim_end_matches(['\n', '\r']).split(' ').filter_map(|word| word.split_once('='))
        {
            match key {
                "cmd" if command.is_none() => command = Some(value.to_owned()),
                "" => {}
                _ => attributes.push((key.to_owned(), value.to_owned())),
            }
        }
        Ok(Line { command: command.ok_or(LineError::NoCommand)?, attributes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            command in "[a-z_]{1,20}",
            attributes in prop::collection::vec(("[a-bd-z_][a-z0-9_-]{0,10}", "[!-~]{0,40}"), 0..8),
        ) {
            let line = Line { command, attributes };
            let text = line.encode().unwrap();
            prop_assert!(text.ends_with('\n') && text.matches('\n').count() == 1);
            prop_assert_eq!(Line::parse(&text), Ok(line));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = Line::parse(&text);
        }

        #[test]
        fn what_cannot_stand_in_a_line_is_not_written(value in "[a-z]{0,4}[ \n\u{e9}\0][a-z]{0,4}") {
            prop_assert!(matches!(Line::new("put").with("value", value).encode(), Err(LineError::Unfit(_))));
        }
    }

    #[test]
    fn dialects_are_read() {
        let slurm = Line::parse("cmd=get_result rc=0 value=(vector,(0,1,3),(1,1,1))\n").unwrap();
        assert_eq!((slurm.get("value"), slurm.succeeded()), (Some("(vector,(0,1,3),(1,1,1))"), true));
        let hydra = Line::parse("cmd=get_result rc=-1 msg=key_nosuch_not_found value=unknown\n").unwrap();
        assert!(!hydra.succeeded());
        let hydra5 = Line::parse("cmd=barrier_out tag=0\n").unwrap();
        assert!(hydra5.succeeded() && hydra5.command == "barrier_out");
        let other_order = Line::parse("rc=0 value=a=b cmd=get_result msg=success").unwrap();
        assert_eq!((&*other_order.command, other_order.get("value")), ("get_result", Some("a=b")));
        assert_eq!(Line::parse("rc=0"), Err(LineError::NoCommand));
    }

    #[test]
    fn lines_are_bounded() {
        let with = |bytes| Line::new("put").with("value", "x".repeat(bytes));
        let room = MAX_LINE - "cmd=put value=\n".len();
        assert_eq!(with(room).encode().unwrap().len(), MAX_LINE);
        assert_eq!(with(room + 1).encode(), Err(LineError::TooLong(MAX_LINE + 1, MAX_LINE)));
        assert_eq!(with(room + 1).encode_within(MAX_LINE + 1).unwrap().len(), MAX_LINE + 1);
    }
}
