//! Error classes, codes and strings that the user adds (MPI 5.0, 9.5). They may be added before
//! initialization and live until removed, so this table belongs to the process and not to an engine.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::{Class, Result, bail, lock};

/// Longest error string, bytes (MPI_MAX_ERROR_STRING of the ABI counts the terminating zero too).
pub const MAX_ERROR_STRING: usize = 511;

/// The table of this process.
pub fn error_codes() -> &'static ErrorCodes {
    static CODES: ErrorCodes = ErrorCodes::new();
    &CODES
}

/// Predefined classes and what the user added. Any thread may use it at any time.
#[derive(Debug)]
pub struct ErrorCodes {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    last_used: i32,
    added: BTreeMap<i32, Added>,
}

#[derive(Debug)]
struct Added {
    /// The class of a code; the class of a class is itself.
    class: i32,
    text: Option<String>,
}

impl ErrorCodes {
    /// A table with nothing but what MPI defines.
    const fn new() -> ErrorCodes {
        let table = Table { last_used: Class::ERR_LASTCODE.0, added: BTreeMap::new() };
        ErrorCodes { table: Mutex::new(table) }
    }

    /// A new class, above MPI_ERR_LASTCODE. Numbers are never used again.
    ///
    /// # Errors
    /// ERR_NO_SPACE if there are no numbers left.
    pub fn add_class(&self) -> Result<i32> {
        lock(&self.table).add(None)
    }

    /// A new code of `class`, which is predefined or was added.
    ///
    /// # Errors
    /// ERR_ARG if `class` is not a class, ERR_NO_SPACE if there are no numbers left.
    pub fn add_code(&self, class: i32) -> Result<i32> {
        let mut table = lock(&self.table);
        if table.class_of(class) != Some(class) {
            bail!(ERR_ARG, "{class} is not an error class");
        }
        table.add(Some(class))
    }

    /// Gives an added class or code its text, in place of any that it had.
    ///
    /// # Errors
    /// ERR_ARG if `code` was not added by the user, or the text is longer than [`MAX_ERROR_STRING`] bytes.
    pub fn add_string(&self, code: i32, text: &str) -> Result<()> {
        if text.len() > MAX_ERROR_STRING {
            bail!(ERR_ARG, "the error string has {} bytes, {MAX_ERROR_STRING} are allowed", text.len());
        }
        let mut table = lock(&self.table);
        table.added(code)?.text = Some(text.to_owned());
        Ok(())
    }

    /// Removes an added class that has no codes and no text any more.
    ///
    /// # Errors
    /// ERR_ARG if `class` is not an added class, or codes or the text of it are left.
    pub fn remove_class(&self, class: i32) -> Result<()> {
        let mut table = lock(&self.table);
        if table.added(class)?.class != class {
            bail!(ERR_ARG, "{class} is an error code, not a class: use MPI_Remove_error_code");
        }
        let code = table.added.iter().find(|&(&code, row)| row.class == class && code != class);
        if let Some((code, _)) = code {
            bail!(ERR_ARG, "error class {class} still has codes ({code}): remove them first");
        }
        if table.added(class)?.text.is_some() {
            bail!(ERR_ARG, "error class {class} still has a string: use MPI_Remove_error_string first");
        }
        table.added.remove(&class);
        Ok(())
    }

    /// Removes an added code that has no text any more.
    ///
    /// # Errors
    /// ERR_ARG if `code` is not an added code, or still has a text.
    pub fn remove_code(&self, code: i32) -> Result<()> {
        let mut table = lock(&self.table);
        let row = table.added(code)?;
        if row.class == code {
            bail!(ERR_ARG, "{code} is an error class, not a code: use MPI_Remove_error_class");
        }
        if row.text.is_some() {
            bail!(ERR_ARG, "error code {code} still has a string: use MPI_Remove_error_string first");
        }
        table.added.remove(&code);
        Ok(())
    }

    /// Removes the text of an added class or code; it is empty then.
    ///
    /// # Errors
    /// ERR_ARG if `code` was not added by the user, or has no text.
    pub fn remove_string(&self, code: i32) -> Result<()> {
        match lock(&self.table).added(code)?.text.take() {
            Some(_) => Ok(()),
            None => bail!(ERR_ARG, "error code {code} has no string to remove"),
        }
    }

    /// The class of a code; the class of a class is itself.
    ///
    /// # Errors
    /// ERR_ARG if there is no such code.
    pub fn class(&self, code: i32) -> Result<i32> {
        match lock(&self.table).class_of(code) {
            Some(class) => Ok(class),
            None => bail!(ERR_ARG, "{code} is not an error code"),
        }
    }

    /// The text of a class or code, at most [`MAX_ERROR_STRING`] bytes: empty if the user added it without
    /// one.
    ///
    /// # Errors
    /// ERR_ARG if there is no such code.
    pub fn string(&self, code: i32) -> Result<String> {
        if let Some(text) = Class(code).text() {
            return Ok(format!("{}: {text}", Class(code).name()));
        }
        Ok(lock(&self.table).added(code)?.text.clone().unwrap_or_default())
    }

    /// The value of the attribute MPI_LASTUSEDCODE: the highest number given out so far; it never falls.
    pub fn last_used(&self) -> i32 {
        lock(&self.table).last_used
    }
}

impl Table {
    fn add(&mut self, class: Option<i32>) -> Result<i32> {
        let Some(code) = self.last_used.checked_add(1) else {
            bail!(ERR_NO_SPACE, "all error codes are used up");
        };
        self.last_used = code;
        self.added.insert(code, Added { class: class.unwrap_or(code), text: None });
        Ok(code)
    }

    fn added(&mut self, code: i32) -> Result<&mut Added> {
        match self.added.get_mut(&code) {
            Some(row) => Ok(row),
            None if Class(code).text().is_some() => bail!(ERR_ARG, "error code {code} is predefined"),
            None => bail!(ERR_ARG, "{code} is not an error code"),
        }
    }

    fn class_of(&self, code: i32) -> Option<i32> {
        let predefined = Class(code).text().map(|_| code);
        predefined.or_else(|| self.added.get(&code).map(|row| row.class))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: std::fmt::Debug>(result: Result<T>) {
        assert_eq!(result.unwrap_err().class, Class::ERR_ARG);
    }

    #[test]
    fn added_codes_belong_to_their_class() {
        let codes = ErrorCodes::new();
        assert_eq!(codes.last_used(), 16383);
        let class = codes.add_class().unwrap();
        let own = codes.add_code(class).unwrap();
        let of_mpi = codes.add_code(Class::ERR_RANK.0).unwrap();
        assert!(class > 16383 && codes.last_used() == of_mpi);
        assert_eq!(codes.class(class).unwrap(), class);
        assert_eq!(codes.class(own).unwrap(), class);
        assert_eq!(codes.class(of_mpi).unwrap(), Class::ERR_RANK.0);
        assert_eq!(codes.string(own).unwrap(), "");
        codes.add_string(own, "my own").unwrap();
        assert_eq!(codes.string(own).unwrap(), "my own");
        refused(codes.remove_code(own));
        codes.remove_string(own).unwrap();
        refused(codes.remove_string(own));
        assert_eq!(codes.string(own).unwrap(), "");
        refused(codes.add_code(own));
    }

    #[test]
    fn a_class_goes_after_its_codes() {
        let codes = ErrorCodes::new();
        let class = codes.add_class().unwrap();
        let code = codes.add_code(class).unwrap();
        refused(codes.remove_class(class));
        refused(codes.remove_class(code));
        refused(codes.remove_code(class));
        codes.remove_code(code).unwrap();
        codes.remove_class(class).unwrap();
        refused(codes.class(class));
        refused(codes.string(code));
        refused(codes.remove_code(code));
        assert_eq!(codes.last_used(), code);
        assert!(codes.add_class().unwrap() > code);
    }

    #[test]
    fn what_mpi_defines_cannot_be_changed() {
        let codes = error_codes();
        for code in [0, Class::ERR_RANK.0, 1001, 16383, -1, 999_999] {
            refused(codes.add_string(code, "mine"));
            refused(codes.remove_string(code));
            refused(codes.remove_class(code));
            refused(codes.remove_code(code));
        }
        for &(code, name, _) in Class::ALL {
            assert_eq!(codes.class(code).unwrap(), code);
            assert!(codes.string(code).unwrap().starts_with(name));
            assert!(codes.string(code).unwrap().len() <= MAX_ERROR_STRING);
        }
        let class = codes.add_class().unwrap();
        refused(codes.add_string(class, &"x".repeat(512)));
        codes.add_string(class, &"x".repeat(511)).unwrap();
        refused(codes.remove_class(class));
        codes.remove_string(class).unwrap();
        codes.remove_class(class).unwrap();
    }

    #[test]
    fn threads_get_different_numbers() {
        let codes = ErrorCodes::new();
        let mut all: Vec<i32> = std::thread::scope(|scope| {
            let many = || (0..100).map(|_| codes.add_class().unwrap()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(many)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert!(all.iter().copied().eq(16384..16384 + 400));
    }
}
