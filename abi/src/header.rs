//! The text of `mpi.h`, from the tables.

use crate::tables::{Constant, Function, Param, Type, constants, functions, types};
use std::fmt::Write;

/// The C header of the MPI 5.0 ABI, with the Fortran handle conversions as inline functions.
///
/// It is C89 (`-ansi -pedantic`) and C++.
pub fn header() -> String {
    let types = types();
    let constants: Vec<_> = constants().into_iter().filter(|c| c.form != "fortran").collect();
    [
        OPENING.to_string(),
        handle_types(&types),
        STATUS.to_string(),
        constant_section(&constants),
        tool_enums(&constants),
        callbacks(&types),
        prototypes(&functions()),
        fortran_section(&types),
        CLOSING.to_string(),
    ]
    .join("\n")
}

const OPENING: &str = "\
/* mpi.h: the C interface of MPI 5.0 by its standard ABI (ABI version 1.0).
 * Generated from abi/tables; do not edit. Programs compiled with it run on every
 * library with the standard ABI. */
#ifndef MPI_H_ABI
#define MPI_H_ABI

#include <stdint.h>

#if defined(__cplusplus)
extern \"C\" {
#endif

#if defined(__cplusplus) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 199901L)
#define BANYAN_INLINE static inline
#elif defined(__GNUC__)
#define BANYAN_INLINE static __inline__
#else
#define BANYAN_INLINE static
#endif

typedef intptr_t MPI_Aint;
typedef int64_t MPI_Offset;
typedef int64_t MPI_Count;
";

const STATUS: &str = "\
typedef struct MPI_Status {
    int MPI_SOURCE;
    int MPI_TAG;
    int MPI_ERROR;
    int MPI_internal[5];
} MPI_Status;
";

const CLOSING: &str = "\
#if defined(__cplusplus)
}
#endif

#endif /* MPI_H_ABI */
";

fn handle_types(types: &[Type]) -> String {
    let mut out = String::from("/* Handles */\n");
    for t in types.iter().filter(|t| t.kind == "handle" || t.kind == "tool-handle") {
        let tag = t.name.strip_prefix("MPI_").unwrap_or(t.name);
        let _ = writeln!(out, "typedef struct MPI_ABI_{tag} *{};", t.name);
    }
    out
}

fn constant_section(constants: &[Constant]) -> String {
    let mut out = String::from("/* Constants */\n");
    let mut group = "";
    let plain = |c: &&Constant| !c.ctype.starts_with("MPI_T_c") || !c.ctype.ends_with("safety");
    for c in constants.iter().filter(plain).filter(|c| c.ctype != "MPI_T_source_order") {
        if c.group != group {
            group = c.group;
            let _ = writeln!(out, "\n/* {group} */");
        }
        match (c.form, c.ctype) {
            ("enum", _) => writeln!(out, "enum {{ {} = {} }};", c.name, c.value),
            (_, "int") => writeln!(out, "#define {} {}", c.name, integer(c.value)),
            _ => writeln!(out, "#define {} (({}){})", c.name, pointer(c.ctype), cast_value(c)),
        }
        .expect("writing to a string");
    }
    out
}

fn integer(value: i64) -> String {
    if value < 0 { format!("({value})") } else { value.to_string() }
}

fn pointer(ctype: &str) -> String {
    match ctype.find('*') {
        Some(at) => format!("{} {}", &ctype[..at], &ctype[at..]),
        None => ctype.to_string(),
    }
}

fn cast_value(c: &Constant) -> String {
    match c.ctype {
        "MPI_Offset" => c.value.to_string(),
        _ if c.value < 0x1000 && c.value > 9 => format!("0x{:x}", c.value),
        _ => c.value.to_string(),
    }
}

fn tool_enums(constants: &[Constant]) -> String {
    let mut out = String::new();
    for name in ["MPI_T_cb_safety", "MPI_T_source_order"] {
        let members: Vec<_> = constants
            .iter()
            .filter(|c| c.ctype == name)
            .map(|c| format!("    {} = {}", c.name, c.value))
            .collect();
        let _ = writeln!(out, "typedef enum {name} {{\n{}\n}} {name};\n", members.join(",\n"));
    }
    out
}

fn callbacks(types: &[Type]) -> String {
    let mut out = String::from("/* Callbacks */\n");
    for t in types {
        match t.kind {
            "callback" => {
                let (result, params) = t.definition.split_once(" (").expect("a function type");
                let params = params.trim_end_matches(')').split(", ").map(callback_param);
                let params = params.collect::<Vec<_>>().join(", ");
                let _ = writeln!(out, "typedef {result} {}({params});", t.name);
            }
            "callback-alias" => {
                let _ = writeln!(out, "typedef {} {};", t.definition, t.name);
            }
            _ => {}
        }
    }
    out
}

fn callback_param(text: &str) -> String {
    match text.rsplit_once(' ') {
        Some((ctype, name)) => declare(&Param { ctype: leak(ctype), name: leak(name) }),
        None => text.to_string(),
    }
}

fn leak(text: &str) -> &'static str {
    Box::leak(text.to_string().into_boxed_str())
}

fn prototypes(functions: &[Function]) -> String {
    let mut out = String::new();
    for prefix in ["", "P"] {
        let mut group = "";
        for f in functions {
            if f.group != group {
                group = f.group;
                let _ = writeln!(out, "\n/* {prefix}MPI: {group} */");
            }
            let _ = writeln!(out, "{} {prefix}{}({});", f.result, f.name, parameters(f));
        }
    }
    out
}

fn parameters(f: &Function) -> String {
    if f.params.is_empty() {
        return "void".to_string();
    }
    f.params.iter().map(declare).collect::<Vec<_>>().join(", ")
}

/// `const int[] displs` becomes `const int displs[]`, `char*[] argv` becomes `char *argv[]`.
fn declare(p: &Param) -> String {
    if p.ctype == "..." {
        return "...".to_string();
    }
    let (base, array) = p.ctype.split_at(p.ctype.find('[').unwrap_or(p.ctype.len()));
    let stars = base.len() - base.trim_end_matches('*').len();
    format!("{} {}{}{array}", base.trim_end_matches('*'), "*".repeat(stars), p.name)
}

fn fortran_section(types: &[Type]) -> String {
    let mut out = String::from(FORTRAN);
    for t in types.iter().filter(|t| t.kind == "handle") {
        let name = if t.name == "MPI_Datatype" { "MPI_Type" } else { t.name };
        for prefix in ["", "P"] {
            let _ = writeln!(
                out,
                "BANYAN_INLINE MPI_Fint {prefix}{name}_c2f({} handle) {{ return {prefix}{name}_toint(handle); }}\n\
                 BANYAN_INLINE {} {prefix}{name}_f2c(MPI_Fint handle) {{ return {prefix}{name}_fromint(handle); }}",
                t.name, t.name
            );
        }
    }
    for prefix in ["", "P"] {
        out.push_str(&STATUS_CONVERSIONS.replace("@", prefix));
    }
    out.push_str(REMOVED);
    out
}

/// Names that MPI 3.0 removed and that programs still use (HPL, for one).
const REMOVED: &str = "
/* Names that MPI 3.0 removed, for programs that still use them; not part of the ABI. */
#define MPI_Address MPI_Get_address
#define MPI_Type_hindexed MPI_Type_create_hindexed
#define MPI_Type_hvector MPI_Type_create_hvector
#define MPI_Type_struct MPI_Type_create_struct
#define MPI_Errhandler_create MPI_Comm_create_errhandler
#define MPI_Errhandler_get MPI_Comm_get_errhandler
#define MPI_Errhandler_set MPI_Comm_set_errhandler
#define MPI_Handler_function MPI_Comm_errhandler_function
BANYAN_INLINE int MPI_Type_extent(MPI_Datatype datatype, MPI_Aint *extent) {
    MPI_Aint lb;
    return MPI_Type_get_extent(datatype, &lb, extent);
}
BANYAN_INLINE int MPI_Type_lb(MPI_Datatype datatype, MPI_Aint *displacement) {
    MPI_Aint extent;
    return MPI_Type_get_extent(datatype, displacement, &extent);
}
BANYAN_INLINE int MPI_Type_ub(MPI_Datatype datatype, MPI_Aint *displacement) {
    MPI_Aint lb, extent;
    int code = MPI_Type_get_extent(datatype, &lb, &extent);
    *displacement = lb + extent;
    return code;
}
";

const FORTRAN: &str = "\
/* Fortran: not part of the ABI, so inline. A Fortran INTEGER is a C int, and a
 * handle in Fortran is the integer that MPI_X_toint gives. */
typedef int MPI_Fint;
typedef struct MPI_F08_status {
    MPI_Fint MPI_SOURCE;
    MPI_Fint MPI_TAG;
    MPI_Fint MPI_ERROR;
    MPI_Fint MPI_internal[5];
} MPI_F08_status;

#define MPI_F_STATUS_IGNORE ((MPI_Fint *)0)
#define MPI_F_STATUSES_IGNORE ((MPI_Fint *)0)
#define MPI_F08_STATUS_IGNORE ((MPI_F08_status *)0)
#define MPI_F08_STATUSES_IGNORE ((MPI_F08_status *)0)

BANYAN_INLINE int banyan_copy_status(const int *from, int *to) {
    int i;
    if (!from || !to) return MPI_ERR_ARG;
    for (i = 0; i < 8; i++) to[i] = from[i];
    return MPI_SUCCESS;
}

";

const STATUS_CONVERSIONS: &str = "
BANYAN_INLINE int @MPI_Status_c2f(const MPI_Status *c_status, MPI_Fint *f_status) {
    return banyan_copy_status((const int *)c_status, f_status);
}
BANYAN_INLINE int @MPI_Status_f2c(const MPI_Fint *f_status, MPI_Status *c_status) {
    return banyan_copy_status(f_status, (int *)c_status);
}
BANYAN_INLINE int @MPI_Status_c2f08(const MPI_Status *c_status, MPI_F08_status *f08_status) {
    return banyan_copy_status((const int *)c_status, (int *)f08_status);
}
BANYAN_INLINE int @MPI_Status_f082c(const MPI_F08_status *f08_status, MPI_Status *c_status) {
    return banyan_copy_status((const int *)f08_status, (int *)c_status);
}
BANYAN_INLINE int @MPI_Status_f2f08(const MPI_Fint *f_status, MPI_F08_status *f08_status) {
    return banyan_copy_status(f_status, (int *)f08_status);
}
BANYAN_INLINE int @MPI_Status_f082f(const MPI_F08_status *f08_status, MPI_Fint *f_status) {
    return banyan_copy_status((const int *)f08_status, f_status);
}
";
