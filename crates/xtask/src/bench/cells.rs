//! The cells of the bench: one row each.

/// One thing that is measured.
pub(super) struct Cell {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) ranks: usize,
    /// A program of tests/bench, or `true`.
    pub(super) program: &'static str,
    pub(super) args: &'static [&'static str],
    pub(super) measure: Measure,
    /// More than this on our library is a fault even on a slow machine that does much else.
    pub(super) bound: f64,
}

/// Where the figure comes from.
pub(super) enum Measure {
    /// The time from start to end of mpirun, in milliseconds.
    Wall,
    /// The program prints it.
    Printed,
}

const fn wall(name: &'static str, ranks: usize, program: &'static str, bound: f64) -> Cell {
    Cell { name, unit: "ms", ranks, program, args: &[], measure: Measure::Wall, bound }
}

const fn printed(
    name: &'static str,
    unit: &'static str,
    ranks: usize,
    program: &'static str,
    args: &'static [&'static str],
    bound: f64,
) -> Cell {
    Cell { name, unit, ranks, program, args, measure: Measure::Printed, bound }
}

/// The small bench.
pub(super) const LITE: &[Cell] = &[
    printed("memory of a rank, 2 ranks", "MB", 2, "memory", &[], 4.0),
    printed("memory of a rank, 8 ranks", "MB", 8, "memory", &[], 4.0),
    wall("mpirun -n 2 true", 2, "true", 5000.0),
    wall("init and finalize, 2 ranks", 2, "init", 10_000.0),
    wall("init and finalize, 16 ranks", 16, "init", 10_000.0),
    printed("ping-pong 8 B", "us", 2, "pingpong", &["8"], 50_000.0),
    printed("ping-pong 1 MiB", "us", 2, "pingpong", &["1048576"], 50_000.0),
    printed("allreduce 8 B, 2 ranks", "us", 2, "allreduce", &["8"], 50_000.0),
    printed("allreduce 1 MiB, 2 ranks", "us", 2, "allreduce", &["1048576"], 100_000.0),
    printed("allreduce 8 B, 16 ranks", "us", 16, "allreduce", &["8"], 50_000.0),
    printed("allreduce 1 MiB, 16 ranks", "us", 16, "allreduce", &["1048576"], 1_000_000.0),
];
