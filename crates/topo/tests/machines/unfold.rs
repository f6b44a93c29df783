//! The short form of descriptions of machines and hosts.

use banyan_topo::CpuSet;

/// A line for each number of the lists in brackets.
pub(crate) fn unfolded(line: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for part in line.split_inclusive(['[', ']']) {
        match part.strip_suffix(']') {
            Some(list) => {
                let numbers: CpuSet = list.parse().unwrap();
                lines.resize(numbers.len(), lines[0].clone());
                lines.iter_mut().zip(numbers.iter()).for_each(|(line, number)| *line += &number.to_string());
            }
            None => lines.iter_mut().for_each(|line| *line += part.trim_end_matches('[')),
        }
    }
    lines
}
