//! Makes Rust from the tables: constants, signatures, when each function may be called, and the
//! exports of functions that no source file declares yet. Also names the library (SONAME).

#[path = "src/tables.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the library, which uses all of it")]
mod tables;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use tables::{Constant, Function, Param, constants, functions, reasons};

fn main() {
    println!("cargo::rerun-if-changed=tables");
    println!("cargo::rerun-if-changed=src");
    // `cargo xtask install` names it to the linker.
    println!("cargo::rerun-if-changed=hot.ld");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmpi_abi.so.1");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let write = |name: &str, text: String| {
        std::fs::write(Path::new(&out).join(name), text).expect("OUT_DIR is writable");
    };
    let mut declared = BTreeSet::new();
    scan(Path::new("src"), &mut declared);
    write("constants.rs", constant_items());
    write("typed.rs", typed());
    write("when.rs", when_items());
    write("not_built.rs", not_built_items(&declared));
}

/// Adds the functions that the files below `folder` declare: lines that begin with `fn MPI_X`, or `fn MPI_X<N>`
/// for `MPI_X` and `MPI_X_c`; a line may name several.
fn scan(folder: &Path, declared: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("the source folder") {
        let path = entry.expect("a folder entry").path();
        if path.is_dir() {
            scan(&path, declared);
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file");
        for line in text.lines().filter_map(|line| line.trim_start().strip_prefix("fn MPI_")) {
            for function in line.split("fn MPI_") {
                let end = function.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(function.len());
                let name = format!("MPI_{}", &function[..end]);
                if function[end..].starts_with('<') {
                    declared.insert(format!("{name}_c"));
                }
                declared.insert(name);
            }
        }
    }
}

fn constant_items() -> String {
    let mut out = String::new();
    for c in constants().iter().filter(|c| c.form != "fortran") {
        let _ = writeln!(out, "pub const {}: {} = {};", c.name, constant_type(c), constant_value(c));
    }
    out
}

fn constant_type(c: &Constant) -> &'static str {
    match c.ctype {
        "MPI_Offset" => "MPI_Offset",
        other if is_handle(c) => other,
        other if other.contains('*') || c.group.starts_with("handle:T_") => "usize",
        _ => "c_int",
    }
}

fn constant_value(c: &Constant) -> String {
    if is_handle(c) { format!("{}({:#x})", c.ctype, c.value) } else { c.value.to_string() }
}

fn is_handle(c: &Constant) -> bool {
    c.group.starts_with("handle:") && !c.group.starts_with("handle:T_")
}

/// `typed!`, a macro that knows the types of each function's parameters and its result. Those of a function with a twin for
/// large counts are over a type `N` where the twin differs.
fn typed() -> String {
    let functions = functions();
    let mut out = String::from("macro_rules! typed {\n");
    for f in &functions {
        // Twins that have a parameter more are functions of their own.
        let same = |other: &&Function| other.params.len() == f.params.len();
        let named = |name: &str| functions.iter().find(|other| other.name == name).filter(same);
        if f.name.strip_suffix("_c").is_some_and(|small| named(small).is_some()) {
            continue;
        }
        let twin = named(&format!("{}_c", f.name));
        let large = |at: usize| twin.and_then(|twin| rust_type(twin.params[at].ctype));
        let types = f.params.iter().enumerate().filter_map(|(at, param)| {
            let small = rust_type(param.ctype)?;
            let over = large(at).is_some_and(|large| large != small && small.contains("c_int"));
            Some(if over { small.replace("c_int", "$n") } else { small })
        });
        let types = types.collect::<Vec<_>>().join(", ");
        let (name, n) = (f.name, if twin.is_some() { "$n:ident" } else { "" });
        let result = rust_type(f.result).expect("a result type");
        let _ = writeln!(
            out,
            "({name} [{n}] $then:ident! $($before:tt)*) => {{ $then! {{ $($before)* [{types}] ({result}) }} }};"
        );
    }
    out + "}\n"
}

fn rust_type(ctype: &str) -> Option<String> {
    let ctype = ctype.trim_start_matches("const ");
    Some(match ctype {
        "..." => return None,
        "int" | "MPI_T_cb_safety" | "MPI_T_source_order" => "c_int".to_string(),
        "char" => "c_char".to_string(),
        "void" => "c_void".to_string(),
        "double" => "f64".to_string(),
        "int[][3]" => "Ptr<[c_int; 3]>".to_string(),
        _ if is_callback(ctype) => "Callback".to_string(),
        _ => match ctype.strip_suffix("[]").or_else(|| ctype.strip_suffix('*')) {
            Some(inner) => format!("Ptr<{}>", rust_type(inner)?),
            None if ctype.starts_with("MPI_T_") => "usize".to_string(),
            None => ctype.to_string(),
        },
    })
}

fn is_callback(ctype: &str) -> bool {
    ctype.contains("_function") || ctype.ends_with("_fn*")
}

fn when_items() -> String {
    let mut out = String::new();
    for f in functions() {
        let _ = writeln!(out, "pub(crate) const {}: When = When::{:?};", f.name, f.when);
    }
    out
}

fn not_built_items(declared: &BTreeSet<String>) -> String {
    let reasons = reasons();
    let (mut exports, mut list) = (String::new(), String::new());
    for f in functions().iter().filter(|f| !declared.contains(f.name)) {
        let waits_for = reason(&reasons, f);
        let params: Vec<_> = f.params.iter().filter_map(typed_param).collect();
        let (target, params) = (target(f), params.join(", "));
        let _ = writeln!(exports, "fn {}({params}) on {target}, waits for {waits_for:?};", f.name);
        let _ = writeln!(list, "Missing {{ name: {:?}, waits_for: {waits_for:?} }},", f.name);
    }
    format!(
        "/// Every function that is not built yet.\npub const MISSING: &[Missing] = &[\n{list}];\nnot_built! {{\n{exports}}}\n"
    )
}

fn reason(reasons: &[(&'static str, &'static str)], f: &Function) -> &'static str {
    let named = |wanted: &str| reasons.iter().find(|row| row.0 == wanted).map(|row| row.1);
    let small = f.name.strip_suffix("_c").unwrap_or(f.name);
    named(f.name).or_else(|| named(small)).or_else(|| named(f.group)).unwrap_or("a later version")
}

fn typed_param(p: &Param) -> Option<String> {
    Some(format!("{}: {}", p.name, rust_type(p.ctype)?))
}

/// The object whose error handler gets the error.
fn target(f: &Function) -> String {
    let first = |ctype: &str| f.params.iter().find(|p| p.ctype == ctype);
    if f.group == "io" {
        return first("MPI_File").map_or("MPI_FILE_NULL".to_string(), |p| p.name.to_string());
    }
    ["MPI_Win", "MPI_Session", "MPI_Comm"]
        .iter()
        .find_map(|ctype| first(ctype))
        .map_or("SelfComm".to_string(), |p| p.name.to_string())
}
