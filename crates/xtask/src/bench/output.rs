//! What a bench program prints, or HPCC reports, read.

use anyhow::{Context, Result};

use crate::hpcc::Report;

/// The cells of one start.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Output {
    /// Name, value and unit.
    pub(crate) cells: Vec<(String, f64, String)>,
    /// Cells that went wrong, each with its reason.
    pub(crate) wrong: Vec<(String, String)>,
    /// The cell that took too long, with which the program ended itself.
    pub(crate) slow: Option<String>,
}

impl Output {
    /// Reads the lines `CELL name value unit`, `FAIL name reason` and `SLOW name`; others are not ours.
    pub(crate) fn read(text: &str) -> Output {
        let mut output = Output::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["CELL", name, value, unit] => match value.parse::<f64>() {
                    Ok(value) if value.is_finite() => {
                        output.cells.push((name.to_owned(), value, unit.to_owned()));
                    }
                    _ => output.wrong.push((name.to_owned(), format!("the figure is {value}"))),
                },
                ["FAIL", name, ..] => output.wrong.push((name.to_owned(), words[2..].join(" "))),
                ["SLOW", name] => output.slow = Some(name.to_owned()),
                _ => {}
            }
        }
        output
    }

    /// The figures of HPCC that are about MPI, and HPL's; none unless all of its checks passed.
    pub(super) fn reported(report: &Report) -> Result<Output> {
        report.success()?;
        report.residuals()?;
        let mut output = Output::default();
        for (name, unit) in HPCC {
            let figure = report.figure(name).with_context(|| format!("no {name}"))?;
            output.cells.push(((*name).to_owned(), figure, (*unit).to_owned()));
        }
        Ok(output)
    }
}

/// Figures of HPCC by its own names, with their units.
const HPCC: &[(&str, &str)] = &[
    ("PTRANS_GBs", "GB/s"),
    ("MPIRandomAccess_GUPs", "GUP/s"),
    ("MPIRandomAccess_LCG_GUPs", "GUP/s"),
    ("MPIFFT_Gflops", "Gflop/s"),
    ("MaxPingPongLatency_usec", "us"),
    ("NaturallyOrderedRingLatency_usec", "us"),
    ("RandomlyOrderedRingLatency_usec", "us"),
    ("AvgPingPongBandwidth_GBytes", "GB/s"),
    ("NaturallyOrderedRingBandwidth_GBytes", "GB/s"),
    ("RandomlyOrderedRingBandwidth_GBytes", "GB/s"),
    ("HPL_Tflops", "Tflop/s"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_failures_and_noise() {
        let output = Output::read(
            "a warning\nCELL bcast/8 1.5e1 us\nCELL x nan us\nFAIL scan/8 wrong data\nCELL cut\nSLOW bcast/64\n",
        );
        assert_eq!(output.cells, [("bcast/8".to_owned(), 15.0, "us".to_owned())]);
        assert_eq!(output.wrong[0].0, "x");
        assert_eq!(output.wrong[1], ("scan/8".to_owned(), "wrong data".to_owned()));
        assert_eq!(output.slow.as_deref(), Some("bcast/64"));
    }
}
