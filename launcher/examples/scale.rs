//! Prints what jobs of many ranks take in virtual time, a row for each: `cargo xtask docs` makes a table and charts of it. With
//! arguments, one job: number of ranks, ranks on each host, most agents that one starts.

use banyan_launcher::scale::{Costs, Figures, Shape, simulate};

/// Numbers of ranks, ranks on each host, and most agents that one starts.
const JOBS: [[u32; 3]; 10] = [
    [10, 1, 32],
    [100, 1, 32],
    [1_000, 1, 32],
    [10_000, 1, 32],
    [10_000, 1, 8],
    [10_000, 1, 128],
    [100, 64, 32],
    [1_000, 64, 32],
    [10_000, 64, 32],
    [100_000, 64, 32],
];

fn main() {
    let given: Vec<u32> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    match given[..] {
        [ranks, per_host, radix] => row([ranks, per_host, radix]),
        _ => JOBS.into_iter().for_each(row),
    }
}

fn row([ranks, per_host, radix]: [u32; 3]) {
    let shape = Shape { ranks, per_host, in_turn: false, radix };
    let Figures {
        hosts, agents, init, allreduce, end, first, busiest, rank_bytes, connections, tables, ..
    } = simulate(shape, Costs::default());
    let mut cells = vec![ranks.to_string(), per_host.to_string(), hosts.to_string(), radix.to_string()];
    for reached in [agents, init, allreduce, end] {
        cells.extend([format!("{:.3}", reached.time.as_secs_f64()), reached.depth.to_string()]);
    }
    for [into, out] in [first, busiest] {
        cells.push((into.frames + out.frames).to_string());
        cells.push((into.bytes + out.bytes).to_string());
    }
    cells.extend(
        [rank_bytes, connections[1], tables[0] as u64, tables[1] as u64].map(|number| number.to_string()),
    );
    println!("{}", cells.join("\t"));
}
