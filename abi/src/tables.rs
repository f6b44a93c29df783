//! The tables of `abi/tables` as values: what the build script, the header and the tests are made from.

/// One function of the ABI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// `MPI_Send`.
    pub name: &'static str,
    /// The family: `p2p-blocking`, `rma`, ...
    pub group: &'static str,
    /// C type of the result.
    pub result: &'static str,
    /// The parameters; empty for `void`.
    pub params: Vec<Param>,
    /// When it may be called: see [`When`].
    pub when: When,
}

/// One parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// C type, arrays as in `const int[]`; `...` for variadic arguments.
    pub ctype: &'static str,
    /// Name in the MPI standard; empty for `...`.
    pub name: &'static str,
}

/// When a function may be called (column `pre_init`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At any time, also before MPI_Init and after MPI_Finalize.
    Always,
    /// Between initialization and finalization only.
    Running,
    /// While the tool interface is initialized.
    Tool,
    /// It starts MPI, or the tool interface.
    Starts,
}

/// One constant of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// `MPI_COMM_WORLD`.
    pub name: &'static str,
    /// C type (`int`, `MPI_Comm`, `void*`, ...).
    pub ctype: &'static str,
    /// The value, for pointers and handles the integer that is cast.
    pub value: i64,
    /// What belongs together: `handle:Comm`, `error-class`, ...
    pub group: &'static str,
    /// `macro`, `enum` or `fortran` (not in the C header).
    pub form: &'static str,
}

/// One type of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    /// `MPI_Comm`, `MPI_User_function`, ...
    pub name: &'static str,
    /// `handle`, `tool-handle`, `integer`, `callback`, ...
    pub kind: &'static str,
    /// Its definition in C, or words.
    pub definition: &'static str,
}

/// All functions of the ABI, in the order of the table.
pub fn functions() -> Vec<Function> {
    rows(include_str!("../tables/functions.tsv")).map(function).collect()
}

/// All constants, the Fortran-only ones with a number included.
pub fn constants() -> Vec<Constant> {
    rows(include_str!("../tables/constants.tsv"))
        .filter_map(|row| {
            let value = row[2].parse().ok()?;
            Some(Constant { name: row[0], ctype: row[1], value, group: row[4], form: row[5] })
        })
        .collect()
}

/// All types.
pub fn types() -> Vec<Type> {
    rows(include_str!("../tables/types.tsv"))
        .map(|row| Type { name: row[0], kind: row[1], definition: row[2] })
        .collect()
}

/// What a function or a family (a row each of `not-built.tsv`) waits for.
pub fn reasons() -> Vec<(&'static str, &'static str)> {
    rows(include_str!("../tables/not-built.tsv")).map(|row| (row[0], row[1])).collect()
}

fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    text.lines().skip(1).filter(|line| !line.is_empty()).map(|line| line.split('\t').collect())
}

fn function(row: Vec<&'static str>) -> Function {
    let when = match row[8] {
        "std" | "std*" | "lax" => When::Always,
        "starts" => When::Starts,
        "tool" => When::Tool,
        _ => When::Running,
    };
    let params = match row[3] {
        "void" => Vec::new(),
        list => list.split("; ").map(param).collect(),
    };
    Function { name: row[0], group: row[1], result: row[2], params, when }
}

fn param(text: &'static str) -> Param {
    match text.rsplit_once(' ') {
        Some((ctype, name)) => Param { ctype, name },
        None => Param { ctype: text, name: "" },
    }
}
