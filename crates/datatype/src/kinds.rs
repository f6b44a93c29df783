//! Predefined datatypes by property: Fortran kinds, sizes, and pairs (MPI 5.0, 19.1.9 and 6.9.4).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use crate::basic::Basic;
use crate::envelope::{Combiner, Recipe};
use crate::{Datatype, Error};

/// MPI_UNDEFINED: a precision or range that is left open.
const UNDEFINED: i32 = -32766;

/// Precision and range in decimal digits of the real kinds of gfortran and flang on x86-64, with the
/// real and the complex type of each. Kind 10 is the x87's, stored like C's long double.
const REALS: &[(i32, i32, u16, u16)] =
    &[(6, 37, 0x2d2, 0x2db), (15, 307, 0x2da, 0x2e3), (18, 4931, 0x220, 0x224), (33, 4931, 0x2e2, 0x2eb)];

/// Range in decimal digits of the integer kinds, and their types.
const INTEGERS: &[(i32, u16)] = &[(2, 0x2c1), (4, 0x2c9), (9, 0x2d1), (18, 0x2d9), (38, 0x2e1)];

type Key = (i32, i32, i32);
static KINDS: LazyLock<Mutex<HashMap<Key, Arc<Datatype>>>> = LazyLock::new(Mutex::default);

impl Datatype {
    /// The real with at least `p` digits and decimal range `r` (MPI_Type_create_f90_real). One of the two
    /// may be MPI_UNDEFINED. Calls with equal arguments give the same type.
    ///
    /// # Errors
    /// No kind is that precise or wide, or both are left open.
    pub fn f90_real(p: i32, r: i32) -> Result<Arc<Datatype>, Error> {
        kind(Combiner::F90Real, p, r, real_kind(p, r)?.2)
    }

    /// The complex number made of two [`Datatype::f90_real`] (MPI_Type_create_f90_complex).
    ///
    /// # Errors
    /// Those of [`Datatype::f90_real`].
    pub fn f90_complex(p: i32, r: i32) -> Result<Arc<Datatype>, Error> {
        kind(Combiner::F90Complex, p, r, real_kind(p, r)?.3)
    }

    /// The integer that holds all numbers of `r` digits (MPI_Type_create_f90_integer).
    ///
    /// # Errors
    /// No kind is that wide.
    pub fn f90_integer(r: i32) -> Result<Arc<Datatype>, Error> {
        let fitting = INTEGERS.iter().find(|row| r <= row.0);
        let fitting = fitting.ok_or_else(|| Error::Arg(format!("no Fortran integer has {r} digits")))?;
        kind(Combiner::F90Integer, r, UNDEFINED, fitting.1)
    }

    /// The predefined type of a class (MPI_TYPECLASS_*: 192 integer, 193 real, 194 complex, and 191
    /// logical) and a size in bytes (MPI_Type_match_size).
    ///
    /// # Errors
    /// There is no such class, or it has no type of that size.
    pub fn match_size(typeclass: i32, size: i32) -> Result<Arc<Datatype>, Error> {
        // Bits of the handle: 11, the logarithm of the size, and the kind of number.
        let instance = match typeclass {
            191 => 0,
            192 => 1,
            193 => 2,
            194 => 3,
            _ => return Err(Error::Arg(format!("{typeclass} is not a type class"))),
        };
        let found = (0u16..6)
            .find(|log| 1 << log == size)
            .and_then(|log| Datatype::builtin(0x2c0 | log << 3 | instance));
        found.cloned().ok_or_else(|| Error::Arg(format!("no type of this class has {size} bytes")))
    }

    /// The predefined pair of a value and an index (MPI_Type_get_value_index); `None` stands for
    /// MPI_DATATYPE_NULL.
    pub fn value_index(value: &Datatype, index: &Datatype) -> Option<Arc<Datatype>> {
        Datatype::builtin(Basic::pair_of(value.code()?, index.code()?)?).cloned()
    }
}

fn real_kind(p: i32, r: i32) -> Result<(i32, i32, u16, u16), Error> {
    if p == UNDEFINED && r == UNDEFINED {
        return Err(Error::Arg("precision and range are both left open".into()));
    }
    let found = REALS.iter().find(|row| p <= row.0 && r <= row.1);
    found.copied().ok_or_else(|| Error::Arg(format!("no Fortran real has {p} digits and range {r}")))
}

fn kind(combiner: Combiner, p: i32, r: i32, code: u16) -> Result<Arc<Datatype>, Error> {
    let mut kinds = KINDS.lock().unwrap_or_else(|poison| poison.into_inner());
    if let Some(known) = kinds.get(&(combiner as i32, p, r)) {
        return Ok(known.clone());
    }
    let arguments = match combiner {
        Combiner::F90Integer => vec![p.into()],
        _ => vec![p.into(), r.into()],
    };
    let named = Datatype::builtin(code).expect("the kinds' types are in the table");
    let recipe = Recipe::new(combiner, arguments, vec![], vec![]);
    let made = Arc::new(Datatype::new(named.draft(), recipe, named.basic(), true)?);
    kinds.insert((combiner as i32, p, r), made.clone());
    Ok(made)
}
