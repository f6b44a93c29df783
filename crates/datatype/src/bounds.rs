//! Lower and upper bounds of typemaps (MPI 5.0, 5.1.7), in 128 bits so that nothing wraps.
//!
//! Markers of resized types stay in what is built from them and win over data, as the standard's
//! definition has it and Open MPI does; MPICH 4 and later drops them. Extents are padded to the strictest
//! alignment in structs only, as MPICH does; Open MPI pads for all constructors.

use crate::Error;

/// The bounds of a typemap. `None` where it has no entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bounds {
    /// Lower bound and whether it was set by MPI_Type_create_resized (a marker, which wins over data).
    lower: Option<(i128, bool)>,
    upper: Option<(i128, bool)>,
    /// First byte of data, and one past the last.
    data: Option<(i128, i128)>,
}

/// Bounds that fit into MPI_Count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extents {
    pub(crate) lb: i64,
    pub(crate) ub: i64,
    pub(crate) true_lb: i64,
    pub(crate) true_ub: i64,
}

impl Bounds {
    pub(crate) fn of_basic(size: u8, extent: u8) -> Self {
        // A pair's data may end before its extent does.
        let (data, ub) = (i128::from(size), i128::from(extent));
        Self { lower: Some((0, false)), upper: Some((ub, false)), data: Some((0, data)) }
    }

    /// These bounds with data up to `end`, for a pair with a gap between value and index.
    pub(crate) fn with_data_end(mut self, end: i128) -> Self {
        self.data = Some((0, end));
        self
    }

    /// The bounds of `count` copies, `stride` bytes apart.
    pub(crate) fn repeat(self, count: i64, stride: i64) -> Self {
        if count == 0 {
            return Self::default();
        }
        let reach = i128::from(count - 1) * i128::from(stride);
        let (below, above) = (reach.min(0), reach.max(0));
        Self {
            lower: self.lower.map(|(at, marker)| (at + below, marker)),
            upper: self.upper.map(|(at, marker)| (at + above, marker)),
            data: self.data.map(|(from, to)| (from + below, to + above)),
        }
    }

    pub(crate) fn shift(self, by: i64) -> Self {
        let by = i128::from(by);
        Self {
            lower: self.lower.map(|(at, marker)| (at + by, marker)),
            upper: self.upper.map(|(at, marker)| (at + by, marker)),
            data: self.data.map(|(from, to)| (from + by, to + by)),
        }
    }

    /// The bounds of both typemaps together: markers win over data, else the outermost counts.
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            lower: outermost(self.lower, other.lower, i128::min),
            upper: outermost(self.upper, other.upper, i128::max),
            data: match (self.data, other.data) {
                (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
                (a, b) => a.or(b),
            },
        }
    }

    /// Rounds the extent up to a multiple of `align`, as C pads a struct, unless a marker set the end.
    pub(crate) fn pad(mut self, align: u32) -> Self {
        if let (Some((lb, _)), Some((ub, false))) = (self.lower, self.upper) {
            let over = (ub - lb).rem_euclid(i128::from(align.max(1)));
            let padding = if over == 0 { 0 } else { i128::from(align) - over };
            self.upper = Some((ub + padding, false));
        }
        self
    }

    /// The bounds of this data between markers.
    pub(crate) fn resize(mut self, lb: i64, extent: i64) -> Self {
        self.lower = Some((i128::from(lb), true));
        self.upper = Some((i128::from(lb) + i128::from(extent), true));
        self
    }

    pub(crate) fn fit(&self) -> Result<Extents, Error> {
        let (lb, ub) = (self.lower.map_or(0, |l| l.0), self.upper.map_or(0, |u| u.0));
        let (from, to) = self.data.unwrap_or((0, 0));
        let fits =
            |value: i128| i64::try_from(value).map_err(|_| Error::Overflow("the extent of the datatype"));
        fits(ub - lb)?;
        fits(to - from)?;
        Ok(Extents { lb: fits(lb)?, ub: fits(ub)?, true_lb: fits(from)?, true_ub: fits(to)? })
    }
}

fn outermost(
    a: Option<(i128, bool)>,
    b: Option<(i128, bool)>,
    pick: fn(i128, i128) -> i128,
) -> Option<(i128, bool)> {
    match (a, b) {
        (Some(a), Some(b)) if a.1 == b.1 => Some((pick(a.0, b.0), a.1)),
        (Some(a), Some(b)) => Some(if a.1 { a } else { b }),
        (a, b) => a.or(b),
    }
}
